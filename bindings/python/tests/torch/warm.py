# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Processes that have imported torch already, which takes seconds each: forks of one that did nothing else.

    warm.Popen([program, ...]), warm.Popen(["-c", text, ...]), warm.run(...)

are `subprocess.Popen` and `run` of Python with these words, and have the same of it: environment, channels, process
group, signals, exit status. As a program of its own it is the process that forks.
"""

import array
import atexit
import contextlib
import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys

# What programs of the tests import, or what they do does, and nothing that starts threads or opens a session.
MODULES = ("torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict",
           "torch.distributed.fsdp", "torch.distributed.tensor", "torch.utils.data", "backstay.torch", "backstay.torch._dcp",
           "backstay.torch._dcp_reader", "backstay.torch._shelf")
# Those that need not be installed.
MORE_MODULES = ("lightning.pytorch", "sklearn.datasets", "accelerate", "torch_checkpointing", "safetensors.torch")
BYTES_MAX = 1 << 20


class _Source:
    """The process that forks, as its users have it."""

    def __init__(self):
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("BACKSTAY_")}
            self.process = subprocess.Popen([sys.executable, "-W", "ignore", __file__, str(theirs.fileno())],
                                            pass_fds=[theirs.fileno()], env={**environment, "OMP_NUM_THREADS": "1"},
                                            stdin=subprocess.DEVNULL)

    def end(self):
        self.channel.close()
        self.process.wait()

    def fork(self, request, files):
        """The pid of a new process."""
        socket.send_fds(self.channel, [json.dumps(request).encode()], files)
        answer = self.channel.recv(64)
        if not answer:
            raise RuntimeError(f"the process that has imported torch ended with {self.process.wait()}")
        return int(answer)


_source = None


class Popen(subprocess.Popen):
    """Overrides how `subprocess.Popen` starts a process and learns of its end."""

    def __init__(self, words, *, start_new_session=False, **more):
        self._new_session, self._ended = start_new_session, None
        super().__init__([str(word) for word in words], **more)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                       p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *unused):
        global _source
        if _source is None:
            _source = _Source()
            atexit.register(_source.end)
        self._ended, told = os.pipe()
        request = {"words": args, "folder": os.fspath(cwd or os.getcwd()), "new_session": self._new_session,
                   "environment": dict(os.environ if env is None else env)}
        files = [default if own == -1 else own for default, own in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid = _source.fork(request, [*files, told])
        finally:
            os.close(told)
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True

    def _try_wait(self, wait_flags):
        readable, _, _ = select.select([self._ended], [], [], 0 if wait_flags & os.WNOHANG else None)
        if not readable:
            return 0, 0
        status = os.read(self._ended, 4)
        os.close(self._ended)
        # Nothing is told if the process that forks is gone.
        return self.pid, int.from_bytes(status, "little") if status else signal.SIGKILL

    def _internal_poll(self, *unused, **unused_too):
        if self.returncode is None and self._ended is not None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


def run(words, *, capture_output=False, timeout=None, **more):
    if capture_output:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **more) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


# ---- The process that forks


def serve(channel):
    """Forks for each request, and tells how each ended; returns the request in a new process, None when all is over."""
    alive = {}
    while True:
        readable, _, _ = select.select([channel, *alive], [], [])
        for ended in set(readable) & alive.keys():
            pid, told = alive.pop(ended)
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(BrokenPipeError):
                os.write(told, status.to_bytes(4, "little"))
            os.close(told)
            os.close(ended)
        if channel not in readable:
            continue
        data, files, _, _ = socket.recv_fds(channel, BYTES_MAX, 4)
        if not data:
            return None
        *standard, told = array.array("i", files)
        pid = os.fork()
        if pid == 0:
            channel.close()
            for file in [told, *alive, *(told for _, told in alive.values())]:
                os.close(file)
            for number, file in enumerate(standard):
                os.dup2(file, number)
                os.close(file)
            return json.loads(data)
        for file in standard:
            os.close(file)
        alive[os.pidfd_open(pid)] = pid, told
        channel.send(str(pid).encode())


def become(request):
    """All of what a start with these words would have, but the text of the program."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def program(words):
    """Runs the program that the words name."""
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[0] = ""
        exec(compile(words[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv = list(words)
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def main():
    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        __import__(name)
    for name in MORE_MODULES:
        with contextlib.suppress(ImportError):
            __import__(name)
    # What is there now is not looked at again, nor copied for that.
    gc.collect()
    gc.freeze()
    request = serve(channel)
    if request is not None:
        become(request)
        program(request["words"])


if __name__ == "__main__":
    main()
