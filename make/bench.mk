# Benchmarks: each prints a table and writes target/bench/NAME.json. Results worth keeping are
# committed under benchmarks/results, named by machine and commit.
.PHONY: bench-capture bench-capture-sweep bench-hash bench-transport

BENCH := $(CARGO) run -q --release --locked -p backstay-bench --bin

bench-capture: ## What a checkpoint costs beside memcpy and plain writes (5 min)
	$(BENCH) bench-capture -- $(BENCH_ARGS)

bench-capture-sweep: ## Block sizes, threads, disk, small variables, cost model (10 min)
	$(BENCH) bench-capture-sweep -- $(BENCH_ARGS)

bench-hash: ## Collisions and speed of hashes: why XXH3 (3 min)
	$(BENCH) bench-hash -- $(BENCH_ARGS)

bench-transport: ## Pulls beside plain socket copies, and ways to send a file (1 min)
	$(BENCH) bench-transport -- $(BENCH_ARGS)
