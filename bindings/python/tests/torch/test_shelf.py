# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Trees that are kept by name: exactly, in small steps, until they are removed, whatever is killed when."""

import collections
import fractions
import math
import os
import random
import signal
import subprocess
import time

import numpy
import pytest
import warm

import backstay

torch = pytest.importorskip("torch")

from backstay.torch._shelf import Marker, Shelf  # noqa: E402


def same(one, other):
    """Whether two trees are the same to the last bit, types included."""
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride()) and (
            raw(one) == raw(other))
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or (one == other and math.copysign(1, one) == math.copysign(1, other))
    return one == other


def raw(tensor):
    """Its elements as bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


TENSORS = {
    **{str(dtype): torch.arange(1000).to(dtype).reshape(10, 100) for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
        torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
        torch.float8_e4m3fn, torch.float8_e5m2)},
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(30, 40).t(),
    "single": torch.tensor(2.5, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "parameter": torch.nn.Parameter(torch.randn(3, 3)),
}

VALUES = {
    "none": None, "flags": [True, False], "int": 2**70, "floats": [0.1, -0.0, math.nan, math.inf, -math.inf],
    "text": "\u00e9\0", "bytes": b"\0\xff", "tuple": (1, (2, [3])), "ints": {1: "one", -2: {3: ()}},
    "$tuple": {"$x": 1}, "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "numpy": numpy.float32(0.1), "array": numpy.eye(3),
    "dtype": torch.bfloat16, "size": torch.Size([1, 2]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_to_the_last_bit(name):
    tensor = TENSORS[name]
    with Shelf() as shelf:
        shelf.put("key", {"at": [tensor]})
        found = shelf.get("key")["at"][0]
    assert same(tensor, found)
    assert found.requires_grad is False


def test_a_tensor_with_gaps_comes_back_without():
    tensor = torch.arange(100.0).reshape(10, 10)[::2, 1:9]
    with Shelf() as shelf:
        shelf.put("key", tensor)
        assert torch.equal(shelf.get("key"), tensor)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_exactly(name):
    with Shelf() as shelf:
        shelf.put("key", {name: VALUES[name]})
        assert same(shelf.get("key"), {name: VALUES[name]})


def test_names_that_are_the_same_and_long_ones_do_not_meet():
    tree = {"a/b": torch.zeros(5), "a": {"b": torch.ones(5)}, "backstay.shelf": torch.ones(3), "x" * 500: torch.ones(4),
            1: torch.full((5,), 2.0), "1": torch.full((5,), 3.0), "\u00e9" * 200: torch.ones(6)}
    with Shelf() as shelf:
        shelf.put("key", tree)
        assert same(shelf.get("key"), tree)


def test_tied_tensors_are_stored_once_and_stay_tied():
    weight = torch.randn(100_000)
    with Shelf() as shelf:
        report = shelf.put("key", {"embedding": weight, "head": [weight], "other": weight.clone()})
        found = shelf.get("key")
    assert found["embedding"] is found["head"][0] and found["other"] is not found["embedding"]
    assert 800_000 <= report.bytes_total < 810_000


def test_a_put_writes_what_changed():
    weight = torch.randn(1_000_000)
    with Shelf() as shelf:
        assert shelf.put("first", {"weight": weight}).bytes_changed >= 4_000_000
        weight = weight.clone()
        weight[5] += 1
        assert shelf.put("second", {"weight": weight}).bytes_changed < 50_000


def test_what_is_put_is_kept_whatever_retained_is(store):
    with Shelf(retained=2) as shelf:
        for at in range(12):
            shelf.put(f"key {at}", {"at": at, "tensor": torch.full((1000,), float(at))})
        shelf.remove("key 3")
        expected = [f"key {at}" for at in range(12) if at != 3]
        assert shelf.keys() == expected
        assert "key 3" not in shelf and len(shelf) == 11
        with pytest.raises(KeyError):
            shelf.get("key 3")
        with pytest.raises(KeyError):
            shelf.remove("key 3")
    with Shelf() as shelf:
        assert shelf.keys() == expected
        for key in expected:
            assert shelf.get(key)["tensor"][7] == shelf.get(key)["at"] == int(key[4:])


def test_what_was_put_is_not_what_the_program_does_to_it_later():
    weight = torch.zeros(1000)
    with Shelf() as shelf:
        shelf.put("key", weight)
        weight += 1
        assert torch.equal(shelf.get("key"), torch.zeros(1000))


def test_a_key_is_replaced():
    with Shelf() as shelf:
        shelf.put("key", torch.zeros(10))
        shelf.put("other", torch.zeros(10))
        shelf.put("key", torch.ones(10))
        assert shelf.keys() == ["other", "key"]
        assert shelf.get("key")[0] == 1
        pinned = [one for one in backstay.read(shelf.session.directory).checkpoints if one.pinned]
        assert len(pinned) == 2


@pytest.mark.parametrize("key", ["", 5, "x" * 5000])
def test_a_key_that_is_none_is_refused(key):
    with Shelf() as shelf, pytest.raises(backstay.InvalidArgument, match="key"):
        shelf.put(key, 1)


@pytest.mark.parametrize(("wrong", "where"), [
    ({"a": [1, fractions.Fraction(1, 3)]}, r"a\[1\]"), ({"a": {"b": torch.empty(2, device="meta")}}, "a/b"),
    ({"a": torch.eye(3).to_sparse()}, "a"), ({"a": {"\0tensor": 0}}, "a")])
def test_a_value_that_cannot_be_said_is_named_and_changes_nothing(wrong, where):
    with Shelf() as shelf:
        shelf.put("key", {"a": 1})
        with pytest.raises(backstay.InvalidArgument, match=where):
            shelf.put("key", wrong)
        assert shelf.get("key") == {"a": 1}
        shelf.put("key", {"a": 2})
        assert shelf.get("key") == {"a": 2}


def test_a_pickle_is_written_and_read_only_where_it_is_allowed(store):
    tree = {"third": fractions.Fraction(1, 3), "tensor": torch.ones(3)}
    with Shelf(pickled=True) as shelf:
        shelf.put("key", tree)
        assert shelf.get("key")["third"] == fractions.Fraction(1, 3)
    with pytest.raises(backstay.InvalidArgument, match="pickle"):
        Shelf.read(store).get("key")


def test_tensors_are_put_where_they_are_asked_for():
    with Shelf() as shelf:
        shelf.put("key", {"tensor": torch.ones(3), "single": torch.tensor(1)})
        for where in ("meta", torch.device("meta"), {"cpu": "meta"}):
            found = shelf.get("key", where)
            assert found["tensor"].device.type == found["single"].device.type == "meta"
        assert shelf.get("key", lambda storage, location: storage)["tensor"].device.type == "cpu"


def test_at_the_limit_a_put_fails_and_nothing_is_given_up():
    with Shelf() as shelf:
        with pytest.raises(backstay.StoreFull):
            for at in range(100):
                shelf.put(f"key {at}", at)
        expected = shelf.keys()
        assert len(expected) > 50
        with pytest.raises(backstay.StoreFull):
            shelf.put(expected[0], "new")
    with Shelf() as shelf:
        # What could not be kept is not taken for what a kill came before.
        assert shelf.keys() == expected
        assert [shelf.get(key) for key in expected] == list(range(len(expected)))
        shelf.remove(expected[1])
        shelf.put(expected[0], "new")
        assert shelf.get(expected[0]) == "new"


def test_where_the_store_is_too_small_a_put_fails_and_the_tree_before_stays():
    with Shelf(reserve_bytes=8 << 20) as shelf:
        shelf.put("key", torch.ones(100_000))
        with pytest.raises(backstay.StoreFull):
            shelf.put("key", torch.randn(5_000_000))
        assert torch.equal(shelf.get("key"), torch.ones(100_000))
        shelf.put("key", torch.zeros(100_000))


def test_a_damaged_tensor_is_told(store):
    pattern = torch.frombuffer(bytearray(b"a pattern that is in no other file") * 1000, dtype=torch.uint8)
    with Shelf() as shelf:
        shelf.put("key", pattern)
        damaged = 0
        for path in store.rglob("*"):
            data = path.read_bytes() if path.is_file() else b""
            at = data.find(b"a pattern that is in no other file", len(data) // 2)
            at = at if at >= 0 else data.find(b"a pattern that is in no other file")
            if at >= 0:
                with open(path, "r+b") as file:
                    file.seek(at)
                    file.write(b"b")
                damaged += 1
        assert damaged
        with pytest.raises(backstay.Error):
            shelf.get("key")


def test_others_read_while_the_shelf_is_open(store):
    with Shelf(job="one") as shelf:
        shelf.put("key", {"tensor": torch.ones(1000)})
        code = ("from backstay.torch._shelf import Shelf; "
                f"print(Shelf.read({str(store)!r}).get('key')['tensor'].sum().item())")
        output = warm.run(["-c", code], capture_output=True, text=True).stdout
        assert float(output) == 1000
        with Shelf(job="two") as other:
            other.put("other", 1)
        with pytest.raises(backstay.InvalidArgument, match="one, two"):
            Shelf.read(store)
        assert Shelf.read(store, job="two").keys() == ["other"]


def test_a_session_that_is_given_stays_open():
    with backstay.open() as session:
        with Shelf(session) as shelf:
            shelf.put("key", 1)
        assert not session.closed
        assert Shelf(session).keys() == ["key"]
        with pytest.raises(backstay.InvalidArgument):
            Shelf(session, job="another")


def test_a_marker_finds_its_own_tree_or_at_its_place_the_one_that_replaced_it(tmp_path):
    key = str(tmp_path / "key")
    with Shelf() as shelf:
        marker = Marker.of(shelf, key, shelf.put(key, 1))
        assert marker == Marker.parse(marker.data())
        assert marker.stored().number == marker.stored(key).number == marker.stored("elsewhere").number == 1
        for value in range(5):
            shelf.put(key, value)
        assert marker.stored(key).number == 6
        for path in (None, tmp_path / "elsewhere"):
            with pytest.raises(backstay.NotRetained):
                marker.stored(path)
        shelf.remove(key)
        for value in range(5):
            shelf.put("other", value)
        with pytest.raises(backstay.NotRetained):
            marker.stored(key)


# ---- Kills

KILLED = """
import os, signal, sys, torch
from backstay.torch._shelf import Shelf
shelf = Shelf()
shelf.put("stays", torch.zeros(1000))
shelf.put("key", torch.zeros(1000))
session, (where, what) = shelf.session, sys.argv[1:]
real = getattr(session, where)
def killed(*arguments):
    if what == "after":
        real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(session, where, killed)
