# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tests of the CephFS fixture: what the tests and benchmarks of the archive rely on.

Prints a line for each test and "N passed, N failed" last. Where CephFS cannot be started, it fails.
"""

import errno
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1] / "cluster"), str(HERE.parents[1] / "multiprocess")]

from cephfs import CephFs, daemons_of, mount_points, names  # noqa: E402
from cluster import Cluster  # noqa: E402
from job import Failure, expect  # noqa: E402
from selftest import arguments, run_all  # noqa: E402

MIB = 1 << 20
START_SECONDS = 60


def write(path, offset, count, sync=os.fdatasync):
    """Writes random bytes and syncs; the bytes."""
    text = os.urandom(count)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, text, offset)
        sync(file)
    finally:
        os.close(file)
    return text


def read_direct(path, offset, count):
    """Reads past every cache of this mount."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, count) as buffer:
            found = os.preadv(file, [buffer], offset)
            return buffer[:found]
    finally:
        os.close(file)


def fails(call, *numbers):
    try:
        call()
    except OSError as error:
        expect(error.errno in numbers, f"it fails with {errno.errorcode[error.errno]}")
        return
    raise Failure(f"it does not fail with {[errno.errorcode[number] for number in numbers]}")


def seconds_of(call):
    start = time.monotonic()
    call()
    return time.monotonic() - start


def starts_soon(settings):
    start = time.monotonic()
    with CephFs(mounts=4, osds=2) as pfs:
        took = time.monotonic() - start
        expect(took < START_SECONDS, f"it took {took:.1f} s to start: {pfs.seconds}")
        expect(len([point for point in mount_points() if point.startswith(str(pfs.folder))]) == 4, "mounts")
        return f"started in {took:.1f} s"


def starts_on_disk_too(settings):
    with CephFs(mounts=1, store="bluestore") as pfs:
        text = write(pfs.mount(0) / "file", 0, 8 * MIB)
        expect(read_direct(pfs.mount(0) / "file", 4 * MIB, MIB) == text[4 * MIB:5 * MIB], "other bytes")


def mounts_see_each_other(settings):
    """What one wrote and synced, another reads with O_DIRECT: each of many rounds."""
    with CephFs() as pfs:
        here, there = pfs.mount(0) / "file", pfs.mount(1) / "file"
        os.close(os.open(here, os.O_CREAT | os.O_WRONLY))
        os.truncate(here, 16 * MIB)
        for number in range(20):
            offset = number % 4 * 4 * MIB
            text = write(here, offset, MIB)
            expect(read_direct(there, offset, MIB) == text, f"round {number}: stale bytes")


def counters_count(settings):
    with CephFs() as pfs:
        with pfs.counting() as counted:
            for number in range(16):
                write(pfs.mount(number % 2) / f"own-{number}", 0, 4096, os.fsync)
        expect(counted.requests().get("create") == 16, f"creates: {counted.requests()}")
        expect(counted.total() >= 16 and counted.storage_writes() >= 16, f"{counted.all}")
        reserved = os.open(pfs.mount(0) / "reserved", os.O_RDWR | os.O_CREAT)
        os.ftruncate(reserved, 64 * MIB)
        os.fsync(reserved)
        with pfs.counting() as counted:
            for number in range(8):
                os.pwrite(reserved, os.urandom(4 * MIB), number * 4 * MIB)
            os.fdatasync(reserved)
        os.close(reserved)
        expect(counted.total() == 0 and not counted.requests(), f"requests: {counted.requests()}")
        expect(8 <= counted.storage_writes() <= 24, f"{counted.storage_writes()} writes of 8 objects")


def hangs_and_goes_on(settings):
    """Object servers that stop make a sync wait, and no error; the metadata server is not in its way."""
    with CephFs() as pfs:
        path = pfs.mount(0) / "file"
        write(path, 0, MIB)
        file = os.open(path, os.O_WRONLY)
        os.pwrite(file, b"x" * MIB, 0)
        timer = pfs.hang(2)
        took = seconds_of(lambda: os.fdatasync(file))
        timer.join()
        expect(1.5 < took < 20, f"the sync took {took:.1f} s")
        pfs.pause("mds")
        os.pwrite(file, b"y" * MIB, 0)
        took = seconds_of(lambda: os.fdatasync(file))
        expect(took < 1.5, f"a sync without the metadata server took {took:.1f} s")
        pfs.resume("mds")
        os.close(file)
        expect(read_direct(pfs.mount(1) / "file", 0, 4096) == b"y" * 4096, "other bytes")


def killed_client_is_replaced(settings):
    with CephFs() as pfs:
        text = write(pfs.mount(0) / "file", 0, MIB)
        file = os.open(pfs.mount(0) / "file", os.O_WRONLY)
        pfs.kill_client(0)
        fails(lambda: os.pwrite(file, b"x", 0), errno.ENOTCONN)
        fails(lambda: os.close(file), errno.ENOTCONN)
        expect(not os.path.exists(pfs.mount(0) / "file"), "the mount is still there")
        took = seconds_of(lambda: expect(read_direct(pfs.mount(1) / "file", 0, MIB) == text, "other bytes"))
        expect(took < 10, f"another client waited {took:.1f} s for the dead one")
        pfs.remount(0)
        expect(read_direct(pfs.mount(0) / "file", 0, MIB) == text, "other bytes after mounting again")
        pfs.unmount(0)
        pfs.remount(0)
        write(pfs.mount(0) / "file", 0, MIB)


