# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Stores and archives read without a job."""

import numpy
import pytest
from conftest import all_well, on_ranks, saved
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backstay

WHOLE = numpy.arange(40 * 6 * 5, dtype=numpy.int32).reshape(40, 6, 5)


def start_of_four(**words):
    def body(comm):
        first, end = (40 * at // comm.size for at in (comm.rank, comm.rank + 1))
        rows, step = WHOLE[first:end].copy(), numpy.array(12)
        own = numpy.full(comm.rank + 1, comm.rank, numpy.float32)
        with backstay.open(comm=comm, **words) as session:
            session.protect("plate", rows, global_shape=WHOLE.shape, start=(first, 0, 0))
            session.protect("own", own)
            if comm.rank == 2:
                session.protect("step", step)
            session.checkpoint()
            rows += 1
            started = session.checkpoint_start()
            started.wait("archive" if "archive" in words else "node")

    all_well(on_ranks(4, body))


def test_a_variable_is_put_together_from_all_ranks(store):
    start_of_four()
    stores = backstay.read(store)
    assert list(stores) == [1, 2] and stores.newest.number == 2 and len(stores) == 2
    old, new = stores[1], stores.newest
    assert old.complete and old.ranks == 4 and old.job == "test"
    assert set(new) == {"plate", "own", "step"} and "plate" in new and "other" not in new
    assert (old["plate"][...] == WHOLE).all() and (new["plate"][...] == WHOLE + 1).all()
    assert new["plate"].shape == WHOLE.shape and new["plate"].dtype == WHOLE.dtype
    assert new["plate"].nbytes == WHOLE.nbytes and len(new["plate"]) == 40
    assert (numpy.asarray(new["plate"]) == WHOLE + 1).all()
    assert numpy.asarray(new["plate"], dtype=float).dtype == float
    assert new["step"][()] == 12
    assert (new.part("own", 3)[...] == 3).all() and new.part("own", 3).shape == (4,)
    assert (new.part("plate", 1)[2:4] == WHOLE[12:14] + 1).all()
    with pytest.raises(backstay.InvalidArgument, match="part"):
        new["own"]
    for wrong in (lambda: new["other"], lambda: new.part("step", 0), lambda: stores[9]):
        with pytest.raises(KeyError):
            wrong()


INDEX = st.one_of(st.integers(-6, 5), st.slices(6))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.lists(INDEX, max_size=3), dots=st.one_of(st.none(), st.integers(0, 3)))
def test_slices_are_those_of_numpy(store, key, dots):
    if not (store / "made").exists():
        start_of_four()
        (store / "made").touch()
    plate = backstay.read(store)[1]["plate"]
    key = tuple(key if dots is None else [*key[:dots], Ellipsis, *key[dots:]])
    try:
        wanted = WHOLE[key]
    except IndexError:
        with pytest.raises(IndexError):
            plate[key]
        return
    got = plate[key]
    assert got.shape == wanted.shape and (got == wanted).all()


def test_a_slice_reads_only_what_it_needs(store):
    def body(comm):
        rows = numpy.full((100, 50_000), comm.rank, numpy.float64)
        with backstay.open(comm=comm) as session:
            session.protect("big", rows, global_shape=(200, 50_000), start=(100 * comm.rank, 0))
            session.checkpoint()

    all_well(on_ranks(2, body))
    # All of rank 1's part is damaged: what lies in rank 0's is read all the same.
    path = next(store.rglob("store.backstay"))
    data = bytearray(path.read_bytes())
    ones = numpy.full(512, 1.0).tobytes()
    at, hurt = data.find(ones), 0
    while at >= 0:
        data[at] ^= 1
        hurt, at = hurt + 1, data.find(ones, at + len(ones))
    assert hurt > 100
    path.write_bytes(data)
    big = backstay.read(store).newest["big"]
    assert (big[:100] == 0).all() and (big[99, 10:20] == 0).all()
    with pytest.raises(backstay.Corrupt):
        big[100:101]
    with pytest.raises(backstay.Corrupt):
        big[...]


def test_an_archive_reads_as_stores_do(store, tmp_path):
    archive = tmp_path / "archive"
    start_of_four(archive=archive, archive_every=1)
    found = backstay.read(archive)
    assert found.newest.archived
    assert (found.newest["plate"][3:17, ::2] == (WHOLE + 1)[3:17, ::2]).all()
    both = backstay.read(store, archive)
    assert not both.newest.archived, "stores are nearer"


def test_tables_are_shown(store):
    start_of_four()
    stores = backstay.read(store)
    lines = repr(stores).splitlines()
    assert lines[0].split()[:4] == ["job", "checkpoint", "start", "ranks"] and len(lines) == 3
    assert "complete" in lines[1]
    assert "40 x 6 x 5" in repr(stores.newest) and "one value" in repr(stores.newest)
    assert stores._repr_html_().startswith("<table>") and "<th>variable</th>" in stores.newest._repr_html_()
    assert repr(stores.newest["plate"]) == "<backstay.StoredArray 'plate': i32 [40, 6, 5]>"


def test_where_there_is_nothing_it_is_told(tmp_path):
    with pytest.raises(backstay.NotRetained):
        backstay.read(tmp_path / "nowhere")
    with pytest.raises(backstay.InvalidArgument):
        backstay.read()


def test_a_job_may_go_on_meanwhile(store):
    cells = numpy.zeros(100_000)
    with backstay.open() as session:
        session.protect("cells", cells)
        for step in range(1, 6):
            cells[:] = step
            session.checkpoint()
            assert (backstay.read(store).newest["cells"][::1000] == step).all()


def test_what_a_job_gave_up_meanwhile_is_told(store):
    cells = numpy.zeros(300_000)
    with backstay.open() as session:
        session.protect("cells", cells)
        session.checkpoint()
        old = backstay.read(store).newest["cells"]
        for step in range(1, 8):
            cells[:] = step
            session.checkpoint()
        with pytest.raises(backstay.NotRetained):
            old[...]


def test_a_start_of_one_rank_reads_without_naming_it(store):
    saved(cells=numpy.arange(5.0), text=bytearray(b"hello"))
    newest = backstay.read(store).newest
    assert newest["cells"][-1] == 4 and newest["text"][...].tobytes() == b"hello"
