# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Marks of a Checkpointer: what is marked is stored, and what changed unmarked is found."""

import random

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402
from test_checkpointer import on_processes, same  # noqa: E402
from torch import nn  # noqa: E402

import backstay  # noqa: E402
import backstay.torch  # noqa: E402
from backstay.torch._tensors import Staging  # noqa: E402

ROWS, WIDTH = 1024, 64
BLOCK_BYTES = 4096
ROWS_EACH = BLOCK_BYTES // (4 * WIDTH)
BLOCKS = ROWS // ROWS_EACH


def a_table(**settings):
    table = torch.arange(float(ROWS * WIDTH)).reshape(ROWS, WIDTH).clone()
    return table, backstay.torch.Checkpointer(extra={"table": table}, block_bytes=BLOCK_BYTES, **settings)


def stored(checkpointer, name="extra/table"):
    return torch.as_tensor(backstay.read(checkpointer.session.directory).newest[name][...])


def believed(table, checkpointer):
    """Three checkpoints: the table protected, its marks proven, and what follows believes them."""
    checkpointer.checkpoint()
    for row in (1, 2):
        table[row] += 1
        checkpointer.mark_dirty(table, row)
        checkpointer.checkpoint()


def looked_at_later(table, checkpointer, row):
    """Changes a row unmarked; how many checkpoints do not have it."""
    table[row] -= 1
    for count in range(2 * BLOCKS):
        checkpointer.checkpoint()
        if torch.equal(stored(checkpointer), table):
            return count
    raise AssertionError("never found")


# ---- What is marked

@pytest.mark.parametrize("rows, touched", [
    (None, range(ROWS)),
    (7, [7]),
    (-1, [ROWS - 1]),
    (slice(30, 60), range(30, 60)),
    (slice(-3, None), range(ROWS - 3, ROWS)),
    (range(5, 9), range(5, 9)),
    ([900, 3, 3, -900], [900, 3, ROWS - 900]),
    ((), []),
    ([], []),
    (slice(9, 4), []),
    (numpy.array([17, 400]), [17, 400]),
    (torch.tensor([17, 400, 17]), [17, 400]),
    (torch.tensor(12), [12]),
    (torch.tensor([[1, 500], [501, 2]], dtype=torch.int32), [1, 2, 500, 501]),
    ((row for row in (3, 4)), [3, 4]),
    (torch.sparse_coo_tensor(torch.tensor([[5, 800, 5]]), torch.ones(3, WIDTH), (ROWS, WIDTH), check_invariants=True),
     [5, 800]),
], ids=lambda one: str(type(one).__name__))
def test_rows_that_are_marked_are_stored(rows, touched):
    table, checkpointer = a_table()
    with checkpointer:
        believed(table, checkpointer)
        touched = list(touched)
        table[touched] += 0.5
        checkpointer.mark_dirty(table, rows)
        report = checkpointer.checkpoint()
        assert torch.equal(stored(checkpointer), table)
        assert report.blocks_changed <= len({row // ROWS_EACH for row in touched}) + 2
        # Marks are what it went by: it is not all looked at.
        assert looked_at_later(table, checkpointer, 700) > 0


def test_what_changes_unmarked_is_found_by_the_part_that_is_looked_at_and_marks_are_not_believed_again():
    table, checkpointer = a_table()
    with checkpointer:
        believed(table, checkpointer)
        assert 0 < looked_at_later(table, checkpointer, 700) <= BLOCKS
        for row in random.sample(range(ROWS), 8):
            table[row] += 1
            checkpointer.checkpoint()
            assert torch.equal(stored(checkpointer), table)


def test_marks_that_leave_something_out_from_the_first_are_never_believed():
    table, checkpointer = a_table()
    with checkpointer:
        checkpointer.checkpoint()
        for _ in range(6):
            table[3] += 1
            table[900] += 1
            checkpointer.mark_dirty(table, 3)
            checkpointer.checkpoint()
            assert torch.equal(stored(checkpointer), table) or checkpointer.session.checkpoints[-1].number <= 2


def a_sparse_program(optimizer):
    torch.manual_seed(4)
    model = nn.ModuleDict({"table": nn.Embedding(ROWS, WIDTH, sparse=True), "head": nn.Linear(WIDTH, 3)})
    return model, optimizer(model["table"].parameters()), torch.optim.AdamW(model["head"].parameters())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", [
    lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.1),
    lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
], ids=["SparseAdam", "Adagrad", "SGD"])
def test_a_sparse_gradient_says_what_changes_of_a_table_and_of_its_moments(optimizer):
    model, sparse, dense = a_sparse_program(optimizer)
    weight = model["table"].weight
    settings = {"block_bytes": BLOCK_BYTES, "model": model, "optimizer": [sparse, dense]}
    with backstay.torch.Checkpointer(**settings) as checkpointer:
        for step in range(12):
            words = torch.randint(0, ROWS, (3,))
            sparse.zero_grad()
            dense.zero_grad()
            model["head"](model["table"](words)).square().sum().backward()
            sparse.step()
            dense.step()
            checkpointer.mark_dirty(weight, weight.grad)
            report = checkpointer.checkpoint()
            if step > 4:
                tables = 1 + sum(value.shape == weight.shape for value in sparse.state.get(weight, {}).values()
                                 if isinstance(value, torch.Tensor))
                assert report.blocks_changed <= tables * 3 + 12
        with torch.no_grad():
            weight[700] = 0
        for count in range(2 * BLOCKS):
            checkpointer.checkpoint()
            if torch.equal(stored(checkpointer, "model/table.weight"), weight.detach()):
                break
        assert 0 < count <= BLOCKS, "marks are what it went by, and the part that is looked at finds the row"
        wanted = model.state_dict(), sparse.state_dict(), dense.state_dict()
    model, sparse, dense = a_sparse_program(optimizer)
    settings |= {"model": model, "optimizer": [sparse, dense]}
    with backstay.torch.Checkpointer(**settings) as checkpointer:
        checkpointer.restore()
        assert same((model.state_dict(), sparse.state_dict(), dense.state_dict()), wanted)


