# Whole MPI jobs that are killed, stopped, starved and handed damaged stores.
# `make test-multiprocess` some dozens of kills; `make soak TRIALS=500` as many as asked for.

TRIALS ?= 500
MULTIPROCESS_ARGUMENTS ?=
MULTIPROCESS := $(or $(CARGO_TARGET_DIR),target)/multiprocess
MULTIPROCESS_MPI := openmpi mpich

TESTS += test-multiprocess

.PHONY: multiprocess-programs test-multiprocess soak
# A library that is written over in place is a bus error in what runs from it.
multiprocess-programs: setup library
	@mkdir -p $(MULTIPROCESS)
	@cp --remove-destination $(BACKSTAY_RELEASE)/libbackstay.so $(MULTIPROCESS)/libbackstay.so.$(BACKSTAY_ABI)
	@set -e; for mpi in $(MULTIPROCESS_MPI); do \
	    mpicc.$$mpi -std=gnu11 -O2 -Wall -Wextra -Werror -o $(MULTIPROCESS)/oracle_job.$$mpi \
	        tests/multiprocess/oracle_job.c -Ibindings/c/include \
	        $(MULTIPROCESS)/libbackstay.so.$(BACKSTAY_ABI) -Wl,-rpath,'$$ORIGIN'; \
	done

test-multiprocess: multiprocess-programs ## Kill, stop, starve and damage MPI jobs: some minutes
	@python3 tests/multiprocess/run.py --programs $(MULTIPROCESS) $(MULTIPROCESS_ARGUMENTS)

soak: multiprocess-programs ## TRIALS kills at random instants, every restored word checked
	@python3 tests/multiprocess/run.py --programs $(MULTIPROCESS) --soak $(TRIALS) $(call record,kills) $(MULTIPROCESS_ARGUMENTS)
