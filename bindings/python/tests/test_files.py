# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Files beside the arrays: protected where they are, and sets that are routed."""

import os
import pathlib
import re

import numpy
import pytest

import backstay


def test_a_file_comes_back_with_its_mode_and_time_beside_the_arrays(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("first\n")
    path.chmod(0o640)
    os.utime(path, ns=(0, 1_000_000_000_123_456_789))
    cells = numpy.arange(1000.0)
    with backstay.open() as session:
        session.protect("cells", cells)
        session.protect_file("log", path)
        session.checkpoint()
    path.write_text("something else that is longer\n")
    path.chmod(0o600)
    cells[:] = 0
    with backstay.open() as session:
        session.protect("cells", cells)
        session.protect_file("log", path)
        assert session.restore().unclaimed == 0
        assert session.stored_files() == [("log", False, 6)]
        assert session.restore_file("log", 0, tmp_path / "copy") == 6
        session.unprotect("log")
        with pytest.raises(backstay.InvalidArgument, match="symbolic link"):
            (tmp_path / "link").symlink_to(path)
            session.protect_file("log", tmp_path / "link")
    assert path.read_text() == (tmp_path / "copy").read_text() == "first\n"
    assert path.stat().st_mode & 0o777 == 0o640 and path.stat().st_mtime_ns == 1_000_000_000_123_456_789
    assert (cells == numpy.arange(1000.0)).all()


def write(session, step, data):
    with session.output() as output:
        with open(session.route_file(f"ckpt.{step}/rank_0.dat"), "wb") as file:
            file.write(data)
    return output.report


def test_a_set_is_written_and_read_under_its_names():
    data = os.urandom(300_000)
    state = {"step": 0}
    with backstay.open() as session:
        session.protect_object("state", lambda: state, state.update)
        assert session.route_file("../as/it/is") == "../as/it/is"
        for step in (1, 2):
            state["step"] = step
            report = write(session, step, data[:-step])
        assert report.blocks_changed <= 2
        with pytest.raises(ZeroDivisionError), session.output():
            raise ZeroDivisionError
        with pytest.raises(backstay.InvalidArgument, match="still open"), session.output():
            left = open(session.route_file("left"), "w")
        left.close()
        with pytest.raises(backstay.InvalidArgument, match="leads out"), session.output():
            session.route_file("../x")
    state["step"] = 0
    with backstay.open() as session:
        session.protect_object("state", lambda: state, state.update)
        with pytest.raises(OSError), session.restart() as restored:
            raise OSError("as if it could not be read")
        assert restored.number == 2
        with session.restart() as restored:
            assert state == {"step": 1}
            [found] = session.stored_files()
            with open(session.route_file(found.name), "rb") as file:
                assert file.read() == data[:-1]
        assert restored.number == 1


def test_the_program_of_the_guide_runs():
    guide = pathlib.Path(__file__).resolve().parents[3] / "docs/guide/files.md"
    [program] = re.findall(r"```python\n(.*?)```", guide.read_text(), re.S)
    exec(compile(program, str(guide), "exec"), {})
