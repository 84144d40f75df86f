# Scripts that sites start: Slurm's prolog, task prolog and epilog, with the command and an application, and
# with a program in place of the command.
.PHONY: test-deploy
test-deploy: ## Slurm prolog and epilog: agent and application meet, and what is left afterwards
	$(CARGO) build --release --package backstay-cli --package backstay-example
	@tests/deploy/run.sh $(BACKSTAY_RELEASE)/backstay $(BACKSTAY_RELEASE)/counting

TESTS += test-deploy