def full_says_so(settings):
    """ENOSPC from the sync, once; EDQUOT from growing beyond a quota."""
    with CephFs(mounts=1) as pfs:
        path = pfs.mount(0) / "file"
        write(path, 0, MIB)
        pfs.fill()
        fails(lambda: write(path, 4 * MIB, MIB), errno.ENOSPC)
        pfs.make_room()
        write(path, 4 * MIB, MIB)
        folder = pfs.mount(0) / "limited"
        folder.mkdir()
        pfs.limit(folder, 16 * MIB)
        os.close(os.open(folder / "file", os.O_CREAT | os.O_WRONLY))
        os.truncate(folder / "file", 8 * MIB)
        fails(lambda: os.truncate(folder / "file", 64 * MIB), errno.EDQUOT)


def nodes_have_own_mounts(settings):
    """Each node of the cluster has another client at one path, also after node or client died."""
    with CephFs() as pfs, Cluster(2) as cluster:
        for index in range(2):
            pfs.give(cluster, index, index)
        point = pfs.node_path
        for index in range(2):
            cluster.run(index, ["sh", "-c", f"hostname > {point}/from{index} && sync {point}/from{index}"])
        expect(cluster.run(0, ["cat", point / "from1"]).stdout == "node1\n", "node 0 does not see node 1's file")
        expect(not list(point.iterdir()), "the mount is also where no node is")
        with pfs.counting() as counted:
            cluster.run(1, ["touch", point / "new"])
        expect(counted.requests().get("create") == 1, f"{counted.requests()}")
        cluster.kill_node(0)
        cluster.start_node(0)
        pfs.give(cluster, 0, 0)
        pfs.kill_client(1)
        done = cluster.run(1, ["cat", point / "from0"], check=False)
        expect(done.returncode != 0, "a dead client still serves its node")
        pfs.remount(1)
        pfs.give(cluster, 1, 1)
        for index in range(2):
            expect(cluster.run(index, ["cat", point / "from0"]).stdout == "node0\n", f"node {index}")


def purge_leaves_nothing(settings):
    """Also while a program uses it, and hangs in it."""
    pfs = CephFs()
    folder = pfs.folder
    pfs.pause("osd")
    pfs.pause("mds")
    user = subprocess.Popen(["touch", str(pfs.mount(0) / "file")], stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    expect(user.poll() is None, "it does not hang")
    pfs.purge()
    expect(user.wait(10) != 0, "it ended well")
    expect_nothing(folder)
    pfs.purge()


def a_killed_run_is_removed(settings):
    """Its daemons end with it; its mounts and its folder are gone when the next one starts."""
    code = ("import sys, time; sys.path.insert(0, sys.argv[1]); from cephfs import CephFs; "
            "pfs = CephFs(); print(pfs.folder, flush=True); time.sleep(600)")
    owner = subprocess.Popen([sys.executable, "-c", code, str(HERE.parent)], stdout=subprocess.PIPE, text=True)
    folder = pathlib.Path(owner.stdout.readline().strip())
    expect(list(daemons_of(folder)), "no daemons")
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 10
    while list(daemons_of(folder)):
        expect(time.monotonic() < end, "the daemons outlive their owner")
        time.sleep(0.05)
    with CephFs(mounts=1):
        expect_nothing(folder)


def command_line(settings):
    program = str(HERE.with_name("cephfs"))
    code = ("import json, os, subprocess, sys; mounts = os.environ['BACKSTAY_TEST_CEPHFS'].split(':'); "
            "open(mounts[0] + '/new', 'w').close(); folder = os.environ['BACKSTAY_TEST_CEPHFS_RUN']; "
            "text = subprocess.run([sys.argv[1], 'counters', folder], capture_output=True, check=True).stdout; "
            "sys.exit(7 if len(mounts) == 3 and json.loads(text)['req.create'] == 1 else 1)")
    done = subprocess.run([program, "run", "--mounts", "3", "--", sys.executable, "-c", code, program],
                          capture_output=True, text=True, timeout=120, check=False)
    expect(done.returncode == 7, f"exit {done.returncode}: {done.stdout} {done.stderr}")
    up = subprocess.run([program, "up", "--mounts", "1"], capture_output=True, text=True, timeout=120, check=True)
    folder = pathlib.Path(up.stdout.rpartition("=")[2].strip()).parent
    try:
        listed = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout
        expect(f"{folder.name}: in use" in listed, f"list: {listed}")
    finally:
        subprocess.run([program, "down", folder.name], timeout=120, check=True)
    expect_nothing(folder)


def expect_nothing(folder):
    expect(not list(daemons_of(folder)), "processes are left")
    expect(not [point for point in mount_points() if point.startswith(str(folder))], "mounts are left")
    expect(not folder.exists() and folder.name not in names(), "its folder is left")


TESTS = [starts_soon, starts_on_disk_too, mounts_see_each_other, counters_count, hangs_and_goes_on,
         killed_client_is_replaced, full_says_so, nodes_have_own_mounts, purge_leaves_nothing,
         a_killed_run_is_removed, command_line]


if __name__ == "__main__":
    sys.exit(run_all(TESTS, arguments(__doc__)))
