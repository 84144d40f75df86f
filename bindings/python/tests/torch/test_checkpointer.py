# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The Checkpointer: what is saved is what there was, and training goes on as if nothing had been."""

import ast
import copy
import os
import pathlib
import random
import signal
import subprocess
import threading
import time

import pytest
import warm

torch = pytest.importorskip("torch")

import numpy  # noqa: E402
from torch import nn  # noqa: E402

import backstay  # noqa: E402
import backstay.torch  # noqa: E402
from backstay.torch import _checkpointer, _trees  # noqa: E402
from backstay.torch._tensors import Staging  # noqa: E402

JOB = pathlib.Path(__file__).with_name("checkpointer_job.py")
LIMIT_SECONDS = 120


def a_program(seed=0, optimizer=torch.optim.AdamW):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10))
    model = model.to(memory_format=torch.channels_last)
    data = torch.utils.data.TensorDataset(torch.randn(60, 1, 8, 8), torch.randint(0, 10, (60,)))
    return model, optimizer(model.parameters(), lr=1e-2), torch.utils.data.DataLoader(data, 7, shuffle=True)


def a_step(model, optimizer, batch):
    images, labels = batch
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def losses(checkpointer, model, optimizer, until, epochs=3):
    found = []
    while checkpointer.epoch < epochs:
        for batch in checkpointer.batches():
            found.append(a_step(model, optimizer, batch))
            checkpointer.step()
            if checkpointer.steps == until:
                return found
    return found


def same(one, other):
    """Whether two trees are the same to the last bit."""
    return bytes(_trees.pack(one)) == bytes(_trees.pack(other))


@pytest.mark.parametrize("stop", [1, 8, 9, 10, 17, 18])
@pytest.mark.parametrize("workers", [0, 2])
def test_training_that_was_interrupted_ends_as_if_it_had_not_been(stop, workers):
    def start(job, until):
        model, optimizer, loader = a_program()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        loader = torch.utils.data.DataLoader(loader.dataset, 7, shuffle=True, num_workers=workers)
        with backstay.torch.Checkpointer(
            model=model, optimizer=optimizer, scheduler=schedule, loader=loader, job=job,
        ) as checkpointer:
            restored = checkpointer.restore()
            found = losses(checkpointer, model, optimizer, until)
            checkpointer.checkpoint()
            return restored, found, model.state_dict()

    _, whole, weights = start("whole", None)
    restored, first, _ = start("parts", stop)
    assert restored is None
    restored, rest, again = start("parts", None)
    assert restored.number == 1
    assert first + rest == whole
    assert same(again, weights)


@pytest.mark.parametrize("make", [
    torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adafactor, torch.optim.Adagrad, torch.optim.NAdam,
    torch.optim.ASGD, torch.optim.Rprop, torch.optim.LBFGS,
    lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    lambda parameters, lr: torch.optim.Adam(parameters, lr=torch.tensor(lr), amsgrad=True),
], ids=lambda make: getattr(make, "__name__", "?"))
def test_an_optimizer_is_given_back_whole(make):
    def closure(model, optimizer):
        def compute():
            optimizer.zero_grad()
            loss = model(torch.ones(3, 6)).square().sum()
            loss.backward()
            return loss

        return compute

    model = nn.Linear(6, 5)
    optimizer = make(model.parameters(), lr=0.1)
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer) as checkpointer:
        for _ in range(3):
            optimizer.step(closure(model, optimizer))
        optimizer.param_groups[0]["lr"] = 0.25
        checkpointer.checkpoint()
    again = nn.Linear(6, 5)
    fresh = make(again.parameters(), lr=0.1)
    with backstay.torch.Checkpointer(model=again, optimizer=fresh) as checkpointer:
        checkpointer.restore()
        assert same(fresh.state_dict(), optimizer.state_dict())
        assert same(again.state_dict(), model.state_dict())
        # It goes on alike, too.
        for one, other in ((model, optimizer), (again, fresh)):
            other.step(closure(one, other))
        assert same(again.state_dict(), model.state_dict())


def test_an_optimizer_that_went_further_is_as_it_was_before_it_began():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer) as checkpointer:
        checkpointer.checkpoint()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        checkpointer.checkpoint()
        assert optimizer.state
        checkpointer.restore(1)
        assert not optimizer.state


