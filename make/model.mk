# The planner: its figures and its speed.
.PHONY: figures bench-model

figures: ## Generate docs/model.md and docs/figures from the model
	$(BENCH) draw-model -- docs benchmarks/results/model-costs.json

bench-model: ## Measure the planner; writes target/bench/model.json
	$(BENCH) bench-model
