# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a save costs a training on a GPU, over one copy of its state to pinned memory of the host, beside DCP.

Of a GPU no less can be asked than that copy while the training waits: its memory is written again by the next step of
the optimizer. All is on memory (tmpfs); each measurement has its baseline beside it, and all take turns.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import backstay.torch
import torch
import torch.distributed.checkpoint as dcp
from figures import Figures, Samples, Span, calm, span
from torch_peers import DcpDefault, DcpReused, Peer, writer
from torch_states import State, Training, flip_all, size

DEVICE = "cuda"
WARM, RUNS, PEER_RUNS = 4, 9, 4


class Pinned:
    """Touched memory of the host for a copy of a state, as a device copies fastest to."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._copies = {name: torch.zeros(one.shape, dtype=one.dtype, pin_memory=True) for name, one in state.items()}

    def to_host(self) -> Span:
        """Copies a state there."""
        torch.cuda.synchronize()
        with span() as found:
            for name, one in self._state.items():
                self._copies[name].copy_(one, non_blocking=True)
            torch.cuda.synchronize()
        return found

    def to_device(self) -> Span:
        """Copies it back."""
        torch.cuda.synchronize()
        with span() as found:
            for name, one in self._state.items():
                one.copy_(self._copies[name], non_blocking=True)
            torch.cuda.synchronize()
        return found


class DcpPinned(DcpReused):
    """async_save with a stager whose pinned memory is kept."""

    name = "dcp-pinned"
    of_device = True


class DcpSave(Peer):
    """A synchronous save, which blocks until all is written."""

    name = "dcp-save"

    def start(self, path: Path) -> None:
        dcp.save(dict(self.state), storage_writer=writer(path))

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """It is durable already."""


PEERS: list[type[Peer]] = [DcpPinned, DcpDefault, DcpSave]


def measure(figures: Figures, folder: Path, small: bool) -> None:
    """All of it, for what a transformer of each size and its moments have."""
    if not torch.cuda.is_available():
        print("no GPU: nothing of it is measured")
        return
    figures.head["state"]["device"] = {"name": torch.cuda.get_device_name(0)}
    for name, scale in (("450mb", 1), ("3gb", 8)):
        with torch.device(DEVICE):
            training = Training(torch.bfloat16, small, layers_scale=scale)
        figures.head["state"]["device"][name] = {"bytes": size(training.state()), "tensors": len(training.state())}
        _blocking(figures, folder, name, training)
        _changed(figures, folder, name, training)
        _steps(figures, folder, name, training)
        _load(figures, folder, name, training)
        del training
        gc.collect()


@contextmanager
def _settings(folder: Path, state: State, **more: Any) -> Iterator[dict[str, Any]]:
    store = folder / "store"
    shutil.rmtree(store, ignore_errors=True)
    yield {"job": "bench-torch", "store_path": store, "interval": 1e6,
           "reserve_bytes": 5 * size(state) + (64 << 20)} | more
    shutil.rmtree(store, ignore_errors=True)


@contextmanager
def _checkpointer(
    folder: Path, training: Training, state: State, **more: Any,
) -> Iterator[backstay.torch.Checkpointer]:
    with _settings(folder, state, **more) as settings, backstay.torch.Checkpointer(
            model=training.model, optimizer=training.optimizer, **settings) as checkpointer:
        yield checkpointer


def _started(samples: Samples, who: str, turn: int, pinned: Pinned, start: Callable[[], Any]) -> Any:
    calm()
    baseline = pinned.to_host()
    with span() as found:
        started = start()
    if turn >= WARM:
        samples.take(who, found, baseline)
    return started


def _blocking(figures: Figures, folder: Path, name: str, training: Training) -> None:
    state, samples = training.state(), Samples()
    pinned = Pinned(state)
    for tracking in ("hash", "full"):
        with _checkpointer(folder, training, state, tracking=tracking) as checkpointer:
            for turn in range(WARM + RUNS):
                flip_all(state)
                _started(samples, f"ours-{tracking}", turn, pinned, checkpointer.checkpoint_start).wait()
    with _settings(folder, state) as settings, backstay.torch.Writer(**settings) as own:
        for turn in range(WARM + RUNS):
            flip_all(state)
            _started(samples, "ours-dcp", turn, pinned,
                     lambda: dcp.async_save(dict(state), storage_writer=own)).result()  # noqa: B023
    for kind in PEERS:
        peer = kind(folder, state)
        for turn in range(WARM, WARM + PEER_RUNS + 1):
            flip_all(state)
            path = peer.new_path()
            _started(samples, peer.name, turn - 1, pinned, lambda: peer.start(path))  # noqa: B023
            peer.wait()
        peer.close()
    figures.take(f"torch.device.blocking.{name}", samples, "ours-hash", reach=1.2)
    figures.take(f"torch.device.blocking.{name}.full", samples, "ours-full")
    figures.take(f"torch.device.blocking.{name}.dcp", samples, "ours-dcp")


def _changed(figures: Figures, folder: Path, name: str, training: Training) -> None:
    """Nothing changed but a tensor of each hundred."""
    state, samples = training.state(), Samples()
    pinned = Pinned(state)
    changing = dict(list(state.items())[::100])
    with _checkpointer(folder, training, state) as checkpointer:
        for turn in range(WARM + RUNS):
            flip_all(changing)
            _started(samples, "ours", turn, pinned, checkpointer.checkpoint_start).wait()
    figures.take(f"torch.device.changed.{name}", samples)


def _steps(figures: Figures, folder: Path, name: str, training: Training) -> None:
    """Steps per second from when a save returned until it is durable, over those without."""
    state, samples = training.state(), Samples()

    def step() -> None:
        training.step()
        torch.cuda.synchronize()

    def window(who: str, is_warm: bool, start: Callable[[], Any], done: Callable[[], bool]) -> None:
        calm()
        with span() as alone:
            for _ in range(10):
                step()
        start()
        count = 0
        with span() as beside:
            while count == 0 or not done():
                step()
                count += 1
        if not is_warm:
            samples.ratios[who].append(count * alone.wall / 10 / beside.wall)
            samples.seconds[who].append(beside.wall)
            samples.seconds["baseline"].append(alone.wall / 10)

    with _checkpointer(folder, training, state) as checkpointer:
        for turn in range(WARM + RUNS):
            started: list[Any] = []
            window("ours", turn < WARM, lambda: started.append(checkpointer.checkpoint_start()),  # noqa: B023
                   lambda: started[0].done())  # noqa: B023
            started[0].wait()
    peer = DcpPinned(folder, state)
    for turn in range(1 + PEER_RUNS):
        path = peer.new_path()
        window(peer.name, turn == 0, lambda: peer.start(path), peer.done)  # noqa: B023
        peer.wait()
    peer.close()
    figures.take(f"torch.device.steps.{name}", samples, reach=0.9, better="higher")


def _load(figures: Figures, folder: Path, name: str, training: Training) -> None:
    """A restore to the device, over the copy from pinned memory."""
    state, samples = training.state(), Samples()
    pinned = Pinned(state)
    saved = {key: one.clone() for key, one in state.items()}
    with _settings(folder, state) as settings:
        with backstay.torch.Checkpointer(
                model=training.model, optimizer=training.optimizer, **settings) as checkpointer:
            checkpointer.checkpoint()
        for turn in range(2 + RUNS):
            baseline = pinned.to_device()
            with backstay.torch.Checkpointer(
                    model=training.model, optimizer=training.optimizer, **settings) as checkpointer, span() as found:
                checkpointer.restore()
                torch.cuda.synchronize()
            if turn >= 2:
                samples.take("ours", found, baseline)
        if not all(torch.equal(one, saved[key]) for key, one in state.items()):
            raise ValueError("what came back differs")
    figures.take(f"torch.device.load.{name}", samples)
