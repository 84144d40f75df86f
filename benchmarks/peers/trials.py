# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What survives: a system is hurt, the program is started again, and says what came back.

Every word that comes back is compared with what that step made of it. An outcome is one of OUTCOMES.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
from pathlib import Path
from typing import Any

from places import Place, Run
from ways import Way

OUTCOMES = {
    "newest": "all words of the newest complete checkpoint",
    "older": "all words of an older one",
    "refused": "nothing, and the system said why",
    "nothing": "nothing, as if there had been no checkpoint",
    "wrong": "wrong words, in silence",
    "crash": "the restart died or hung",
}
LAUNCHER = ("plm:rsh", "failure of the TCP network", "possibly an internal failure", "We cannot recover from this failure")
"""What mpirun says when its daemons are killed."""
MIB, GRANULE, WORDS = 16, 16 << 10, (16 << 10) // 8
MASK = (1 << 64) - 1
LIMIT = 60


# ---- The words that work.c writes


def mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def word_of(rank: int, place: int, step: int) -> bytes:
    seed = mixed((step * 1024 + rank) & MASK)
    return struct.pack("<Q", 0x3FF0000000000000 | (mixed(seed ^ place) >> 12))


def granules_of(rank: int, step: int, share: float) -> list[int]:
    count = (MIB << 20) // GRANULE
    wanted = int(count * share / 100 + 0.5)
    seed, chosen = mixed((step * 4099 + rank) & MASK), dict[int, bool]()
    while len(chosen) < wanted:
        seed = mixed(seed)
        chosen[seed % count] = True
    return sorted(chosen)


# ---- One trial


class Trial:
    """A way that is hurt in one place, with one seed."""

    def __init__(self, place: Place, way: Way, programs: Path, seed: int) -> None:
        self.place, self.way, self.programs = place, way, programs
        self.random = random.Random(f"{way.id} {seed}")
        self.ranks = 2 if place.nodes == 1 else 1
        self.found: dict[str, Any] = {"seed": seed}
        place.prepare(way)

    def start(self, *words: str) -> Run:
        return Run(self.place, self.way, self.programs, self.ranks, [f"mib={MIB}", *words])

    def kill(self) -> dict[str, Any]:
        """kill -9 of all ranks at once, inside a checkpoint."""
        share = self.random.random()
        run = self.start("shares=50", "steps=6", "kill_at=5", f"kill_share={share:.6f}")
        self.until_end(run)
        self.found |= {"kill_share": round(share, 3), "hit": not any(int(one[1]) == 5 for one in run.all("done"))}
        return self.again(run, "shares=50")

    def flip(self) -> dict[str, Any]:
        """One bit of a word that only the newest checkpoint has is another one."""
        steps = 6
        run = self.start("shares=10", f"steps={steps}")
        self.until_end(run, must=True)
        rank = self.random.randrange(self.place.nodes * self.ranks)
        granule = self.random.choice(granules_of(rank, steps, 10))
        at = granule * WORDS + self.random.randrange(WORDS - 1)
        places = self.find(word_of(rank, at, steps) + word_of(rank, at + 1, steps))
        if not places:
            raise RuntimeError(f"{self.way.id}: the word is in no file of the nodes or of the shared folder")
        path, offset = self.random.choice(places)
        with open(path, "r+b") as file:
            bit = self.random.randrange(64)
            file.seek(offset + bit // 8)
            byte = file.read(1)[0]
            file.seek(offset + bit // 8)
            file.write(bytes([byte ^ (1 << bit % 8)]))
        self.found |= {"rank": rank, "copies": len(places), "file": path.name}
        return self.again(run, "shares=10")

    def full(self) -> dict[str, Any]:
        """The tmpfs is filled by somebody else but for a part of what one checkpoint takes."""
        run = self.start("shares=100", "steps=5", "hold_at=5")
        if run.until(("hold",), LIMIT) is None:
            raise RuntimeError(f"{self.way.id}: ended before it was hurt: {run.said[-3:]}")
        folder = self.place.memory(0) / "peer"
        free = int(self.random.random() * self.ranks * (MIB << 20))
        there = os.statvfs(folder)
        with open(folder / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(4096, there.f_bavail * there.f_frsize - free))
        run.tell()
        try:
            said = run.until(("done", "failed"), LIMIT)
            while said and int(said[1]) < 5:
                said = run.until(("done", "failed"), LIMIT)
        except TimeoutError:
            said = ["hung"]
        self.found |= {"free_mib": free >> 20, "call": said[0] if said else "died"}
        run.kill()
        if self.found["call"] in ("died", "hung"):
            self.found["call_said"] = message_of(run.said)
        (folder / "ballast").unlink()
        return self.again(run, "shares=100")

    def lose(self, nodes: int) -> dict[str, Any]:
        """Nodes are gone with their memory, and come back without it."""
        run = self.start("shares=10", "steps=6")
        self.until_end(run, must=True)
        first = self.random.randrange(self.place.nodes)
        lost = [(first + index) % self.place.nodes for index in range(nodes)]
        for node in lost:
            self.place.refresh(node, self.way)
        self.found["lost"] = lost
        return self.again(run, "shares=10")

    # ---- Parts of them

    def until_end(self, run: Run, must: bool = False) -> None:
        try:
            ended = run.until(("end",), LIMIT)
        except TimeoutError:
            ended = None
        run.kill()
        if must and not ended:
            raise RuntimeError(f"{self.way.id}: did not come to its end: {run.said[-5:]}")

    def find(self, words: bytes) -> list[tuple[Path, int]]:
        """Where the newest checkpoint has these words."""
        found = []
        roots = [self.place.memory(node) / "peer" for node in range(self.place.nodes)] + [self.place.shared]
        for path in (path for root in roots for path in sorted(root.rglob("*"))):
            if path.is_file() and not path.is_symlink() and path.stat().st_size >= len(words):
                with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                    at = memory.find(words)
                    if at >= 0:
                        found.append((path, at))
        return found

    def again(self, run: Run, shares: str) -> dict[str, Any]:
        """Starts it once more and says what came back."""
        complete = max((int(one[1]) for one in run.all("done")), default=0)
        again = self.start(shares, "only_restart=1")
        try:
            event = again.until(("restored", "nothing", "refused"), LIMIT)
        except TimeoutError:
            event = ["hung"]
        again.kill()
        self.found |= {"complete": complete, "outcome": outcome_of(event, complete, again),
                       "restored": int(event[1]) if event and event[0] == "restored" else None}
        if self.found["outcome"] not in ("newest", "older"):
            self.found["said"] = message_of(again.said)
        return self.found


def outcome_of(event: list[str] | None, complete: int, again: Run) -> str:
    if event is None:
        # A system that ends the job by itself, with a message, refused; a signal is a crash.
        return "crash" if any("signal" in line.lower() for line in again.said) or not again.said else "refused"
    if event[0] == "hung":
        return "crash"
    if event[0] == "restored":
        number, wrong = int(event[1]), int(event[2])
        return "wrong" if wrong else "newest" if number >= complete else "older"
    return event[0]


def message_of(lines: list[str]) -> list[str]:
    """What of its standard error says most."""
    lines = [line for line in lines if not any(word in line for word in LAUNCHER)]
    telling = [line for line in lines if any(word in line.lower() for word in
               ("error", "fail", "cannot", "corrupt", "match", "missing", "signal", "abort", "refus", "damage"))]
    return [line[:200] for line in telling[:4]]
