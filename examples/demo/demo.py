# SPDX-License-Identifier: Apache-2.0 OR MIT
"""heat2d killed with -9 at instants nobody chose, and the same heat at the end.

Runs heat2d to its end; runs it again in a store of its own, kills all its processes as often as asked for,
at random times, and starts it anew until it is finished; compares the two plates byte for byte. Prints what
each checkpoint cost, and leaves target/demo/field.png and target/demo/changed-blocks.png. Exits with 1 if
the plates differ, a complete checkpoint was lost, or it was killed less often than asked for.
"""

import argparse
import collections
import filecmp
import json
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve()
OUT = HERE.parents[2] / "target" / "demo"
MIB = 1 << 20

PROGRESS = re.compile(r"step (\d+) of (\d+) .* checkpoint (\d+)")
FRESH = re.compile(r"no checkpoint")
RESTORED = re.compile(r"restored checkpoint (\d+) of \d+ processes: step (\d+)")

# restored: number of the checkpoint, 0 for none stored, None if it was killed before it said so.
Start = collections.namedtuple("Start", "killed seconds restored announced step")


def main():
    settings = arguments()
    OUT.mkdir(parents=True, exist_ok=True)
    plate = settings.rows * settings.cols * 8
    folder = pathlib.Path(tempfile.mkdtemp(prefix="backstay-demo-", dir=roomy(6 * plate)))
    began = time.monotonic()
    try:
        print(f"heat2d: {settings.rows} x {settings.cols} cells ({plate / MIB:.0f} MiB), "
              f"{settings.ranks} processes, a checkpoint every {settings.interval} of "
              f"{settings.steps} steps; stores in {folder}")
        bases = [baseline(settings, folder, plate)]
        whole = run(settings, folder, "whole", None)
        print(f"uninterrupted: {whole.seconds:.1f} s")
        bases.append(baseline(settings, folder, plate))
        starts = run_killed(settings, folder, whole.seconds)
        bases.append(baseline(settings, folder, plate))
        good = check(settings, starts)
        base = {key: statistics.median(measured[key] for measured in bases) for key in bases[0]}
        rows = costs(settings, OUT / "killed.jsonl")
        table(rows, base)
        draw(settings, rows, starts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if good else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=3072)
    parser.add_argument("--cols", type=int, default=3072)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--interval", type=int, default=40)
    parser.add_argument("--kills", type=int, default=3)
    settings = parser.parse_args()
    most = kills_max(settings)
    if not 0 <= settings.kills <= most:
        parser.error(f"--kills {settings.kills}: allowed is 0 to {most} with these --steps and --interval, "
                     "so that each start gets to a checkpoint of its own before it is killed")
    return settings


