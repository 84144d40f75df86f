# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sessions of one rank and of several: what is protected comes back, and what is wrong is told."""

import errno
import gc
import inspect
import json
import subprocess
import sys
import warnings

import numpy
import pytest
from conftest import Gathering, Threads, all_well, on_ranks, saved

import backstay
from backstay import _errors, _native


def test_a_second_start_goes_on_where_the_first_was():
    cells = numpy.arange(100_000, dtype=float)
    with backstay.open() as session:
        session.protect("cells", cells)
        with pytest.raises(backstay.NoCheckpoint) as first:
            session.restore()
        assert first.value.advice == "start_fresh"
        full = session.checkpoint()
        cells[5] = -1
        report = session.checkpoint()
    assert report.number == 2 and report.blocks_changed == 1 < full.blocks_changed
    assert report.bytes_total == cells.nbytes
    again = numpy.zeros_like(cells)
    with backstay.open() as session:
        session.protect("cells", again)
        assert session.checkpoints == [(1, 1), (2, 1)]
        restored = session.restore()
    assert restored.number == 2 and restored.bytes_read == cells.nbytes and restored.level == "node"
    assert (again == cells).all()


def test_an_older_checkpoint_is_restored_by_its_number():
    cells = numpy.zeros(10)
    with backstay.open() as session:
        session.protect("cells", cells)
        for step in range(3):
            cells[:] = step
            session.checkpoint()
        session.pin(3)
        assert session.restore(2).number == 2
        assert (cells == 1).all()
        with pytest.raises(backstay.NotRetained):
            session.restore(77)


def test_so_many_checkpoints_can_be_pinned_as_it_says():
    cells = numpy.zeros(10)
    with backstay.open(retained=32) as session:
        session.protect("cells", cells)
        left = session.pins_left
        assert left == 27
        for number in range(1, left + 1):
            session.checkpoint()
            session.pin(number)
            session.pin(number)
            assert session.pins_left == left - number
        session.checkpoint()
        with pytest.raises(backstay.StoreFull, match="cannot be pinned"):
            session.pin(left + 1)
        session.unpin(1)
        assert session.pins_left == 1
    with backstay.open(retained=32) as session:
        assert session.pins_left == 1
        session.pin(left + 1)
        assert session.pins_left == 0


def test_a_finished_job_begins_anew_and_can_be_gone_back_to():
    cells = numpy.arange(1000, dtype=float)
    session = backstay.open()
    session.protect("cells", cells)
    finished = session.finish()
    assert session.closed and (finished.report.number, finished.level) == (1, "node")
    assert str(finished) == "finished with checkpoint 1, level node"
    session.close()
    again = numpy.zeros_like(cells)
    with backstay.open() as session:
        session.protect("cells", again)
        assert session.checkpoints == []
        with pytest.raises(backstay.NoCheckpoint, match="finished with checkpoint 1"):
            session.restore()
        assert session.restore(1).number == 1
    assert (again == cells).all()


def test_a_start_that_restores_nothing_leaves_earlier_checkpoints_behind():
    cells = numpy.zeros(1000)
    for number in (1, 2):
        with backstay.open() as session:
            session.protect("cells", cells)
            assert session.checkpoint().number == number
            session.pin(number)
    with backstay.open() as session:
        assert session.earlier_checkpoints == [(1, 1)] and session.checkpoints == [(2, 2)]
        assert session.all_checkpoints == [(1, 1), (2, 2)]


def test_an_object_that_cannot_be_written_leaves_the_job_unfinished():
    session = backstay.open()
    session.protect("cells", numpy.ones(10))
    state = {"value": 1}
    session.protect_object("state", lambda: state, lambda value: None)
    session.checkpoint()
    state["value"] = object()
    with pytest.raises(backstay.InvalidArgument, match="cannot be written as JSON"):
        session.finish()
    assert session.closed
    with backstay.open() as session:
        assert [number for number, _ in session.checkpoints] == [1]


def test_reports_print_in_one_line():
    report = saved(cells=numpy.zeros(1000))
    assert str(report).startswith("checkpoint 1: 7.8 KiB of 7.8 KiB changed (100.0%), blocked ")
    with pytest.raises(AttributeError):
        report.number = 2
    cells = numpy.ones(1000)
    with backstay.open() as session:
        session.protect("cells", cells)
        restored = session.restore()
    assert str(restored).startswith("restored checkpoint 1 of start 1: 7.8 KiB in ")


