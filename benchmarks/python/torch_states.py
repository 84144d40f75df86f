# SPDX-License-Identifier: Apache-2.0 OR MIT
"""States that are saved: a small transformer with Adam's moments, adapters on a frozen base, embeddings."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from figures import Span, span
from torch import Tensor, nn
from torch.nn import functional

State = Mapping[str, Tensor]


class Block(nn.Module):
    """A layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """Predicts the next token; its last layer is tied to its first."""

    def __init__(self, tokens: int, width: int, layers: int, heads: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.last(x), self.embed.weight)


class Training:
    """A model of about 450 MB with its moments, and steps of it."""

    def __init__(self, dtype: torch.dtype, small: bool = False, *, layers_scale: int = 1) -> None:
        torch.manual_seed(1)
        scale = 1 if dtype == torch.float32 else 2
        tokens, layers = (1024, 1) if small else (12288 * scale, 4 * scale * layers_scale)
        self.model = Transformer(tokens, 768, layers).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._batch = torch.randint(0, tokens, (2, 65))
        self.step()

    def step(self) -> None:
        """One step."""
        self.optimizer.zero_grad(set_to_none=False)
        found = self.model(self._batch[:, :-1])
        functional.cross_entropy(found.flatten(0, 1).float(), self._batch[:, 1:].flatten()).backward()
        self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        return tensors_of(self.model, self.optimizer)


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and moments, by name."""
    found = {f"model.{name}": one.detach() for name, one in model.named_parameters()}
    for name, one in model.named_parameters():
        for key, value in optimizer.state[one].items():
            if value.dim():
                found[f"optimizer.{key}.{name}"] = value
    return found


def adapters(dtype: torch.dtype, small: bool = False) -> tuple[dict[str, Tensor], list[str]]:
    """A frozen base with adapters and their moments, 1 % of its bytes; the names of what changes."""
    width = 256 if small else 2048
    count = 4 if small else 26 * 4 // dtype.itemsize
    base = {f"base.{at}": torch.randn(width, width).to(dtype) for at in range(count)}
    rows = max(1, count * width // 100 // 6)
    changing = {f"{what}.{at}": torch.randn(rows, width).to(dtype) for what in ("adapter", "m", "v") for at in range(2)}
    return base | changing, list(changing)


def embeddings(dtype: torch.dtype, small: bool = False) -> dict[str, Tensor]:
    """A table of rows of 4 KiB, and its moments."""
    shape = (256 if small else 36 * 1024, 4096 // dtype.itemsize)
    return {what: torch.randn(shape).to(dtype) for what in ("weight", "m", "v")}


def flip(tensor: Tensor, rows: Tensor | None = None) -> None:
    """Changes each element, or those of some rows."""
    raw = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)
    if rows is None:
        raw.bitwise_xor_(1)
    else:
        raw[rows] ^= 1


def flip_all(state: State) -> None:
    """Changes everything."""
    for one in state.values():
        flip(one)


def size(state: State) -> int:
    """Bytes of a state."""
    return sum(one.nbytes for one in state.values())


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a tensor."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


class Copy:
    """Touched memory for a copy of a state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._copies = {name: torch.zeros_like(one).fill_(1) for name, one in state.items()}

    def memcpy(self) -> Span:
        """Copies it, by one thread."""
        with span() as found:
            for name, one in self._state.items():
                ctypes.memmove(self._copies[name].data_ptr(), one.data_ptr(), one.nbytes)
        return found


def write_raw(path: Path, state: State, *, fresh: bool) -> Span:
    """Writes a state to a file that is new, or to one that is there, durably."""
    if fresh:
        path.unlink(missing_ok=True)
    with span() as found:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        for one in state.values():
            data = raw(one)
            while data:
                data = data[os.write(descriptor, data):]
        os.fsync(descriptor)
        os.close(descriptor)
    return found


def read_raw(path: Path, state: State) -> Span:
    """Reads such a file into the state's memory: the one copy is that of reading."""
    with span() as found, open(path, "rb", buffering=0) as file:
        for one in state.values():
            data = raw(one)
            while data:
                data = data[file.readinto(data):]
    return found
