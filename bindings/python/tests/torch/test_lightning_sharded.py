# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Lightning with models in shards: each process saves its own, whatever is killed, and others go on with them."""

import ast
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

JOB = pathlib.Path(__file__).with_name("lightning_sharded_job.py")
LIMIT_SECONDS = 300


def started(tmp_path, processes, steps, *more, job="test"):
    words = [sys.executable, JOB, tmp_path / job, processes, steps, tmp_path / f"{job}.told", *more]
    environment = {**os.environ, "BACKSTAY_JOB": job, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([str(word) for word in words], env=environment, start_new_session=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run(tmp_path, processes, steps, job="test"):
    """Trains to a step; what it told."""
    done = started(tmp_path, processes, steps, job=job)
    _, errors = done.communicate(timeout=LIMIT_SECONDS)
    assert done.returncode == 0, errors
    return ast.literal_eval((tmp_path / f"{job}.told").read_text())


def names(paths):
    return sorted(pathlib.Path(path).name for path in paths)


def test_what_is_saved_in_shards_is_kept_given_up_and_gone_on_with(tmp_path):
    whole = run(tmp_path, 2, 10, job="whole")
    first = run(tmp_path, 2, 4)
    assert first["began"] == 0
    second = run(tmp_path, 2, 8)
    assert (second["began"], second["loaded"]) == (4, first["ended"])
    # What ModelCheckpoint keeps is kept, and no more, in the store as in the folder.
    assert len(second["ids"]) <= 4 and names(second["ids"]) == names((tmp_path / "test").iterdir())
    third = run(tmp_path, 2, 10)
    assert (third["began"], third["loaded"], third["ended"]) == (8, second["ended"], whole["ended"])
    fourth = run(tmp_path, 1, 12)
    assert (fourth["began"], fourth["loaded"]) == (10, whole["ended"]), "another number of processes has the same"
    files = [one for one in (tmp_path / "test").rglob("*") if one.is_file()]
    assert {one.name for one in files} == {"meta.pt"}, "no shards are in files"


def test_killed_at_any_moment_it_goes_on_from_what_was_saved_together(tmp_path):
    whole = run(tmp_path, 2, 24, job="whole")
    for _ in range(3):
        job = started(tmp_path, 2, 24, 0.1)
        folder, begun = tmp_path / "test", time.monotonic()
        before = set(folder.rglob("meta.pt"))
        while set(folder.rglob("meta.pt")) <= before and time.monotonic() < begun + LIMIT_SECONDS and job.poll() is None:
            time.sleep(0.02)
        time.sleep(random.random() * 0.6)
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    told = run(tmp_path, 2, 24)
    assert told["began"] > 0 and told["ended"] == whole["ended"]
    assert not [one for one in folder.iterdir() if one.name.endswith(".removing")]
