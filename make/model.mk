# The planner: its figures and its speed.
.PHONY: figures bench-model

figures: ## Generate docs/model.md and docs/figures from the model
	$(CARGO) run -q --release --locked -p backstay-cli -- model figures --out docs

bench-model: ## Measure the planner; writes target/bench/model.json
	@mkdir -p target/bench
	$(CARGO) run -q --release --locked -p backstay-cli -- model bench \
	  --commit "$$(git rev-parse --short HEAD)" --out target/bench/model.json
