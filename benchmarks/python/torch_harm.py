# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What harm does: a byte that flips in what was saved, and a kill while the only name is overwritten.

    torch_harm.py kill WAY FOLDER TRIALS BYTES

A flip counts once it has an effect: what is loaded differs, or nothing is loaded, or an error says so. It is found where
an error says so, or an older save is taken and named. Killed programs are children of a process that has no threads: it imports
what they need once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any

import backstay.torch
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from figures import Figures, spread
from torch_states import State, raw, size

FLIPS, KILLS = 20, 20
DRAWS_MAX = 400
"""Flips that are tried, with those that have no effect."""
PAGE = 4096
TENSORS = 8
OLDER = "an older save"


class Way(ABC):
    """One that saves under one name, again and again, and loads."""

    name = ""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder, self.state = folder, state

    def open(self) -> None:
        """What is to be done once."""

    def close(self) -> None:
        """The counterpart."""

    @abstractmethod
    def save(self) -> None:
        """Saves the state."""

    @abstractmethod
    def load(self) -> str | None:
        """Has the state be what was saved; what is to be said of that."""


class Ours(Way):
    """A Checkpointer."""

    name = "ours"

    def _checkpointer(self) -> backstay.torch.Checkpointer:
        return backstay.torch.Checkpointer(extra=dict(self.state), **_settings(self))

    def open(self) -> None:
        self._open = self._checkpointer()

    def close(self) -> None:
        self._open.close()

    def save(self) -> None:
        self._open.checkpoint()

    def load(self) -> str | None:
        with self._checkpointer() as checkpointer:
            restored = checkpointer.restore()
        if restored is None:
            raise LookupError("there is nothing")
        return OLDER if restored.fell_back else None


class OursDcp(Way):
    """torch.distributed.checkpoint with our storage."""

    name = "ours-dcp"

    def open(self) -> None:
        self._open = backstay.torch.Writer(**_settings(self))

    def close(self) -> None:
        self._open.close()

    def save(self) -> None:
        dcp.save(dict(self.state), checkpoint_id="only", storage_writer=self._open)

    def load(self) -> str | None:
        dcp.load(dict(self.state), checkpoint_id="only", storage_reader=backstay.torch.Reader(self.folder / "store"))
        return None


def _settings(way: Way) -> dict[str, Any]:
    return {"job": "harm", "store_path": way.folder / "store", "interval": 1e6,
            "reserve_bytes": 5 * size(way.state) + (64 << 20)}


class TorchSave(Way):
    """torch.save to one file."""

    name = "torch.save"

    def save(self) -> None:
        torch.save(dict(self.state), self.folder / "state.pt")

    def load(self) -> str | None:
        loaded = torch.load(self.folder / "state.pt")
        for name, one in self.state.items():
            one.copy_(loaded[name])
        return None


class Dcp(Way):
    """torch.distributed.checkpoint to files."""

    name = "dcp"

    def save(self) -> None:
        dcp.save(dict(self.state), checkpoint_id=self.folder / "dcp")

    def load(self) -> str | None:
        dcp.load(dict(self.state), checkpoint_id=self.folder / "dcp")
        return None


class Orbax(Way):
    """PyTreeCheckpointer, which overwrites by force."""

    name = "orbax"

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state)
        import jax  # noqa: F401
        import orbax.checkpoint

        logging.disable(logging.WARNING)
        self._orbax = orbax.checkpoint

    def save(self) -> None:
        tree = {name: one.numpy() for name, one in self.state.items()}
        self._orbax.PyTreeCheckpointer().save((self.folder / "orbax").absolute(), tree, force=True)

    def load(self) -> str | None:
        loaded = self._orbax.PyTreeCheckpointer().restore((self.folder / "orbax").absolute())
        for name, one in self.state.items():
            one.copy_(torch.from_numpy(np.array(loaded[name])))
        return None


WAYS: list[type[Way]] = [Ours, OursDcp, TorchSave, Dcp, Orbax]


# ---- A byte that flips


def _used(folder: Path) -> list[tuple[Path, int]]:
    """Pages of files that have anything but zeros: what is only reserved is no part of a save."""
    found = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        data = np.fromfile(path, dtype=np.uint8)
        padded = np.pad(data, (0, -len(data) % PAGE)).reshape(-1, PAGE)
        found += [(path, int(at)) for at in padded.any(axis=1).nonzero()[0]]
    return found


def _flip(places: list[tuple[Path, int]], draw: random.Random) -> None:
    path, page = draw.choice(places)
    at = page * PAGE + draw.randrange(min(PAGE, path.stat().st_size - page * PAGE))
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << draw.randrange(8))]))


def _loaded(way: Way, saved: State) -> str:
    """What became of a load: found, wrong or harmless."""
    for one in way.state.values():
        one.zero_()
    try:
        told = way.load()
    except LookupError:
        return "wrong"
    except (Exception, dcp.CheckpointException):
        return "found"
    if told is not None:
        return "found"
    is_same = all(torch.equal(one.view(torch.int32), saved[name].view(torch.int32)) for name, one in way.state.items())
    return "harmless" if is_same else "wrong"


