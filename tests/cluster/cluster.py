# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A cluster on one machine, for tests: each node is a set of namespaces.

A node has its own network (an interface eth0 with the address 10.77.0.N on a bridge), host name,
processes, /dev/shm, /var/tmp and boot id; the rest of the file system is shared, as a home folder is.
A head node, where mpirun runs, has the bridge. All of it lives in one namespace of processes, so that
it is gone when the head is, whatever the test did; two clusters do not see each other.

    with Cluster(3) as cluster:
        cluster.run(0, ["hostname"]).stdout                    # "node0\n"
        cluster.run("head", cluster.mpirun("openmpi", [2, 2, 2], ["./program"], ["NAME=value"]))
        cluster.kill_node(1)                                   # its memory stays
        cluster.start_node(1)
"""

import json
import os
import pathlib
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid

MACHINE = pathlib.Path(__file__).resolve().with_name("machine.py")
BASE = pathlib.Path(os.environ.get("BACKSTAY_CLUSTERS", "/tmp/backstay-clusters"))
LIMIT_SECONDS = 60
NETWORK = "10.77.0.0/24"
HEAD = "head"
HEAD_ADDRESS = "10.77.0.254"
NOWHERE = "02:00:00:00:00:fe"             # an address that no interface of the bridge has
NODES_MAX = 200
# `env`, because the shell stands outside and a builtin, kill say, would work there; and no word about signals.
WAIT = ("sh", "-c", 'exec 3>&2 2>/dev/null; (exec env "$@" 2>&3 3>&-); exit $?', "wait")
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "ip", "tc")


class ClusterError(Exception):
    """Why the cluster cannot be had, or does not do what it was asked."""


class Unsupported(ClusterError):
    """What this kernel does not have."""


def mac_of(index):
    return f"02:77:00:00:00:{index + 1:02x}"


def hidden_failure(command, done):
    return f"{shlex.join(map(str, command))}: exit {done.returncode}: {(done.stderr or done.stdout).strip()}"


class Cluster:
    """`nodes` nodes and `spares` more of the same kind, each with `shm` of /dev/shm."""

    def __init__(self, nodes, spares=0, shm="256m", name=None, stays=False):
        require_permission()
        if not 1 <= nodes + spares <= NODES_MAX:
            raise ClusterError(f"a cluster has 1 to {NODES_MAX} nodes, not {nodes + spares}")
        self.name = name or f"c{os.getpid()}-{secrets.token_hex(3)}"
        self.count, self.shm = nodes + spares, shm
        self.spares = list(range(nodes, nodes + spares))
        self.folder = BASE / self.name
        BASE.mkdir(mode=0o755, parents=True, exist_ok=True)
        remove_dead()
        try:
            self.folder.mkdir(mode=0o755)
        except FileExistsError:
            raise ClusterError(f"there is a cluster {self.name} already") from None
        self.head, self.holders, self.inits = None, {}, {}
        self.processes = {}
        self.stays = stays
        try:
            self.set_up()
        except BaseException:
            self.down()
            raise

    # ---- Up and down ----------------------------------------------------------------------------------

    def set_up(self):
        (self.folder / "boot").mkdir()
        (self.folder / "nodes").mkdir()
        (self.folder / "cut").mkdir()
        lines = ["127.0.0.1 localhost", f"{HEAD_ADDRESS} {HEAD}"]
        lines += [f"{self.address(index)} {self.node_name(index)}" for index in range(self.count)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        self.write_agent()
        command = ["unshare", "--pid", "--net", "--uts", "--ipc", "--mount", "--propagation", "private",
                   "--fork", "--kill-child", "--"]
        self.head = self.launch(HEAD, [*command, *self.machine(HEAD), *(["stay"] if self.stays else [])])
        self.save()
        for index in range(self.count):
            self.start_node(index)

    def machine(self, role, *words):
        return [sys.executable, "-I", str(MACHINE), role, str(self.folder), *words]

    def launch(self, key, command):
        """Starts a process of machine.py and waits until it is ready; its number as itself knows it."""
        with open(self.folder / f"log.{key}", "ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True,
                                       stdin=subprocess.DEVNULL if self.stays else subprocess.PIPE,
                                       start_new_session=True,
                                       env={**os.environ, "BACKSTAY_CLUSTER": self.name, "CLUSTER_PART": key})
        self.processes[key] = process
        word = process.stdout.readline().split()
        if word[:1] != ["ready"]:
            log = (self.folder / f"log.{key}").read_text(errors="replace").strip()
            raise ClusterError(f"{key} did not start: {log}")
        process.stdout.close()
        return int(word[1])

    def save(self):
        """What another process needs to use this cluster."""
        state = {"name": self.name, "count": self.count, "spares": self.spares, "shm": self.shm,
                 "head": self.head, "owner": 0 if self.stays else os.getpid(),
                 "holders": self.holders, "inits": self.inits}
        partly = self.folder / "state.partly"
        partly.write_text(json.dumps(state) + "\n")
        partly.replace(self.folder / "state.json")

    @classmethod
    def attach(cls, name):
        """A cluster that `cluster up` made."""
        try:
            state = json.loads((BASE / name / "state.json").read_text())
        except OSError:
            raise ClusterError(f"there is no cluster {name}") from None
        self = cls.__new__(cls)
        self.name, self.count, self.spares = state["name"], state["count"], state["spares"]
        self.shm, self.head, self.stays = state["shm"], state["head"], True
        self.folder, self.processes = BASE / name, {}
        self.holders = {int(key): value for key, value in state["holders"].items()}
        self.inits = {int(key): value for key, value in state["inits"].items()}
        if not is_head(self.head, name):
            raise ClusterError(f"cluster {name} is dead; `cluster down --name {name}` removes what is left")
        return self

    def down(self):
        """Ends everything that runs in the cluster and removes its folder; may be called twice."""
        if self.head is not None and is_head(self.head, self.name):
            send(self.head, signal.SIGKILL)
        end = time.monotonic() + LIMIT_SECONDS
        for process in self.processes.values():
            if process.stdin:
                process.stdin.close()
            process.stdout.close()
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = {}
        if self.head is not None:
            wait_until(lambda: not is_head(self.head, self.name), f"the end of cluster {self.name}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.down()

    # ---- Names ----------------------------------------------------------------------------------------

    @staticmethod
    def node_name(index):
        return HEAD if index == HEAD else f"node{index}"

    @staticmethod
    def address(index):
        return HEAD_ADDRESS if index == HEAD else f"10.77.0.{index + 1}"

    @property
    def agent(self):
        """The remote shell: AGENT HOST COMMAND..., to be run in the head."""
        return str(self.folder / "agent")

    def is_up(self, index):
        return index == HEAD or index in self.inits

    # ---- Nodes: start, kill, wipe, stop ---------------------------------------------------------------

    def start_node(self, index):
        """Starts a node that is down: a killed one with the memory it had, a wiped one as a fresh one."""
        if index in self.inits:
            raise ClusterError(f"node {index} is up")
        name = self.node_name(index)
        if index not in self.holders:
            boot = str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))
            self.holders[index] = self.launch(f"holder.{index}", [
                *self.enter(self.head), "unshare", "--net", "--uts", "--ipc", "--mount", "--propagation",
                "private", "--", *self.machine("holder", name, self.shm, boot)])
            self.plug_in(index)
        self.inits[index] = self.launch(f"init.{index}", [
            *self.enter(self.head), "nsenter", "-t", str(self.holders[index]), "-m", "-n", "-u", "-i", "--",
            "unshare", "--pid", "--mount", "--propagation", "private", "--fork", "--kill-child", "--",
            *self.machine("init", name)])
        (self.folder / "nodes" / name).write_text(f"{self.inits[index]}\n")
        self.save()

    def plug_in(self, index):
        """Puts the node's interface on the bridge."""
        holder, port = str(self.holders[index]), f"port{index}"
        self.tool(HEAD, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", holder)
        self.tool(HEAD, "ip", "link", "set", port, "master", "br0", "up")
        inside = [*self.enter(self.head), "nsenter", "-t", holder, "-n", "--", "ip"]
        for words in (["link", "set", "eth0", "address", mac_of(index), "addrgenmode", "none"],
                      ["address", "add", f"{self.address(index)}/24", "dev", "eth0"],
                      ["link", "set", "eth0", "up"]):
            self.must([*inside, *words])

    def kill_node(self, index):
        """kill -9 for all that runs in the node, at once. Its memory stays: start_node finds it again."""
        name = self.node_name(index)
        (self.folder / "nodes" / name).unlink(missing_ok=True)
        if index in self.inits:
            self.tool(HEAD, "kill", "-9", str(self.inits.pop(index)))
            self.forget(f"init.{index}")
        self.save()

    def wipe_node(self, index, silent=False):
        """The node is gone with its memory. `silent`: like a power cut, no peer is told by its kernel."""
        if silent:
            self.tool(HEAD, "ip", "link", "set", f"port{index}", "down")
        self.kill_node(index)
        if index in self.holders:
            self.tool(HEAD, "kill", "-9", str(self.holders.pop(index)))
            self.forget(f"holder.{index}")
            # A busy kernel may take a minute to clear a namespace away.
            subprocess.run([*self.enter(self.head), "ip", "link", "del", f"port{index}"],
                           capture_output=True, check=False)
            wait_until(lambda: not self.has_port(index), f"the network of node {index} to be gone")
        self.save()

    def has_port(self, index):
        return subprocess.run([*self.enter(self.head), "ip", "link", "show", f"port{index}"],
                              capture_output=True, check=False).returncode == 0

    def forget(self, key):
        process = self.processes.pop(key, None)
        if process:
            if process.stdin:
                process.stdin.close()
            process.wait(LIMIT_SECONDS)

    def signal_all(self, index, number):
        """A signal for all that runs in a node, its process 1 apart; the node stays up."""
        code = f"import os; os.kill(-1, {int(number)})"
        done = self.run(index, [sys.executable, "-I", "-c", code], check=False)
        if done.returncode != 0 and "ProcessLookupError" not in done.stderr:
            raise ClusterError(hidden_failure(["kill", index], done))

    def stop_node(self, index):
        """SIGSTOP for all that runs in the node: a peer that stalls. Commands may still be run there."""
        self.signal_all(index, signal.SIGSTOP)

    def continue_node(self, index):
        self.signal_all(index, signal.SIGCONT)

    def clear_node(self, index):
        """kill -9 for all that runs in the node, which stays up."""
        self.signal_all(index, signal.SIGKILL)

    def clear(self):
        for index in list(self.inits):
            self.clear_node(index)

    # ---- Network --------------------------------------------------------------------------------------

    def cut(self, one, other):
        """No packet passes between two nodes any more, and nobody is told. For the head too."""
        self.for_pair(one, other, "replace", "lladdr", NOWHERE, "nud", "permanent")
        self.mark_cut(one, other, True)

    def heal(self, one, other):
        self.for_pair(one, other, "del")
        self.mark_cut(one, other, False)

    def for_pair(self, one, other, verb, *words):
        for here, there in ((one, other), (other, one)):
            if self.is_up(here):
                device = "br0" if here == HEAD else "eth0"
                self.tool(here, "ip", "neigh", verb, self.address(there), *words, "dev", device)

    def mark_cut(self, one, other, is_cut):
        """The agent enters nodes without the network, so it is told which the head cannot reach."""
        if HEAD in (one, other):
            mark = self.folder / "cut" / self.node_name(other if one == HEAD else one)
            if is_cut:
                mark.touch()
            else:
                mark.unlink(missing_ok=True)

    def slow(self, index, rate="10mbit", delay=None):
        """Limits what a node sends and is sent; `delay` ("20ms") takes a kernel with netem."""
        self.fast(index)
        shape = ["netem", "delay", delay, "rate", rate] if delay else \
            ["tbf", "rate", rate, "burst", "64k", "latency", "100ms"]
        for where, device in ((index, "eth0"), (HEAD, f"port{index}")):
            try:
                self.tool(where, "tc", "qdisc", "replace", "dev", device, "root", *shape)
            except ClusterError as error:
                if "qdisc kind is unknown" in str(error):
                    raise Unsupported(f"this kernel has no {shape[0]}: {error}") from None
                raise

    def fast(self, index):
        """Takes the limits of `slow` away."""
        for where, device in ((index, "eth0"), (HEAD, f"port{index}")):
            subprocess.run([*self.enter(self.pid(where)), "tc", "qdisc", "del", "dev", device, "root"],
                           capture_output=True, check=False)

    # ---- Running --------------------------------------------------------------------------------------

    @staticmethod
    def enter(pid):
        # nsenter would stop itself when its child is stopped, so it does not fork, and a shell waits.
        return ["nsenter", "-F", "-t", str(pid), "-m", "-n", "-u", "-i", "-p", "--", *WAIT]

    def pid(self, index):
        """Process 1 of a node, as this process sees it."""
        if index == HEAD:
            return self.head
        if index not in self.inits:
            raise ClusterError(f"node {index} is down")
        return self.outside(self.inits[index], 1)

    def outside(self, *numbers):
        """The process that has these numbers in the head and further in, as this process sees it."""
        for pid, inner in self.inside():
            if inner == list(numbers):
                return pid
        raise ClusterError(f"no process {numbers} in cluster {self.name}")

    def inside(self):
        """(pid, [pid in the head, pid in the node]) of all that runs in this cluster."""
        found = []
        # Not by a pattern with a folder in it: looking for it in one that just ended is an error.
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                lines = pathlib.Path("/proc", pid, "status").read_text().splitlines()
            except OSError:
                continue
            inner = next((line.split()[2:] for line in lines if line.startswith("NSpid:")), [])
            if inner:
                found.append((int(pid), [int(word) for word in inner]))
        ours = {pid_namespace(self.head)}
        ours |= {pid_namespace(pid) for pid, inner in found
                 if inner[1:] == [1] and pid_namespace(parent_of(pid)) in ours}
        return [(pid, inner) for pid, inner in found if pid_namespace(pid) in ours]

    def node_pids(self, index):
        """All that runs in a node, process 1 apart: {pid in the node: pid as this process sees it}."""
        namespace = pid_namespace(self.pid(index))
        return {inner[-1]: pid for pid, inner in self.inside()
                if inner[-1] != 1 and pid_namespace(pid) == namespace}

    def command(self, index, command, environment=None, folder=None):
        """What runs `command` in a node, and kills it if the one who waits for it is killed."""
        words = [*self.enter(self.pid(index)), "setpriv", "--pdeathsig", "KILL", "--", "env",
                 "TMPDIR=/var/tmp", *[f"{key}={value}" for key, value in (environment or {}).items()]]
        return [*words, "sh", "-c", 'cd "$0" && exec "$@"', str(folder or os.getcwd()), *map(str, command)]

    def start(self, index, command, environment=None, folder=None, **options):
        """Starts a command in a node; options are those of subprocess.Popen."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.command(index, command, environment, folder), **options)

    def run(self, index, command, environment=None, folder=None, limit=LIMIT_SECONDS, check=True):
        """Runs a command in a node to its end: standard output, standard error, exit status."""
        whole = self.command(index, command, environment, folder)
        try:
            done = subprocess.run(whole, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=limit, check=False)
        except subprocess.TimeoutExpired as late:
            raise ClusterError(f"{shlex.join(map(str, command))} on {self.node_name(index)} is not over "
                               f"after {limit} s: {late.stdout!r} {late.stderr!r}") from None
        if check and done.returncode != 0:
            raise ClusterError(f"{self.node_name(index)}: {hidden_failure(command, done)}")
        return done

    def tool(self, index, *words):
        self.must([*self.enter(self.pid(index)), *words])

    @staticmethod
    def must(command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        if done.returncode != 0:
            raise ClusterError(hidden_failure(command, done))

    # ---- MPI ------------------------------------------------------------------------------------------

    def write_agent(self):
        """A remote shell that enters a node. Like ssh: an own environment, 255 if there is no way."""
        path = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        text = f"""#!/bin/sh
# AGENT [-OPTION]... HOST COMMAND...
while :; do case "$1" in -o|-l|-p) shift 2;; -*) shift;; *) break;; esac; done
host="${{1##*@}}"; shift
folder={shlex.quote(str(self.folder))}
for known in "$folder"/nodes/*; do
    name="${{known##*/}}"
    [ "$host" = "$name" ] || grep -q "^$host $name\\$" "$folder/hosts" || continue
    [ ! -e "$folder/cut/$name" ] || {{ sleep 3; break; }}
    read -r pid < "$known" && kill -0 "$pid" 2>/dev/null || break
    exec nsenter -F -t "$pid" -m -n -u -i -p -- {shlex.join(WAIT)} env -i HOME="${{HOME:-/}}" USER="${{USER:-root}}" \\
        LOGNAME="${{USER:-root}}" SHELL=/bin/sh PATH={path} TMPDIR=/var/tmp \\
        LD_LIBRARY_PATH="$LD_LIBRARY_PATH" sh -c 'cd && eval "$*"' agent "$@"
