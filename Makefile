# Backstay: `make demo` runs the main job on real input, `make test` passes all tests; both install
# what they need. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Without make's flags: cargo has its own jobs, and would warn that it is given none of make's.
CARGO ?= env -u MAKEFLAGS -u MFLAGS cargo
# `make test` has each line of a recipe timed: make/timed.sh.
ifdef TEST_TIMES
.SHELLFLAGS = make/timed.sh $@ -c
endif
# RECORDS=FOLDER: long runs write there what they did and survived.
RECORDS ?=
record = $(if $(RECORDS),--record $(RECORDS)/$(1).json)

# The quick checks first: what they find would otherwise be said after half an hour of slow ones.
-include make/test.mk $(filter-out make/test.mk,$(wildcard make/*.mk))

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile $(wildcard make/*.mk) | sort | \
	  sed -E 's/^([a-z0-9-]+):.*## (.*)/  \1\t\2/' | expand -t 28
