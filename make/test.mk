# Tests: one target each, which adds itself to TESTS; `test` runs all of them, TEST_JOBS at a time, since many wait for
# time to pass: each has its own stores, and clusters do not see each other. MORE_TESTS: what CI runs beside them.
.PHONY: test test-rust lint soak-simulation

TESTS := test-rust
TEST_JOBS ?= 2
MORE_TESTS ?=
SEEDS ?= 10000
SEEDS_FROM ?= 1

lint: ## Formatting, clippy, tidiness
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --package backstay --package backstay-c --no-default-features --locked -- -D warnings
	$(CARGO) run -q --locked -p xtask -- tidy

test-rust: ## Unit, property, crash and simulation tests
	$(CARGO) test --workspace --locked
	$(CARGO) test --package backstay --no-default-features --features libfabric --locked --test without_archive
	@! $(CARGO) tree --locked --package backstay-c --no-default-features --edges normal | \
	    grep -E 'zstd|pco|lz4_flex|backstay-(codec|archive)' || \
	    { echo "without archives nothing of their compression is linked" >&2; exit 1; }

# What most tests need is built beside the lints. MORE_TESTS come first: what takes longest must not begin last.
test: setup ## All tests; installs what they need, and says at its end what took how long
	@mkdir -p target; export TEST_TIMES="$$PWD/target/test-times"; rm -f "$$TEST_TIMES"; \
	$(MAKE) --no-print-directory -j2 lint library program preload && \
	    $(MAKE) --no-print-directory -j$(TEST_JOBS) --output-sync=target $(MORE_TESTS) $(TESTS); \
	status=$$?; make/timed.sh; exit $$status

soak-simulation: ## SEEDS simulated jobs from SEEDS_FROM on, every restored word checked; some hours for 10,000
	@BACKSTAY_SIM_SEEDS=$(SEEDS) BACKSTAY_SIM_FROM=$(SEEDS_FROM) \
	    python3 tests/multiprocess/record.py --run soak-simulation $(call record,simulation) \
	    $(CARGO) test -p backstay --locked --test simulation -- --nocapture
