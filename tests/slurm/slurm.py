# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A real Slurm on a test cluster: slurmctld in the head, slurmd on each node, no munge.

    with Cluster(3, spares=1) as cluster:
        slurm = Slurm(cluster)
        slurm.ask("srun", "-N3", "-n3", "hostname").stdout
        cluster.kill_node(1)                      # slurmd and all else in it

What daemons and jobs write lies in `slurm.folder`. Everything ends with the cluster.
"""

import pathlib
import shutil
import subprocess

from cluster import HEAD, ClusterError, wait_until

HERE = pathlib.Path(__file__).resolve().parent
DEPLOY = HERE.parents[1] / "deploy" / "slurm"
TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
CPUS = 8
# How a job is over. Slurm's own word.
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY"}

# Times are short, as a test wants them: a lost node is noticed in 20 to 30 s, and a job that is requeued waits for
# `cred_expire` and not two minutes.
SETTINGS = """\
ClusterName=test
SlurmctldHost=head
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile=/var/tmp/slurmctld.pid
SlurmdPidFile=/var/tmp/slurmd.pid
SlurmdSpoolDir=/var/tmp/slurmd
StateSaveLocation=/var/tmp/slurmctld
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
TmpFS=/var/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
MpiDefault=pmix
ReturnToService=2
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=3600
OverTimeLimit=0
BatchStartTimeout=60
MessageTimeout=30
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PrologFlags=Alloc
{extra}
NodeName=node[0-{last}] CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP PriorityTier=1 GraceTime=20
PartitionName=high Nodes=ALL MaxTime=UNLIMITED State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing_tools():
    return [tool for tool in TOOLS if not shutil.which(tool)]


def require_tools():
    if missing := missing_tools():
        raise ClusterError(f"missing: {' '.join(missing)}; `make test-slurm` installs Debian's slurm-wlm")


def version():
    return subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]


class Slurm:
    """Slurm over all nodes of a cluster; `extra`: more lines of slurm.conf."""

    def __init__(self, cluster, extra=""):
        self.cluster = cluster
        self.folder = cluster.folder / "slurm"
        self.folder.mkdir()
        # Jobs of users who are not root write here.
        self.folder.chmod(0o777)
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text(SETTINGS.format(folder=self.folder, extra=extra, last=cluster.count - 1, cpus=CPUS))
        self.environment = {"SLURM_CONF": str(self.conf)}
        self.daemons = []
        self.daemon(HEAD, "slurmctld", "-D")
        for index in range(cluster.count):
            self.start_node(index)
        self.wait_idle(range(cluster.count))

    def daemon(self, index, *words):
        log = open(self.folder / f"{words[0]}.{self.cluster.node_name(index)}.out", "ab")
        with log:
            self.daemons.append(self.cluster.start(index, words, self.environment, self.folder, stdout=log, stderr=log))

    def start_node(self, index):
        """slurmd of a node, which must be up."""
        self.daemon(index, "slurmd", "-D", "-N", self.cluster.node_name(index))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.cluster.clear()

    def ask(self, *words, check=True, user=None, environment=None):
        """A command in the head, with this Slurm."""
        prefix = ["setpriv", "--reuid", user, "--regid", "nogroup", "--clear-groups", "--"] if user else []
        return self.cluster.run(HEAD, [*prefix, *words], {**self.environment, **(environment or {})}, self.folder,
                                check=check)

    def node_states(self):
        text = self.ask("sinfo", "-h", "-N", "-p", "low", "-o", "%N %t").stdout
        return dict(line.split() for line in text.splitlines())

    def wait_idle(self, nodes, limit=60):
        names = [self.cluster.node_name(index) for index in nodes]

        def idle():
            done = self.ask("sinfo", "-h", "-N", "-p", "low", "-o", "%N %t", check=False)
            states = dict(line.split() for line in done.stdout.splitlines())
            return all(states.get(name) == "idle" for name in names)
        try:
            wait_until(idle, f"idle nodes {names}", limit)
        except ClusterError as error:
            raise ClusterError(f"{error}: {self.said()}") from None

    def wait_down(self, index, limit=120):
        name = self.cluster.node_name(index)
        wait_until(lambda: self.node_states().get(name, "").startswith("down"), f"Slurm to see that {name} is down", limit)

    def said(self):
        """The last that daemons said."""
        texts = [f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in sorted(self.folder.glob("slurm*.log"))]
        texts += [f"{path.name}: {path.read_text(errors='replace')[-800:]}" for path in sorted(self.folder.glob("slurm*.out"))]
        return "\n".join(texts)

    def agents(self):
        """{node: pid in it} of the agents that run."""
        found = {}
        for index in range(self.cluster.count):
            if self.cluster.is_up(index):
                for inner, pid in self.cluster.node_pids(index).items():
                    if words_of(pid)[1:3] == ["agent", "--job"] and words_of(pid)[0].endswith("backstay"):
                        found[index] = inner
        return found


def words_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
