# make demo: heat2d is killed at instants nobody chose and finishes with the same bytes; about a minute.

DEMO := target/demo
# Which MPI, by its Debian name; by default the one whose mpicc comes first on the path.
DEMO_MPI ?=
DEMO_SUFFIX = $(if $(DEMO_MPI),.$(DEMO_MPI))
DEMO_VENV := target/demo-venv
DEMO_ARGUMENTS ?=

.PHONY: demo setup-demo test-demo
test-demo: ## The demo kills as often as it was asked to, or fails
	@python3 examples/demo/selftest.py

TESTS += test-demo

# Nothing is installed where there is an MPI, whichever, and Python can make virtual environments.
setup-demo:
	@command -v mpicc$(DEMO_SUFFIX) mpirun$(DEMO_SUFFIX) >/dev/null || make/packages.sh openmpi-bin libopenmpi-dev
	@python3 -c 'import ensurepip, venv' 2>/dev/null || make/packages.sh python3-venv

demo: setup-demo $(DEMO_VENV)/ready ## heat2d, killed with -9 and restarted, ends with the same bytes
	@$(MAKE) --no-print-directory install PREFIX="$(CURDIR)/$(DEMO)/prefix" DESTDIR=
	mpicc$(DEMO_SUFFIX) -std=c99 -O3 -Wall -Wextra -Werror -pedantic -o $(DEMO)/heat2d \
	    examples/heat2d/heat2d.c -I$(DEMO)/prefix/include -L$(DEMO)/prefix/$(LIBDIR) \
	    -Wl,-rpath,'$$ORIGIN/prefix/$(LIBDIR)' -lbackstay -lm
	mpicc$(DEMO_SUFFIX) -std=c99 -O2 -Wall -Wextra -Werror -pedantic -o $(DEMO)/baseline \
	    examples/demo/baseline.c
	@rm -f $(DEMO)/*.jsonl $(DEMO)/*.npy
	@$(DEMO_VENV)/bin/python examples/demo/demo.py --mpirun mpirun$(DEMO_SUFFIX) $(DEMO_ARGUMENTS)

$(DEMO_VENV)/ready: examples/demo/requirements.txt | setup-demo
	@echo "demo: numpy and matplotlib into $(DEMO_VENV)"
	@python3 -m venv $(DEMO_VENV)
	@$(DEMO_VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@