def test_nothing_that_is_written_afterwards_gets_into_a_checkpoint():
    weights = nn.Parameter(torch.zeros(2_000_000))
    model = nn.ParameterList([weights])
    stop = threading.Event()

    def write():
        while not stop.is_set():
            with torch.no_grad():
                weights.fill_(-1)

    with backstay.torch.Checkpointer(model=model) as checkpointer:
        for step in range(1, 6):
            with torch.no_grad():
                weights.fill_(step)
            started = checkpointer.checkpoint_start()
            stop.clear()
            writer = threading.Thread(target=write)
            writer.start()
            started.wait()
            stop.set()
            writer.join()
            stored = backstay.read(checkpointer.session.directory).newest["model/0"][...]
            assert (stored == step).all()


def test_tied_weights_are_stored_once_and_stay_tied():
    def make():
        model = nn.ModuleDict({"in": nn.Embedding(1000, 64), "out": nn.Linear(64, 1000, bias=False)})
        model["out"].weight = model["in"].weight
        return model

    model = make()
    with backstay.torch.Checkpointer(model=model) as checkpointer:
        report = checkpointer.checkpoint()
    assert 256_000 <= report.bytes_total < 300_000
    again = make()
    with backstay.torch.Checkpointer(model=again) as checkpointer:
        checkpointer.restore()
    assert again["out"].weight is again["in"].weight
    assert torch.equal(again["out"].weight, model["out"].weight)


def test_of_a_frozen_base_nothing_is_written_again():
    model = nn.ModuleDict({"base": nn.Linear(1000, 1000), "adapter": nn.Linear(1000, 8)})
    optimizer = torch.optim.Adam(model["adapter"].parameters())
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer, tracking="hash") as checkpointer:
        checkpointer.checkpoint()
        model["adapter"](torch.ones(1, 1000)).sum().backward()
        optimizer.step()
        report = checkpointer.checkpoint()
    assert report.bytes_total > 4_000_000
    assert report.bytes_changed < 300_000


def test_memory_that_moved_is_saved_from_where_it_is():
    model = nn.Linear(300, 300)
    with backstay.torch.Checkpointer(model=model) as checkpointer:
        checkpointer.checkpoint()
        model.weight.data = torch.full((300, 300), 7.0)
        model.bias.data = torch.full((600,), 3.0)[::2]
        checkpointer.checkpoint()
        model.weight.data, model.bias.data = torch.zeros(300, 300), torch.zeros(300)
        checkpointer.restore()
        assert (model.weight == 7).all() and (model.bias == 3).all()


def test_what_is_no_row_major_memory_of_the_host_goes_through_buffers(monkeypatch):
    """As of a device: all copies are made through one seam."""
    monkeypatch.setattr(Staging, "is_needed", lambda self, part: True)
    model, optimizer, loader = a_program()
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader) as checkpointer:
        losses(checkpointer, model, optimizer, 3)
        started = checkpointer.checkpoint_start()
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(9)
        started.wait()
        checkpointer.restore()
        assert same((model.state_dict(), optimizer.state_dict()), before)


@pytest.fixture
def behind(monkeypatch):
    """All goes through buffers and is captured behind the training, as what is on a device."""
    def all_of_it(held):
        for one in held:
            one.is_staged = True
        return True

    monkeypatch.setattr(_checkpointer, "stage_all", all_of_it)


def test_what_is_captured_behind_the_training_is_what_there_was(behind):
    weights = nn.Parameter(torch.zeros(6_000_000))
    with backstay.torch.Checkpointer(model=nn.ParameterList([weights]), retained=8) as checkpointer:
        for step in range(1, 7):
            with torch.no_grad():
                weights.fill_(step)
            started = checkpointer.checkpoint_start()
            with torch.no_grad():
                weights.fill_(-1)
            assert started.done() in (False, True)
            if step % 2:
                # Without it the next one waits for the capture.
                started.wait()
        checkpointer.session.close()
        stored = backstay.read(checkpointer.session.directory).checkpoints
        assert len(stored) == 6
        for step, one in enumerate(stored, 1):
            assert (one["model/0"][...] == step).all()


