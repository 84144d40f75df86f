# SPDX-License-Identifier: Apache-2.0 OR MIT
"""torch.distributed.checkpoint over Backstay: saved, loaded, kept, replaced, deleted, killed."""

import copy
import os
import pathlib
import pickle
import random
import signal
import subprocess
import threading
import time

import pytest
import warm

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType  # noqa: E402

import backstay  # noqa: E402
from backstay.torch import _install  # noqa: E402
from backstay.torch._dcp import Writer  # noqa: E402
from backstay.torch._dcp_metadata import (  # noqa: E402
    HEAD,
    ITEMS,
    Item,
    contents,
    no_save,
    saves,
    unique_name,
)
from backstay.torch._dcp_reader import Reader  # noqa: E402

JOB = pathlib.Path(__file__).with_name("dcp_job.py")
LIMIT_SECONDS = 300

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
]


def save(state, writer, checkpoint_id=None, **how):
    return dcp.save(state, checkpoint_id=checkpoint_id, storage_writer=writer, **how)


def load(state, source, checkpoint_id=None, **how):
    dcp.load(state, checkpoint_id=checkpoint_id, storage_reader=Reader(source), **how)
    return state


def blank(state):
    """The same tensors with other elements."""
    return {name: torch.zeros_like(one) if isinstance(one, torch.Tensor) else None for name, one in state.items()}


def raw(tensor):
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def is_loaded(state, source, checkpoint_id=None):
    into = load(blank(state), source, checkpoint_id)
    return all(torch.equal(raw(into[name]), raw(one)) if isinstance(one, torch.Tensor) else into[name] == one
               for name, one in state.items())


def newest(writer):
    return backstay.read(writer.session.directory).newest


# ---- One process

def test_every_kind_of_tensor_comes_back_bit_for_bit():
    torch.manual_seed(1)
    kinds = {
        str(dtype): torch.randn(6, 4).to(dtype)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.bool,
                      torch.int8, torch.uint16, torch.int64, torch.complex64, torch.complex128)
    }
    base = torch.randn(8, 8)
    state = {
        **kinds,
        "single": torch.tensor(3.5),
        "none": torch.zeros(0, 3),
        "gaps": base[::2, 1:5],
        "transposed": torch.randn(5, 3).t(),
        "expanded": torch.randn(1, 4).expand(3, 4),
        "conjugate": torch.randn(3, 3, dtype=torch.complex64).conj(),
        "gradient": torch.nn.Parameter(torch.randn(3)),
        "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "nan": torch.tensor([float("nan"), -0.0]),
        "text": "words",
        "number": 7,
    }
    with Writer() as writer:
        metadata = save(state, writer, "all")
        assert metadata.storage_meta.checkpoint_id == "all"
        assert is_loaded(state, writer, "all")
    # Without a session, and by names alone.
    found = backstay.read(os.environ["BACKSTAY_STORE_PATH"]).newest
    assert (found["torch.float32"][...] == state["torch.float32"].numpy()).all()
    assert is_loaded(state, os.environ["BACKSTAY_STORE_PATH"])


def test_nested_states_come_back_and_other_keys_are_told():
    state = {"model": {"a": torch.arange(4.0), "deep": {"b": [torch.ones(2), {"c": 5}]}}, "epoch": 3}
    with Writer() as writer:
        metadata = save(state, writer, "x")
        into = {"model": {"a": torch.zeros(4), "deep": {"b": [torch.zeros(2), {"c": 0}]}}, "epoch": 0}
        load(into, writer, "x")
        assert torch.equal(into["model"]["a"], state["model"]["a"]) and into["model"]["deep"]["b"][1] == {"c": 5}
        read = Reader(writer, "x").read_metadata()
        assert read.planner_data == metadata.planner_data
        assert read.state_dict_metadata == metadata.state_dict_metadata
        with pytest.raises(dcp.api.CheckpointException, match="Missing key"):
            load({"more": torch.zeros(1)}, writer, "x")
        into = {"more": torch.ones(1), "epoch": 0}
        load(into, writer, "x", planner=dcp.DefaultLoadPlanner(allow_partial_load=True))
        assert into["epoch"] == 3 and into["more"] == 1
        # A state dict is made from what is stored.
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
        made = _load_state_dict_from_keys(storage_reader=Reader(writer, "x"))
        assert torch.equal(made["model"]["deep"]["b"][0], torch.ones(2)) and made["epoch"] == 3


