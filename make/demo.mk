# make demo: heat2d is killed at instants nobody chose and finishes with the same bytes; two minutes from nothing.
# The library is built for this alone: quickly, without archives, which the demo has none of. What is installed meanwhile is
# not compiled: of numpy and matplotlib the demo imports a small part.

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

DEMO_LIBRARY := $(or $(CARGO_TARGET_DIR),target)/demo-build/libbackstay.a

demo: ## heat2d, killed with -9 and restarted, ends with the same bytes
	@mkdir -p $(DEMO)
	@$(MAKE) --no-print-directory -j3 demo-library setup-demo $(DEMO_VENV)/ready
	mpicc$(DEMO_SUFFIX) -std=c99 -O3 -Wall -Wextra -Werror -pedantic -o $(DEMO)/heat2d \
	    examples/heat2d/heat2d.c -Ibindings/c/include $(DEMO_LIBRARY) $(BACKSTAY_STATIC_LIBS)
	mpicc$(DEMO_SUFFIX) -std=c99 -O2 -Wall -Wextra -Werror -pedantic -o $(DEMO)/baseline \
	    examples/demo/baseline.c
	@rm -f $(DEMO)/*.jsonl $(DEMO)/*.npy
	@$(DEMO_VENV)/bin/python examples/demo/demo.py --mpirun mpirun$(DEMO_SUFFIX) $(DEMO_ARGUMENTS)

.PHONY: demo-library
demo-library:
	$(CARGO) rustc --profile demo-build --locked --package backstay-c --no-default-features --crate-type staticlib

$(DEMO_VENV)/ready: examples/demo/requirements.txt | setup-demo
	@echo "demo: numpy and matplotlib into $(DEMO_VENV)"
	@python3 -m venv $(DEMO_VENV)
	@$(DEMO_VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile -r $<
	@touch $@