def test_marks_go_on_after_a_restore_and_after_memory_moved():
    table, checkpointer = a_table(retained=4)
    with checkpointer:
        believed(table, checkpointer)
        for turn in range(3):
            table += 1
            checkpointer.mark_dirty("extra/table")
            checkpointer.checkpoint()
            wanted = table.clone()
            table.zero_()
            checkpointer.restore()
            assert torch.equal(table, wanted)
            if turn == 1:
                # Twice as many rows: what is marked beyond the former is in it.
                table.set_(torch.zeros(2 * ROWS, WIDTH))
                checkpointer.mark_dirty(table, 2 * ROWS - 1)
                checkpointer.checkpoint()
            for row in (5, 600, 601):
                table[row] += 1
                checkpointer.mark_dirty(table, [row])
                checkpointer.checkpoint()
                assert torch.equal(stored(checkpointer), table)


def test_a_checkpoint_that_failed_does_not_lose_marks():
    class Odd:
        value = 1

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    odd, table = Odd(), torch.zeros(ROWS, WIDTH)
    with backstay.torch.Checkpointer(extra={"table": table, "odd": odd}, block_bytes=BLOCK_BYTES) as checkpointer:
        believed(table, checkpointer)
        table[800] += 1
        checkpointer.mark_dirty(table, 800)
        odd.value = object()
        with pytest.raises(backstay.InvalidArgument, match="odd"):
            checkpointer.checkpoint()
        odd.value = 2
        checkpointer.checkpoint()
        assert torch.equal(stored(checkpointer), table)


# ---- By which name, in which memory

def test_a_tensor_is_named_by_itself_its_views_and_its_names():
    model = nn.ModuleDict({"in": nn.Embedding(ROWS, WIDTH), "out": nn.Linear(WIDTH, ROWS, bias=False)})
    model["out"].weight = model["in"].weight
    weight = model["in"].weight
    with backstay.torch.Checkpointer(model=model, block_bytes=BLOCK_BYTES) as checkpointer:
        checkpointer.checkpoint()
        for row, name in enumerate(["model/in.weight", weight, weight.data, weight.detach(), model["out"].weight, weight[:]]):
            with torch.no_grad():
                weight[100 * row] += 1
            checkpointer.mark_dirty(name, 100 * row)
            report = checkpointer.checkpoint()
            assert torch.equal(stored(checkpointer, "model/in.weight"), weight.detach())
            assert report.blocks_changed <= 3


