# Fuzzing of every parsed structure: `make fuzz`, `make fuzz FUZZ_SECONDS=600 FUZZ_JOBS=4`. Needs cargo-fuzz.

FUZZ_SECONDS ?= 60
FUZZ_JOBS ?= 2

.PHONY: fuzz fuzz-check
fuzz: ## Run every fuzz target for FUZZ_SECONDS, FUZZ_JOBS at a time
	@python3 fuzz/run.py --seconds $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS) $(call record,fuzz)

fuzz-check: ## Check that the fuzz targets build, without instrumentation
	cargo check --manifest-path fuzz/Cargo.toml --all-targets
