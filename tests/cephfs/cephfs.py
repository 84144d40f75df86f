# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A real CephFS on this machine, for tests: one monitor, one metadata server, object servers, mounts.

Its daemons listen on 127.0.0.1 and have no authentication; each ceph-fuse mount is a client of its own, as
a compute node's is. All state lies in one folder; all processes end with the one who started them, and
what is left of a run that was killed is removed when the next one starts.

    with CephFs(mounts=2) as pfs:
        (pfs.mount(0) / "file").write_bytes(b"x")
        with pfs.counting() as counted:                        # requests at the metadata server, by type
            ...
        counted.requests()                                     # {"create": 4, "setattr": 1}
        pfs.hang(3)                                            # object servers answer nothing for 3 s
        pfs.kill_client(1), pfs.remount(1)
"""

import contextlib
import ctypes
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

from counters import AdminError, Counted, ask, snapshot

BASE = pathlib.Path(os.environ.get("BACKSTAY_CEPHFS", "/tmp/backstay-pfs"))
LIMIT_SECONDS = 60
PROGRAMS = ("ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph-authtool", "monmaptool", "setfattr")
DATA_POOL = "cephfs_data"
# A page cache shared by nobody: without it a mount reads stale pages of a file that another one wrote.
FUSE_OPTIONS = ("--fuse_disable_pagecache=true",)
SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)

CONFIGURATION = """[global]
 fsid = {fsid}
 mon_host = [v2:127.0.0.1:{port}]
 public_addr = 127.0.0.1
 cluster_addr = 127.0.0.1
 ms_bind_msgr1 = false
 auth_cluster_required = none
 auth_service_required = none
 auth_client_required = none
 keyring = {folder}/keyring
 run_dir = {folder}/run
 admin_socket = {folder}/run/$type.$id.asok
 log_file = {folder}/log/$type.$id.log
 mon_cluster_log_file = {folder}/log/cluster.log
 crash_dir = {folder}/log
 osd_pool_default_size = 1
 osd_pool_default_min_size = 1
 osd_crush_chooseleaf_type = 0
 osd_pool_default_pg_autoscale_mode = off
 mon_allow_pool_size_one = true
 mon_data_avail_warn = 1
 mon_data_avail_crit = 0
# Tests stop daemons for seconds; nobody is to be thrown out for it.
 mds_beacon_grace = 300
 osd_heartbeat_grace = 300
[mon]
 mon_data = {folder}/mon/$id
 mon_warn_on_pool_no_redundancy = false
# A monitor alone has nobody to wait for.
 paxos_propose_interval = 0.05
 paxos_min_wait = 0.01
 mgr_stats_period = 1
[osd]
 osd_data = {folder}/osd/$id
 osd_objectstore = {store}
 memstore_device_bytes = {bytes}
 bluestore_block_size = {bytes}
 bluestore_block_create = true
 osd_memory_target = 939524096
 osd_op_num_shards = 2
 osd_class_load_list = *
[mds]
 mds_data = {folder}/mds/$id
 mds_beacon_interval = 1
# How often the journal is flushed when a client waits for it: shorter than in production.
 mds_tick_interval = {tick}
 mds_reconnect_timeout = 5
 mds_cache_memory_limit = 268435456
