# Benchmarks: each prints a table and writes target/bench/NAME.json. Results worth keeping are
# committed under benchmarks/results, named by machine and commit.
.PHONY: bench-archive bench-capture bench-capture-sweep bench-code bench-hash bench-redundancy bench-transport

BENCH := $(CARGO) run -q --release --locked -p backstay-bench --bin

bench-archive: ## Rate of draining beside plain writes, and what it takes from the application (5 min)
	$(BENCH) bench-archive -- $(BENCH_ARGS)

bench-capture: ## What a checkpoint costs beside memcpy and plain writes (5 min)
	$(BENCH) bench-capture -- $(BENCH_ARGS)

bench-capture-sweep: ## Block sizes, threads, disk, small variables, cost model (10 min)
	$(BENCH) bench-capture-sweep -- $(BENCH_ARGS)

bench-code: ## Speed of parity and of rebuilding beside memcpy and ISA-L (2 min)
	$(BENCH) bench-code -- $(BENCH_ARGS)

bench-hash: ## Collisions and speed of hashes: why XXH3 (3 min)
	$(BENCH) bench-hash -- $(BENCH_ARGS)

bench-redundancy: ## Time to protect checkpoints across four nodes, beside plain writes and sends (6 min)
	$(BENCH) bench-redundancy -- $(BENCH_ARGS)

bench-transport: ## Pulls beside plain socket copies, and ways to send a file (1 min)
	$(BENCH) bench-transport -- $(BENCH_ARGS)
