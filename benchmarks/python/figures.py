# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a benchmark in Python found: medians and spread, as a table for people and JSON for programs.

The JSON is that of the benchmarks in Rust, with what others took and the time of processors beside each figure.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

QUIET = 0.15
"""Processors that are busy for less than this share of the time are quiet."""


class Span:
    """Wall time and processor time of all threads of this process."""

    wall = 0.0
    cpu = 0.0


@contextmanager
def span() -> Iterator[Span]:
    """Measures what is done within."""
    made = Span()
    cpu, wall = time.process_time(), time.perf_counter()
    yield made
    made.wall, made.cpu = time.perf_counter() - wall, time.process_time() - cpu


def spread(values: list[float]) -> dict[str, Any]:
    """Median, least and most of some values."""
    return {"value": median(values), "runs": len(values), "min": min(values), "max": max(values)} if values else {
        "value": None, "runs": 0, "min": None, "max": None}


class Samples:
    """Ratios over a baseline, by who took them."""

    def __init__(self) -> None:
        self.ratios: defaultdict[str, list[float]] = defaultdict(list)
        self.cpu: defaultdict[str, list[float]] = defaultdict(list)
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def take(self, who: str, found: Span, baseline: Span) -> None:
        """One measurement, and the baseline that was measured beside it."""
        self.ratios[who].append(found.wall / baseline.wall)
        self.cpu[who].append(found.cpu / baseline.wall)
        self.seconds[who].append(found.wall)
        self.seconds["baseline"].append(baseline.wall)


class Figures:
    """All figures of one benchmark."""

    def __init__(self, name: str, **context: Any) -> None:
        self.name = name
        self.head = {"machine": machine(), "commit": commit()} | context
        self.found: list[dict[str, Any]] = []

    def add(
        self,
        id: str,
        values: list[float],
        *,
        unit: str = "ratio",
        reach: float | None = None,
        better: str = "lower",
        **more: Any,
    ) -> None:
        """A figure."""
        numbers = spread(values)
        figure = {"id": id, "value": numbers["value"], "unit": unit, "reach": reach, "better": better,
                  "runs": numbers["runs"], "min": numbers["min"], "max": numbers["max"]} | more
        self.found.append(figure)
        print(_row(figure), flush=True)

    def take(self, id: str, samples: Samples, ours: str = "ours", *, reach: float | None = None,
             better: str = "lower") -> None:
        """What was taken by us, with the processors' time and what others took."""
        peers = {who: spread(values) for who, values in samples.ratios.items() if not who.startswith("ours")}
        milliseconds = {who: spread([1000 * one for one in values]) for who, values in samples.seconds.items()
                        if who in (ours, "baseline") or who in peers}
        self.add(id, samples.ratios[ours], reach=reach, better=better, peers=peers, milliseconds=milliseconds,
                 cpu={who: spread(values) for who, values in samples.cpu.items() if who == ours or who in peers})

    def worst(self, id: str, ids: list[str]) -> None:
        """Of several figures the one that falls short most."""
        several = [one for one in self.found if one["id"] in ids and one["value"] is not None]
        if several:
            of = max if several[0]["better"] == "lower" else min
            chosen = of(several, key=lambda one: one["value"])
            self.found.append(chosen | {"id": id, "of": chosen["id"]})
            print(_row(self.found[-1]), flush=True)

    def write(self) -> Path:
        """Writes target/bench/NAME.json."""
        path = Path("target/bench") / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.head | {"figures": self.found}, indent=2) + "\n")
        return path


def _row(figure: dict[str, Any]) -> str:
    if figure["value"] is None:
        return f"{figure['id']}: not measured"
    sign = "<=" if figure["better"] == "lower" else ">="
    asked = "" if figure["reach"] is None else f", asked for {sign} {figure['reach']}"
    peers = "".join(f"; {who} {one['value']:.2f}" for who, one in figure.get("peers", {}).items()
                    if one["value"] is not None)
    return (f"{figure['id']}: {figure['value']:.3f} ({figure['min']:.3f} to {figure['max']:.3f}, {figure['runs']} runs)"
            f"{asked}{peers}")


# ---- The machine


def machine() -> str:
    """Processor, cores and kernel, as the benchmarks in Rust say it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(reversed([(key.strip(), value.strip()) for key, _, value in (one.partition(":") for one in lines)]))
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(fields.get("vendor_id", "?"), "?")
    model = fields.get("model name", "?").replace("(R)", "").replace("(TM)", "")
    model = model if model.startswith(vendor) else f"{vendor} {model}"
    return (f"{model} (family {fields.get('cpu family')}, model {fields.get('model')}), "
            f"{len(os.sched_getaffinity(0))} cores, Linux {platform.release()}")


def commit() -> str:
    """The commit that is measured, with `-changed` where the tree is not as committed."""
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = "-changed" if git("status", "--porcelain") else ""
        return git("rev-parse", "--short=12", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _ticks() -> tuple[int, int]:
    numbers = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(numbers) - sum(numbers[3:5]), sum(numbers)


def calm() -> None:
    """Waits a moment for neighbours, before a single measurement."""
    wait_quiet(0.5, 0.1)


def wait_quiet(at_most: float = 5.0, sample: float = 0.2) -> float:
    """Waits until the processors have little else to do; the share that was busy when it ended."""
    end = time.monotonic() + at_most
    while True:
        busy, every = _ticks()
        time.sleep(sample)
        busy_now, every_now = _ticks()
        share = (busy_now - busy) / max(every_now - every, 1)
        if share < QUIET or time.monotonic() >= end:
            return share
