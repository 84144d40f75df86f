# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A job of several processes over gloo that saves and loads with torch.distributed.checkpoint.

    dcp_job.py RENDEZVOUS SIZE RANK DEED [ARGUMENTS]

Each deed is a function here; a process that is done well prints "RANK well".
"""

import datetime
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import backstay
from backstay.torch._dcp import Stager, Writer
from backstay.torch._dcp_reader import Reader

warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=FutureWarning)


def whole(seed, *shape, dtype=torch.float32):
    """The same on all ranks, whatever their number."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def meshed():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def state_of(seed, empty=False):
    """Tensors sharded evenly, unevenly, along either dimension, not at all; plain ones, objects."""
    mesh = meshed()

    def sharded(number, placement, *shape, dtype=torch.float32):
        tensor = whole(seed + number, *shape, dtype=dtype)
        return distribute_tensor(torch.zeros_like(tensor) if empty else tensor, mesh, [placement])

    def plain(number, *shape):
        tensor = whole(seed + number, *shape)
        return torch.zeros_like(tensor) if empty else tensor

    return {
        "model": {
            "rows": sharded(1, Shard(0), 12, 5),
            "columns": sharded(2, Shard(1), 5, 12),
            "uneven": sharded(3, Shard(0), 7, 3, dtype=torch.bfloat16),
            "few": sharded(4, Shard(0), 1, 6),
            "same": sharded(5, Replicate(), 4, 4),
            "plain": plain(6, 9),
            "single": plain(7),
        },
        "step": 0 if empty else seed,
        "names": ["a" * (not empty), {"b": 0 if empty else seed}],
    }


def compare(state, seed):
    for number, (name, tensor) in enumerate(state["model"].items(), 1):
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        wanted = whole(seed + number, *full.shape, dtype=full.dtype)
        assert torch.equal(full, wanted), (name, full, wanted)
    assert state["step"] == seed and state["names"] == ["a", {"b": seed}], state


def save(*arguments):
    with Writer() as writer:
        for argument in arguments:
            dcp.save(state_of(int(argument)), checkpoint_id=f"step-{argument}", storage_writer=writer)
        assert writer.checkpoint_ids() == [f"step-{argument}" for argument in arguments]


def load(seed, how="writer"):
    with Writer() as writer:
        source = writer if how == "writer" else os.environ["BACKSTAY_STORE_PATH"]
        state = state_of(0, empty=True)
        dcp.load(state, checkpoint_id=f"step-{seed}", storage_reader=Reader(source))
        compare(state, int(seed))
        if dist.get_rank() == 0:
            print("rank 0 loaded", seed, flush=True)


def go_on():
    """Saves until it is killed; first it loads what there is."""
    with Writer(retained=2) as writer:
        before = writer.checkpoint_ids()
        for name in before:
            state = state_of(0, empty=True)
            dcp.load(state, checkpoint_id=name, storage_reader=Reader(writer))
            compare(state, int(name.split("-")[1]))
        if before:
            state = state_of(0, empty=True)
            dcp.load(state, storage_reader=Reader(writer))
            compare(state, int(before[-1].split("-")[1]))
        if dist.get_rank() == 0:
            print("before", *before, flush=True)
        step = 100 * (len(before) + 1)
        while True:
            step += 100
            dcp.save(state_of(step), checkpoint_id=f"step-{step}", storage_writer=writer)
            if dist.get_rank() == 0:
                print("saved", step, flush=True)