if where == "unpin" and what == "before removal":
    shelf.remove("key")
shelf.put("key", torch.ones(1000))
"""


@pytest.mark.parametrize(("where", "when", "value"), [
    ("checkpoint", "before", 0), ("checkpoint", "after", 1), ("pin", "before", 1), ("pin", "after", 1),
    ("unpin", "before", 1), ("unpin", "after", 1), ("unpin", "before removal", 0)])
def test_a_kill_between_two_steps_leaves_the_tree_before_or_the_new_one(where, when, value):
    assert warm.run(["-c", KILLED, where, when]).returncode == -signal.SIGKILL
    for _ in range(2):
        with Shelf() as shelf:
            assert sorted(shelf.keys()) == ["key", "stays"]
            assert torch.equal(shelf.get("key"), torch.full((1000,), float(value)))
            assert torch.equal(shelf.get("stays"), torch.zeros(1000))
            shelf.put("another", 1)
            shelf.remove("another")
            pinned = [one for one in backstay.read(shelf.session.directory).checkpoints if one.pinned]
            assert len(pinned) == 2


def test_what_was_removed_last_does_not_come_back():
    with Shelf() as shelf:
        shelf.put("key", 1)
        shelf.put("last", 2)
        shelf.remove("last")
    with Shelf() as shelf:
        assert shelf.keys() == ["key"]


PUTTING = """
import torch
from backstay.torch._shelf import Shelf
with Shelf() as shelf:
    counts = {key: shelf.get(key)["count"] for key in shelf.keys() if key != "short"}
    print("begun", flush=True)
    while True:
        for key in ("a", "b", "c"):
            counts[key] = counts.get(key, 0) + 1
            shelf.put(key, {"count": counts[key], "tensor": torch.full((50_000,), float(counts[key]))})
            print(key, counts[key], flush=True)
            if counts[key] % 7 == 3:
                shelf.put("short", 1)
                shelf.remove("short")
"""


def test_kills_at_random_moments_leave_every_key_as_it_was_told_or_newer():
    told = {}
    for _ in range(5):
        process = warm.Popen(["-c", PUTTING], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "begun\n"
        time.sleep(random.uniform(0, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        for line in process.stdout.read().splitlines():
            key, count = line.split()
            told[key] = int(count)
        process.wait()
        process.stdout.close()
        with Shelf() as shelf:
            for key, count in told.items():
                tree = shelf.get(key)
                assert count <= tree["count"] <= count + 1
                assert torch.equal(tree["tensor"], torch.full((50_000,), float(tree["count"])))
                # The next start goes on from it, and may be killed before it tells of that.
                told[key] = tree["count"]