def test_a_checkpoint_goes_on_in_the_background():
    cells = numpy.zeros(1_000_000)
    with backstay.open() as session:
        session.protect("cells", cells)
        started = session.checkpoint_start()
        assert started.id == (1, 1)
        cells[:] = 7  # What was captured is what it was.
        report = started.wait()
        assert report.number == 1 and started.done()
    with backstay.open() as session:
        session.protect("cells", cells)
        session.restore()
    assert (cells == 0).all()


def test_due_follows_the_interval():
    cells = numpy.zeros(10)
    with backstay.open(interval=0.001) as session:
        session.protect("cells", cells)
        levels = [session.due() for _ in range(100_000)]
        assert "node" in levels and not session.should_leave
    with backstay.open(interval=10_000) as session:
        session.protect("cells", cells)
        assert not any(session.due() for _ in range(1000))


def test_marked_rows_are_looked_at_and_others_not():
    table = numpy.zeros((5000, 128))
    with backstay.open() as session:
        session.protect("table", table, tracking="marked")
        table += 1
        session.mark_dirty("table")
        session.checkpoint()
        table[10] = 5
        table[4000:4010] = 6
        table[-1] = 7
        session.mark_dirty("table", 10)
        session.mark_dirty("table", slice(4000, 4010))
        session.mark_dirty("table", numpy.array([-1]))
        report = session.checkpoint()
        assert 0 < report.blocks_changed <= 4
        kept = table.copy()
        table[2000] = 9  # Not marked: that is what marks are for.
        assert session.checkpoint().blocks_changed == 0
        for wrong in (5000, slice(0, 9, 2), [-5001], numpy.array([True, False])):
            with pytest.raises(backstay.InvalidArgument):
                session.mark_dirty("table", wrong)
        with pytest.raises(backstay.InvalidArgument, match="no variable"):
            session.mark_dirty("plate")
        session.restore()
    assert (table == kept).all()


def test_objects_come_back_as_they_were():
    state = {"epoch": 3, "names": ["a", "b"], "loss": 0.25}
    got, pickled = [], []
    with backstay.open() as session:
        session.protect_object("state", lambda: state, got.append)
        session.protect_object("odd", lambda: {1: (2, 3), "set": {4}}, pickled.append, pickled=True)
        session.checkpoint()
        state["epoch"] = 4
        state["names"] = ["much longer than it was before"] * 50
        session.checkpoint()
    wanted = json.loads(json.dumps(state))
    with backstay.open() as session:
        session.protect_object("state", dict, got.append)
        session.protect_object("odd", dict, pickled.append, pickled=True)
        session.restore()
    assert got == [wanted] and pickled == [{1: (2, 3), "set": {4}}]


def test_an_older_checkpoint_has_objects_of_another_size():
    got, text = [], "short"
    cells = numpy.zeros(1000)
    with backstay.open() as session:
        session.protect("cells", cells)
        session.protect_object("text", lambda: text, got.append)
        session.checkpoint()
        text = "very much longer" * 100
        cells += 1
        session.checkpoint()
        cells += 1
        restored = session.restore(1)
        assert restored.number == 1 and got == ["short"] and (cells == 0).all()
        text, cells[:] = "again", 5
        session.checkpoint()
        session.restore()
    assert got[-1] == "again" and (cells == 5).all()


def test_an_object_that_cannot_be_written_fails_the_checkpoint_on_all_ranks():
    def body(comm):
        values = {"fine": 1}
        cells = numpy.full(100, comm.rank)
        with backstay.open(comm=comm) as session:
            session.protect("cells", cells)
            session.protect_object("values", lambda: values, values.update)
            session.checkpoint()
            if comm.rank == 1:
                values["wrong"] = object()
            with pytest.raises(backstay.InvalidArgument) as failed:
                session.checkpoint()
            values.pop("wrong", None)
            return str(failed.value), session.checkpoint().number

    (first, number), (second, _), (third, _) = all_well(on_ranks(3, body))
    assert "'values' cannot be written as JSON" in second
    assert "values" in first and "rank 1" in first and first == third
    assert number == 3 or number == 2


def test_memory_that_is_gone_on_one_rank_fails_the_checkpoint_on_all():
    def body(comm):
        buffer = bytearray(b"x" * 5000)
        view = memoryview(buffer)
        with backstay.open(comm=comm) as session:
            session.protect("view", view)
            session.checkpoint()
            if comm.rank == 0:
                view.release()
            with pytest.raises(backstay.InvalidArgument) as failed:
                session.checkpoint()
            session.protect("view", buffer)
            session.checkpoint()
            return str(failed.value)

    first, second = all_well(on_ranks(2, body))
    assert "view" in first and "released" in first
    assert "view" in second and "rank 0" in second