def test_an_optimizers_part_of_another_shape_is_all_marked():
    def make():
        model = nn.ParameterList([nn.Parameter(torch.zeros(40_000, 3))])
        return model, torch.optim.Adafactor(model.parameters(), lr=0.1)

    model, optimizer = make()
    weight = model[0]
    with backstay.torch.Checkpointer(model=model, optimizer=optimizer, block_bytes=BLOCK_BYTES) as checkpointer:
        for step in range(6):
            weight.grad = torch.randn(40_000, 3, generator=torch.Generator().manual_seed(step))
            optimizer.step()
            checkpointer.mark_dirty(weight)
            checkpointer.checkpoint()
    assert {tuple(one.shape) for one in optimizer.state[weight].values()} == {(), (40_000, 1), (1, 3)}
    again, fresh = make()
    with backstay.torch.Checkpointer(model=again, optimizer=fresh, block_bytes=BLOCK_BYTES) as checkpointer:
        checkpointer.restore()
        assert same((again.state_dict(), fresh.state_dict()), (model.state_dict(), optimizer.state_dict()))


@pytest.mark.parametrize("make", [
    lambda: torch.randn(WIDTH, ROWS).t(),
    lambda: torch.randn(16, 8, 32, 32).to(memory_format=torch.channels_last),
    lambda: torch.randn(ROWS, 2 * WIDTH)[:, ::2],
    lambda: torch.randn(ROWS * WIDTH),
    lambda: torch.randn(ROWS, WIDTH, dtype=torch.complex64).conj(),
], ids=["transposed", "channels_last", "gaps", "one-dimension", "conjugate"])
@pytest.mark.parametrize("is_staged", [False, True])
def test_rows_are_found_in_memory_of_any_order(make, is_staged, monkeypatch):
    if is_staged:
        # As of a device.
        monkeypatch.setattr(Staging, "is_needed", lambda self, part: True)
    tensor = make()
    with backstay.torch.Checkpointer(extra={"x": tensor}, block_bytes=BLOCK_BYTES) as checkpointer:
        checkpointer.checkpoint()
        for at in (1, 0, 3, 14):
            tensor[at] += 1
            checkpointer.mark_dirty(tensor, at)
            checkpointer.checkpoint()
            wanted = tensor.clone()
            tensor.zero_()
            checkpointer.restore()
            assert torch.equal(tensor, wanted)
            tensor[at] -= 2
            checkpointer.mark_dirty(tensor, torch.tensor([at]))
            checkpointer.checkpoint()
            tensor[at + 1] += 1
            checkpointer.mark_dirty(tensor, slice(at + 1, at + 2))
            checkpointer.checkpoint()
            wanted = tensor.clone()
            tensor.zero_()
            checkpointer.restore()
            assert torch.equal(tensor, wanted)


def test_a_single_value_is_marked():
    with backstay.torch.Checkpointer(extra={"x": (value := torch.tensor(1.0))}) as checkpointer:
        for _ in range(4):
            value += 1
            checkpointer.mark_dirty(value)
            checkpointer.checkpoint()
            assert stored(checkpointer, "extra/x") == value


@pytest.mark.parametrize("tensor, rows, told", [
    ("extra/table", torch.zeros(ROWS, dtype=torch.bool), "numbers, not a mask"),
    ("extra/table", [True], "numbers, not a mask"),
    ("extra/table", torch.zeros(3), "torch.float32, not whole numbers"),
    ("extra/table", ROWS, f"row {ROWS} of 'extra/table', which has {ROWS}"),
    ("extra/table", [3, -ROWS - 1], f"row {-ROWS - 1} of"),
    ("extra/table", slice(0, 8, 2), "a step of 2"),
    ("extra/tabel", 0, r"no tensor 'extra/tabel' is saved; there are \['extra/table'\]"),
    (torch.zeros(2, 3), 0, r"a tensor of \[2, 3\] is not one that is saved"),
], ids=lambda one: None)
def test_what_cannot_be_marked_is_refused(tensor, rows, told):
    table, checkpointer = a_table()
    with checkpointer:
        believed(table, checkpointer)
        with pytest.raises(backstay.InvalidArgument, match=told):
            checkpointer.mark_dirty(tensor, rows)


# ---- Several processes

@pytest.mark.parametrize("name", ["marked-replicated", "marked-sharded"])
def test_each_process_marks_its_part(name, tmp_path):
    told = on_processes(name, 2, tmp_path)
    assert sum(one["rows_stored"] for one in told) == 8191
    for one in told:
        assert one["wrong"] == [], "what was marked is stored"
        assert one["changed"] <= 12, "and not much else"
    for one in on_processes(name, 3, tmp_path):
        assert one["began"] == told[0]["ended"]
