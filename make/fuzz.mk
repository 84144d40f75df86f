# Fuzzing of every parsed structure: `make fuzz`, `make fuzz FUZZ_SECONDS=600`.
# The targets are instrumented, which stable Rust allows only with RUSTC_BOOTSTRAP=1.

FUZZ_SECONDS ?= 60
FUZZ_TARGETS = $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
FUZZ_SEEDS = crates/format/fixtures/v1

.PHONY: fuzz fuzz-check
fuzz: ## Run every fuzz target for FUZZ_SECONDS
	@command -v cargo-fuzz >/dev/null || { \
	  echo "make fuzz needs cargo-fuzz: cargo install cargo-fuzz --locked"; exit 1; }
	@for target in $(FUZZ_TARGETS); do \
	  corpus=fuzz/corpus/$$target; log=fuzz/artifacts/$$target.log; \
	  mkdir -p $$corpus fuzz/artifacts; \
	  for seed in $(FUZZ_SEEDS)/$${target%%_*}_*.bin $(FUZZ_SEEDS)/$$target.bin; do \
	    if [ -f $$seed ]; then cp $$seed $$corpus/; fi; \
	  done; \
	  if RUSTC_BOOTSTRAP=1 cargo fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) \
	    -rss_limit_mb=512 -malloc_limit_mb=128 -print_final_stats=1 >$$log 2>&1; then \
	    printf '%-16s %s inputs, no failure\n' $$target \
	      "$$(sed -n 's/^stat::number_of_executed_units: *//p' $$log)"; \
	  else \
	    tail -40 $$log; \
	    echo "fuzz $$target failed: $$log. Running it takes a rustc that honours RUSTC_BOOTSTRAP=1,"; \
	    echo "a C++ compiler and a platform with AddressSanitizer."; exit 1; \
	  fi; \
	done

fuzz-check: ## Check that the fuzz targets build, without instrumentation
	cargo check --manifest-path fuzz/Cargo.toml --all-targets