def test_ranks_restore_parts_of_one_array_on_another_number_of_ranks():
    whole = numpy.arange(60 * 11, dtype=numpy.float32).reshape(60, 11)

    def part(comm):
        first, end = (60 * at // comm.size for at in (comm.rank, comm.rank + 1))
        return first, whole[first:end].copy()

    def first_start(comm):
        first, rows = part(comm)
        with backstay.open(comm=comm) as session:
            session.protect("plate", rows, global_shape=whole.shape, start=(first, 0))
            session.protect_object("who", lambda: comm.rank, lambda rank: None)
            session.checkpoint()

    def second_start(comm):
        first, rows = part(comm)
        wanted, who = rows.copy(), []
        rows[:] = 0
        with backstay.open(comm=comm) as session:
            session.protect("plate", rows, global_shape=whole.shape, start=(first, 0))
            session.protect_object("who", lambda: 0, who.append)
            assert session.restore().ranks_then == 4
        assert (rows == wanted).all()
        return who[0]

    all_well(on_ranks(4, first_start))
    assert all_well(on_ranks(3, second_start)) == [0, 1, 2]


def test_more_ranks_than_there_were_take_objects_of_rank_0():
    def start(comm, restores):
        whole = numpy.arange(10.0)
        first, end = (10 * at // comm.size for at in (comm.rank, comm.rank + 1))
        got = []
        with backstay.open(comm=comm) as session:
            session.protect("all", whole[first:end], global_shape=(10,), start=(first,))
            session.protect_object("who", lambda: f"rank {comm.rank}", got.append)
            session.restore() if restores else session.checkpoint()
        return got

    all_well(on_ranks(2, lambda comm: start(comm, False)))
    assert all_well(on_ranks(3, lambda comm: start(comm, True))) == [["rank 0"], ["rank 1"], ["rank 0"]]


def test_an_exception_on_one_rank_leaves_no_other_waiting():
    def body(comm):
        cells = numpy.zeros(100)
        with backstay.open(comm=comm) as session:
            session.protect("cells", cells)
            session.checkpoint()
            if comm.rank == 0:
                raise RuntimeError("of the program")
            session.abandon()
            return session.closed

    first, second = on_ranks(2, body)
    assert isinstance(first, RuntimeError) and second is True


def test_what_a_communicator_raises_is_the_cause():
    class Broken:
        rank, size = 0, 2

        def allgather(self, mine):
            raise OSError(errno.EPIPE, "the wire is cut")

        allreduce_max = allgather

        def barrier(self):
            raise OSError(errno.EPIPE, "the wire is cut")

    with pytest.raises(backstay.CommunicatorError) as failed:
        backstay.open(comm=Broken())
    assert isinstance(failed.value.__cause__, OSError) and "the wire is cut" in str(failed.value)


@pytest.mark.parametrize("kind", [Threads, Gathering])
def test_slabs_go_to_another_number_of_ranks_by_either_communicator(kind):
    rows = 60

    def start(ranks, restores):
        def body(comm):
            first, end = (rows * at // ranks for at in (comm.rank, comm.rank + 1))
            values = numpy.arange(first, end, dtype=float)
            field = numpy.zeros(end - first) if restores else values.copy()
            with backstay.open(comm=comm) as session:
                session.protect("field", field, global_shape=(rows,), start=(first,))
                if restores:
                    session.restore()
                    assert (field == values).all()
                session.checkpoint()
        all_well(on_ranks(ranks, body, kind))

    Gathering.calls = 0
    start(3, False)
    start(2, True)
    assert (Gathering.calls > 0) == (kind is Gathering)


def test_a_gather_that_returns_nonsense_is_an_error():
    class Few(Gathering):
        def gather(self, mine, root):
            parts = super().gather(mine, root)
            return parts and parts[1:]

    class Other(Gathering):
        def broadcast(self, data, root):
            return super().broadcast(data, root) + b"x"

    for kind in (Few, Other):
        outcomes = on_ranks(2, lambda comm: backstay.open(comm=comm), kind)
        assert all(isinstance(outcome, backstay.CommunicatorError) for outcome in outcomes), outcomes
        assert any("returned" in str(outcome) for outcome in outcomes), outcomes


def test_a_communicator_that_returns_nonsense_is_an_error():
    class Short:
        rank, size = 0, 3

        def allgather(self, mine):
            return [mine]

        def allreduce_max(self, values):
            return values[1:]

        def barrier(self):
            pass

    with pytest.raises(backstay.CommunicatorError, match="returned"):
        backstay.open(comm=Short())
    with pytest.raises(backstay.InvalidArgument, match="mpi4py"):
        backstay.open(comm="everybody")


def test_an_object_must_not_use_the_session():
    used = []
    with backstay.open() as session:
        session.protect_object("self", lambda: used and session.checkpoint().number, used.append)
        used.append(1)
        with pytest.raises(backstay.InvalidArgument, match="get"):
            session.checkpoint()
        used.clear()
        session.checkpoint()


@pytest.mark.parametrize("wrong", [
    {"retaind": 3}, {"retained": 1}, {"retained": "many"}, {"tracking": "magic"}, {"block_bytes": 3000},
    {"interval": "now and then"}, {"changed_share": 7.0},
])
def test_a_wrong_setting_is_named(wrong):
    with pytest.raises(backstay.ConfigurationError) as failed:
        backstay.open(**wrong)
    assert next(iter(wrong)) in str(failed.value) or str(next(iter(wrong.values()))) in str(failed.value)


def test_a_setting_of_a_wrong_type_is_refused():
    with pytest.raises(backstay.ConfigurationError):
        backstay.open(retained=[2])
    with pytest.raises(backstay.InvalidArgument):
        backstay.open(retained=object())
    with pytest.raises(backstay.InvalidArgument):
        backstay.open(changed_share=float("nan"))


def test_settings_of_the_call_come_before_those_of_the_environment(store, monkeypatch, tmp_path):
    monkeypatch.setenv("BACKSTAY_STORE_PATH", "/nonexistent/for sure")
    with backstay.open(store_path=tmp_path / "stores") as session:
        assert session.directory.startswith(str(store))


def test_a_closed_session_says_so():
    session = backstay.open()
    session.close()
    session.close()
    session.abandon()
    assert session.closed and "closed" in repr(session)
    for call in (session.checkpoint, session.restore, session.due, session.checkpoint_start):
        with pytest.raises(backstay.InvalidArgument, match="closed"):
            call()
    with pytest.raises(backstay.InvalidArgument, match="closed"):
        session.protect("late", numpy.zeros(3))


def test_leaving_by_an_exception_keeps_the_last_checkpoint():
    cells = numpy.zeros(1000)
    with pytest.raises(ZeroDivisionError), backstay.open() as session:
        session.protect("cells", cells)
        session.checkpoint()
        cells += 1
        1 / 0
    assert session.closed
    with backstay.open() as session:
        session.protect("cells", cells)
        assert session.restore().number == 1
    assert (cells == 0).all()


def test_a_session_that_is_forgotten_is_abandoned_and_told():
    session = backstay.open()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del session
        gc.collect()
    assert [warning.category for warning in told] == [ResourceWarning]
    with backstay.open():
        pass


def test_an_interpreter_that_ends_with_an_open_session_ends():
    program = ("import backstay, numpy\n"
               "session = backstay.open()\n"
               "cells = numpy.ones(1000)\n"
               "session.protect('cells', cells)\n"
               "session.checkpoint()\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    cells = numpy.zeros(1000)
    with backstay.open() as session:
        session.protect("cells", cells)
        session.restore()
    assert (cells == 1).all()


def test_what_does_not_match_is_told_with_both_sides():
    saved(cells=numpy.zeros((4, 5)))
    for other in (numpy.zeros((5, 4)), numpy.zeros((4, 5), "f4"), numpy.zeros(21)):
        with backstay.open() as session:
            session.protect("cells", other)
            assert session.stored_shape("cells") == (4, 5)
            with pytest.raises(backstay.VariableMismatch, match="cells"):
                session.restore()


def test_another_job_cannot_have_the_store():
    with backstay.open():
        program = "import backstay\ntry:\n backstay.open(timeout_ms=200)\nexcept backstay.StoreBusy as e:\n print(e)\n"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "use" in done.stdout


def test_there_is_an_exception_for_every_kind_of_error():
    assert [code for code, *_ in _native.kinds] == sorted(_errors.by_code)
    for code, name, _, _ in _native.kinds:
        kind = _errors.by_code[code]
        assert getattr(backstay, kind.__name__) is kind and kind.__doc__
        stem = name.removeprefix("BACKSTAY_").replace("_", "").lower()
        assert kind.__name__.lower().removesuffix("error") == stem
    assert issubclass(backstay.Timeout, TimeoutError) and issubclass(backstay.InvalidArgument, ValueError)


def test_everything_public_says_what_it_does():
    for name in backstay.__all__:
        thing = getattr(backstay, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name
    for kind in (backstay.Session, backstay.Checkpoint, backstay.Stores, backstay.StoredCheckpoint):
        for name, member in vars(kind).items():
            if not name.startswith("_"):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"