def test_what_moved_since_is_looked_at_again(behind):
    """A tensor that is where it was is copied without a closer look."""
    first, second = nn.Parameter(torch.zeros(1000)), nn.Parameter(torch.ones(500))
    expected = []
    with backstay.torch.Checkpointer(model=nn.ParameterList([first, second]), retained=16) as checkpointer:
        def save():
            checkpointer.checkpoint_start().wait()
            expected.append((first.detach().clone(), second.detach().clone()))

        for step in range(3):
            with torch.no_grad():
                first.fill_(step)
            save()
        first.data = torch.full((1000,), 7.0)
        save()
        first.data = torch.full((2000,), 8.0)
        save()
        second.data = torch.arange(600.0).view(20, 30).t()
        save()
        with torch.no_grad():
            second.add_(1)
        save()
        first.data, second.data = second.data, first.data
        save()
        checkpointer.session.close()
        stored = backstay.read(checkpointer.session.directory).checkpoints
        assert len(stored) == len(expected)
        for one, tensors in zip(stored, expected, strict=True):
            for name, tensor in zip(("model/0", "model/1"), tensors, strict=True):
                found = torch.tensor(one[name][...])
                assert torch.equal(found.flatten().sort().values, tensor.flatten().sort().values), (one, name)


def test_single_values_of_a_device_are_fetched_together(behind, monkeypatch):
    monkeypatch.setattr(Staging, "is_far", lambda self, single: True)

    def start(job, until):
        model, optimizer, loader = a_program()
        with backstay.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader, job=job) as checkpointer:
            checkpointer.restore()
            before = copy.deepcopy(optimizer.state_dict())
            for batch in checkpointer.batches():
                a_step(model, optimizer, batch)
                checkpointer.step()
                checkpointer.checkpoint()
                if checkpointer.steps == until:
                    break
            return before, copy.deepcopy(optimizer.state_dict())

    _, saved = start("singles", 3)
    found, _ = start("singles", 4)
    assert same(found, saved)


def test_training_whose_checkpoints_are_captured_behind_it_is_resumed(behind):
    def start(job, until):
        model, optimizer, loader = a_program()
        with backstay.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader, job=job) as checkpointer:
            checkpointer.restore()
            found = []
            while checkpointer.epoch < 2:
                for batch in checkpointer.batches():
                    found.append(a_step(model, optimizer, batch))
                    checkpointer.step()
                    checkpointer.checkpoint_start()
                    if checkpointer.steps == until:
                        # As if it was killed while the last one is captured.
                        checkpointer.abandon()
                        return found
            return found

    whole = start("whole", None)
    found = start("parts", 5)
    rest = start("parts", None)
    # The last checkpoint may not have been durable yet.
    assert len(found + rest) in (len(whole), len(whole) + 1)
    assert rest == whole[-len(rest):]


def test_what_fails_behind_the_training_is_told_and_the_one_before_stays(behind):
    weights = nn.Parameter(torch.ones(3_000_000))
    with backstay.torch.Checkpointer(model=nn.ParameterList([weights]), reserve_bytes=20 << 20) as checkpointer:
        checkpointer.checkpoint_start().wait()
        with torch.no_grad():
            weights.copy_(torch.randn(3_000_000))
        started = checkpointer.checkpoint_start()
        with pytest.raises(backstay.StoreFull):
            started.wait()
        checkpointer.restore()
        assert (weights == 1).all()


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_memory_in_another_order_than_the_stored(order):
    model = nn.Conv2d(3, 5, 4).to(memory_format=torch.channels_last)
    with backstay.torch.Checkpointer(model=model) as checkpointer:
        checkpointer.checkpoint()
    again = nn.Conv2d(3, 5, 4).to(memory_format=order)
    with backstay.torch.Checkpointer(model=again) as checkpointer:
        checkpointer.restore()
        assert torch.equal(again.weight, model.weight)
        assert again.weight.is_contiguous(memory_format=order)
        checkpointer.checkpoint()
        with torch.no_grad():
            again.weight.zero_()
        checkpointer.restore()
        assert torch.equal(again.weight, model.weight)


