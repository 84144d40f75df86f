# SPDX-License-Identifier: Apache-2.0 OR MIT
"""docs/guide/pytorch.md and examples/python/digits.py do what they say."""

import os
import pathlib
import random
import re
import subprocess
import sys
import time

import pytest
import warm

pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = pathlib.Path(__file__).resolve().parents[4]
GUIDE = (ROOT / "docs/guide/pytorch.md").read_text()
DIGITS = ROOT / "examples/python/digits.py"
LIMIT_SECONDS = 180


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S)


def completed(*command, how=subprocess, **environment):
    environment = {**os.environ, "BACKSTAY_INTERVAL": "0.001", "BACKSTAY_LOG": "quiet", "OMP_NUM_THREADS": "1", **environment}
    done = how.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def run(*command, **environment):
    return completed(*command, **environment).stdout


def test_the_commands_of_the_guide_are_those_that_are_tested():
    assert blocks("sh") == [
        "python examples/python/digits.py 10\ntorchrun --nproc-per-node 2 examples/python/digits.py 20\n"]


def test_the_programs_of_the_guide_run(tmp_path):
    short, marks, dcp = blocks("python")
    (tmp_path / "short.py").write_text(short)
    assert run(sys.executable, tmp_path / "short.py") == "from the beginning\n"
    assert run(tmp_path / "short.py", how=warm).startswith("restored checkpoint ")
    (tmp_path / "marks.py").write_text(marks)
    told = completed(tmp_path / "marks.py", how=warm, BACKSTAY_LOG="warn").stderr
    assert "nothing said so" not in told, "its marks name all that changes"
    (tmp_path / "dcp.py").write_text(dcp)
    # Of a million random numbers, and not of the zeros that were written after the save began.
    assert re.fullmatch(r"\['step-7', 'step-8'\] tensor\((0\.99|1\.00)\d+\)\n", run(tmp_path / "dcp.py", how=warm))


def last_loss(output):
    return output.splitlines()[-1]


def test_the_example_is_killed_at_random_and_ends_with_the_same_loss(store, tmp_path):
    (tmp_path / "whole").mkdir()
    wanted = last_loss(run(DIGITS, 8, how=warm, BACKSTAY_STORE_PATH=str(tmp_path / "whole")))
    environment = {**os.environ, "BACKSTAY_INTERVAL": "0.001", "OMP_NUM_THREADS": "1"}
    for _ in range(3):
        # Its output is how far it is: it is killed within an epoch that it is known to have begun.
        job = warm.Popen([DIGITS, 8], stdout=subprocess.PIPE, text=True, env=environment)
        began = job.stdout.readline()
        time.sleep(random.random() * 0.3)
        job.kill()
        job.wait()
        job.stdout.close()
        assert began.startswith(("from the beginning", "restored checkpoint"))
    assert last_loss(run(DIGITS, 8, how=warm)) == wanted


def test_the_example_goes_on_with_another_number_of_processes():
    torchrun = pathlib.Path(sys.executable).with_name("torchrun")
    assert "epoch 3" in run(DIGITS, 3, how=warm)
    told = run(torchrun, "--nproc-per-node", 2, DIGITS, 5)
    assert told.count("restored checkpoint") == 2 and told.count("epoch 5: loss") == 2
    assert "epoch 6: loss" in run(DIGITS, 6, how=warm)
