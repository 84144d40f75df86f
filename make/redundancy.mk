# Jobs with redundancy across nodes, which lose nodes, agents and packets: tests/cluster. Needs root.
# `make test-redundancy` a part of the table, some minutes; `make soak-redundancy` all of it, SOAK times.

SOAK ?= 3
REDUNDANCY_ARGUMENTS ?=

TESTS += test-redundancy

.PHONY: test-redundancy soak-redundancy
test-redundancy: cluster-programs ## Losses of jobs with redundancy: nodes, agents, network, bit flips
	@python3 tests/cluster/matrix.py --programs $(CLUSTER) $(REDUNDANCY_ARGUMENTS)
	@python3 tests/cluster/redundancy.py --programs $(CLUSTER) $(REDUNDANCY_ARGUMENTS)

soak-redundancy: cluster-programs ## The whole table of losses SOAK times, at random instants; --seed replays
	@python3 tests/cluster/matrix.py --programs $(CLUSTER) --soak $(SOAK) $(call record,losses) $(REDUNDANCY_ARGUMENTS)
	@python3 tests/cluster/redundancy.py --programs $(CLUSTER) --soak $(SOAK) $(call record,agents) $(REDUNDANCY_ARGUMENTS)