def test_another_type_is_converted_as_torch_does():
    with Writer() as writer:
        save({"a": torch.arange(5.0)}, writer, "x")
        into = load({"a": torch.zeros(5, dtype=torch.float64)}, writer, "x")
        assert torch.equal(into["a"], torch.arange(5, dtype=torch.float64))


def test_a_planner_may_transform_what_is_saved():
    class Half(dcp.DefaultSavePlanner):
        def transform_object(self, item, found):
            done = super().transform_object(item, found)
            return done.half() if isinstance(done, torch.Tensor) else done

    with Writer() as writer:
        save({"a": torch.arange(5.0)}, writer, "x", planner=Half())
        dcp.async_save({"a": torch.arange(6.0)}, checkpoint_id="y", storage_writer=writer, planner=Half(),
                       no_dist=True).result()
        assert newest(writer)["a"].element == "f16"
        assert torch.equal(load({"a": torch.zeros(5)}, writer, "x")["a"], torch.arange(5.0))
        assert torch.equal(load({"a": torch.zeros(6)}, writer, "y")["a"], torch.arange(6.0))


def test_names_that_are_no_variables_names_are_kept_beside():
    state = {"n" * 300: torch.ones(3), "n" * 300 + "x": torch.full((3,), 2.0), HEAD: torch.zeros(2), ITEMS: 5}
    assert len(unique_name("\u00e9" * 400, ()).encode()) <= 255
    assert unique_name("a", {"a", "a#1"}) == "a#2"
    with Writer() as writer:
        save(state, writer, "x")
        assert is_loaded(state, writer, "x")
        assert all(len(name.encode()) <= 255 for name in newest(writer))


def test_items_say_only_what_is_not_as_usual():
    item = Item("a", "a", "float32", None, (3,), (0,), (3,))
    assert item.word() == {"fqn": "a", "dtype": "float32", "size": (3,), "offsets": (0,), "sizes": (3,)}
    assert Item.of_word(item.word()) == item
    assert Item.of_word(Item("b", None).word()).variable is None


def test_tied_weights_are_stored_once():
    weight = torch.randn(1000, 100)
    state = {"embedding": weight, "head": torch.nn.Parameter(weight), "slice": weight[:10]}
    with Writer() as writer:
        save(state, writer, "x")
        found = newest(writer)
        assert "embedding" in found and "head" not in found and found.bytes_total < 1.1 * weight.nbytes
        into = blank(state)
        load(into, writer, "x")
        assert all(torch.equal(into[name], state[name]) for name in state)


def test_channels_last_is_stored_as_it_lies_in_memory():
    tensor = torch.randn(4, 3, 16, 16).to(memory_format=torch.channels_last)
    with Writer() as writer:
        save({"w": tensor}, writer, "x")
        assert newest(writer)["w"].shape == (4, 16, 16, 3)
        assert (newest(writer)["w"][...] == tensor.permute(0, 2, 3, 1).numpy()).all()
        for like in (torch.zeros(4, 3, 16, 16), torch.zeros_like(tensor)):
            assert torch.equal(load({"w": like}, writer, "x")["w"], tensor)


def test_only_changed_blocks_are_written():
    tensor = torch.randn(1_000_000)
    with Writer() as writer:
        save({"w": tensor, "step": 1}, writer, "a")
        tensor[5] = 7
        save({"w": tensor, "step": 2}, writer, "b")
        assert newest(writer).bytes_changed < tensor.nbytes / 8
        # The same elements in other memory are not written either.
        save({"w": tensor.clone(), "step": 2}, writer, "c")
        assert newest(writer).bytes_changed < tensor.nbytes / 8
        assert load({"w": torch.zeros(1_000_000)}, writer, "b")["w"][5] == 7


def test_what_is_no_longer_in_the_state_is_in_no_later_save():
    with Writer() as writer:
        save({"a": torch.ones(3), "b": torch.ones(3), "c": 1}, writer, "1")
        save({"a": 5, "c": torch.ones(4)}, writer, "2")
        assert sorted(newest(writer)) == ["a", HEAD, ITEMS, "c"]
        into = load({"a": 0, "c": torch.zeros(4)}, writer, "2")
        assert into["a"] == 5 and torch.equal(into["c"], torch.ones(4))
        assert torch.equal(load({"b": torch.zeros(3)}, writer, "1")["b"], torch.ones(3))


