# A real Slurm, Debian's, over nodes that are namespaces of this machine: tests/slurm. Needs root. Not in `make test`: it takes
# some minutes, most of them waiting. CI runs it.

SLURM_ARGUMENTS ?=
SLURM_JOBS ?= 4

.PHONY: slurm-packages test-slurm
slurm-packages:
	@make/packages.sh slurm-wlm libpmix2

test-slurm: slurm-packages cluster-programs ## backstay run, prolog and epilog under a real Slurm: some minutes
	@python3 tests/slurm/run.py --programs $(CLUSTER) --jobs $(SLURM_JOBS) $(SLURM_ARGUMENTS)
