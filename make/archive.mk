# Jobs with an archive, which lose all nodes, servers, mounts and bytes: tests/cluster. Needs root and Ceph.
# `make test-archive` each fault once, some minutes; `make soak-archive` for SOAK seconds (an hour), at random.

ARCHIVE_ARGUMENTS ?=
ARCHIVE_SOAK = $(if $(filter command environment,$(firstword $(origin SOAK))),$(SOAK),3600)

TESTS += test-archive

.PHONY: test-archive soak-archive
test-archive: cluster-programs ## Faults of jobs with an archive: kills in drains, full, hanging, damaged
	@python3 tests/cluster/archive.py --programs $(CLUSTER) $(ARCHIVE_ARGUMENTS)

soak-archive: cluster-programs ## Faults at random instants for SOAK seconds; --seed and --round replay
	@python3 tests/cluster/archive.py --programs $(CLUSTER) --soak $(ARCHIVE_SOAK) $(call record,archive) $(ARCHIVE_ARGUMENTS)
