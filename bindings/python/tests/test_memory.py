# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What can be protected: shapes, types, orders, and memory that moves."""

import array
import ctypes
import mmap

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

import backstay

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Tensor:
    """What DLPack needs and no buffer protocol, as tensors have it."""

    def __init__(self, data, device=None, old=False):
        self.data, self._device, self._old = data, device, old

    def __dlpack__(self, **words):
        if self._old and words:
            raise TypeError("unexpected keyword argument")
        return self.data.__dlpack__(**words)

    def __dlpack_device__(self):
        return self._device or self.data.__dlpack_device__()


class Detachable(Tensor):
    """A tensor that requires a gradient: only what `detach` gives can be exported."""

    def __dlpack__(self, **words):
        raise BufferError("requires gradient")

    def detach(self):
        return Tensor(self.data)


TYPES = st.one_of(
    of_numpy.boolean_dtypes(), of_numpy.integer_dtypes(endianness="="), of_numpy.unsigned_integer_dtypes(endianness="="),
    of_numpy.floating_dtypes(endianness="=", sizes=(16, 32, 64)), of_numpy.complex_number_dtypes(endianness="="),
    of_numpy.floating_dtypes(endianness=">", sizes=(32, 64)), st.just(numpy.dtype("g")), st.just(numpy.dtype("U5")),
    st.just(numpy.dtype("S7")), st.just(numpy.dtype([("Offset", "f8"), ("Place", "i4", (2,))])),
)


def again(name, wanted, **words):
    """What a second start restores under `name`."""
    got = numpy.zeros_like(wanted)
    with backstay.open() as session:
        session.protect(name, got, **words)
        session.restore()
    return got


@FEW
@given(data=st.data(), dtype=TYPES, shape=of_numpy.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=5))
def test_every_shape_and_type_comes_back(data, dtype, shape):
    raw = data.draw(st.binary(min_size=1, max_size=40))
    wanted = numpy.zeros(shape, dtype)
    flat = wanted.reshape(-1).view(numpy.uint8) if wanted.size else numpy.zeros(0, numpy.uint8)
    flat[:] = numpy.resize(numpy.frombuffer(raw, numpy.uint8), flat.shape)
    with backstay.open() as session:
        session.protect("array", wanted)
        session.checkpoint()
    assert again("array", wanted).tobytes() == wanted.tobytes()


@FEW
@given(shape=of_numpy.array_shapes(min_dims=2, max_dims=4, min_side=2, max_side=4), data=st.data())
def test_other_orders_are_refused_and_change_nothing(shape, data):
    order = data.draw(st.permutations(range(len(shape))))
    base = numpy.zeros(shape)
    turned = base.transpose(order)
    with backstay.open() as session:
        session.protect("array", base)
        if turned.flags.c_contiguous:
            session.protect("array", turned)
        else:
            with pytest.raises(backstay.InvalidArgument, match=r"x\.T" if turned.flags.f_contiguous else "contiguous"):
                session.protect("array", turned)
        with pytest.raises(backstay.InvalidArgument, match="contiguous"):
            session.protect("array", base[..., ::2, :] if shape[-2] > 2 else base[..., ::-1])
        session.checkpoint()


@pytest.mark.parametrize("wrong, told", [
    (numpy.zeros(5)[:0:-1], "contiguous"),
    (numpy.broadcast_to(numpy.zeros(5), (3, 5)), "read-only"),
    (numpy.array([object()]), "references"),
    (numpy.zeros(2, [("a", "f8"), ("b", "O")]), "references"),
    (numpy.zeros(2, "M8[s]"), "no memory to protect"),
    (b"bytes", "read-only"),
    ([1, 2, 3], "protect_object"),
    (3.5, "protect_object"),
    (Tensor(numpy.zeros((4, 4))[:, ::2]), "contiguous"),
    (Tensor(numpy.zeros(4), device=(2, 0)), "CPU"),
    (None, "protect_object"),
])
def test_what_cannot_be_protected_is_told_by_name(wrong, told):
    with backstay.open() as session, pytest.raises(backstay.InvalidArgument, match=told) as failed:
        session.protect("the plate", wrong)
    assert "the plate" in str(failed.value)


