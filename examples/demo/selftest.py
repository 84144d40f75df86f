# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The demo's kills, with a program in place of heat2d: as many as asked for, or it says so and fails."""

import contextlib
import importlib.util
import io
import pathlib
import sys
import tempfile
import types

# A job of STEPS steps that resumes, and announces checkpoints as heat2d does.
FAKE = """#!/usr/bin/env python3
import os, pathlib, sys, time
words = sys.argv
value = lambda name: words[words.index(name) + 1]
steps, interval = int(value("--steps")), int(value("--interval"))
state = pathlib.Path(os.environ["BACKSTAY_STORE_PATH"], "state")
step = int(state.read_text()) if state.exists() else 0
print(f"restored checkpoint {step // interval} of 4 processes: step {step}" if step else "no checkpoint", flush=True)
while step < steps:
    time.sleep(float(os.environ["FAKE_STEP_SECONDS"]))
    step += 1
    if step % interval == 0:
        draft = state.with_name("draft")
        draft.write_text(str(step))
        draft.rename(state)
        print(f"step {step} of {steps} here: checkpoint {step // interval}", flush=True)
pathlib.Path(value("--output")).write_text("the plate")
"""


def load():
    path = pathlib.Path(__file__).resolve().with_name("demo.py")
    spec = importlib.util.spec_from_file_location("demo", path)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    return demo


def trial(demo, kills, steps=40):
    """Whether it is good, how often it was killed, and what was said."""
    settings = types.SimpleNamespace(ranks=1, rows=1, cols=1, steps=steps, interval=2, kills=kills,
                                     mpirun=str(demo.OUT / "mpirun"))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        folder = pathlib.Path(folder)
        demo.run(settings, folder, "whole", None)
        starts = demo.run_killed(settings, folder, steps * 0.02)
        good = demo.check(settings, starts)
    return good, sum(start.killed for start in starts), said.getvalue()


def main():
    demo = load()
    with tempfile.TemporaryDirectory() as out:
        demo.OUT = pathlib.Path(out)
        for name, text in [("heat2d", FAKE), ("mpirun", "#!/bin/sh\nshift 2\nexec \"$@\"\n")]:
            (demo.OUT / name).write_text(text)
            (demo.OUT / name).chmod(0o755)
        demo.os.environ["FAKE_STEP_SECONDS"] = "0.02"
        for kills in (0, 1, 3, 5):
            good, killed, said = trial(demo, kills)
            if not good or killed != kills:
                sys.exit(f"asked for {kills} kills, {killed} came: {said}")
        # A job that is too fast to be killed: said, and a failure.
        demo.comes_to = lambda job, *rest: job.process.wait() is None
        good, killed, said = trial(demo, 2)
        if good or killed or "FAILED: 2 kills were asked for, and 0 kills came" not in said:
            sys.exit(f"too few kills pass: {good}, {killed}: {said}")
        if demo.kills_max(types.SimpleNamespace(steps=800, interval=40)) != 9:
            sys.exit("the bound of --kills is another")
    print("demo: 0, 1, 3 and 5 kills came as asked for, and too few are a failure")


if __name__ == "__main__":
    main()