def test_only_what_is_asked_for_is_read():
    with Writer() as writer:
        save({"a": torch.arange(10.0), "b": torch.ones(5)}, writer, "x")
        read = []

        class Counting(Reader):
            def _box(self, place, start, shape, into):
                read.append(place.item.fqn)
                super()._box(place, start, shape, into)

        dcp.load({"a": torch.zeros(10)}, storage_reader=Counting(writer))
        assert read == ["a"]


# ---- What stays

def test_ids_stay_beyond_retained_until_they_are_deleted():
    with Writer(retained=2) as writer:
        for step in range(8):
            save({"t": torch.full((10,), float(step))}, writer, f"s{step}")
        assert writer.checkpoint_ids() == [f"s{step}" for step in range(8)]
        writer.delete("s3")
        writer.delete("s7")
        with pytest.raises(backstay.NotRetained, match="'s3'"):
            writer.delete("s3")
    kept = ["s0", "s1", "s2", "s4", "s5", "s6"]
    with Writer(retained=2) as writer:
        assert writer.checkpoint_ids() == kept
        for name in kept:
            assert (load({"t": torch.zeros(10)}, writer, name)["t"] == float(name[1:])).all()
        assert (load({"t": torch.zeros(10)}, writer)["t"] == 6).all()
        for name in ("s3", "s7", "never"):
            with pytest.raises(dcp.api.CheckpointException, match="no checkpoint_id"):
                load({"t": torch.zeros(10)}, writer, name)


def test_saving_again_replaces():
    with Writer() as writer:
        for value in (1, 2, 3):
            save({"t": torch.full((4,), float(value))}, writer, "best")
            save({"t": torch.zeros(4)}, writer, "other")
            assert (load({"t": torch.zeros(4)}, writer, "best")["t"] == value).all()
        assert sorted(writer.checkpoint_ids()) == ["best", "other"]
        pinned = [one for one in backstay.read(writer.session.directory).checkpoints if one.pinned]
        assert len(pinned) == 2
        writer.delete("best")
        with pytest.raises(dcp.api.CheckpointException, match="no checkpoint_id"):
            load({"t": torch.zeros(4)}, writer, "best")


