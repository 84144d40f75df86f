# Tests: one target each, all of them in `test`.
.PHONY: test test-rust lint

lint: ## Formatting, clippy, layering
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) run -q --locked -p xtask -- tidy

test-rust: ## Unit, property, crash and simulation tests
	$(CARGO) test --workspace --locked

test: setup lint test-rust ## All tests; installs what they need
