# Python: the package built and installed, its tests under both MPIs, its types, example, notebook and wheel.

PYTHON_VENV := target/python-venv
PYTHON_ARGUMENTS ?=
PYTHON_PIP := $(PYTHON_VENV)/bin/pip --quiet --disable-pip-version-check

TESTS += test-python

.PHONY: test-python python-package wheel
test-python: setup python-package ## Python: sessions, memory, reading, kill -9 under MPI, types, wheel, guide
	@$(PYTHON_VENV)/bin/python -m mypy --config-file bindings/python/pyproject.toml --exclude 'backstay/torch/'
	@$(PYTHON_VENV)/bin/python -m mypy.stubtest --mypy-config-file bindings/python/pyproject.toml backstay._native
	@cd bindings/python && COMMAND_LINE=$(abspath $(BACKSTAY_RELEASE)/backstay) \
	    ../../$(PYTHON_VENV)/bin/python -m pytest -q -p no:cacheprovider --ignore=tests/torch \
	    $(PYTHON_ARGUMENTS)

# As the guide installs it; pip has cargo build beside the rest.
python-package: $(PYTHON_VENV)/ready wheel
	$(CARGO) build --release --locked --package backstay-cli
	@$(PYTHON_PIP) install --force-reinstall --no-deps ./bindings/python

$(PYTHON_VENV)/ready: bindings/python/tests/requirements.txt | setup
	@echo "test-python: packages into $(PYTHON_VENV)"
	@python3 -m venv $(PYTHON_VENV)
	@$(PYTHON_PIP) install -r $<
	@touch $@

wheel: $(PYTHON_VENV)/ready ## A wheel for Python 3.11 and later, in target/wheels; links neither MPI nor numpy
	@rm -f target/wheels/backstay-*.whl
	@PATH="$(abspath $(PYTHON_VENV))/bin:$$PATH" $(PYTHON_VENV)/bin/maturin build --release --locked --quiet \
	    --manifest-path bindings/python/Cargo.toml --out target/wheels
	@ls target/wheels/backstay-*.whl
