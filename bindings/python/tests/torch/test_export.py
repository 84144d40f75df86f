# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Export: what safetensors reads of the file is what was saved, to the last byte."""

import fractions
import itertools
import math
import os

import conftest
import numpy
import pytest

import backstay

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402

from backstay.torch import _export  # noqa: E402
from backstay.torch._export import export, names  # noqa: E402
from backstay.torch._shelf import Shelf  # noqa: E402

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e5m2]


def raw(tensor):
    """Its elements as bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(one, other):
    """Whether tensors by name are the same to the last byte."""
    return one.keys() == other.keys() and all(
        (one[name].dtype, one[name].shape, raw(one[name])) == (other[name].dtype, other[name].shape, raw(other[name]))
        for name in one)


@pytest.fixture(params=[16 << 20, 1000], ids=["whole", "pieces"], autouse=True)
def pieces(request, monkeypatch):
    """Each test is made with pieces that are larger than its tensors, and smaller than a row."""
    monkeypatch.setattr(_export, "_PIECE_BYTES", request.param)


def test_every_type_is_byte_identical(store, tmp_path):
    tensors = {str(dtype): torch.randint(0, 2**15, (7, 300)).to(dtype) for dtype in DTYPES}
    with Shelf() as shelf:
        shelf.put("key", tensors)
    assert sorted(export(store, tmp_path / "out")) == sorted(tensors)
    assert same(load_file(tmp_path / "out"), tensors)


def test_tensors_of_a_session_and_arrays_of_numpy(store, tmp_path):
    tensors = {"bf16": torch.randn(1000).to(torch.bfloat16), "weights": torch.randn(20, 30, 40)}
    with backstay.open() as session:
        for name, tensor in tensors.items():
            session.protect(name, tensor)
        session.protect("numpy", numpy.arange(10, dtype="int16").reshape(2, 5))
        session.protect("single", numpy.array(2.5))
        session.checkpoint()
        path = session.directory
    tensors |= {"numpy": torch.arange(10, dtype=torch.int16).reshape(2, 5), "single": torch.tensor(2.5).double()}
    stores = backstay.read(path)
    for source in (path, store, stores, stores.newest):
        export(source, tmp_path / "out")
        assert same(load_file(tmp_path / "out"), tensors)


def test_the_file_is_what_safetensors_writes(store, tmp_path):
    tensors = {"b": torch.randn(10, 10), "a": torch.randn(5)}
    with Shelf() as shelf:
        shelf.put("key", tensors)
    export(store, tmp_path / "ours", metadata={"format": "pt"})
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes()[-440:] == (tmp_path / "theirs").read_bytes()[-440:]
    assert len((tmp_path / "ours").read_bytes()) == len((tmp_path / "theirs").read_bytes())


def test_parts_of_all_ranks_are_put_together(store, tmp_path):
    whole = torch.randn(40, 6)

    def rank(comm):
        rows = whole[comm.rank * 10:(comm.rank + 1) * 10].clone()
        with backstay.open(comm=comm) as session:
            session.protect("whole", rows, global_shape=(40, 6), start=(comm.rank * 10, 0))
            session.protect("own", rows)
            session.checkpoint()

    conftest.all_well(conftest.on_ranks(4, rank))
    export(store, tmp_path / "out", names=["whole"])
    assert same(load_file(tmp_path / "out"), {"whole": whole})
    with pytest.raises(backstay.InvalidArgument, match="4 ranks"):
        export(store, tmp_path / "out")
    assert same(load_file(tmp_path / "out"), {"whole": whole})


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_other_orders_in_memory_come_out_in_the_tensor_s_own(store, tmp_path, order):
    tensor = torch.randn(5, 6, 70)
    inverse = [order.index(at) for at in range(3)]
    permuted = tensor.permute(order).contiguous().permute(inverse)
    assert permuted.shape == tensor.shape
    with Shelf() as shelf:
        shelf.put("key", {"tensor": permuted, "flags": permuted > 0})
        export(shelf.session.directory, tmp_path / "out")
    assert same(load_file(tmp_path / "out"), {"tensor": tensor, "flags": tensor > 0})
    # Those that others wrote, who say themselves what there is.
    with backstay.open(job="other") as session:
        session.protect("tensor", permuted.permute(order))
        session.protect("flags", (permuted > 0).permute(order).contiguous().view(torch.uint8))
        session.checkpoint()
        path = session.directory
    orders = {"tensor": order, "flags": order, "absent": (0,)}
    export(path, tmp_path / "other", orders=orders, dtypes={"flags": "bool"})
    assert (tmp_path / "other").read_bytes() == (tmp_path / "out").read_bytes()


def test_single_values_empty_and_tied_tensors_of_a_shelf(store, tmp_path):
    weight = torch.randn(3, 4)
    tree = {"state": {"weight": weight, "tied": weight, "steps": torch.tensor(7), "empty": torch.empty(0, 5),
                      "view": weight.t()}, "third": fractions.Fraction(1, 3)}
    with Shelf(pickled=True) as shelf:
        shelf.put("key", tree)
        stored = shelf._reader().stored("key")
    expected = {f"state/{name}": tree["state"][name] for name in ("weight", "steps", "empty", "view")}
    assert sorted(names(stored)) == sorted(expected)
    export(stored, tmp_path / "out")
    assert same(load_file(tmp_path / "out"), expected)


def test_names_are_chosen_and_changed(store, tmp_path):
    tensors = {"model/a": torch.randn(5), "model/b": torch.randn(6), "optimizer/a": torch.randn(7)}
    with Shelf() as shelf:
        shelf.put("key", tensors)
    export(store, tmp_path / "out", names=["model/b"])
    assert list(load_file(tmp_path / "out")) == ["model/b"]
    export(store, tmp_path / "out", names={"model/a": "a", "model/b": "b"})
    assert same(load_file(tmp_path / "out"), {"a": tensors["model/a"], "b": tensors["model/b"]})
    with pytest.raises(backstay.InvalidArgument, match="model/c"):
        export(store, tmp_path / "out", names=["model/c"])
    with pytest.raises(backstay.InvalidArgument, match="same name"):
        export(store, tmp_path / "out", names={"model/a": "a", "model/b": "a"})
    assert sorted(load_file(tmp_path / "out")) == ["a", "b"]


def test_a_checkpoint_is_chosen_by_number(store, tmp_path):
    cells = numpy.zeros(5)
    with backstay.open(retained=3) as session:
        session.protect("cells", cells)
        for _ in range(3):
            cells += 1
            session.checkpoint()
    for number, expected in ((None, 3), (1, 1), (2, 2)):
        export(store, tmp_path / "out", number)
        assert load_file(tmp_path / "out")["cells"][0] == expected
    with pytest.raises(backstay.InvalidArgument, match="no checkpoint 7"):
        export(store, tmp_path / "out", 7)
    with pytest.raises(backstay.InvalidArgument, match="7 is asked for"):
        export(backstay.read(store).newest, tmp_path / "out", 7)
    with backstay.open(job="another") as session:
        session.protect("cells", cells)
        session.checkpoint()
    with pytest.raises(backstay.InvalidArgument, match="another, test"):
        export(store, tmp_path / "out")


def test_what_safetensors_has_no_type_for_is_refused_by_name(store, tmp_path):
    with Shelf() as shelf:
        shelf.put("key", {"double": torch.zeros(5, dtype=torch.complex128), "plain": torch.ones(5)})
    with pytest.raises(backstay.InvalidArgument, match="'double' is complex128"):
        export(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export(store, tmp_path / "out", names=["plain"])


def test_an_order_that_is_none_is_refused(store, tmp_path):
    conftest.saved(cells=numpy.zeros((2, 3)))
    for order in ((0,), (0, 0), (0, 2)):
        with pytest.raises(backstay.InvalidArgument, match="order"):
            export(store, tmp_path / "out", orders={"cells": order})


def test_what_fails_half_way_leaves_the_file_before(store, tmp_path, monkeypatch):
    conftest.saved(one=numpy.zeros(50_000), two=numpy.ones(50_000))
    out = tmp_path / "folder" / "out"
    out.parent.mkdir()
    out.write_bytes(b"before")
    real, count = _export._shelf.read_into, itertools.count()

    def failing(array, *arguments):
        if next(count) == 1:
            raise backstay.Corrupt("damaged", "fall_back")
        real(array, *arguments)

    monkeypatch.setattr(_export._shelf, "read_into", failing)
    with pytest.raises(backstay.Corrupt):
        export(store, out)
    assert out.read_bytes() == b"before" and os.listdir(out.parent) == ["out"]
    monkeypatch.setattr(_export._shelf, "read_into", real)
    export(store, out)
    assert load_file(out)["two"].sum() == 50_000 and os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 0), (5, 6, 7), (1, 1, 100), (100, 1)])
@pytest.mark.parametrize("most", [1, 3, 10, 42, 1000])
def test_boxes_cover_each_element_once_in_order(shape, most):
    numbers = numpy.arange(math.prod(shape)).reshape(shape)
    seen = []
    for start, box in _export._boxes(shape, most):
        assert math.prod(box) <= most
        seen += numbers[tuple(slice(first, first + count) for first, count in zip(start, box))].reshape(-1).tolist()
    assert seen == list(range(math.prod(shape)))
