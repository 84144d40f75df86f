# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A store of its own for each test, and ranks that are threads of one process."""

import os
import threading

import pytest

import backstay

LIMIT_SECONDS = 60


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """The folder of this test's stores; settings from outside do not count."""
    for name in list(os.environ):
        if name.startswith("BACKSTAY_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BACKSTAY_STORE_PATH", str(tmp_path / "stores"))
    monkeypatch.setenv("BACKSTAY_JOB", "test")
    monkeypatch.setenv("BACKSTAY_LOG", "quiet")
    monkeypatch.setenv("BACKSTAY_TIMEOUT_MS", "20000")
    (tmp_path / "stores").mkdir()
    return tmp_path / "stores"


class Threads:
    """A communicator whose ranks are threads: what `backstay.Communicator` asks for, and no more."""

    class _Shared:
        def __init__(self, size):
            self.barrier = threading.Barrier(size)
            self.parts = [None] * size

    def __init__(self, shared, rank):
        self._shared, self.rank, self.size = shared, rank, len(shared.parts)

    def _gather(self, mine):
        self._shared.barrier.wait(LIMIT_SECONDS)
        self._shared.parts[self.rank] = mine
        self._shared.barrier.wait(LIMIT_SECONDS)
        return list(self._shared.parts)

    def allgather(self, mine):
        return self._gather(mine)

    def allreduce_max(self, values):
        return [max(column) for column in zip(*self._gather(values))]

    def barrier(self):
        self._shared.barrier.wait(LIMIT_SECONDS)

    def leave(self):
        """Those who wait for this rank, or will, get an error."""
        self._shared.barrier.abort()

    @classmethod
    def all(cls, size):
        shared = cls._Shared(size)
        return [cls(shared, rank) for rank in range(size)]


class Gathering(Threads):
    """The same with the two calls that an object may have; counts them."""

    calls = 0

    def gather(self, mine, root):
        type(self).calls += 1
        parts = self._gather(mine)
        return parts if self.rank == root else None

    def broadcast(self, data, root):
        type(self).calls += 1
        return self._gather(data)[root]


def on_ranks(size, body, kind=Threads):
    """Runs `body(comm)` on so many ranks; what each returned, in rank order, or raised."""
    outcomes = [None] * size

    def run(comm):
        try:
            outcomes[comm.rank] = body(comm)
        except BaseException as error:  # noqa: BLE001
            outcomes[comm.rank] = error
            comm.leave()

    threads = [threading.Thread(target=run, args=(comm,), daemon=True) for comm in kind.all(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def all_well(outcomes):
    """The outcomes, if none is an error."""
    wrong = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    first = [error for error in wrong if not isinstance(error, backstay.CommunicatorError)] or wrong
    if first:
        raise first[0]
    return outcomes


def saved(**variables):
    """A start of one rank that protects `variables`, takes a checkpoint and ends."""
    with backstay.open() as session:
        for name, array in variables.items():
            session.protect(name, array)
        return session.checkpoint()
