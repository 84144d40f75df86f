# PyTorch: its tests in a virtual environment of its own, as torch is several GB. Not part of `make test`; CI runs it.

TORCH_VENV := target/torch-venv
TORCH_ARGUMENTS ?=
# Of the two there may be the one that `wheel` made: pip leaves the other there when it installs the package.
TORCH_WHEEL := target/wheels/backstay-*-manylinux*.whl
TORCH_PIP := $(TORCH_VENV)/bin/pip --quiet --disable-pip-version-check

.PHONY: test-torch
test-torch: $(TORCH_VENV)/ready wheel ## PyTorch: Checkpointer, torch.distributed.checkpoint, Lightning and others; several GB
	@$(TORCH_PIP) install --force-reinstall --no-deps $(TORCH_WHEEL)
	@$(CARGO) build --release --locked --package backstay-cli
	@$(TORCH_VENV)/bin/python -m mypy --config-file bindings/python/pyproject.toml -p backstay.torch --follow-imports=silent
	@cd bindings/python && BACKSTAY_SITE_COMMAND=$(abspath target/release/backstay) OMP_NUM_THREADS=1 $(abspath $(TORCH_VENV))/bin/python -m pytest -q -p no:cacheprovider tests/torch $(TORCH_ARGUMENTS)

$(TORCH_VENV)/ready: bindings/python/tests/torch/requirements.txt | setup
	@echo "test-torch: packages into $(TORCH_VENV), several GB"
	@python3 -m venv $(TORCH_VENV)
	@$(TORCH_PIP) install -r $<
	@touch $@

# Beside torch.save, torch.distributed.checkpoint, Orbax, zstd and ZipNN.
.PHONY: bench-torch
bench-torch: $(TORCH_VENV)/ready $(TORCH_VENV)/bench-ready wheel ## Saving and loading with PyTorch beside others (15 min)
	@$(TORCH_PIP) install --force-reinstall --no-deps $(TORCH_WHEEL)
	@$(TORCH_VENV)/bin/python benchmarks/python/torch_bench.py $(BENCH_ARGS)

$(TORCH_VENV)/bench-ready: benchmarks/python/requirements-bench.txt | $(TORCH_VENV)/ready
	@$(TORCH_PIP) install -r $<
	@touch $@
