# Jobs with redundancy across nodes, which lose nodes, agents and packets: tests/cluster. Needs root.
# `make test-redundancy` a part of the table, some minutes; `make soak-redundancy` all of it, SOAK times.

SOAK ?= 3
REDUNDANCY_ARGUMENTS ?=
FABRIC_ARGUMENTS ?=

TESTS += test-redundancy test-fabric

.PHONY: test-redundancy test-fabric soak-redundancy
test-redundancy: cluster-programs ## Losses of jobs with redundancy: nodes, agents, network, bit flips
	@python3 tests/cluster/matrix.py --programs $(CLUSTER) $(REDUNDANCY_ARGUMENTS)
	@python3 tests/cluster/redundancy.py --programs $(CLUSTER) $(REDUNDANCY_ARGUMENTS)

# All of test-redundancy over libfabric: make test-redundancy REDUNDANCY_ARGUMENTS="--provider 'tcp;ofi_rxm'".
test-fabric: cluster-programs ## Nodes that die and are cut off while others read them over libfabric
	@python3 tests/cluster/fabric.py --programs $(CLUSTER) $(FABRIC_ARGUMENTS)

soak-redundancy: cluster-programs ## The whole table of losses SOAK times, at random instants; --seed replays
	@python3 tests/cluster/matrix.py --programs $(CLUSTER) --soak $(SOAK) $(call record,losses) $(REDUNDANCY_ARGUMENTS)
	@python3 tests/cluster/redundancy.py --programs $(CLUSTER) --soak $(SOAK) $(call record,agents) $(REDUNDANCY_ARGUMENTS)
