# A real CephFS on this machine, its tests, and the archive on it: tests/cephfs. Needs root and /dev/fuse.

CEPHFS_ARGUMENTS ?=
CEPHFS := tests/cephfs/cephfs
BENCH_CEPHFS_STORE ?= bluestore

TESTS += test-cephfs

.PHONY: cephfs-programs test-cephfs bench-cephfs
cephfs-programs: setup
	$(CARGO) build --release --locked --package backstay-bench --bin bench-cephfs

test-cephfs: cephfs-programs ## A real CephFS: hangs, dead clients, full; the archive asks its metadata server nothing
	@python3 tests/cephfs/selftest.py $(CEPHFS_ARGUMENTS)
	@python3 tests/cephfs/archive.py --programs $(BACKSTAY_RELEASE) $(CEPHFS_ARGUMENTS)

bench-cephfs: cephfs-programs ## A file per process, one shared file, and the archive, on CephFS (8 min)
	@$(CEPHFS) run --mounts 4 --tick 5 --store $(BENCH_CEPHFS_STORE) -- \
	    $(BACKSTAY_RELEASE)/bench-cephfs $(BENCH_ARGS)