def test_types_that_only_tensors_have():
    kinds = [torch.bfloat16, torch.float16, torch.bool, torch.float8_e4m3fn, torch.complex64, torch.int8, torch.uint16]
    tensors = {str(kind): torch.arange(300).remainder(2).to(torch.float32).to(kind) for kind in kinds}
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    with backstay.torch.Checkpointer(extra=tensors) as checkpointer:
        checkpointer.checkpoint()
        for tensor in tensors.values():
            tensor.view(torch.uint8).fill_(0)
        checkpointer.restore()
    assert same(tensors, wanted)


def test_generators_go_on():
    def draw():
        return torch.rand(3).tolist(), random.random(), numpy.random.random(2).tolist()

    with backstay.torch.Checkpointer(extra={"one": torch.zeros(1)}) as checkpointer:
        checkpointer.checkpoint()
        wanted = draw()
        draw()
        checkpointer.restore()
        assert draw() == wanted


class WithState:
    """As a gradient scaler or a dataset has it."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_further_things_have_their_state():
    state = {"scale": 2.0, 3: (1, float("inf"), b"x"), "t": torch.ones(2, dtype=torch.bfloat16), "a": numpy.arange(4)}
    average = nn.Linear(2, 2)
    with backstay.torch.Checkpointer(extra={"scaler": WithState(state), "average": average}) as checkpointer:
        checkpointer.checkpoint()
    scaler, again = WithState(None), nn.Linear(2, 2)
    with backstay.torch.Checkpointer(extra={"scaler": scaler, "average": again}) as checkpointer:
        checkpointer.restore()
    assert same(scaler.state, state)
    assert torch.equal(again.weight, average.weight)


class Plain:
    pass


def test_what_is_no_plain_value_is_refused_by_name_unless_pickles_are_allowed():
    with backstay.torch.Checkpointer(extra={"odd": WithState({"deep": [Plain()]})}) as checkpointer:
        with pytest.raises(backstay.InvalidArgument, match=r"stateful\.extra\.odd\.deep\[0\] is Plain.*pickled=True"):
            checkpointer.checkpoint()
    odd = WithState({"deep": [Plain()]})
    with backstay.torch.Checkpointer(extra={"odd": odd}, pickled=True, job="pickled") as checkpointer:
        checkpointer.checkpoint()
        odd.state = None
        checkpointer.restore()
        assert isinstance(odd.state["deep"][0], Plain)
    with backstay.torch.Checkpointer(extra={"odd": odd}, job="pickled") as checkpointer:
        with pytest.raises(backstay.Error, match="pickle"):
            checkpointer.restore()


@pytest.mark.parametrize("given, told", [
    ({"model": 3}, "model is int, not Module"),
    ({"optimizer": nn.Linear(1, 1)}, "optimizer is Linear, not Optimizer"),
    ({"scheduler": 3}, "scheduler is int, which has no state_dict"),
    ({"extra": {"x": 3}}, "extra.x is int, which has no state_dict"),
    ({"model": nn.Linear(2, 2, device="meta")}, "is on the meta device"),
    ({"extra": {"x": torch.eye(2).to_sparse()}}, "is torch.sparse_coo"),
    ({"retaind": 2}, "retaind"),
])
def test_what_cannot_be_saved_is_refused_by_name(given, told):
    with pytest.raises(backstay.Error, match=told):
        with backstay.torch.Checkpointer(**given) as checkpointer:
            checkpointer.checkpoint()


def test_another_model_is_refused_by_name_and_nothing_is_given_up():
    model = nn.Linear(4, 4)
    with backstay.torch.Checkpointer(model=model) as checkpointer:
        checkpointer.checkpoint()
    for other in (nn.Linear(4, 5), nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4, dtype=torch.float64)):
        with backstay.torch.Checkpointer(model=other) as checkpointer:
            with pytest.raises(backstay.VariableMismatch, match="model/"):
                checkpointer.restore()
    other = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(other.parameters(), lr=1)
    with backstay.torch.Checkpointer(model=other, optimizer=optimizer) as checkpointer:
        assert checkpointer.restore().number == 1
        assert torch.equal(other.weight, model.weight)


def test_a_restore_that_fails_leaves_the_optimizer_as_it_is():
    def start(columns):
        model = nn.Linear(3, columns)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return model, optimizer

    model, optimizer = start(2)
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer) as checkpointer:
        checkpointer.checkpoint()
    model, optimizer = start(4)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer) as checkpointer:
        with pytest.raises(backstay.VariableMismatch):
            checkpointer.restore()
        assert same((model.state_dict(), optimizer.state_dict()), before)


def test_a_checkpoint_by_number_gives_up_later_ones():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer, retained=4) as checkpointer:
        for step in range(3):
            with torch.no_grad():
                model.weight.fill_(step)
            checkpointer.step()
            checkpointer.checkpoint()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert checkpointer.restore(2).number == 2
        assert checkpointer.steps == 2 and (model.weight == 1).all()
        with pytest.raises(backstay.NotRetained):
            checkpointer.restore(3)


def test_a_loader_with_a_state_of_its_own_is_asked_for_it():
    class Loader:
        def __init__(self):
            self.at = 0

        def __iter__(self):
            while self.at < 10:
                self.at += 1
                yield self.at
            self.at = 0

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    with backstay.torch.Checkpointer(loader=Loader()) as checkpointer:
        for batch in checkpointer.batches():
            checkpointer.step()
            if batch == 4:
                break
        checkpointer.checkpoint()
    with backstay.torch.Checkpointer(loader=Loader()) as checkpointer:
        checkpointer.restore()
        assert list(checkpointer.batches()) == [5, 6, 7, 8, 9, 10]
        assert checkpointer.epoch == 1
        assert list(checkpointer.batches()) == list(range(1, 11))


# torchdata 0.11 calls what torch has since deprecated.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_data_loader_goes_on_where_it_was(workers):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def start(job, until):
        model, optimizer, loader = a_program()
        loader = torchdata.StatefulDataLoader(loader.dataset, 7, shuffle=True, num_workers=workers)
        with backstay.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader, job=job) as checkpointer:
            checkpointer.restore()
            found = losses(checkpointer, model, optimizer, until, 2)
            checkpointer.checkpoint()
            return found

    whole = start("whole", None)
    assert start("parts", 4) + start("parts", 9) + start("parts", 13) + start("parts", None) == whole


def test_a_loader_that_became_too_short_is_an_error():
    def start(count, until):
        with backstay.torch.Checkpointer(loader=list(range(count))) as checkpointer:
            checkpointer.restore()
            for at, _ in enumerate(checkpointer.batches(), 1):
                if at == until:
                    break
            checkpointer.checkpoint()

    start(9, 7)
    with pytest.raises(backstay.VariableMismatch, match="has 5 batches, and 7 of this epoch were used"):
        start(5, 1)


def test_left_by_an_exception_it_is_abandoned():
    with pytest.raises(ZeroDivisionError):
        with backstay.torch.Checkpointer(extra={"x": torch.zeros(3)}) as checkpointer:
            checkpointer.checkpoint()
            raise ZeroDivisionError
    assert checkpointer.session.closed
    with backstay.torch.Checkpointer(extra={"x": torch.zeros(3)}) as again:
        assert again.restore().number == 1


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import torch
import test_checkpointer as tests
import backstay.torch

model, optimizer, loader = tests.a_program()
loader = torch.utils.data.DataLoader(loader.dataset, 7, shuffle=True, num_workers=1)
checkpointer = backstay.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader)
checkpointer.restore()
kill = int(sys.argv[1])
while checkpointer.epoch < 3:
    for batch in checkpointer.batches():
        loss = tests.a_step(model, optimizer, batch)
        checkpointer.step()
        checkpointer.checkpoint_start()
        if checkpointer.steps == kill:
            os.kill(os.getpid(), signal.SIGKILL)
checkpointer.close()
with open(sys.argv[2], "w") as told:
    told.write(repr(loss))
"""


