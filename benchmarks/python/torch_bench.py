# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What saving and loading with `backstay.torch` costs, beside torch.save, torch.distributed.checkpoint and Orbax.

Each measurement has its baseline beside it, and all take turns; a figure is the median of ratios to the baseline. All
is on memory (tmpfs), with a base that is committed and everything changed since, unless a figure says otherwise.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import backstay
import backstay.torch
import torch
import torch.distributed.checkpoint as dcp
from figures import Figures, Samples, calm, span, wait_quiet
from torch_peers import Peer, dcp_load, dcp_save, peers, torch_load, torch_save
from torch_states import Copy, State, Training, adapters, embeddings, flip, flip_all, read_raw, size, write_raw

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM = 4
"""Checkpoints before those that are measured: then all of the store was in use once."""


class Bench:
    """What all measurements need."""

    def __init__(self, figures: Figures, folder: Path, small: bool, runs: int) -> None:
        self.figures, self.folder, self.small, self.runs = figures, folder, small, runs
        self.peer_runs = max(2, runs // 2)

    @contextmanager
    def settings(self, state: State, **more: Any) -> Iterator[dict[str, Any]]:
        """Of a store that is removed afterwards."""
        store = self.folder / "store"
        shutil.rmtree(store, ignore_errors=True)
        yield {"job": "bench-torch", "store_path": store, "capture_threads": 2, "interval": 1e6,
               "reserve_bytes": 5 * size(state) + (64 << 20)} | more
        shutil.rmtree(store, ignore_errors=True)

    def path(self, name: str) -> Path:
        return self.folder / name

    def say(self, what: str) -> None:
        gc.collect()
        print(f"-- {what}; busy before: {wait_quiet():.0%}", flush=True)


# ---- Asynchronous saves


def blocking(bench: Bench, name: str, dtype: torch.dtype) -> None:
    """Of a training's whole state: how long a save blocks, over one copy of it."""
    bench.say(f"blocking, {name}")
    training = Training(dtype, bench.small)
    state = training.state()
    bench.figures.head["state"][name] = {"bytes": size(state), "tensors": len(state)}
    copy, samples = Copy(state), Samples()
    for tracking in ("hash", "full"):
        with bench.settings(state, tracking=tracking) as settings, backstay.torch.Checkpointer(
                model=training.model, optimizer=training.optimizer, **settings) as checkpointer:
            _starts(bench, state, copy, samples, f"ours-{tracking}", checkpointer.checkpoint_start)
        with bench.settings(state, tracking=tracking) as settings, backstay.torch.Writer(**settings) as writer:
            def start(writer: Any = writer) -> Any:
                return dcp.async_save(dict(state), storage_writer=writer)

            _starts(bench, state, copy, samples, f"ours-dcp-{tracking}", start)
    for peer in peers(bench.folder, state):
        _peer_starts(bench, peer, copy, samples)
    take = bench.figures.take
    take(f"torch.async.blocking.{name}", samples, "ours-hash", reach=1.2)
    take(f"torch.async.blocking.{name}.full", samples, "ours-full")
    take(f"torch.async.blocking.{name}.dcp", samples, "ours-dcp-hash")
    take(f"torch.async.blocking.{name}.dcp.full", samples, "ours-dcp-full")


def _starts(bench: Bench, state: State, copy: Copy, samples: Samples, who: str, start: Callable[[], Any]) -> None:
    for turn in range(WARM + bench.runs):
        flip_all(state)
        calm()
        baseline = copy.memcpy()
        with span() as found:
            started = start()
        started.wait() if hasattr(started, "wait") and not hasattr(started, "result") else started.result()
        if turn >= WARM:
            samples.take(who, found, baseline)


def _peer_starts(bench: Bench, peer: Peer, copy: Copy, samples: Samples) -> None:
    wait_quiet(2)
    for turn in range(1 + bench.peer_runs):
        peer.prepare()
        path = peer.new_path()
        calm()
        baseline = copy.memcpy()
        with span() as found:
            peer.start(path)
        peer.wait()
        if turn:
            samples.take(peer.name, found, baseline)
    peer.close()


def changed(bench: Bench, name: str, dtype: torch.dtype) -> None:
    """The same where 1 % changed."""
    bench.say(f"1 % changed, {name}")
    adapted, changing = adapters(dtype, bench.small)
    copy, samples = Copy(adapted), Samples()
    for tracking in ("hash", "marked", "pages"):
        _changes(bench, adapted, copy, samples, tracking, _Adapters(adapted, changing))
    for peer in peers(bench.folder, adapted):
        _peer_starts(bench, peer, copy, samples)
    _take_changed(bench, f"adapters.{name}", samples)
    del adapted, copy
    table = embeddings(dtype, bench.small)
    copy, samples = Copy(table), Samples()
    for tracking in ("hash", "marked", "pages"):
        _changes(bench, table, copy, samples, tracking, _Rows(table))
    for peer in peers(bench.folder, table):
        _peer_starts(bench, peer, copy, samples)
    _take_changed(bench, f"rows.{name}", samples)


def _take_changed(bench: Bench, what: str, samples: Samples) -> None:
    for tracking, reach in (("hash", 0.6), ("marked", 0.1), ("pages", None)):
        bench.figures.take(f"torch.async.changed.{tracking}.{what}", samples, f"ours-{tracking}", reach=reach)
    marking = [1000 * one for one in samples.seconds["marking"][WARM:]]
    bench.figures.add(f"torch.async.changed.marked.{what}.marking", marking, unit="ms")


class _Adapters:
    """Some tensors change whole, the others never."""

    def __init__(self, state: State, changing: list[str]) -> None:
        self._state, self._changing = state, changing

    def change(self) -> None:
        for one in self._changing:
            flip(self._state[one])

    def begin(self, checkpointer: backstay.torch.Checkpointer) -> None:
        for one in self._state.values():
            checkpointer.mark_dirty(one, ())

    def mark(self, checkpointer: backstay.torch.Checkpointer) -> None:
        for one in self._changing:
            checkpointer.mark_dirty(self._state[one])


class _Rows:
    """Each time other rows change, 1 % of them, in all tensors."""

    def __init__(self, state: State) -> None:
        self._state, self._generator = state, torch.Generator().manual_seed(5)
        self._rows = torch.empty(0)

    def change(self) -> None:
        count = next(iter(self._state.values())).shape[0]
        self._rows = torch.randperm(count, generator=self._generator)[:max(1, count // 100)]
        for one in self._state.values():
            flip(one, self._rows)

    def begin(self, checkpointer: backstay.torch.Checkpointer) -> None:
        """A table is tracked by marks from its first mark on."""

    def mark(self, checkpointer: backstay.torch.Checkpointer) -> None:
        for one in self._state.values():
            checkpointer.mark_dirty(one, self._rows)


def _changes(
    bench: Bench, state: State, copy: Copy, samples: Samples, tracking: str, workload: _Adapters | _Rows,
) -> None:
    wait_quiet(2)
    # Marks need no setting: a tensor is tracked by them once it has one.
    with bench.settings(state, tracking="hash" if tracking == "marked" else tracking) as settings, (
            backstay.torch.Checkpointer(extra=state, **settings)) as checkpointer:
        if tracking == "marked":
            workload.begin(checkpointer)
        for turn in range(WARM + bench.runs):
            if turn:
                workload.change()
                if tracking == "marked":
                    with span() as marking:
                        workload.mark(checkpointer)
                    samples.seconds["marking"].append(marking.wall)
            calm()
            baseline = copy.memcpy()
            with span() as found:
                started = checkpointer.checkpoint_start()
            started.wait()
            if turn >= WARM:
                samples.take(f"ours-{tracking}", found, baseline)
        _is_stored(checkpointer, state)


def _is_stored(checkpointer: backstay.torch.Checkpointer, state: State) -> None:
    """Whether what the last checkpoint has is what there is."""
    saved = {name: one.clone() for name, one in state.items()}
    for one in state.values():
        one.zero_()
    checkpointer.restore()
    if not all(torch.equal(one.view(torch.uint8), saved[name].view(torch.uint8)) for name, one in state.items()):
        raise ValueError("what came back differs")


# ---- Whole saves and loads


def saves(bench: Bench, name: str, dtype: torch.dtype) -> None:
    """A save until it is durable, over a raw write of a new file with fsync; and loads."""
    bench.say(f"whole saves and loads, {name}")
    training = Training(dtype, bench.small)
    state = training.state()
    raw, fresh, over = bench.path("raw"), Samples(), Samples()
    for tracking in ("hash", "full"):
        with bench.settings(state, tracking=tracking) as settings, backstay.torch.Checkpointer(
                model=training.model, optimizer=training.optimizer, **settings) as checkpointer:
            for turn in range(WARM + bench.runs):
                flip_all(state)
                calm()
                in_place, new = write_raw(raw, state, fresh=False), write_raw(raw, state, fresh=True)
                with span() as found:
                    checkpointer.checkpoint()
                if turn >= WARM:
                    fresh.take(f"ours-{tracking}", found, new)
                    over.take(f"ours-{tracking}", found, in_place)
    with bench.settings(state) as settings, backstay.torch.Writer(**settings) as writer:
        for turn in range(WARM + bench.runs):
            flip_all(state)
            calm()
            new = write_raw(raw, state, fresh=True)
            with span() as found:
                dcp.save(dict(state), storage_writer=writer)
            if turn >= WARM:
                fresh.take("ours-dcp", found, new)
    _peer_saves(bench, state, fresh)
    take = bench.figures.take
    take(f"torch.save.total.{name}", fresh, "ours-hash", reach=1.1)
    take(f"torch.save.total.{name}.full", fresh, "ours-full")
    take(f"torch.save.total.{name}.dcp", fresh, "ours-dcp")
    take(f"torch.save.total.{name}.over-a-file-in-place", over, "ours-hash")
    loads(bench, name, training)


def _peer_saves(bench: Bench, state: State, samples: Samples) -> None:
    raw = bench.path("raw")
    for turn in range(1 + bench.peer_runs):
        for who, save in (("torch.save", torch_save), ("dcp", dcp_save)):
            calm()
            baseline = write_raw(raw, state, fresh=True)
            found = save(bench.path(who), state)
            if turn:
                samples.take(who, found, baseline)
    for peer in peers(bench.folder, state):
        if peer.name == "orbax":
            peer.prepare()
            for turn in range(1 + bench.peer_runs):
                path = peer.new_path()
                calm()
                baseline = write_raw(raw, state, fresh=True)
                with span() as found:
                    peer.start(path)
                    peer.wait()
                if turn:
                    samples.take(peer.name, found, baseline)
        peer.close()


def loads(bench: Bench, name: str, training: Training) -> None:
    """A load into the memory of the state, verified, over reading a file to there."""
    state, raw, samples = training.state(), bench.path("raw"), Samples()
    opened: list[float] = []
    saved = {key: one.clone() for key, one in state.items()}
    with bench.settings(state) as settings:
        with backstay.torch.Checkpointer(
                model=training.model, optimizer=training.optimizer, **settings) as checkpointer:
            checkpointer.checkpoint()
        for turn in range(2 + bench.runs):
            flip_all(state)
            calm()
            baseline = read_raw(raw, state)
            flip_all(state)
            with span() as opening:
                checkpointer = backstay.torch.Checkpointer(
                    model=training.model, optimizer=training.optimizer, **settings)
            with checkpointer, span() as found:
                checkpointer.restore()
            if turn >= 2:
                samples.take("ours", found, baseline)
                opened.append(1000 * opening.wall)
        if not all(torch.equal(one, saved[key]) for key, one in state.items()):
            raise ValueError("what came back differs")
    with bench.settings(state) as settings, backstay.torch.Writer(**settings) as writer:
        dcp.save(dict(state), storage_writer=writer)
        for turn in range(2 + bench.runs):
            calm()
            baseline = read_raw(raw, state)
            with span() as found:
                dcp.load(dict(state), storage_reader=backstay.torch.Reader(writer))
            if turn >= 2:
                samples.take("ours-dcp", found, baseline)
    for turn in range(1 + bench.peer_runs):
        for who, load in (("torch.save", torch_load), ("dcp", dcp_load)):
            calm()
            baseline = read_raw(raw, state)
            found = load(bench.path(who), state)
            if turn:
                samples.take("torch.load-mmap" if who == "torch.save" else who, found, baseline)
    bench.figures.take(f"torch.load.{name}", samples, "ours", reach=1.3)
    bench.figures.take(f"torch.load.{name}.dcp", samples, "ours-dcp")
    bench.figures.add(f"torch.load.{name}.open", opened, unit="ms")
    for one in (raw, bench.path("torch.save")):
        one.unlink(missing_ok=True)
    shutil.rmtree(bench.path("dcp"), ignore_errors=True)


# ---- Training while saving


def steps(bench: Bench, name: str, dtype: torch.dtype) -> None:
    """Steps per second from when a save returned until it is durable, over those without; and from its call."""
    bench.say(f"steps, {name}")
    training = Training(dtype, bench.small)
    state, after, inclusive = training.state(), Samples(), Samples()
    for _ in range(3):
        training.step()
    with bench.settings(state) as settings, backstay.torch.Checkpointer(
            model=training.model, optimizer=training.optimizer, **settings) as checkpointer:
        for turn in range(WARM + bench.runs):
            started: list[Any] = []
            _window(training, lambda: started.append(checkpointer.checkpoint_start()),  # noqa: B023
                    lambda: started[0].done(), (after, inclusive) if turn >= WARM else None, "ours")  # noqa: B023
            started[0].wait()
    for peer in peers(bench.folder, state):
        for turn in range(1 + bench.peer_runs):
            peer.prepare()
            path = peer.new_path()
            _window(training, lambda: peer.start(path), peer.done,  # noqa: B023
                    (after, inclusive) if turn else None, peer.name)
            peer.wait()
        peer.close()
    bench.figures.take(f"torch.steps.{name}", after, reach=0.9, better="higher")
    bench.figures.take(f"torch.steps.{name}.with-blocking", inclusive, better="higher")


def _window(
    training: Training, start: Callable[[], Any], done: Callable[[], bool], to: tuple[Samples, Samples] | None,
    who: str,
) -> None:
    """Steps until a save is durable: of the last one only the part that it takes as a step without."""
    calm()
    with span() as alone:
        for _ in range(3):
            training.step()
    with span() as blocked:
        start()
    count = 0
    with span() as beside:
        while count == 0 or not done():
            training.step()
            count += 1
    if to is None:
        return
    step = alone.wall / 3
    for samples, wall in zip(to, (beside.wall, beside.wall + blocked.wall), strict=True):
        samples.ratios[who].append(count * step / wall)
        samples.cpu[who].append((beside.cpu + blocked.cpu) / wall)
        samples.seconds[who].append(wall)
        samples.seconds["baseline"].append(step)


# ---- The whole

PARTS = {"blocking": blocking, "changed": changed, "saves": saves, "steps": steps}
ONCE = {"bytes": "bfloat16", "harm": "float32", "ranks": "float32", "device": "bfloat16"}
"""Parts that are measured for one type."""


def main() -> None:
    """Measures what is asked for, each part in a process of its own: what was freed before would serve the next."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", default=[*PARTS, *ONCE], help="of blocking, changed, saves, steps, bytes, harm, ranks, device")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="small states, to try the benchmark")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    os.environ.setdefault("BACKSTAY_LOG", "warn")
    if chosen.part:
        _measure_part(chosen, *chosen.part)
        return
    folder = Path("/dev/shm") / f"backstay-bench-torch-{os.getpid()}"
    folder.mkdir()
    begun, load = time.monotonic(), os.getloadavg()
    figures = Figures("torch", torch=torch.__version__, capture_threads=2, tracking="hash unless an id says otherwise",
                      state={})
    try:
        for name in DTYPES:
            for what in [one for one in PARTS if one in chosen.only]:
                _run_part(chosen, what, name, folder, figures)
        for what, name in ONCE.items():
            if what in chosen.only:
                _run_part(chosen, what, name, folder, figures)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _worst(figures)
    figures.head["seconds"] = round(time.monotonic() - begun)
    figures.head["load_average"] = {"before": load, "after": os.getloadavg()}
    print(f"written to {figures.write()}")


def _run_part(chosen: argparse.Namespace, what: str, name: str, folder: Path, figures: Figures) -> None:
    small = ["--small"] if chosen.small else []
    words = [sys.executable, "-W", "ignore", __file__, "--runs", str(chosen.runs), *small]
    subprocess.run([*words, "--part", what, name, os.fspath(folder)], check=True)
    part = json.loads((folder / "part.json").read_text())
    figures.found += part["figures"]
    figures.head["state"] |= part["state"]


def _measure_part(chosen: argparse.Namespace, what: str, name: str, folder: str) -> None:
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    figures = Figures("torch", state={})
    bench = Bench(figures, Path(folder), chosen.small, chosen.runs)
    if what in ONCE:
        bench.say({"bytes": "bytes in the archive", "harm": "flips and kills", "ranks": "another number of ranks",
                   "device": "a GPU's state"}[what])
        importlib.import_module(f"torch_{what}").measure(figures, bench.folder, bench.small)
    else:
        PARTS[what](bench, name, DTYPES[name])
    (bench.folder / "part.json").write_text(json.dumps({"figures": figures.found, "state": figures.head["state"]}))


def _worst(figures: Figures) -> None:
    for id in ("torch.async.blocking", "torch.save.total", "torch.steps", "torch.load"):
        figures.worst(id, [f"{id}.{name}" for name in DTYPES])
    for tracking in ("hash", "marked", "pages"):
        id = f"torch.async.changed.{tracking}"
        figures.worst(id, [f"{id}.{kind}.{name}" for kind in ("adapters", "rows") for name in DTYPES])


if __name__ == "__main__":
    main()
