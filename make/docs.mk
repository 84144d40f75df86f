# The code blocks of README.md and docs/guide, run from an installation as a reader would, and the messages that
# docs/guide/troubleshooting.md lists: tests/docs.

DOCS_ARGUMENTS ?=

.PHONY: test-docs
test-docs: setup library program preload ## Every code block of README and guides is run, or says why not
	@python3 tests/docs/selftest.py
	@python3 tests/docs/messages.py
	@python3 tests/docs/run.py $(DOCS_ARGUMENTS)

TESTS += test-docs