done
echo "agent: connect to host $host: No route to host" >&2
exit 255
"""
        (self.folder / "agent").write_text(text)
        (self.folder / "agent").chmod(0o755)

    def hostfile(self, counts, mpi="openmpi", file=None):
        """Writes a host file: {node: ranks}, or a list of ranks for node 0, 1, ..."""
        counts = counts if isinstance(counts, dict) else dict(enumerate(counts))
        form = "{0} slots={1}\n" if mpi == "openmpi" else "{0}:{1}\n"
        file = file or self.folder / f"hostfile.{secrets.token_hex(4)}"
        pathlib.Path(file).write_text("".join(form.format(self.node_name(index), count)
                                              for index, count in counts.items()))
        return file

    def mpi_options(self, mpi):
        """mpirun and what it needs to reach the nodes, without hosts, number of ranks and program."""
        if mpi == "openmpi":
            options = {"plm_rsh_agent": self.agent, "plm_rsh_no_tree_spawn": "1",
                       "btl_tcp_if_include": NETWORK, "oob_tcp_if_include": NETWORK, "btl": "self,vader,tcp",
                       "pml": "ob1", "mpi_yield_when_idle": "1", "hwloc_base_binding_policy": "none"}
            words = [word for key, value in options.items() for word in ("--mca", key, value)]
            return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", *words]
        return ["mpirun.mpich", "-launcher", "ssh", "-launcher-exec", self.agent, "-iface", "br0",
                "-bind-to", "none", "-disable-hostname-propagation"]

    def mpirun(self, mpi, counts, program, environment=()):
        """mpirun over the nodes, to be run in the head; `environment`: "NAME=value" or "NAME"."""
        counts = counts if isinstance(counts, dict) else dict(enumerate(counts))
        words = self.mpi_options(mpi)
        hosts = self.hostfile(counts, mpi)
        words += ["--hostfile", str(hosts)] if mpi == "openmpi" else ["-f", str(hosts)]
        for name in environment:
            if mpi == "openmpi":
                words += ["-x", name]
            elif "=" in name:
                words += ["-genv", *name.split("=", 1)]
        return [*words, "-n", str(sum(counts.values())), *map(str, program)]


# ---- Apart from any one cluster -------------------------------------------------------------------------


def pid_namespace(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def wait_until(ready, what, limit=LIMIT_SECONDS):
    end = time.monotonic() + limit
    while not ready():
        if time.monotonic() > end:
            raise ClusterError(f"waited {limit} s for {what}")
        time.sleep(0.01)


def is_head(pid, name):
    """Whether this is process 1 of that cluster, and not one that has its number by now."""
    try:
        surroundings = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return f"BACKSTAY_CLUSTER={name}".encode() in surroundings and b"CLUSTER_PART=head" in surroundings
    except OSError:
        return False


def require_permission():
    """Says what is missing, before half a cluster is there."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        raise ClusterError(f"missing: {' '.join(missing)}; `make setup` installs them")
    done = subprocess.run(["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError("the test cluster is made of namespaces, which this machine does not permit this "
                           f"user: {done.stderr.strip()}. Run as root, in a container with --privileged")


def names():
    return sorted(folder.name for folder in BASE.glob("*") if folder.is_dir())


def state_of(name):
    try:
        return json.loads((BASE / name / "state.json").read_text())
    except (OSError, ValueError):
        return None


def remove_dead():
    """Removes what clusters left behind whose head is dead."""
    for name in names():
        state = state_of(name)
        age = time.time() - (BASE / name).stat().st_mtime if (BASE / name).exists() else 0
        if (state and not is_head(state["head"], name)) or (state is None and age > LIMIT_SECONDS):
            shutil.rmtree(BASE / name, ignore_errors=True)


def remove(name):
    """Ends a cluster of any owner, alive or not."""
    state = state_of(name)
    if state and is_head(state["head"], name):
        send(state["head"], signal.SIGKILL)
        wait_until(lambda: not is_head(state["head"], name), f"the end of cluster {name}")
    shutil.rmtree(BASE / name, ignore_errors=True)
