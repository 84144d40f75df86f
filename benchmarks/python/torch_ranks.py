# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What some processes saved, loaded by another number of them: bytes that are equal.

    torch_ranks.py DEED WAY RANK SIZE FOLDER OUT

Tensors of odd sizes are sharded by rows over all processes, one is on all of them; gloo carries what they say.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from figures import Figures, span, spread
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

SIZES = [(2, 1), (4, 3), (1, 2), (3, 4)]
WAYS = ["ours", "ours-dcp", "dcp"]
LIMIT_SECONDS = 300


def _whole(scale: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    shapes = {"weight": (4099 * scale, 515), "moment": (4099 * scale, 515), "few": (3, 70), "vector": (1001,),
              "replicated": (257, 129)}
    found = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return found | {"half": torch.randn((1023, 129), generator=generator).to(torch.bfloat16)}


def _sharded(whole: dict[str, torch.Tensor], size: int) -> dict[str, DTensor]:
    mesh = init_device_mesh("cpu", (size,))
    return {name: distribute_tensor(one, mesh, [Replicate() if name == "replicated" else Shard(0)])
            for name, one in whole.items()}


def _deed(deed: str, way: str, state: dict[str, Any], folder: Path) -> None:
    if way == "dcp":
        path = folder / "dcp"
        dcp.save(state, checkpoint_id=path) if deed == "save" else dcp.load(state, checkpoint_id=path)
        return
    import backstay.torch

    bytes_all = sum(one.numel() * one.element_size() for one in state.values())
    settings: dict[str, Any] = {"job": "ranks", "store_path": folder / "store", "interval": 1e6,
                                "reserve_bytes": 5 * bytes_all + (64 << 20)}
    if way == "ours":
        with backstay.torch.Checkpointer(extra=state, **settings) as checkpointer:
            if deed == "save":
                checkpointer.checkpoint()
            elif checkpointer.restore() is None:
                raise LookupError("there is nothing")
        return
    with backstay.torch.Writer(**settings) as writer:
        if deed == "save":
            dcp.save(state, checkpoint_id="x", storage_writer=writer)
        else:
            dcp.load(state, checkpoint_id="x", storage_reader=backstay.torch.Reader(writer))


def _process(deed: str, way: str, rank: str, size: str, folder: str, out: str) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    place = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{out}.rendezvous", rank=int(rank), world_size=int(size))
    whole = _whole(int(os.environ.get("RANKS_SCALE", "1")))
    state = _sharded(whole, int(size))
    if deed == "load":
        for one in state.values():
            one.to_local().zero_()
    dist.barrier()
    with span() as took:
        _deed(deed, way, dict(state), place)
    equal = total = 0
    for name, one in state.items():
        back = one.full_tensor().contiguous().view(-1).view(torch.uint8)
        wanted = whole[name].contiguous().view(-1).view(torch.uint8)
        equal, total = equal + int((back == wanted).sum()), total + len(wanted)
    Path(f"{out}.{rank}").write_text(json.dumps({"equal": equal, "total": total, "seconds": took.wall}))
    dist.barrier()
    # Its threads of gloo may end a program badly where they are taken down.
    os._exit(0)


def _run(deed: str, way: str, size: int, folder: Path) -> list[dict[str, Any]]:
    out = folder / f"{deed}-{size}"
    processes = [subprocess.Popen([sys.executable, __file__, deed, way, str(rank), str(size), os.fspath(folder),
                                   os.fspath(out)]) for rank in range(size)]
    try:
        codes = [one.wait(LIMIT_SECONDS) for one in processes]
    finally:
        for one in processes:
            one.kill()
    if any(codes):
        raise RuntimeError(f"{way}: processes that {deed} ended with {codes}")
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(size)]


def measure(figures: Figures, folder: Path, small: bool) -> None:
    """Bytes that are equal, by how many saved and how many loaded."""
    os.environ["RANKS_SCALE"] = "1" if small else "4"
    for before, after in SIZES:
        shares: dict[str, list[float]] = {}
        seconds: dict[str, float] = {}
        for way in WAYS:
            place = folder / "ranks"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            _run("save", way, before, place)
            told = _run("load", way, after, place)
            shares[way] = [min(one["equal"] / one["total"] for one in told)]
            seconds[way] = max(one["seconds"] for one in told)
            shutil.rmtree(place)
        for way, suffix in (("ours", ""), ("ours-dcp", ".dcp")):
            figures.add(f"torch.ranks.{before}-to-{after}{suffix}", shares[way], unit="share of bytes equal", reach=1.0,
                        better="higher", peers={"dcp": spread(shares["dcp"])}, seconds_load=seconds)


if __name__ == "__main__":
    _process(*sys.argv[1:7])
