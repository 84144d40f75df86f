# Scripts that sites start: Slurm's prolog and epilog, with a program in place of the agent.
.PHONY: test-deploy
test-deploy: ## Slurm prolog and epilog, with a fake agent
	@tests/deploy/run.sh

test: test-deploy
