# Benchmarks: each prints a table and writes target/bench/NAME.json. Results worth keeping are
# committed under benchmarks/results, named by machine and commit.
.PHONY: bench-archive bench-capture bench-capture-sweep bench-code bench-codecs bench-efficiency bench-hash
.PHONY: bench-staging efficiency-figure staging-figure bench-redundancy bench-scale scale scale-figure bench-transport compression-figures

BENCH := $(CARGO) run -q --release --locked -p backstay-bench --bin

bench-archive: ## Rate of draining beside plain writes, and what it takes from the application (5 min)
	$(BENCH) bench-archive -- $(BENCH_ARGS)

bench-capture: ## What a checkpoint costs beside memcpy and plain writes (5 min)
	$(BENCH) bench-capture -- $(BENCH_ARGS)

bench-capture-sweep: ## Block sizes, threads, disk, small variables, cost model (10 min)
	$(BENCH) bench-capture-sweep -- $(BENCH_ARGS)

bench-code: ## Speed of parity and of rebuilding beside memcpy and ISA-L (2 min)
	$(BENCH) bench-code -- $(BENCH_ARGS)

bench-codecs: target/rivals/.installed ## Ratios and speed of compression beside other compressors, and of files (30 min)
	$(BENCH) bench-codecs -- --python target/rivals/bin/python $(BENCH_ARGS)
	$(CARGO) build -q --release --locked -p backstay-cli
	target/rivals/bin/python benchmarks/python/codecs_files.py

target/rivals/.installed: benchmarks/rivals/requirements.txt
	python3 -m venv target/rivals
	target/rivals/bin/pip install -q -r $<
	touch $@

# The report that docs/compression.md is made of.
COMPRESSION_REPORT ?= target/bench/codecs-report.json

compression-figures: ## docs/compression.md and its pictures from a report of bench-codecs
	$(BENCH) draw-compression -- $(COMPRESSION_REPORT) docs

bench-hash: ## Collisions and speed of hashes: why XXH3 (3 min)
	$(BENCH) bench-hash -- $(BENCH_ARGS)

bench-redundancy: ## Time to protect checkpoints across four nodes, beside plain writes and sends (6 min)
	$(BENCH) bench-redundancy -- $(BENCH_ARGS)

bench-scale: ## What the busiest node does in jobs of 16, 64 and 256 nodes, counted (BENCH_ARGS: other numbers)
	BACKSTAY_LOG=warn $(BENCH) bench-scale -- $(BENCH_ARGS)

scale: ## The same up to 1,024 nodes, with docs/figures/scale.svg and what follows for 10,240 (2 min, 6 GiB)
	BACKSTAY_LOG=warn $(BENCH) bench-scale -- --picture docs/figures 16 64 256 512 1024

# The report that docs/scale.md is made of.
SCALE_REPORT ?= benchmarks/results/scale-xeon-2core-8457922.json

scale-figure: ## docs/figures/scale.svg and .png from a report of bench-scale
	$(BENCH) bench-scale -- --picture docs/figures --from $(SCALE_REPORT)

bench-staging: ## What one staging server takes to the archive, by writer threads and by nodes (5 min)
	BACKSTAY_LOG=warn $(BENCH) bench-staging -- $(BENCH_ARGS)

# The report that the picture in docs/guide/draining.md is made of.
STAGING_REPORT ?= benchmarks/results/staging-xeon-2core-beb927d.json

staging-figure: ## docs/figures/staging.svg and .png from a report of bench-staging
	$(BENCH) bench-staging -- --from $(STAGING_REPORT) --picture docs/figures

bench-transport: ## Pulls beside plain socket copies, and ways to send a file (1 min)
	$(BENCH) bench-transport -- $(BENCH_ARGS)

# Redundancy, an archive and a supervisor over nodes of namespaces, which fail: BENCH_ARGS="--failures 20" is a short one.
EFFICIENCY_MPI ?= openmpi

bench-efficiency: cluster-programs ## Useful time of a job that fails, beside what `backstay plan` says: needs root (2.5 h)
	mpicc.$(EFFICIENCY_MPI) -std=c99 -O3 -Wall -Wextra -Werror -pedantic -o $(CLUSTER)/heat2d.$(EFFICIENCY_MPI) \
	    examples/heat2d/heat2d.c -Ibindings/c/include $(CLUSTER)/libbackstay.so.$(BACKSTAY_ABI) -Wl,-rpath,'$$ORIGIN' -lm
	@python3 benchmarks/efficiency/run.py --programs $(CLUSTER) --mpi $(EFFICIENCY_MPI) $(BENCH_ARGS)

# The report that the picture in docs/model.md is made of.
EFFICIENCY_REPORT ?= benchmarks/results/efficiency-xeon-2core-a16a271.json

efficiency-figure: ## docs/figures/efficiency.svg and .png from a report of bench-efficiency
	$(BENCH) draw-efficiency -- $(EFFICIENCY_REPORT) docs/figures