def test_killed_with_its_workers_alive_it_goes_on_at_once(tmp_path):
    """The workers of a loader outlive it for a while: they have nothing that it needs."""
    program = KILLED.format(tests=str(JOB.parent))

    def start(kill):
        told = tmp_path / "loss"
        run = warm.run(["-c", program, kill, told], timeout=LIMIT_SECONDS, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        assert run.returncode == (-signal.SIGKILL if kill else 0)
        return told.read_text() if not kill else None

    whole_store = tmp_path / "whole"
    whole_store.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKSTAY_STORE_PATH", str(whole_store))
        wanted = start(0)
    for kill in (2, 7, 13, 20):
        start(kill)
    assert start(0) == wanted


def ended_well(processes):
    """Waits for all of them; of one that fails the others are not waited for, and who hangs says where."""
    until = time.monotonic() + LIMIT_SECONDS
    while (codes := [process.poll() for process in processes]) != [0] * len(processes):
        assert all(code in (None, 0) for code in codes), f"exit statuses of the ranks: {codes}"
        if time.monotonic() > until:
            for process in processes:
                process.send_signal(signal.SIGABRT)
            time.sleep(1)
            raise AssertionError(f"still running after {LIMIT_SECONDS} s (None): {codes}; where: see standard error")
        time.sleep(0.02)


def on_processes(name, size, tmp_path, until=0, job="test", kill_after=None):
    """Runs a program of checkpointer_job.py on so many processes; what each told, unless they were killed."""
    out = tmp_path / f"out-{size}-{random.random()}"
    words = [name, "{rank}", str(size), str(out) + ".rendezvous", str(out), str(until)]
    processes = [
        warm.Popen([JOB, *(word.format(rank=rank) for word in words)],
                   env={**os.environ, "BACKSTAY_JOB": job, "PYTHONFAULTHANDLER": "1"})
        for rank in range(size)]
    try:
        if kill_after is not None:
            time.sleep(kill_after)
            return None
        ended_well(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [ast.literal_eval(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(size)]


def test_what_all_processes_have_is_written_by_one_each(tmp_path):
    told = on_processes("distributed", 2, tmp_path, 2)
    written = [one["written"] for one in told]
    state = 3 * 4 * (257 * 1031 + 1031 + 1031 * 10 + 10)
    assert state <= sum(written) < state + 60_000, "each byte once"
    assert max(written) < 1.2 * min(written), "by equal parts"
    assert told[0]["weights"] == told[1]["weights"]
    for size in (3, 1, 2):
        again = on_processes("distributed", size, tmp_path, 2)
        for one in again:
            assert one["began"] == 2
            assert (one["weights"], one["moments"]) == (told[0]["weights"], told[0]["moments"])


def test_shards_are_put_together_by_another_number_of_processes(tmp_path):
    told = on_processes("sharded", 2, tmp_path, 2)
    assert told[0]["weights"] == told[1]["weights"]
    for size in (3, 1, 2):
        for one in on_processes("sharded", size, tmp_path, 2):
            assert one["began"] == 2
            assert one["weights"] == told[0]["weights"]
            assert one["moments"] == told[0]["moments"]


def test_processes_that_are_killed_go_on_together(tmp_path):
    wanted = on_processes("killed", 2, tmp_path, 60, job="whole")
    for _ in range(4):
        on_processes("killed", 2, tmp_path, 60, kill_after=0.3 + 0.6 * random.random())
    assert on_processes("killed", 2, tmp_path, 60) == wanted


def test_what_one_process_cannot_save_fails_on_all_and_nobody_hangs(tmp_path):
    told = on_processes("raises", 2, tmp_path)
    assert told[1]["told"] == "InvalidArgument"
    assert told[0]["told"] is not None
    assert told[0]["number"] == told[1]["number"]


@pytest.mark.parametrize("tree", [
    None, True, 3, -2.5, "text", [], {}, {"$a": 1}, {"a": [1, (2, None)]}, {1: 2, (3, 4): "x"}, b"\0\xff", torch.Size([2]),
    torch.bfloat16, torch.device("cpu"), torch.zeros(0), torch.tensor(3.0), torch.ones(2, 3, dtype=torch.complex64),
    float("-inf"),
], ids=repr)
def test_a_tree_comes_back_as_it_was(tree):
    again = _trees.unpack(_trees.pack(tree))
    assert type(again) is type(tree)
    assert same(again, tree)
    if not isinstance(tree, torch.Tensor):
        assert again == tree


def test_bytes_that_are_no_tree_are_refused():
    whole = _trees.pack({"a": torch.ones(3), "b": [1, 2]})
    for length in range(len(whole)):
        with pytest.raises(backstay.VariableMismatch):
            _trees.unpack(whole[:length])
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 0x55
        try:
            _trees.unpack(broken)
        except backstay.Error:
            continue
