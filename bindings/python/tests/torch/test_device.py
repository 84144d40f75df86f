# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tensors of a GPU: what is saved is what they had, training goes on as if nothing had been. Run where there is one."""

import copy
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402

import backstay  # noqa: E402
import backstay.torch  # noqa: E402
from backstay.torch import _trees  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICE = "cuda"
JOB = pathlib.Path(__file__).with_name("device_job.py")
LIMIT_SECONDS = 120


@pytest.fixture(autouse=True)
def always_the_same(monkeypatch):
    """Kernels that give the same to the last bit."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def same(one, other):
    """Whether two trees are the same to the last bit, wherever they are."""
    return bytes(_trees.pack(on_host(one))) == bytes(_trees.pack(on_host(other)))


def on_host(tree):
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu()
    if isinstance(tree, dict):
        return {key: on_host(value) for key, value in tree.items()}
    return [on_host(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def a_program(device=DEVICE, **how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Dropout(0.2), nn.Linear(300, 10)).to(device)
    data = torch.utils.data.TensorDataset(torch.randn(60, 64), torch.randint(0, 10, (60,)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, **how), torch.utils.data.DataLoader(data, 7, shuffle=True)


def train(checkpointer, model, optimizer, until, device=DEVICE):
    found = []
    while checkpointer.epoch < 3:
        for inputs, labels in checkpointer.batches():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            checkpointer.step()
            if checkpointer.steps == until:
                return found
    return found


@pytest.mark.parametrize("how", [{}, {"fused": True}, {"capturable": True}, {"foreach": True, "amsgrad": True}], ids=str)
@pytest.mark.parametrize("stop", [1, 9, 13])
def test_training_that_was_interrupted_ends_as_if_it_had_not_been(stop, how):
    def start(job, until):
        model, optimizer, loader = a_program(**how)
        scaler = torch.amp.GradScaler(DEVICE)
        with backstay.torch.Checkpointer(
                model=model, optimizer=optimizer, loader=loader, extra={"scaler": scaler}, job=job) as checkpointer:
            restored = checkpointer.restore()
            found = train(checkpointer, model, optimizer, until)
            checkpointer.checkpoint()
            return restored, found, (model.state_dict(), optimizer.state_dict())

    _, whole, state = start("whole", None)
    _, first, _ = start("parts", stop)
    torch.cuda.manual_seed(99)  # Dropout's generator is the device's.
    restored, rest, again = start("parts", None)
    assert restored.number == 1
    assert first + rest == whole
    assert same(again, state)


@pytest.mark.parametrize("there, here", [("cuda", "cpu"), ("cpu", "cuda")])
def test_what_a_device_had_goes_on_on_another(there, here):
    model, optimizer, loader = a_program(there)
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader) as checkpointer:
        train(checkpointer, model, optimizer, 5, there)
        checkpointer.checkpoint()
    again, fresh, loader = a_program(here)
    with backstay.torch.Checkpointer(model=again, optimizer=fresh, loader=loader) as checkpointer:
        assert checkpointer.restore().number == 1
        assert same((again.state_dict(), fresh.state_dict()), (model.state_dict(), optimizer.state_dict()))
        assert next(again.parameters()).device.type == here
        train(checkpointer, again, fresh, 9, here)


KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.bool, torch.complex64,
         torch.int8, torch.int64]


def layouts(kind):
    numbers = torch.arange(2 * 3 * 8 * 5, device=DEVICE).remainder(2 if kind == torch.bool else 100)
    whole = numbers.reshape(2, 3, 8, 5).to(torch.float32).to(kind)
    yield "plain", whole.clone()
    yield "channels", whole.clone(memory_format=torch.channels_last)
    yield "turned", whole.clone().transpose(0, 3)
    yield "gaps", whole.clone()[:, :, ::2]
    yield "one", whole.clone()[0, 0, 1, 1]
    yield "none", whole.clone()[:0]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_type_and_layout_comes_back(kind):
    tensors = dict(layouts(kind))
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    with backstay.torch.Checkpointer(extra=tensors) as checkpointer:
        checkpointer.checkpoint()
        for tensor in tensors.values():
            tensor.zero_()
        checkpointer.restore()
    assert same(tensors, wanted)


def test_nothing_that_the_device_writes_afterwards_gets_into_a_checkpoint():
    weights = nn.Parameter(torch.zeros(20_000_000, device=DEVICE))
    with backstay.torch.Checkpointer(model=nn.ParameterList([weights])) as checkpointer:
        for step in range(1, 6):
            with torch.no_grad():
                # Work is queued before and after: the checkpoint has what was queued before, and no more.
                for _ in range(200):
                    weights.add_(1)
                weights.fill_(step)
                started = checkpointer.checkpoint_start()
                for _ in range(200):
                    weights.add_(1)
            started.wait()
            stored = backstay.read(checkpointer.session.directory).newest["model/0"][...]
            assert (stored == step).all()


def test_buffers_of_the_host_are_used_again():
    model = nn.Linear(1000, 1000, device=DEVICE)
    with backstay.torch.Checkpointer(model=model) as checkpointer:
        checkpointer.checkpoint()
        held = checkpointer._held["model/weight"]
        buffer = held._buffer
        assert buffer.is_pinned()
        on_device = torch.cuda.memory_allocated()
        for _ in range(20):
            with torch.no_grad():
                model.weight.add_(1)
            checkpointer.checkpoint()
            assert checkpointer._held["model/weight"]._buffer is buffer
        assert torch.cuda.memory_allocated() == on_device


def test_of_a_frozen_base_nothing_is_written_again():
    model = nn.ModuleDict({"base": nn.Linear(1000, 1000), "adapter": nn.Linear(1000, 8)}).to(DEVICE)
    optimizer = torch.optim.Adam(model["adapter"].parameters())
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer, tracking="hash") as checkpointer:
        checkpointer.checkpoint()
        model["adapter"](torch.ones(1, 1000, device=DEVICE)).sum().backward()
        optimizer.step()
        report = checkpointer.checkpoint()
    assert report.bytes_total > 4_000_000
    assert report.bytes_changed < 300_000


def test_rows_of_a_device_are_marked_by_a_gradient_of_the_device():
    table = nn.Embedding(8192, 64, sparse=True, device=DEVICE)
    with backstay.torch.Checkpointer(model=table, tracking="hash") as checkpointer:
        for step in range(6):
            rows = torch.randperm(8192, device=DEVICE)[:40]
            table.weight.grad = None
            table(rows).sum().backward()
            with torch.no_grad():
                table.weight.index_add_(0, rows, torch.full((40, 64), 0.5, device=DEVICE))
            checkpointer.mark_dirty(table.weight, table.weight.grad)
            report = checkpointer.checkpoint()
            found = torch.from_numpy(backstay.read(checkpointer.session.directory).newest["model/weight"][...])
            assert torch.equal(found, table.weight.detach().cpu()), step
        assert report.bytes_changed < 1_000_000


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_dcp_saves_and_loads_what_is_on_a_device():
    model, optimizer, _ = a_program()
    model(torch.randn(4, 64, device=DEVICE)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    before = copy.deepcopy(state)
    with backstay.torch.Writer() as writer:
        dcp.save(state, checkpoint_id="first", storage_writer=writer)
        saving = dcp.async_save(state, checkpoint_id="second", storage_writer=writer)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(9)
        saving.result()
        for name in ("first", "second"):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            found = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            dcp.load(found, checkpoint_id=name, storage_reader=backstay.torch.Reader(writer))
            assert same(found, before), name
            assert found["model"]["0.weight"].device.type == DEVICE


def test_generators_of_the_device_go_on():
    with backstay.torch.Checkpointer(extra={"one": torch.zeros(1, device=DEVICE)}) as checkpointer:
        torch.rand(3, device=DEVICE)
        checkpointer.checkpoint()
        wanted = torch.rand(3, device=DEVICE)
        torch.rand(9, device=DEVICE)
        checkpointer.restore()
        assert torch.equal(torch.rand(3, device=DEVICE), wanted)


@pytest.mark.parametrize("wrap", ["distributed", "sharded"])
def test_processes_of_nccl_save_together(wrap, tmp_path):
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        def start(until):
            model, optimizer, loader = a_program()
            if wrap == "sharded":
                from torch.distributed.fsdp import fully_shard

                fully_shard(model)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            else:
                model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
            with backstay.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader) as checkpointer:
                restored = checkpointer.restore()
                found = train(checkpointer, model, optimizer, until)
                checkpointer.checkpoint()
                return restored, found

        restored, first = start(5)
        assert restored is None and len(first) == 5
        restored, rest = start(9)
        assert restored.number == 1 and len(rest) == 4
    finally:
        dist.destroy_process_group()


def test_a_training_that_is_killed_again_and_again_ends_as_the_one_that_was_not(tmp_path):
    def start(job):
        words = [sys.executable, str(JOB), job]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})

    def ended(process):
        out, err = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, err
        return out.split()

    wanted = ended(start("whole"))
    for _ in range(4):
        process = start("parts")
        assert process.stdout.readline().startswith("began")
        time.sleep(0.4)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    found = ended(start("parts"))
    assert found[-1] == wanted[-1]
    assert int(found[1]) > 0, "it began anew"