def test_a_wrong_declaration_is_told():
    part = numpy.zeros((4, 5))
    with backstay.open() as session:
        for words in ({"global_shape": (8, 5)}, {"start": (0, 0)}, {"global_shape": (8, 5), "start": (6, 0)},
                      {"global_shape": (8,), "start": (0,)}, {"tracking": "guess"}, {"block_bytes": 100}):
            with pytest.raises(ValueError):
                session.protect("part", part, **words)
        with pytest.raises((backstay.InvalidArgument, OverflowError)):
            session.protect("part", part, global_shape=(8, 5), start=(-1, 0))
        with pytest.raises(backstay.InvalidArgument):
            session.protect("", part)
        session.protect("part", part)
        session.checkpoint()


@pytest.mark.parametrize("make", [
    lambda: bytearray(b"some bytes" * 100),
    lambda: memoryview(bytearray(b"some bytes" * 100)),
    lambda: array.array("d", range(100)),
    lambda: (ctypes.c_int32 * 50)(*range(50)),
    lambda: mmap.mmap(-1, 8192),
    lambda: numpy.ma.masked_array(numpy.arange(10.0)),
    lambda: numpy.array(5.0),
])
def test_anything_with_a_buffer(make):
    kept = make()
    if isinstance(kept, mmap.mmap):
        kept[:5] = b"12345"
    with backstay.open() as session:
        session.protect("it", kept)
        session.checkpoint()
    fresh = make()
    memoryview(fresh).cast("B")[:] = bytes(memoryview(fresh).nbytes)
    with backstay.open() as session:
        session.protect("it", fresh)
        session.restore()
    assert bytes(memoryview(fresh).cast("B")) == bytes(memoryview(kept).cast("B"))


@pytest.mark.parametrize("kind", [Tensor, lambda data: Tensor(data, old=True), Detachable])
def test_tensors_by_dlpack_also_when_they_are_given_other_memory(kind):
    tensor = kind(numpy.arange(1000, dtype=numpy.float32))
    with backstay.open() as session:
        session.protect("weights", tensor)
        session.checkpoint()
        tensor.data = numpy.arange(2000, dtype=numpy.float64)  # As `param.data = ...` does.
        session.checkpoint()
    assert (again("weights", numpy.zeros(2000)) == numpy.arange(2000)).all()
    target = kind(numpy.zeros(2000))
    with backstay.open() as session:
        session.protect("weights", target)
        session.restore()
    assert (target.data == numpy.arange(2000)).all()


def test_an_array_that_was_resized_is_saved_from_where_it_is():
    cells = numpy.arange(1000.0)
    with backstay.open() as session:
        session.protect("cells", cells)
        session.checkpoint()
        addresses = set()
        for count in (200_000, 3, 4_000_000, 70_000):
            cells.resize(count, refcheck=False)
            cells[:] = count
            session.checkpoint()
            addresses.update(address for _, address in session._native.variables())
        assert len(addresses) > 1, "it never moved: the test shows nothing"
        kept = cells.copy()
        cells[:] = 0
        session.restore()
        assert (cells == kept).all()
    assert (again("cells", kept) == kept).all()


def test_a_bytearray_may_grow_between_checkpoints_and_not_during_one():
    text = bytearray(b"abc")
    with backstay.open() as session:
        session.protect("text", text)
        for _ in range(20):
            session.checkpoint()
            text.extend(b"defghijklmnopqrstuvwxyz" * 1000)
        session.checkpoint()
        kept = bytes(text)
        text[:] = b"\0" * len(text)
        session.restore()
    assert bytes(text) == kept


def test_what_is_protected_is_kept_alive():
    with backstay.open() as session:
        session.protect("gone", numpy.full(100_000, 7.0))
        for _ in range(10):
            numpy.full(100_000, 1.0)
        session.checkpoint()
        session.unprotect("gone")
        with pytest.raises(backstay.InvalidArgument):
            session.unprotect("gone")
        assert session.checkpoint().bytes_total == 0


def test_a_part_of_a_structured_array_keeps_its_place():
    dtype = numpy.dtype([("x", "f4"), ("n", "i8")])
    rows = numpy.zeros((3, 4), dtype)
    rows["n"] = numpy.arange(12).reshape(3, 4)
    words = {"global_shape": (3, 4), "start": (0, 0)}
    with backstay.open() as session:
        session.protect("rows", rows, **words)
        session.checkpoint()
    assert (again("rows", rows, **words) == rows).all()
