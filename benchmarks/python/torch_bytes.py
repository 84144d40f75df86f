# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Bytes in the archive of 20 checkpoints of a fine-tuning run, over zstd and ZipNN of each.

A transformer is trained on the sources of Python's standard library, byte by byte, and then fine-tuned on this
project's documentation: weights and moments in bfloat16, by AdamW. What is archived is read back and compared.
"""

from __future__ import annotations

import random
import shutil
import sysconfig
import time
from pathlib import Path
from typing import Any

import backstay
import numpy as np
import torch
import zstandard
from figures import Figures
from torch.nn import functional
from torch_states import State, Transformer, raw, tensors_of
from zipnn import ZipNN

CHECKPOINTS = 20
STEPS_EACH = 10
RATE = 2e-5
LENGTH, BATCH = 128, 8
PAGE = 4096


class _Text:
    """Batches of the bytes of some files."""

    def __init__(self, files: list[Path], most: int) -> None:
        data = bytearray()
        for one in files:
            data += one.read_bytes()
            if len(data) >= most:
                break
        self._data = torch.frombuffer(data, dtype=torch.uint8)
        self._random = random.Random(7)

    def batch(self) -> torch.Tensor:
        starts = [self._random.randrange(len(self._data) - LENGTH - 1) for _ in range(BATCH)]
        return torch.stack([self._data[at:at + LENGTH + 1] for at in starts]).long()


def _steps(model: Transformer, optimizer: torch.optim.Optimizer, text: _Text, count: int) -> float:
    for _ in range(count):
        batch = text.batch()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def run(small: bool) -> tuple[list[dict[str, torch.Tensor]], dict[str, Any]]:
    """The checkpoints of a run, and what it was."""
    torch.manual_seed(3)
    model = Transformer(256, 64 if small else 256, 4)
    sources = _Text(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")), 4 << 20)
    before = _steps(model, torch.optim.AdamW(model.parameters(), lr=1e-3), sources, 20 if small else 200)
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    pages = _Text(sorted(Path("docs").rglob("*.md")), 4 << 20)
    states, losses = [], []
    for _ in range(3 if small else CHECKPOINTS):
        losses.append(_steps(model, optimizer, pages, STEPS_EACH))
        states.append({name: one.clone() for name, one in tensors_of(model, optimizer).items()})
    return states, {"steps_each": STEPS_EACH, "rate": RATE, "loss_before": before, "losses": losses}


def _archived(folder: Path, states: list[dict[str, torch.Tensor]], **settings: Any) -> tuple[int, float]:
    """Bytes of the archive that has them all, and seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    archive = folder / "archive"
    archive.mkdir(parents=True)
    now = {name: one.clone() for name, one in states[0].items()}
    start = time.perf_counter()
    with backstay.open(job="bench-torch", store_path=folder / "store", capture_threads=2, archive=archive,
                       archive_every=1, archive_retained=len(states), **settings) as session:
        for name, one in now.items():
            session.protect(name, one)
        for state in states:
            for name, one in now.items():
                one.copy_(state[name])
            session.checkpoint_start().wait("archive")
    seconds = time.perf_counter() - start
    _compare(archive, states)
    count = sum(_written(one) for one in archive.rglob("*") if one.is_file())
    shutil.rmtree(folder)
    return count, seconds


def _written(file: Path) -> int:
    """Bytes of a file without those that are only reserved: pages with nothing but zeros."""
    data = np.fromfile(file, dtype=np.uint8)
    whole = len(data) // PAGE * PAGE
    return int(data[:whole].reshape(-1, PAGE).any(axis=1).sum()) * PAGE + len(data) - whole


def _compare(archive: Path, states: list[dict[str, torch.Tensor]]) -> None:
    stored = [one for one in backstay.read(archive).checkpoints if one.complete]
    if len(stored) != len(states):
        raise ValueError(f"the archive has {len(stored)} of {len(states)} checkpoints")
    for one, state in zip(sorted(stored, key=lambda found: found.id), states, strict=True):
        for name, tensor in state.items():
            array = one[name]
            back = torch.empty_like(tensor)
            one._native.read_box(one._index, name, array.rank, [0] * len(array.shape), list(array.shape),
                                 back.view(-1).view(torch.uint8).numpy())
            if not torch.equal(back.view(torch.int16), tensor.view(torch.int16)):
                raise ValueError(f"{name} came back otherwise")


def _content(state: State) -> bytes:
    return b"".join(raw(one) for one in state.values())


def _other(states: list[dict[str, torch.Tensor]]) -> dict[str, tuple[int, float]]:
    zstd, zipnn = zstandard.ZstdCompressor(level=3), ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=2)
    made: dict[str, tuple[int, float]] = {}
    for name, compress in (("zstd", zstd.compress), ("zipnn", lambda data: zipnn.compress(bytearray(data)))):
        count, seconds = 0, 0.0
        for state in states:
            content = _content(state)
            start = time.perf_counter()
            count += len(compress(content))
            seconds += time.perf_counter() - start
        made[name] = (count, seconds)
    return made


def measure(figures: Figures, folder: Path, small: bool) -> None:
    """All figures of bytes."""
    states, what = run(small)
    every = sum(len(_content(state)) for state in states)
    others = _other(states)
    kinds: dict[str, dict[str, Any]] = {
        "": {"archive_codec": "ratio"},
        ".second-pass": {"archive_codec": "ratio", "archive_second_pass": True},
        ".auto": {"archive_codec": "auto"},
    }
    for suffix, settings in kinds.items():
        count, seconds = _archived(folder / "bytes", states, **settings)
        for other, reach in (("zstd", 0.6), ("zipnn", 0.8)):
            asked = {"reach": reach} if not suffix else {}
            figures.add(f"torch.bytes.{other}{suffix}", [count / others[other][0]], **asked, bytes=count,
                        bytes_other=others[other][0], bytes_state=every, seconds=seconds,
                        seconds_other=others[other][1], settings=settings, run_of=what)
