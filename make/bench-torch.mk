# Saving and loading with PyTorch beside torch.save, torch.distributed.checkpoint, Orbax, zstd and ZipNN. With
# PyTorch of the CPU; the package is the one that stands in the tree, its native module built.
.PHONY: bench-torch
BENCH_TORCH_VENV := target/torch-venv

bench-torch: $(BENCH_TORCH_VENV)/.bench-installed ## Saving and loading with PyTorch beside others (10 min)
	PYTHONPATH=bindings/python/python $(BENCH_TORCH_VENV)/bin/python benchmarks/python/torch_bench.py $(BENCH_ARGS)

$(BENCH_TORCH_VENV)/.bench-installed: benchmarks/python/requirements-bench.txt
	@test -x $(BENCH_TORCH_VENV)/bin/python || python3 -m venv $(BENCH_TORCH_VENV)
	$(BENCH_TORCH_VENV)/bin/pip install -q -r $<
	touch $@