def overlap():
    """What an asynchronous save has is the state at the call, however it is written to after."""
    background = dist.new_group(backend="gloo")
    mesh = meshed()
    with Writer() as writer:
        tensor = distribute_tensor(torch.zeros(2001, 501), mesh, [Shard(0)])
        futures = []
        for step in range(1, 6):
            tensor.to_local().fill_(step)
            stager = {"async_stager": Stager(writer)} if step == 3 else {}
            futures.append(dcp.async_save({"t": tensor, "step": step}, checkpoint_id=str(step), storage_writer=writer,
                                          process_group=background, **stager))
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                tensor.to_local().add_(1000)
            metadata = futures[-1].result()
            assert metadata.state_dict_metadata["t"].size == torch.Size((2001, 501)), metadata
            assert metadata.storage_meta.checkpoint_id == str(step)
        writer.settle()
        assert writer.checkpoint_ids() == ["1", "2", "3", "4", "5"]
        for step in (2, 5, 1, 3, 4):
            into = {"t": distribute_tensor(torch.zeros(2001, 501), mesh, [Shard(1)]), "step": 0}
            dcp.load(into, checkpoint_id=str(step), storage_reader=Reader(writer))
            assert into["step"] == step and bool((into["t"].to_local() == step).all())


def count_plans():
    """Gatherings of plans: as many as plans that changed on any rank."""
    counted = {"gather": 0}
    gather = dist.gather_object
    background = dist.new_group(backend="gloo")

    def counting(obj, object_gather_list=None, dst=None, group=None, **how):
        # DCP's background half gathers over the group it is given.
        counted["gather"] += group is not background
        return gather(obj, object_gather_list, dst, group, **how)

    dist.gather_object = counting
    rank = dist.get_rank()
    with Writer() as writer:
        tensor = distribute_tensor(whole(1, 10, 3), meshed(), [Shard(0)])
        state = {"t": tensor}

        def saved(name):
            dcp.async_save(state, checkpoint_id=name, storage_writer=writer, process_group=background).result()
            return counted["gather"]

        assert [saved("a"), saved("b"), saved("c")] == [1, 1, 1], counted
        if rank == 1:
            state["own"] = whole(2, 3)
        assert [saved("d"), saved("e")] == [2, 2], counted
        into = {"t": distribute_tensor(torch.zeros(10, 3), meshed(), [Shard(0)]), "own": torch.zeros(3)}
        dcp.load(into, checkpoint_id="e", storage_reader=Reader(writer))
        assert torch.equal(into["own"], whole(2, 3)) and torch.equal(into["t"].full_tensor(), whole(1, 10, 3))


