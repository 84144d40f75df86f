# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs of several processes over gloo, for test_checkpointer.py: one name is one program.

    checkpointer_job.py NAME RANK SIZE RENDEZVOUS OUT
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import backstay.torch


def digest(tensors):
    """All bytes of some tensors, as something that prints."""
    import hashlib

    found = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def parts(wrap):
    torch.manual_seed(0)
    # One tensor is large enough to be written in parts, in rows that do not come out even.
    model = wrap(nn.Sequential(nn.Linear(257, 1031), nn.ReLU(), nn.Linear(1031, 10)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model, optimizer, checkpointer, until):
    while checkpointer.steps < until:
        torch.manual_seed(checkpointer.steps)
        loss = model(torch.randn(8, 257)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpointer.step()


def distributed(model):
    return nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    if dist.is_initialized():
        fully_shard(model)
    return model


def start(wrap, rank, until):
    """Goes on to a step, takes a checkpoint, and tells what there is."""
    model, optimizer = parts(wrap)
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer) as checkpointer:
        restored = checkpointer.restore()
        began = checkpointer.steps
        train(model, optimizer, checkpointer, until)
        report = checkpointer.checkpoint()
        state = [value for p in model.parameters() for value in optimizer.state[p].values() if value.dim()]
        return {"restored": restored.number if restored else None, "began": began, "written": report.bytes_total,
                "weights": digest(model.parameters()), "moments": digest(state)}


def raises(rank, _until):
    """One process has something that cannot be saved: all are told, and go on."""
    model, optimizer = parts(distributed)
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer) as checkpointer:
        checkpointer.checkpoint()
        train(model, optimizer, checkpointer, 1)
        spoiled = next(iter(model.parameters()))
        if rank == 1:
            optimizer.state[spoiled]["more"] = object()
        told = None
        try:
            checkpointer.checkpoint()
        except backstay.Error as error:
            told = type(error).__name__
        if rank == 1:
            del optimizer.state[spoiled]["more"]
        return {"told": told, "number": checkpointer.checkpoint().number}


def killed(rank, until):
    """A step takes a while, and each starts a checkpoint; it may be killed at any moment."""
    import time

    model, optimizer = parts(distributed)
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer) as checkpointer:
        checkpointer.restore()
        while checkpointer.steps < until:
            train(model, optimizer, checkpointer, checkpointer.steps + 1)
            checkpointer.checkpoint_start()
            time.sleep(0.05)
        return digest(model.parameters())


def marked(wrap, rank, _until):
    """A table of which a few rows change, that all processes have or have parts of; each marks what changes of the whole."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    rows, width = 8191, 64
    whole = torch.arange(float(rows * width)).reshape(rows, width).clone()
    model = wrap(nn.Embedding(rows, width))
    weight = next(iter(model.parameters()))

    def put():
        with torch.no_grad():
            is_part = isinstance(weight, DTensor)
            weight.copy_(distribute_tensor(whole, weight.device_mesh, weight.placements) if is_part else whole)

    def wrong():
        """Rows that the newest checkpoint has otherwise."""
        found = backstay.read(os.environ["BACKSTAY_STORE_PATH"]).newest["model/weight"][...]
        return (torch.from_numpy(found) != whole).any(dim=1).nonzero().flatten().tolist()

    with backstay.torch.Checkpointer(model=model, block_bytes=4096) as checkpointer:
        restored = checkpointer.restore()
        began = digest([weight]) if restored else None
        if restored:
            return {"began": began}
        put()
        checkpointer.checkpoint()
        missed = []
        for turn in range(6):
            chosen = torch.randint(0, rows, (5,), generator=torch.Generator().manual_seed(turn))
            chosen[0] = (0, rows // 2, rows // 2 + 1, rows // 2 - 1, rows - 1, 1)[turn]
            whole[chosen] += 1
            put()
            checkpointer.mark_dirty(weight, chosen)
            report = checkpointer.checkpoint()
            if dist.get_rank() == 0:
                missed += wrong()
            dist.barrier()
        slab = checkpointer._protected["model/weight"]
        return {"wrong": missed, "changed": report.blocks_changed, "rows_stored": slab.local[0], "ended": digest([weight])}


PROGRAMS = {
    "distributed": lambda rank, until: start(distributed, rank, until),
    "sharded": lambda rank, until: start(sharded, rank, until),
    "raises": raises,
    "killed": killed,
    "marked-replicated": lambda rank, until: marked(distributed, rank, until),
    "marked-sharded": lambda rank, until: marked(sharded, rank, until),
}


def main():
    name, rank, size, rendezvous, out, until = sys.argv[1:7]
    rank, size = int(rank), int(size)
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    told = PROGRAMS[name](rank, int(until))
    with open(f"{out}.{rank}", "w", encoding="utf-8") as file:
        file.write(repr(told))
    if size > 1:
        dist.barrier()
    # torch 2.15 may end a program by std::terminate where its threads of gloo are taken down.
    os._exit(0)


main()