"""


class CephFsError(Exception):
    """Why the file system cannot be had, or does not do what it was asked."""


class CephFs:
    """`mounts` clients of a file system on `osds` object servers of `osd_bytes` each."""

    def __init__(self, mounts=2, osds=1, store="memstore", osd_bytes=6 << 30, tick=0.2,
                 fuse_options=FUSE_OPTIONS, stays=False):
        require_permission()
        remove_dead()
        self.name = f"f{os.getpid()}-{secrets.token_hex(3)}"
        self.folder, self.stays = BASE / self.name, stays
        self.osds, self.store, self.osd_bytes, self.tick = osds, store, osd_bytes, tick
        self.fuse_options = list(fuse_options)
        self.processes, self.mounts = {}, mounts
        self.seconds = {}                       # how long each part of starting took
        BASE.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o755)
        try:
            self.save()
            self.set_up()
        except BaseException:
            self.purge()
            raise

    # ---- Up and down ----------------------------------------------------------------------------------

    @property
    def configuration(self):
        return self.folder / "ceph.conf"

    @property
    def run_folder(self):
        """Where the admin sockets are."""
        return self.folder / "run"

    def save(self):
        """Who owns this, for whoever finds it after a crash."""
        owner = 0 if self.stays else os.getpid()
        state = {"owner": owner, "began": began(owner) if owner else "", "mounts": self.mounts}
        (self.folder / "state.json").write_text(json.dumps(state) + "\n")

    def set_up(self):
        for name in ("run", "log", "mon", "osd", "mds", "mnt"):
            (self.folder / name).mkdir()
        (self.folder / "mds" / "a").mkdir()
        with self.timed("monitor"):
            self.start_monitor()
        with self.timed("object servers"):
            for index in range(self.osds):
                self.make_osd(index)
            for index in range(self.osds):
                self.start(f"osd.{index}", "ceph-osd", "-f", "-i", str(index))
        with self.timed("pools"):
            self.monitor_command(prefix="osd pool create", pool="cephfs_meta", pg_num=8, pgp_num=8)
            self.monitor_command(prefix="osd pool create", pool=DATA_POOL, pg_num=16, pgp_num=16)
            self.monitor_command(prefix="fs new", fs_name="cephfs", metadata="cephfs_meta", data=DATA_POOL)
        with self.timed("metadata server"):
            self.start("mds.a", "ceph-mds", "-f", "-i", "a")
            self.wait(lambda: self.mds_state() == "up:active", "the metadata server", "mds.a")
        with self.timed("mounts"):
            for index in range(self.mounts):
                self.start_client(index)
            for index in range(self.mounts):
                self.wait_mounted(index)

    @contextlib.contextmanager
    def timed(self, what):
        start = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - start, 2)

    def start_monitor(self):
        fsid, keys = str(uuid.uuid4()), str(self.folder / "keyring")
        port = free_port()
        self.configuration.write_text(CONFIGURATION.format(
            fsid=fsid, port=port, folder=self.folder, store=self.store, bytes=self.osd_bytes, tick=self.tick))
        must(["ceph-authtool", "-C", keys, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"])
        must(["ceph-authtool", keys, "--gen-key", "-n", "client.admin",
              *[word for kind in ("mon", "osd", "mds") for word in ("--cap", kind, "allow *")]])
        map_file = str(self.folder / "monmap")
        must(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{port}]",
              "--set-min-mon-release", "pacific", map_file])
        must(["ceph-mon", "-c", str(self.configuration), "-i", "a", "--mkfs", "--monmap", map_file,
              "--keyring", keys])
        self.start("mon.a", "ceph-mon", "-f", "-i", "a")

    def make_osd(self, index):
        identity = str(uuid.uuid4())
        (self.folder / "osd" / str(index)).mkdir()
        self.monitor_command(prefix="osd new", uuid=identity, id=index)
        must(["ceph-osd", "-c", str(self.configuration), "-i", str(index), "--mkfs", "--osd-uuid", identity])

    def start(self, key, program, *words):
        """Starts a daemon of this file system, which ends when this process does, however it ends."""
        command = [program, "-c", str(self.configuration), *words]
        with open(self.folder / "log" / f"{key}.out", "ab") as log:
            self.processes[key] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=None if self.stays else die_with_parent)

    def wait(self, ready, what, key):
        end = time.monotonic() + LIMIT_SECONDS
        while not ready():
            if self.processes[key].poll() is not None:
                raise CephFsError(f"{what} ended with {self.processes[key].returncode}: {self.words_of(key)}")
            if time.monotonic() > end:
                raise CephFsError(f"waited {LIMIT_SECONDS} s for {what}: {self.words_of(key)}")
            time.sleep(0.05)

    def words_of(self, key):
        """The last that a daemon said."""
        files = [self.folder / "log" / f"{key}.{end}" for end in ("out", "log")]
        return "\n".join(file.read_text(errors="replace")[-1000:] for file in files if file.exists())

    def purge(self):
        """Ends all of it at once and removes all that it stored; may be called twice."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(LIMIT_SECONDS)
        self.processes = {}
        remove(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.purge()

    # ---- Monitor and metadata server ------------------------------------------------------------------

    def monitor_command(self, **words):
        """A command to the monitor. In a process of its own: the library's threads would stay with ours."""
        code = ("import json, rados, sys\n"
                "c = rados.Rados(conffile=sys.argv[1], name='client.admin')\n"
                "c.connect(timeout=30)\n"
                "code, out, text = c.mon_command(sys.argv[2], b'', timeout=30)\n"
                "sys.stdout.write(out.decode())\n"
                "sys.stdout.flush()\n"
                "sys.exit(text if code else 0)\n")
        command = ["/usr/bin/python3", "-c", code, str(self.configuration), json.dumps(words)]
        for _ in range(3):
            try:
                return must(command)
            except CephFsError as error:
                # The library at times dies of an exception of its own ("map::at") while it connects.
                if "exit -6" not in str(error):
                    raise
        return must(command)

    def ask(self, daemon, command, **words):
        """A command to a daemon's admin socket: ("mds.a", "session ls")."""
        return ask(self.run_folder / f"{daemon}.asok", command, **words)

    def mds_state(self):
        try:
            return (self.ask("mds.a", "status") or {}).get("state")
        except (OSError, AdminError):
            return None

    # ---- Counters -------------------------------------------------------------------------------------

    def snapshot(self):
        return snapshot(self.run_folder)

    @contextlib.contextmanager
    def counting(self):
        """What the metadata server and the object servers were asked meanwhile."""
        counted, before = Counted(), self.snapshot()
        yield counted
        counted.take(before, self.snapshot())

    # ---- Clients --------------------------------------------------------------------------------------

    def mount(self, index):
        """Where client `index` is mounted."""
        return self.folder / "mnt" / str(index)

    def environment(self):
        """What programs are told that use it: the mounts with colons between them, and the admin sockets."""
        mounts = ":".join(str(self.mount(index)) for index in range(self.mounts))
        return {"BACKSTAY_TEST_CEPHFS": mounts, "BACKSTAY_TEST_CEPHFS_RUN": str(self.run_folder)}

    def start_client(self, index):
        self.mount(index).mkdir(exist_ok=True)
        socket_file = self.run_folder / f"client.{index}.asok"
        socket_file.unlink(missing_ok=True)
        self.start(f"client.{index}", "ceph-fuse", "-f", "--name", "client.admin", "--admin-socket",
                   str(socket_file), "--pid-file", "", "--log-file", str(self.folder / "log" / f"client.{index}.log"),
                   *self.fuse_options, str(self.mount(index)))

    def wait_mounted(self, index):
        self.wait(lambda: str(self.mount(index)) in mount_points(), f"mount {index}", f"client.{index}")

    def kill_client(self, index, evict=True):
        """kill -9: what the mount had not written is lost, calls on it fail with ENOTCONN.

        The metadata server keeps what the client held for a minute, and others wait; `evict` ends that at once.
        """
        session = self.session_of(index) if evict else None
        process = self.processes.pop(f"client.{index}")
        process.kill()
        process.wait(LIMIT_SECONDS)
        unmount(self.mount(index))
        if evict:
            self.ask("mds.a", "session evict", filters=[f"id={session}"])

    def unmount(self, index):
        """Ends a client in an orderly way."""
        unmount(self.mount(index), lazy=False)
        self.processes.pop(f"client.{index}").wait(LIMIT_SECONDS)

    def remount(self, index):
        self.start_client(index)
        self.wait_mounted(index)

    def session_of(self, index):
        """The number of a client's session at the metadata server."""
        return self.ask(f"client.{index}", "status")["id"]

    def give(self, cluster, node, index):
        """Shows mount `index` at `self.node_path` in a node of the test cluster, and only there.

        To be called again after the node or the client was started again. (A plain bind mount can not be
        made from one mount namespace into another; a detached copy of the mount can be put there.)
        """
        point = self.node_path
        point.mkdir(exist_ok=True)
        done = subprocess.run([sys.executable, "-I", "-c", MOVE_MOUNT, str(self.mount(index)), str(point),
                               str(cluster.pid(node))], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CephFsError(f"giving mount {index} to node {node}: {done.stderr.strip()}")

    @property
    def node_path(self):
        """Where each node has the mount that it was given: one path on all of them."""
        return self.folder / "pfs"

    # ---- Trouble --------------------------------------------------------------------------------------

    def servers(self, kind):
        return [process for key, process in self.processes.items() if key.startswith(kind)]

    def pause(self, kind="osd"):
        """SIGSTOP for the object servers ("osd") or the metadata server ("mds"): calls hang, none fails."""
        for process in self.servers(kind):
            process.send_signal(signal.SIGSTOP)

    def resume(self, kind="osd"):
        for process in self.servers(kind):
            process.send_signal(signal.SIGCONT)

    def hang(self, seconds, kind="osd"):
        """The servers answer nothing for some seconds from now on; returns at once."""
        self.pause(kind)
        timer = threading.Timer(seconds, self.resume, [kind])
        timer.daemon = True
        timer.start()
        return timer

    def fill(self):
        """The object servers say that they are full: what was not on its way yet fails with ENOSPC.

        A write is buffered by the client and returns well; the next sync says so, once, and drops it.
        """
        self.say_full("full", -1)

    def make_room(self):
        self.say_full("none", 0)

    def say_full(self, kind, count):
        for index in range(self.osds):
            self.ask(f"osd.{index}", "injectfull", type=kind, count=count)
        end = time.monotonic() + LIMIT_SECONDS
        while ("full" in self.flags()) != (kind == "full"):
            if time.monotonic() > end:
                raise CephFsError(f"after {LIMIT_SECONDS} s the monitor does not know that it is {kind}")
            time.sleep(0.1)
        time.sleep(0.3)                         # until the clients know what the monitor does

    def flags(self):
        """Flags of the pool that holds the files' bytes."""
        pools = json.loads(self.monitor_command(prefix="osd dump", format="json"))["pools"]
        return next(pool for pool in pools if pool["pool_name"] == DATA_POOL)["flags_names"].split(",")

    @staticmethod
    def limit(folder, count):
        """A quota of `count` bytes for a folder of a mount: growing beyond it fails with EDQUOT."""
        must(["setfattr", "-n", "ceph.quota.max_bytes", "-v", str(count), str(folder)])


# Run in a process of its own, which changes its mount namespace: a copy of the mount is taken in ours,
# and put in its place in the node's.
MOVE_MOUNT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
OPEN_TREE, MOVE_MOUNT, CLONE, CLOEXEC, EMPTY_PATH, NEWNS, HERE = 428, 429, 1, 0o2000000, 4, 0x20000, -100
def call(*words):
    if (done := libc.syscall(*words)) < 0:
        code = ctypes.get_errno()
        sys.exit(f"system call {words[0]}: {os.strerror(code)}")
    return done
what, where, pid = sys.argv[1:]
tree = call(OPEN_TREE, HERE, what.encode(), CLONE | CLOEXEC)
space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
if libc.setns(space, NEWNS) < 0:
    sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
libc.umount2(where.encode(), 2)
call(MOVE_MOUNT, tree, b"", HERE, where.encode(), EMPTY_PATH)
"""


# ---- Apart from any one file system ---------------------------------------------------------------------


def die_with_parent():
    LIBC.prctl(SET_PDEATHSIG, signal.SIGKILL)


def must(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    if done.returncode != 0:
        raise CephFsError(f"{' '.join(map(str, command[:3]))}: exit {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def mount_points():
    lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines]


def unmount(folder, lazy=True):
    while str(folder) in mount_points():
        must(["umount", *(["-l"] if lazy else []), str(folder)])


def began(pid):
    """When a process began: with its number, that tells it from any other one."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def daemons_of(folder):
    """The processes that use this folder's file system."""
    wanted = str(folder / "ceph.conf").encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = pathlib.Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            if wanted in words and os.path.basename(words[0]).startswith(b"ceph-"):
                yield int(pid)


def remove(folder):
    """Ends what uses a folder's file system, takes its mounts away, and removes the folder."""
    end = time.monotonic() + LIMIT_SECONDS
    while pids := list(daemons_of(folder)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise CephFsError(f"processes {pids} do not end")
        time.sleep(0.02)
    for point in mount_points():
        if point.startswith(f"{folder}/"):
            unmount(point)
    # Only what lies here: should a mount be there after all, its files are somebody else's.
    if not any(point.startswith(f"{folder}/") for point in mount_points()):
        shutil.rmtree(folder, ignore_errors=True)


def names():
    return sorted(folder.name for folder in BASE.glob("*") if folder.is_dir())


def is_alive(folder):
    """Whether the one who started it may still use it."""
    try:
        state = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError):
        return folder.exists() and time.time() - folder.stat().st_mtime < LIMIT_SECONDS
    return state["owner"] == 0 or (state["began"] != "" and began(state["owner"]) == state["began"])


def remove_dead():
    """Removes what was left behind by those who were killed."""
    for name in names():
        if not is_alive(BASE / name):
            remove(BASE / name)


def require_permission():
    """Says what is missing, before half a file system is there."""
    if os.geteuid() != 0:
        raise CephFsError("a CephFS for tests takes root: it mounts")
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        raise CephFsError(f"missing: {' '.join(missing)}; `make setup` installs them")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise CephFsError("/dev/fuse is not there; a container needs it as a device, and --privileged")
