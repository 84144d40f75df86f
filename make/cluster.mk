# Jobs over several nodes, which are namespaces of this machine: tests/cluster. Needs root.

CLUSTER := $(or $(CARGO_TARGET_DIR),target)/cluster
CLUSTER_ARGUMENTS ?=

TESTS += test-cluster

.PHONY: cluster-programs test-cluster
cluster-programs: multiprocess-programs
	@mkdir -p $(CLUSTER)
	@cp --remove-destination $(MULTIPROCESS)/* $(CLUSTER)/
	$(CARGO) build --release --locked --package backstay-cli
	@cp --remove-destination $(BACKSTAY_RELEASE)/backstay $(CLUSTER)/
	@set -e; for mpi in $(MULTIPROCESS_MPI); do \
	    mpicc.$$mpi -std=gnu11 -O2 -Wall -Wextra -Werror -o $(CLUSTER)/ring.$$mpi tests/cluster/ring.c; \
	done

test-cluster: cluster-programs ## Nodes of namespaces: killed, wiped, cut off, stopped; jobs over them
	@python3 tests/cluster/selftest.py --programs $(CLUSTER) $(CLUSTER_ARGUMENTS)
	@python3 tests/cluster/supervised.py --programs $(CLUSTER) $(CLUSTER_ARGUMENTS)
