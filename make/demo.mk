# make demo: heat2d is killed at instants nobody chose and finishes with the same bytes; about a minute.

DEMO := target/demo
DEMO_MPI ?= openmpi
DEMO_VENV := target/demo-venv
DEMO_ARGUMENTS ?=

.PHONY: demo test-demo
test-demo: ## The demo kills as often as it was asked to, or fails
	@python3 examples/demo/selftest.py

test: test-demo

demo: setup $(DEMO_VENV)/ready ## heat2d, killed with -9 and restarted, ends with the same bytes
	@$(MAKE) --no-print-directory install PREFIX="$(CURDIR)/$(DEMO)/prefix" DESTDIR=
	mpicc.$(DEMO_MPI) -std=c99 -O3 -Wall -Wextra -Werror -pedantic -o $(DEMO)/heat2d \
	    examples/heat2d/heat2d.c -I$(DEMO)/prefix/include -L$(DEMO)/prefix/$(LIBDIR) \
	    -Wl,-rpath,'$$ORIGIN/prefix/$(LIBDIR)' -lbackstay -lm
	mpicc.$(DEMO_MPI) -std=c99 -O2 -Wall -Wextra -Werror -pedantic -o $(DEMO)/baseline \
	    examples/demo/baseline.c
	@rm -f $(DEMO)/*.jsonl $(DEMO)/*.npy
	@$(DEMO_VENV)/bin/python examples/demo/demo.py --mpirun mpirun.$(DEMO_MPI) $(DEMO_ARGUMENTS)

$(DEMO_VENV)/ready: examples/demo/requirements.txt | setup
	@echo "demo: numpy and matplotlib into $(DEMO_VENV)"
	@python3 -m venv $(DEMO_VENV)
	@$(DEMO_VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@