def kills_max(settings):
    """Two checkpoints for each start that is killed, and two for the last."""
    return max(0, settings.steps // settings.interval // 2 - 1)


def roomy(bytes_needed):
    """/dev/shm if it has that much room, else target/demo."""
    shm = pathlib.Path("/dev/shm")
    if shm.is_dir() and shutil.disk_usage(shm).free > bytes_needed:
        return shm
    return OUT


# ---- Running ---------------------------------------------------------------------------------------


class Job:
    """An mpirun whose processes, however related, are found by a mark in their environment."""

    def __init__(self, settings, folder, command, **environment):
        self.mark = f"HEAT2D_DEMO={secrets.token_hex(8)}"
        name, value = self.mark.split("=")
        surroundings = dict(os.environ, **environment)
        surroundings.update({
            name: value,
            "TMPDIR": str(folder),                       # what a killed mpirun leaves goes with it
            "OMPI_MCA_btl_vader_backing_directory": str(folder),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",    # more processes than cores is fine here,
            "OMPI_MCA_mpi_yield_when_idle": "1",         # if those that wait let others work
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        })
        self.process = subprocess.Popen(
            [settings.mpirun, "-n", str(settings.ranks), *map(str, command)], env=surroundings,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def kill_all(self):
        """kill -9 for mpirun and every process of its, until none is left."""
        while pids := self.alive():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)
        self.process.wait()

    def alive(self):
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                pass
        return found


def baseline(settings, folder, plate):
    command = [OUT / "baseline", folder, plate // settings.ranks, 9]
    job = Job(settings, folder, command)
    text, _ = job.process.communicate()
    if job.process.returncode != 0:
        sys.exit(f"baseline failed: {job.process.returncode}")
    return json.loads(text)


def run(settings, folder, name, kill):
    """One start of the job; `kill` is None, or the step after whose announcement it is killed, so many seconds
    later, if it is not finished by then."""
    store = folder / name
    store.mkdir(exist_ok=True)
    command = [OUT / "heat2d", "--rows", settings.rows, "--cols", settings.cols,
               "--steps", settings.steps, "--interval", settings.interval,
               "--output", OUT / f"{name}.npy", "--report", OUT / f"{name}.jsonl", "--progress"]
    began = time.monotonic()
    job = Job(settings, folder, command, BACKSTAY_STORE_PATH=str(store), BACKSTAY_JOB=f"demo-{name}")
    seen = {"restored": None, "announced": None, "step": 0}
    reader = threading.Thread(target=follow, args=(job.process.stdout, name, seen))
    reader.start()
    killed = False
    try:
        killed = kill is not None and comes_to(job, seen, *kill)
        if not killed:
            job.process.wait()
    finally:
        job.kill_all()
    reader.join()
    show("", end="")
    if not killed and job.process.returncode != 0:
        sys.exit(f"heat2d failed: {job.process.returncode}")
    return Start(killed, time.monotonic() - began, **seen)


def comes_to(job, seen, step, seconds):
    """Waits until a checkpoint of this start at or after `step` is announced, and `seconds` more; whether it
    still runs then."""
    while job.process.poll() is None:
        if seen["announced"] is not None and seen["step"] >= step:
            try:
                job.process.wait(seconds)
            except subprocess.TimeoutExpired:
                return True
            return False
        time.sleep(0.005)
    return False


def follow(lines, name, seen):
    for line in lines:
        if match := RESTORED.match(line):
            seen["restored"], seen["step"] = int(match[1]), int(match[2])
        elif FRESH.match(line):
            seen["restored"] = 0
        elif match := PROGRESS.match(line):
            step, steps, seen["announced"] = map(int, match.groups())
            seen["step"] = step
            done = 30 * step // steps
            show(f"  {name:6} [{'#' * done}{'.' * (30 - done)}] step {step} of {steps}, "
                 f"checkpoint {seen['announced']}")


def show(text, end="\r"):
    """A line that the next one replaces; only where somebody looks."""
    if sys.stdout.isatty():
        print(f"\r{text:78}", end=end, flush=True)


def run_killed(settings, folder, whole_seconds):
    """Starts until one finishes. Each but the last is killed at a random instant, in its share of the steps,
    once it had a checkpoint of its own."""
    starts = []
    interval_seconds = whole_seconds * settings.interval / settings.steps
    share = (settings.steps - 2 * settings.interval) / max(settings.kills, 1)
    while True:
        kill = None
        if len(starts) < settings.kills:
            step = share * (len(starts) + random.random()) - settings.interval
            kill = step, random.uniform(0, interval_seconds)
        start = run(settings, folder, "killed", kill)
        starts.append(start)
        came = {None: "not under way yet", 0: "nothing to restore"}.get(
            start.restored, f"restored checkpoint {start.restored}")
        end = "killed with -9" if start.killed else "finished"
        last = "no checkpoint" if start.announced is None else f"last checkpoint {start.announced}"
        print(f"start {len(starts)}: {came}, {end} after {start.seconds:.2f} s, {last}")
        if not start.killed:
            return starts


# ---- Judging ---------------------------------------------------------------------------------------


def check(settings, starts):
    """Whether the plates are equal, no start lost a checkpoint that the one before had announced, and it was
    killed as often as asked for."""
    good = True
    kills = sum(start.killed for start in starts)
    if kills != settings.kills:
        print(f"FAILED: {settings.kills} kills were asked for, and {counted(kills, 'kill')} came before it was "
              "finished: give more --steps")
        good = False
    newest = 0
    for number, start in enumerate(starts, 1):
        if start.restored is not None and start.restored < newest:
            print(f"FAILED: start {number} restored {start.restored}, though {newest} was complete")
            good = False
        newest = max(newest, start.announced or 0, start.restored or 0)
    if not filecmp.cmp(OUT / "whole.npy", OUT / "killed.npy", shallow=False):
        print("FAILED: the plates differ")
        good = False
    if good:
        print(f"the plate of the run that was killed {counted(kills, 'time')} is bit for bit that of the other")
    return good


def counted(count, what):
    return f"{count} {what}{'' if count == 1 else 's'}"


def costs(settings, path):
    """What each checkpoint cost, over its processes; of two with a number the later start's counts."""
    checkpoints = collections.defaultdict(dict)
    for line in path.read_text().splitlines():
        try:
            cost = json.loads(line)
        except json.JSONDecodeError:          # torn by a kill
            continue
        checkpoints[cost["checkpoint"], cost["incarnation"]][cost["rank"]] = cost
    latest = {number: key for key in sorted(checkpoints) for number in [key[0]]}
    return [checkpoints[key] for key in latest.values() if len(checkpoints[key]) == settings.ranks]


def table(rows, base):
    print()
    print("checkpoint   step  start   changed blocks        written  blocking   / memcpy  / plain write")
    ratios = []
    for ranks in rows:
        one = ranks[0]
        total, changed, written = (sum(cost[key] for cost in ranks.values()) for key in
                                   ("blocks_total", "blocks_changed", "bytes_changed"))
        written += sum(cost["bytes_manifest"] for cost in ranks.values())
        blocking = max(cost["blocking_seconds"] for cost in ranks.values())
        ratios.append((blocking / base["memcpy_seconds"], blocking / base["write_seconds"]))
        print(f"{one['checkpoint']:10} {one['step']:6} {one['incarnation']:5}   "
              f"{changed:6} {changed / total:7.1%}   {written / MIB:8.2f} MiB  "
              f"{blocking * 1e3:5.1f} ms  {ratios[-1][0]:9.2f}  {ratios[-1][1]:13.2f}")
    if ratios:
        medians = [statistics.median(column) for column in zip(*ratios)]
        print(f"{'median':>69}  {medians[0]:9.2f}  {medians[1]:13.2f}")
    print(f"memcpy ({base['memcpy_seconds'] * 1e3:.1f} ms) and plain write (fresh file, fdatasync, "
          f"{base['write_seconds'] * 1e3:.1f} ms) are of the whole state,")
    print("by all processes at once: medians of measurements before, between and after the runs")
    print()


def draw(settings, rows, starts):
    import matplotlib
    matplotlib.use("Agg")
    import numpy
    from matplotlib import colors, pyplot

    pyplot.rcParams.update({"font.size": 15, "axes.titlesize": 16, "axes.titlelocation": "left"})
    kills = counted(sum(start.killed for start in starts), "kill")
    figure, axes = pyplot.subplots(figsize=(7, 6), layout="constrained")
    picture = axes.imshow(numpy.load(OUT / "killed.npy"), vmin=0, vmax=100, cmap="inferno")
    figure.colorbar(picture, shrink=0.85, label="heat, no unit: 100 in spots at first, 0 around")
    axes.set(title=f"heat2d after {settings.steps} steps and {kills}", xlabel="column", ylabel="row")
    figure.savefig(OUT / "field.png", dpi=120)
    pyplot.close(figure)
    draw_changes(settings, rows, kills, numpy, pyplot)
    print(f"pictures: {OUT / 'field.png'} and {OUT / 'changed-blocks.png'}")


def draw_changes(settings, rows, kills, numpy, pyplot):
    """The fraction of each rank's blocks that changed, by checkpoint, with a line where all ranks were killed."""
    changed = numpy.array([[ranks[rank]["blocks_changed"] / ranks[rank]["blocks_total"]
                            for rank in range(settings.ranks)] for ranks in rows])
    incarnations = [ranks[0]["incarnation"] for ranks in rows]
    figure, axes = pyplot.subplots(figsize=(7, 6), layout="constrained")
    picture = axes.imshow(100 * changed, aspect="auto", origin="lower", vmin=0, vmax=100, cmap="viridis")
    figure.colorbar(picture, label="blocks that changed (%)")
    killed = [at - 0.5 for at in range(1, len(rows)) if incarnations[at] != incarnations[at - 1]]
    axes.hlines(killed, -0.5, settings.ranks - 0.5, color="white", linewidth=5)
    axes.hlines(killed, -0.5, settings.ranks - 0.5, color="red", linewidth=2.5, linestyle="dashed",
                label="all ranks killed, started again")
    # Not so many numbers that they touch.
    every = -(-len(rows) // 14)
    axes.set_yticks(range(0, len(rows), every), [ranks[0]["checkpoint"] for ranks in rows][::every])
    axes.set(title=f"heat2d: blocks that changed, with {kills}", xlabel="rank",
             ylabel="checkpoint", xticks=range(settings.ranks))
    if killed:
        figure.legend(loc="outside lower center", frameon=False)
    figure.savefig(OUT / "changed-blocks.png", dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