def _flips(kind: type[Way], folder: Path, bytes_each: int) -> Counter[str]:
    shutil.rmtree(folder, ignore_errors=True)
    work, kept = folder / "work", folder / "kept"
    work.mkdir(parents=True)
    generator = torch.Generator().manual_seed(2)
    saved = {f"t{at}": torch.randn(bytes_each // 4, generator=generator) for at in range(TENSORS)}
    way = kind(work, {name: one.clone() for name, one in saved.items()})
    way.open()
    way.save()
    way.close()
    _copy(work, kept)
    places = _used(work)
    if _loaded(way, saved) != "harmless":
        raise ValueError(f"{way.name} does not load what it saved")
    found: Counter[str] = Counter()
    draw = random.Random(11)
    for _ in range(DRAWS_MAX):
        if found["found"] + found["wrong"] == FLIPS:
            break
        _copy(kept, work)
        _flip(places, draw)
        found[_loaded(way, saved)] += 1
    shutil.rmtree(folder)
    return found


def _copy(source: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", os.fspath(source), os.fspath(to)], check=True)


# ---- A kill


WARM = 2
"""Saves before a kill: the first is another's work too."""


def _save(way: Way, pipe: int, is_killed: bool) -> int:
    """Saves again and again; one that is not to be killed, so often as the others do before."""
    way.open()
    value = 0
    while is_killed or value < WARM:
        value += 1
        for one in way.state.values():
            one.fill_(value)
        begun = time.perf_counter()
        way.save()
        os.write(pipe, struct.pack("d", time.perf_counter() - begun))
    way.close()
    return 0


def _forked(body: Any) -> int:
    """A child that runs `body` and ends with its outcome."""
    child = os.fork()
    if child == 0:
        outcome = 99
        with contextlib.suppress(BaseException):
            outcome = body()
        os._exit(outcome if isinstance(outcome, int) else 98)
    return child


OUTCOMES = ["whole", "torn", "unreadable"]


def _read_back(way: Way) -> int:
    for one in way.state.values():
        one.zero_()
    try:
        way.load()
    except (Exception, dcp.CheckpointException):
        return OUTCOMES.index("unreadable")
    values = {float(one) for tensor in way.state.values() for one in torch.aminmax(tensor)}
    return OUTCOMES.index("whole" if len(values) == 1 and values != {0.0} else "torn")


def _left(way: Way, draw: random.Random, is_killed: bool = True) -> str:
    """What can be read of a program that saves again and again, and is killed in one of its saves."""
    shutil.rmtree(way.folder, ignore_errors=True)
    way.folder.mkdir(parents=True)
    told, tell = os.pipe()
    child = _forked(lambda: _save(way, tell, is_killed))
    os.close(tell)
    seconds = [struct.unpack("d", _exactly(told, 8))[0] for _ in range(WARM)]
    if is_killed:
        time.sleep(draw.random() * 2 * seconds[-1])
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    _, status = os.waitpid(_forked(lambda: _read_back(way)), 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in range(len(OUTCOMES)):
        raise RuntimeError(f"the program that reads ended with {code}")
    return OUTCOMES[code]


def _exactly(descriptor: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = os.read(descriptor, count - len(found))
        if not more:
            raise RuntimeError("the program that saves ended")
        found += more
    return found


def _kills_main(name: str, folder: str, trials: str, bytes_each: str) -> None:
    warnings.filterwarnings("ignore")
    kind = next(one for one in WAYS if one.name == name)
    way = kind(Path(folder), {f"t{at}": torch.empty(int(bytes_each) // 4) for at in range(TENSORS)})
    draw = random.Random(13)
    if _left(way, draw, is_killed=False) != "whole":
        raise RuntimeError(f"what {name} saved is not whole though nothing was killed")
    print(json.dumps(Counter(_left(way, draw) for _ in range(int(trials)))))


def _kills(name: str, folder: Path, trials: int, bytes_each: int) -> Counter[str]:
    words = [sys.executable, __file__, "kill", name, os.fspath(folder / "killed"), str(trials), str(bytes_each)]
    # What the programs that read say of files that are in pieces is no news.
    ran = subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    shutil.rmtree(folder / "killed", ignore_errors=True)
    return Counter(json.loads(ran.stdout.splitlines()[-1]))


# ---- All of it


def measure(figures: Figures, folder: Path, small: bool) -> None:
    """All figures of harm."""
    flips: dict[str, Counter[str]] = {}
    kills: dict[str, Counter[str]] = {}
    for kind in WAYS:
        try:
            flips[kind.name] = _flips(kind, folder / "flips", 1 << (16 if small else 20))
        except ImportError as error:
            print(f"{kind.name} is not measured: {error}")
            continue
        kills[kind.name] = _kills(kind.name, folder, 3 if small else KILLS, 1 << (16 if small else 23))
    theirs = [name for name in flips if not name.startswith("ours")]
    for name, suffix in (("ours", ""), ("ours-dcp", ".dcp")):
        figures.add(f"torch.harm.flips-found{suffix}", [flips[name]["found"]], unit=f"of {FLIPS}", reach=FLIPS,
                    better="higher", peers={who: spread([flips[who]["found"]]) for who in theirs},
                    outcomes={who: dict(flips[who]) for who in (name, *theirs)})
        trials = kills[name].total()
        figures.add(f"torch.harm.kills-unreadable{suffix}", [trials - kills[name]["whole"]], unit=f"of {trials}", reach=0,
                    peers={who: spread([trials - kills[who]["whole"]]) for who in theirs},
                    outcomes={who: dict(kills[who]) for who in (name, *theirs)})


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        _kills_main(*sys.argv[2:6])