class Failing(dcp.DefaultSavePlanner):
    """Fails on one rank: when the data is asked for, or the plan."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def create_local_plan(self):
        if self.where == "plan" and dist.get_rank() == 1:
            raise RuntimeError("no plan here")
        return super().create_local_plan()

    def resolve_data(self, item):
        if self.where == "data" and dist.get_rank() == 1:
            raise RuntimeError("no data here")
        return super().resolve_data(item)


def fail():
    """An item that fails on one rank is an error on both; the next save is as if nothing had been."""
    background = dist.new_group(backend="gloo")
    with Writer() as writer:
        dcp.save(state_of(10), checkpoint_id="good", storage_writer=writer)
        try:
            dcp.save(state_of(20), checkpoint_id="bad", storage_writer=writer, planner=Failing("data"))
        except dcp.api.CheckpointException as error:
            assert "no data here" in str(error), error
        else:
            raise AssertionError("it was saved")
        for where in ("data", "plan"):
            try:
                dcp.async_save(state_of(20), checkpoint_id="bad", storage_writer=writer, planner=Failing(where),
                               process_group=background).result()
            except Exception as error:  # noqa: BLE001
                told = str(error)
            else:
                raise AssertionError("it was saved")
            wanted = "another process" if dist.get_rank() == 0 else f"no {where} here"
            assert wanted in told, told
        assert writer.checkpoint_ids() == ["good"]
        dcp.save(state_of(30), checkpoint_id="better", storage_writer=writer)
        for name, seed in (("good", 10), ("better", 30)):
            state = state_of(0, empty=True)
            dcp.load(state, checkpoint_id=name, storage_reader=Reader(writer))
            compare(state, seed)


def refuse():
    """Saves that not all processes of the Writer make together."""
    with Writer() as writer:
        one = dist.new_group([0])
        if dist.get_rank() == 0:
            for how in ({"process_group": one}, {"no_dist": True}):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        dcp.save({"a": 1}, checkpoint_id="x", storage_writer=writer, **how)
                    except dcp.api.CheckpointException as error:
                        assert "1 processes save, and the Writer is of 2" in str(error), error
                    else:
                        raise AssertionError("it was saved")
        dist.barrier()
        try:
            dcp.save({"a": 1}, checkpoint_id="x", storage_writer=writer, use_collectives=False)
        except backstay.InvalidArgument as error:
            assert "use_collectives" in str(error)
        else:
            raise AssertionError("it was saved")
        assert not writer.checkpoint_ids()


def replicated():
    """A replicated tensor is written by one rank."""
    with Writer() as writer:
        state = {"same": distribute_tensor(whole(1, 1000), meshed(), [Replicate()]), "plain": whole(2, 1000)}
        dcp.save(state, checkpoint_id="x", storage_writer=writer)
        if dist.get_rank() == 0:
            newest = backstay.read(writer.session.directory).newest
            assert all(len(newest._parts_of(name)) == 1 for name in ("same", "plain")), newest
            assert newest.bytes_total < 8000 + 4000, newest
        dist.barrier()


def shards():
    """Several shards of one tensor on each rank, of unequal sizes."""
    from torch.distributed._shard.sharded_tensor import Shard as Piece
    from torch.distributed._shard.sharded_tensor import init_from_local_shards

    rank, full = dist.get_rank(), whole(1, 10, 4)

    def made(rows):
        pieces = [Piece.from_tensor_and_offsets(full[first:end].clone(), [first, 0], rank) for first, end in rows]
        return init_from_local_shards(pieces, 10, 4)

    mine = [[(0, 3), (3, 4)], [(4, 9), (9, 10)]][rank]
    other = [[(0, 2), (6, 10)], [(2, 5), (5, 6)]][rank]
    with Writer() as writer:
        dcp.save({"s": made(mine)}, checkpoint_id="x", storage_writer=writer)
        found = backstay.read(writer.session.directory).newest
        assert {"s", "s#1"} <= set(found), found
        into = {"s": made(other)}
        for piece in into["s"].local_shards():
            piece.tensor.zero_()
        dcp.load(into, checkpoint_id="x", storage_reader=Reader(writer))
        for piece, (first, end) in zip(into["s"].local_shards(), other):
            assert torch.equal(piece.tensor, full[first:end])


def train(mode):
    """FSDP2 and Adam through get_state_dict and set_state_dict, whose state is made before it is loaded."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 5))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=meshed())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(seed):
        optimizer.zero_grad()
        model(whole(seed, 4, 6)).square().sum().backward()
        optimizer.step()

    def values():
        return [one.full_tensor().detach().clone() for one in model.parameters()]

    with Writer() as writer:
        if mode == "save":
            for seed in range(5):
                step(seed)
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id="fifth", storage_writer=writer)
            step(5)
            dcp.save({"after": values()}, checkpoint_id="sixth", storage_writer=writer)
        else:
            weights, state = get_state_dict(model, optimizer)
            into = {"model": weights, "optimizer": state}
            dcp.load(into, checkpoint_id="fifth", storage_reader=Reader(writer))
            set_state_dict(model, optimizer, model_state_dict=into["model"], optim_state_dict=into["optimizer"])
            step(5)
            after = {"after": [torch.zeros_like(one) for one in values()]}
            dcp.load(after, checkpoint_id="sixth", storage_reader=Reader(writer))
            for mine, wanted in zip(values(), after["after"]):
                torch.testing.assert_close(mine, wanted)


def main():
    rendezvous, size, rank, deed, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, world_size=int(size), rank=int(rank),
                            timeout=datetime.timedelta(seconds=60))
    globals()[deed](*arguments)
    dist.destroy_process_group()
    print(rank, "well", flush=True)


if __name__ == "__main__":
    main()