def test_at_the_limit_the_save_fails_and_nothing_is_dropped():
    with Writer(retained=32) as writer:
        names = [f"s{step}" for step in range(writer.session.pins_left)]
        assert len(names) > 10
        for step, name in enumerate(names):
            save({"t": torch.full((4,), float(step))}, writer, name)
        assert writer.checkpoint_ids() == names and writer.session.pins_left == 0
        before = writer.session.checkpoints
        # No checkpoint is taken for it.
        with pytest.raises(dcp.api.CheckpointException, match="cannot be kept beside"):
            save({"t": torch.zeros(4)}, writer, "more")
        with pytest.raises(dcp.api.CheckpointException, match="cannot be kept beside"):
            save({"t": torch.zeros(4)}, writer, names[0])
        with pytest.raises(backstay.StoreFull):
            dcp.async_save({"t": torch.zeros(4)}, checkpoint_id="more", storage_writer=writer, no_dist=True)
        assert writer.session.checkpoints == before and writer.checkpoint_ids() == names
        for step in (0, len(names) // 2, len(names) - 1):
            assert (load({"t": torch.ones(4)}, writer, names[step])["t"] == step).all()
        assert (load({"t": torch.ones(4)}, writer)["t"] == len(names) - 1).all()
        writer.delete(names[0])
        save({"t": torch.full((4,), -1.0)}, writer, "more")
        assert writer.checkpoint_ids() == [*names[1:], "more"]


def test_an_async_save_beyond_the_limit_fails_at_once():
    def start(step):
        return dcp.async_save({"t": torch.full((4,), float(step))}, checkpoint_id=f"s{step}", storage_writer=writer)

    with Writer(retained=32) as writer:
        count = writer.session.pins_left
        for step in range(count):
            started = start(step)
        # The last one is neither waited for nor pinned yet.
        with pytest.raises(backstay.StoreFull, match="cannot be kept beside"):
            start(count)
        assert started.result() is not None
        names = [f"s{at}" for at in range(count)]
        assert writer.checkpoint_ids() == names
        assert (load({"t": torch.zeros(4)}, writer)["t"] == count - 1).all()
        # One without an id needs no room.
        dcp.async_save({"t": torch.zeros(4)}, storage_writer=writer).result()
        writer.delete("s0")
        start(0).result()
    with Writer(retained=32) as writer:
        assert writer.checkpoint_ids() == [*names[1:], "s0"]


def test_an_async_save_whose_room_the_program_took_is_told_and_is_no_save():
    with Writer(retained=32) as writer:
        for step in range(writer.session.pins_left - 1):
            save({"t": torch.full((4,), float(step))}, writer, f"s{step}")
        names = writer.checkpoint_ids()
        save({"t": torch.zeros(4)}, writer)
        other = writer.session.checkpoints[-1]
        dcp.async_save({"t": torch.ones(4)}, checkpoint_id="late", storage_writer=writer).result()
        writer.session.pin(other.number)
        with pytest.raises(backstay.StoreFull, match="cannot be pinned"):
            writer.settle()
        assert writer.checkpoint_ids() == names
    with Writer(retained=32) as writer:
        assert writer.checkpoint_ids() == names


def test_saves_without_an_id_are_retained_as_others():
    with Writer(retained=2) as writer:
        save({"t": torch.ones(4)}, writer, "kept")
        for value in range(5):
            save({"t": torch.full((4,), float(value))}, writer)
        assert writer.checkpoint_ids() == ["kept"] and len(writer.session.checkpoints) == 3
        assert (load({"t": torch.zeros(4)}, writer)["t"] == 4).all()


def test_a_session_of_the_programs_own_is_shared():
    mine = torch.zeros(10)
    with backstay.open() as session:
        session.protect("t", mine)
        with Writer(session) as writer:
            trained = torch.ones(4)
            save({"t": trained, "u": 5}, writer, "x")
            mine.fill_(3)
            trained.fill_(9)
            session.checkpoint()  # Is no save, though it has the same variables.
            assert writer.checkpoint_ids() == ["x"]
            assert is_loaded({"t": torch.ones(4), "u": 5}, session)
        mine.fill_(0)
        session.restore()
        assert (mine == 3).all() and not session.closed
        with pytest.raises(backstay.InvalidArgument):
            Writer(session, job="other")


def test_what_ended_before_it_was_pinned_is_pinned_by_the_next_start(monkeypatch):
    def killed(number):
        raise KeyboardInterrupt

    with pytest.raises(dcp.api.CheckpointException, match="KeyboardInterrupt"):
        with Writer() as writer:
            save({"t": torch.ones(4)}, writer, "a")
            monkeypatch.setattr(writer.session, "pin", killed)
            save({"t": torch.full((4,), 2.0)}, writer, "b")
    with Writer() as writer:
        assert writer.checkpoint_ids() == ["a", "b"]
        for _ in range(4):
            save({"t": torch.zeros(4)}, writer)
        assert (load({"t": torch.zeros(4)}, writer, "b")["t"] == 2).all()


# ---- Asynchronous

def test_async_save_has_the_state_at_the_call():
    tensor = torch.zeros(2_000_000)
    with Writer() as writer:
        for step in range(1, 5):
            tensor.fill_(step)
            future = dcp.async_save({"t": tensor, "step": step}, checkpoint_id=str(step), storage_writer=writer)
            while not future.done():
                tensor.add_(1000)
            assert future.result().state_dict_metadata["t"].size == torch.Size([2_000_000])
        for step in range(1, 5):
            into = load({"t": torch.zeros(2_000_000), "step": 0}, writer, str(step))
            assert into["step"] == step and (into["t"] == step).all()
    with Writer() as writer:
        assert writer.checkpoint_ids() == ["1", "2", "3", "4"]


def test_an_id_that_is_told_too_late_is_refused():
    with Writer() as writer:
        staged = writer.stage({"t": torch.ones(3)})
        with pytest.raises(dcp.api.CheckpointException, match="writer.at"):
            save(staged, writer, "late")
        staged = writer.at("early").stage({"t": torch.ones(3)})
        save(staged, writer, "early")
        writer.settle()
        assert writer.checkpoint_ids() == ["early"]


def test_the_background_makes_no_collective_call():
    made = []

    class Watching:
        rank, size = 0, 1

        def allgather(self, mine):
            made.append(threading.get_ident())
            return [mine]

        def allreduce_max(self, values):
            made.append(threading.get_ident())
            return values

        def barrier(self):
            made.append(threading.get_ident())

    with backstay.open(comm=Watching()) as session, Writer(session) as writer:
        dcp.async_save({"t": torch.ones(5)}, checkpoint_id="x", storage_writer=writer).result()
        writer.settle()
        assert made and set(made) == {threading.get_ident()}


def test_plans_that_did_not_change_are_made_once(monkeypatch):
    counted = []
    real = dcp.DefaultSavePlanner.create_global_plan

    def counting(self, plans):
        if threading.current_thread() is threading.main_thread():
            counted.append(1)
        return real(self, plans)

    monkeypatch.setattr(dcp.DefaultSavePlanner, "create_global_plan", counting)
    state = {"t": torch.ones(5), "step": 1}
    with Writer() as writer:
        for step in range(3):
            state["step"] = step
            dcp.async_save(state, checkpoint_id=str(step), storage_writer=writer).result()
        assert len(counted) == 1
        state["t"] = torch.ones(6)
        dcp.async_save(state, checkpoint_id="4", storage_writer=writer).result()
        assert len(counted) == 2
        assert load({"t": torch.zeros(6), "step": 0}, writer, "4")["step"] == 2


def test_the_executor_of_processes_is_refused():
    with Writer() as writer:
        with pytest.raises(backstay.InvalidArgument, match="AsyncCheckpointerType.THREAD"):
            dcp.async_save({"t": torch.ones(5)}, checkpoint_id="x", storage_writer=writer,
                           async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        for sending in (pickle.dumps, copy.deepcopy):
            with pytest.raises(backstay.InvalidArgument, match="cannot be sent"):
                sending(writer)
        assert not writer.session.checkpoints


def test_what_fails_is_told_and_the_next_save_is_well():
    class Failing(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            raise RuntimeError("no data here")

    with Writer() as writer:
        with pytest.raises(dcp.api.CheckpointException, match="no data here"):
            save({"t": torch.ones(5)}, writer, "x", planner=Failing())
        with pytest.raises(dcp.api.CheckpointException, match="meta device"):
            save({"t": torch.ones(5, device="meta")}, writer, "x")
        with pytest.raises(dcp.api.CheckpointException, match="sparse"):
            save({"t": torch.eye(3).to_sparse()}, writer, "x")
        assert not writer.checkpoint_ids()
        save({"t": torch.ones(5)}, writer, "x")
        assert is_loaded({"t": torch.ones(5)}, writer, "x")


# ---- Install

def test_code_that_names_the_file_system_saves_to_backstay(tmp_path):
    state = {"t": torch.arange(6.0)}
    real_writer, real_reader = dcp.FileSystemWriter, dcp.FileSystemReader
    dcp.save(state, storage_writer=real_writer(tmp_path / "old"))
    with Writer() as writer:
        _install.install(writer)
        try:
            with pytest.raises(backstay.InvalidArgument, match="already"):
                _install.install()
            dcp.save(state, storage_writer=real_writer(tmp_path / "one"))
            dcp.save({"t": state["t"] * 2}, checkpoint_id=tmp_path / "two")
            dcp.async_save({"t": state["t"] * 3}, storage_writer=real_writer(str(tmp_path / "three"))).result()
            writer.settle()
            assert writer.checkpoint_ids() == [str(tmp_path / name) for name in ("one", "two", "three")]
            assert not any((tmp_path / name).exists() for name in ("one", "two", "three"))
            for factor, name in enumerate(("one", "two", "three"), 1):
                into = {"t": torch.zeros(6)}
                dcp.load(into, storage_reader=real_reader(tmp_path / name))
                assert torch.equal(into["t"], state["t"] * factor)
            into = {"t": torch.zeros(6)}
            dcp.load(into, checkpoint_id=str(tmp_path / "old"))
            assert torch.equal(into["t"], state["t"])

            class Derived(real_writer):
                pass

            assert isinstance(Derived(tmp_path / "derived"), real_writer)
        finally:
            _install.uninstall()
        _install.uninstall()
        again = real_writer(tmp_path / "files", thread_count=2)
        assert isinstance(again, real_writer)
        dcp.save(state, storage_writer=again)
        assert (tmp_path / "files" / ".metadata").exists()
        assert isinstance(real_reader(tmp_path / "files"), real_reader)


def test_install_opens_a_writer_of_its_own(tmp_path):
    _install.install(job="installed")
    try:
        dcp.save({"t": torch.ones(3)}, storage_writer=dcp.FileSystemWriter(tmp_path / "one"))
    finally:
        _install.uninstall()
    with Writer(job="installed") as writer:
        assert writer.checkpoint_ids() == [str(tmp_path / "one")]


# ---- Reading what is not there

def test_sources_that_have_nothing_are_told(tmp_path):
    with Writer() as writer:
        with pytest.raises(dcp.api.CheckpointException, match="no checkpoint to restore"):
            load({"t": torch.zeros(1)}, writer)
        save({"t": torch.ones(1)}, writer, "x")
    with Writer(job="other") as other:
        save({"t": torch.ones(1)}, other, "x")
    stores = os.environ["BACKSTAY_STORE_PATH"]
    with pytest.raises(dcp.api.CheckpointException, match="several jobs"):
        load({"t": torch.zeros(1)}, stores)
    dcp.load({"t": torch.zeros(1)}, storage_reader=Reader(stores, job="other"))
    for wrong in (5, [], [5], None):
        with pytest.raises(backstay.InvalidArgument, match="source"):
            Reader(wrong)
    assert Reader.validate_checkpoint_id("x") and not Reader.validate_checkpoint_id("")
    assert not Writer.validate_checkpoint_id("") and not Writer.validate_checkpoint_id(5)


def test_parts_of_other_nodes_are_told_to_be_missing():
    with Writer() as writer:
        save({"t": torch.ones(1)}, writer, "x")
        found = backstay.read(writer.session.directory)
        save_found = next(saves(found))
        save_found.checkpoint.complete = False
        with pytest.raises(backstay.NotRetained, match="other nodes are not in these stores.*the archive"):
            contents(save_found)
        assert "of checkpoints 1 other nodes have parts" in str(no_save("y", ["x"], ["here"], found))


def test_processes_that_found_different_checkpoints_are_told():
    with Writer() as writer:
        save({"t": torch.ones(1)}, writer, "x")
        reader, later = Reader(writer), Reader(writer)
        reader.read_metadata()
        save({"t": torch.ones(1)}, writer, "y")
        later.read_metadata()
        plans = [one.prepare_local_plan(dcp.planner.LoadPlan([])) for one in (reader, later)]
        with pytest.raises(backstay.VariableMismatch, match="different checkpoints"):
            reader.prepare_global_plan(plans)


# ---- Several processes

class Job:
    """A job of several processes."""

    def __init__(self, folder, size, *deed):
        self.number = Job.number = getattr(Job, "number", 0) + 1
        meeting = f"file://{folder}/meeting{self.number}"
        command = [JOB, meeting, size]
        self.processes = [
            warm.Popen([*command, rank, *deed], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for rank in range(size)]

    def finish(self):
        """What all printed; each has to end well."""
        texts = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in self.processes]
        for rank, (process, text) in enumerate(zip(self.processes, texts)):
            assert process.returncode == 0 and f"{rank} well" in text, "\n".join(texts)
        return texts

    def kill(self):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
        return [process.communicate(timeout=LIMIT_SECONDS)[0] for process in self.processes]


@pytest.fixture
def job(tmp_path):
    started = []

    def start(size, *deed):
        started.append(Job(tmp_path, size, *deed))
        return started[-1]

    yield start
    for one in started:
        for process in one.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.mark.parametrize("then, now", [(2, 2), (4, 3), (2, 1), (1, 2)])
def test_another_number_of_processes_loads_what_was_saved(job, then, now):
    job(then, "save", 100, 200, 300, 400).finish()
    texts = job(now, "load", 200).finish()
    assert "rank 0 loaded 200" in texts[0]
    assert "rank 0 loaded 400" in job(now, "load", 400, "paths").finish()[0]


def test_an_async_save_of_two_processes_has_the_state_at_the_call(job):
    job(2, "overlap").finish()


def test_plans_are_gathered_where_one_changed(job):
    job(2, "count_plans").finish()


def test_what_fails_on_one_process_fails_on_all(job):
    job(2, "fail").finish()


def test_processes_that_save_alone_are_refused(job):
    job(2, "refuse").finish()


def test_what_all_have_is_written_once(job):
    job(2, "replicated").finish()


def test_several_shards_of_a_process_are_kept_apart(job):
    job(2, "shards").finish()


def test_training_with_fsdp_goes_on_on_other_processes(job):
    job(2, "train", "save").finish()
    job(3, "train", "load").finish()


def test_killed_jobs_have_every_id_that_was_saved(job):
    draw = random.Random(4)
    saved = []
    for _ in range(3):
        one = job(2, "go_on")
        lines = []
        for line in one.processes[0].stdout:
            lines.append(line)
            if line.startswith("saved"):
                break
        assert any(line.startswith("saved") for line in lines), "".join(lines)
        time.sleep(draw.uniform(0, 0.5))
        text = "".join(lines) + one.kill()[0]
        assert "Error" not in text, text
        before = next(line for line in text.splitlines() if line.startswith("before")).split()[1:]
        assert set(saved) <= set(before), (saved, before)
        saved = before + [f"step-{line.split()[1]}" for line in text.splitlines() if line.startswith("saved")]
