# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What runs inside the namespaces of a test cluster; cluster.py starts it, nobody else.

    machine.py head FOLDER                  process 1 of the cluster: bridge, address, own /dev/shm
    machine.py holder FOLDER NAME ...       keeps the network, the name and the memory of one node
    machine.py init FOLDER NAME             process 1 of one node: when it dies, all of the node dies

Each prints "ready PID", PID as the one who started it sees it, and stays. The head ends when its
standard input does, and the kernel then ends everything that runs in the cluster.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

HEAD_MAC = "02:00:00:00:00:fd"
HEAD_ADDRESS = "10.77.0.254"


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")


def memory(folder, size):
    os.makedirs(folder, exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", folder)


def name_all(folder, name):
    call("hostname", name)
    call("mount", "--bind", str(folder / "hosts"), "/etc/hosts")


def is_ready(pid):
    print(f"ready {pid}", flush=True)


def pid_outside():
    """The number of this process where /proc was mounted last, which is one namespace further out."""
    return int(os.readlink("/proc/self"))


def stay():
    """Waits for good, and leaves no dead children behind."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def head(folder, stays):
    pid = pid_outside()
    call("mount", "-t", "proc", "proc", "/proc")
    memory("/dev/shm", "1g")
    memory("/var/tmp", "1g")
    name_all(folder, "head")
    call("ip", "link", "set", "lo", "up")
    # Of its own, or it would change with the ports, and nodes that go on would send to the former one.
    call("ip", "link", "add", "br0", "address", HEAD_MAC, "type", "bridge")
    call("ip", "address", "add", f"{HEAD_ADDRESS}/24", "dev", "br0")
    call("ip", "link", "set", "br0", "up")
    is_ready(pid)
    if stays:
        stay()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while os.read(0, 4096):
        pass


def holder(folder, name, shm, boot):
    memory("/dev/shm", shm)
    memory("/var/tmp", "1g")
    name_all(folder, name)
    call("ip", "link", "set", "lo", "up")
    # It stands for the machine's boot: a new one with each holder, the same one for each start on it.
    (folder / "boot" / name).write_text(boot + "\n")
    is_ready(os.getpid())
    stay()


def init(folder, name):
    pid = pid_outside()
    call("mount", "-t", "proc", "proc", "/proc")
    call("mount", "--bind", str(folder / "boot" / name), "/proc/sys/kernel/random/boot_id")
    is_ready(pid)
    stay()


def main():
    role, folder, *rest = sys.argv[1:]
    folder = pathlib.Path(folder)
    {"head": lambda: head(folder, rest == ["stay"]),
     "holder": lambda: holder(folder, *rest),
     "init": lambda: init(folder, *rest)}[role]()


if __name__ == "__main__":
    main()
