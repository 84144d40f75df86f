# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Useful time over wall time of a job that fails again and again, beside what `backstay plan` says of it.

    run.py --programs DIR [--failures N] [--mtbf S] [--intervals S,S,...] [--only NAME,...] [--minutes M] [--seed N]

heat2d over nodes that are namespaces, under `backstay run`, with redundancy and an archive. Failures come at seeded
exponential times, the same for all settings: one rank is killed, one node with its store, or all nodes with theirs. Each
setting runs in rounds of ROUND failures, one setting after the other, so that a run that is cut off has as many of each;
what was found is written after each round to target/bench/efficiency.json. Each step takes --pace seconds, most of them
asleep: the nodes share the cores of one machine. Needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "benchmarks/python"), str(ROOT / "tests/cluster")]
from cluster import HEAD, Cluster, ClusterError, send, wait_until  # noqa: E402
from figures import commit, machine  # noqa: E402

NODES = 3
ROUND = 20
LEVELS = ("process", "node", "all")
SHARES = (0.7, 0.2, 0.1)
BACK = re.compile(r"restored checkpoint (\d+) of \d+ processes: step (\d+)")
TAKEN = re.compile(r"step (\d+) of .* checkpoint \d+")
FRESH = "no checkpoint: starting from the beginning"
BATCH = 5
LIMIT_SECONDS = 180
OUT = Path("target/bench/efficiency.json")
# Student's t, 97.5 %, by degrees of freedom; 2 beyond.
STUDENT = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 12: 2.18,
           15: 2.13, 20: 2.09, 30: 2.04}


class Setting:
    """An interval, and all that was found with it."""

    def __init__(self, interval: str, archive_seconds: float) -> None:
        self.interval = interval
        self.is_auto = interval == "auto"
        self.every = 1 if self.is_auto else max(1, round(archive_seconds / float(interval)))
        self.windows: list[dict[str, Any]] = []
        self.strides: list[tuple[float, int]] = []
        self.notices: list[float] = []
        self.voids = 0
        self.is_warm = False
        self.broken: list[str] = []
        self.metrics: dict[str, Any] = {}
        self.archive: dict[str, Any] = {}

    def environment(self, folder: Path) -> dict[str, str]:
        own = {"BACKSTAY_JOB": f"heat-{self.interval}", "BACKSTAY_STORE_PATH": f"/dev/shm/{self.interval}",
               "BACKSTAY_REDUNDANCY": "xor", "BACKSTAY_ARCHIVE": str(folder), "BACKSTAY_LOG": "warn",
               "BACKSTAY_ARCHIVE_RESERVE_BYTES": str(8 << 20), "BACKSTAY_INTERVAL": self.interval,
               "BACKSTAY_METRICS_INTERVAL_MS": "100"}
        return own if self.is_auto else own | {"BACKSTAY_ARCHIVE_EVERY": str(self.every)}


class Run:
    """`backstay run` in the head, and what its job says: when it went on, and from which step."""

    def __init__(self, cluster: Cluster, chosen: argparse.Namespace, setting: Setting, folder: Path) -> None:
        self.events = folder / "events"
        self.said: list[str] = []
        self.back: list[tuple[float, int]] = []
        self.strides: list[tuple[float, int]] = []
        self.changed = threading.Condition()
        program = [chosen.programs.resolve() / f"heat2d.{chosen.mpi}", "--rows", chosen.rows, "--cols", chosen.rows,
                   "--steps", 100_000_000, "--interval", "due", "--pace", chosen.pace, "--tolerance", 0, "--progress"]
        command = [chosen.programs.resolve() / "backstay", "run", "--events", self.events, "--run-dir", folder / "run",
                   "--pause-s", "0", "--restarts", "1000000", "--agents", "no", "--",
                   *at_once(cluster.mpirun(chosen.mpi, [1] * NODES, program), chosen.mpi)]
        self.process = cluster.start(HEAD, command, setting.environment(folder.parent / "archive"), folder,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     start_new_session=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout
        last = None
        for line in self.process.stdout:
            now = time.time()
            with self.changed:
                self.said = [*self.said[-200:], line.rstrip()]
                back, taken = BACK.search(line), TAKEN.search(line)
                if back or FRESH in line:
                    self.back.append((now, int(back[2]) if back else 0))
                    last = None
                elif taken:
                    if last:
                        self.strides.append((now - last[0], int(taken[1]) - last[1]))
                    last = now, int(taken[1])
                self.changed.notify_all()
        self.process.wait()
        with self.changed:
            self.changed.notify_all()

    def next_back(self, after: float, limit: float = LIMIT_SECONDS) -> tuple[float, int]:
        """The first going on after an instant."""
        with self.changed:
            def ready() -> Any:
                return next((one for one in self.back if one[0] > after), None)
            self.changed.wait_for(lambda: ready() or self.process.poll() is not None, limit)
            one = ready()
        if not one:
            raise TimeoutError(f"the job does not go on: {self.said[-8:]}")
        return one

    def deaths(self) -> list[float]:
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        events = [json.loads(line) for line in lines]
        return [event["unix_ms"] / 1e3 for event in events if event["event"] == "death"]


def at_once(command: list[str], mpi: str) -> list[str]:
    """Open MPI gives the ranks that are left a second before it kills them, which is not what is measured."""
    return [command[0], "--mca", "odls_base_sigkill_timeout", "0", *command[1:]] if mpi == "openmpi" else command


class Bench:
    """The nodes, and the failures."""

    def __init__(self, chosen: argparse.Namespace, cluster: Cluster) -> None:
        self.chosen, self.cluster = chosen, cluster
        self.step_seconds = 0.0
        self.commit = commit()

    # ---- Failures

    def trace(self, number: int) -> list[tuple[float, str, int]]:
        """(seconds since the failure before, what fails, on which node) of a round: the same for all settings."""
        source = random.Random(f"{self.chosen.seed} {number}")
        return [(source.expovariate(1 / self.chosen.mtbf), source.choices(LEVELS, SHARES)[0],
                 source.randrange(NODES)) for _ in range(ROUND)]

    def fail(self, level: str, node: int, setting: Setting) -> bool:
        """Whether there was anything that could fail."""
        if level == "process":
            # While the job is started again there is no process yet that could fail.
            found = self.cluster.node_pids(node).values()
            ranks = [pid for pid in found if re.match(r"\S*/heat2d", command_of(pid))]
            for pid in ranks:
                send(pid, signal.SIGKILL)
            return bool(ranks)
        nodes = [node] if level == "node" else list(range(NODES))
        for one in nodes:
            for pid in self.cluster.node_pids(one).values():
                send(pid, signal.SIGKILL)
        for one in nodes:
            shutil.rmtree(self.store(one, setting), ignore_errors=True)
        return True

    def store(self, node: int, setting: Setting) -> Path:
        return Path(f"/proc/{self.cluster.pid(node)}/root/dev/shm/{setting.interval}")

    # ---- Rounds

    def round(self, setting: Setting, number: int) -> None:
        """One that breaks is said, and what was measured in it stays."""
        try:
            self.try_round(setting, number)
        except (TimeoutError, ClusterError) as error:
            setting.broken.append(f"round {number}: {error}")
            print(f"interval {setting.interval}, {setting.broken[-1]}", flush=True)

    def try_round(self, setting: Setting, number: int) -> None:
        folder = self.cluster.folder / f"heat-{setting.interval}"
        folder.mkdir(exist_ok=True)
        (folder.parent / "archive").mkdir(exist_ok=True)
        run = Run(self.cluster, self.chosen, setting, folder)
        try:
            self.measure(setting, run, self.trace(number))
        finally:
            self.end(run)
        self.note_metrics(setting)

    def measure(self, setting: Setting, run: Run, trace: list[tuple[float, str, int]]) -> None:
        begun, step = run.next_back(0)
        if not setting.is_warm:
            self.warm_up(setting)
            setting.is_warm = True
            # What was computed before is not measured: from here on every window begins with a restart.
            self.fail("process", 0, setting)
            begun, step = run.next_back(time.time())
        at = begun
        injected: list[float] = []
        failed: list[str] = []
        for gap, level, node in trace:
            at += gap
            time.sleep(max(0.0, at - time.time()))
            now, again = time.time(), list(run.back)
            if not self.fail(level, node, setting):
                setting.voids += 1
                continue
            if again[-1][0] > begun and injected:
                self.close_window(setting, failed, (begun, step), again[-1], injected)
                (begun, step), failed, injected = again[-1], [], []
            failed.append(level)
            injected.append(now)
        if injected:
            self.close_window(setting, failed, (begun, step), run.next_back(injected[-1]), injected)
        self.note_notices(setting, run)
        setting.strides += run.strides

    def close_window(self, setting: Setting, failed: list[str], begun: tuple[float, int], ended: tuple[float, int],
                     injected: list[float]) -> None:
        setting.windows.append({"failed": failed, "seconds": ended[0] - begun[0], "steps": ended[1] - begun[1],
                                "down_seconds": ended[0] - injected[-1], "injected": injected})

    def warm_up(self, setting: Setting) -> None:
        """Until something is in the archive, from where the loss of all nodes is survived."""
        wait_until(lambda: (self.read(setting, "archive.json").get("newest") or {}).get("number", 0) > 0,
                   "something in the archive", LIMIT_SECONDS)
        time.sleep(self.chosen.warm)

    def read(self, setting: Setting, name: str) -> dict[str, Any]:
        """What rank 0's node wrote down; of the metrics the archive's, where the node has none."""
        folder = self.cluster.folder / "archive" / f"heat-{setting.interval}"
        for file in [*self.store(0, setting).glob(f"*/*/{name}"), *folder.glob(name)]:
            try:
                return json.loads(file.read_text())
            except (OSError, ValueError):
                continue
        return {}

    def note_notices(self, setting: Setting, run: Run) -> None:
        deaths = run.deaths()
        for window in setting.windows:
            for at in window.pop("injected", []):
                seen = next((one for one in deaths if one >= at - 0.001), None)
                if seen is not None:
                    setting.notices.append(seen - at)

    def note_metrics(self, setting: Setting) -> None:
        setting.metrics = self.read(setting, "metrics.json") or setting.metrics
        setting.archive = self.read(setting, "archive.json") or setting.archive

    def end(self, run: Run) -> None:
        """Ends `backstay run`, and all that it left."""
        for pid, _ in self.cluster.inside():
            if re.match(r"\S*/backstay run", command_of(pid)):
                send(pid, signal.SIGKILL)
        run.process.kill()
        run.process.wait()
        for node in range(NODES):
            for pid in self.cluster.node_pids(node).values():
                send(pid, signal.SIGKILL)
        # What killed launchers leave behind.
        for node in (*range(NODES), HEAD):
            for old in Path(f"/proc/{self.cluster.pid(node)}/root/var/tmp").iterdir():
                shutil.rmtree(old, ignore_errors=True)
        run.events.unlink(missing_ok=True)

    def calibrate(self) -> None:
        """How long a step takes when nothing fails and no checkpoint is taken."""
        steps = max(20, round(6 / self.chosen.pace))
        program = [self.chosen.programs.resolve() / f"heat2d.{self.chosen.mpi}", "--rows", self.chosen.rows, "--cols",
                   self.chosen.rows, "--interval", "due", "--pace", self.chosen.pace, "--tolerance", 0]
        took = []
        for count in (1, steps + 1):
            environment = {"BACKSTAY_STORE_PATH": "/dev/shm/calm", "BACKSTAY_JOB": "calm", "BACKSTAY_INTERVAL": "1e6",
                           "BACKSTAY_LOG": "warn"}
            words = self.cluster.mpirun(self.chosen.mpi, [1] * NODES, [*program, "--steps", count],
                                        [f"{key}={value}" for key, value in environment.items()])
            begun = time.monotonic()
            self.cluster.run(HEAD, words, environment, limit=LIMIT_SECONDS)
            took.append(time.monotonic() - begun)
        self.step_seconds = (took[1] - took[0]) / steps


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


# ---- What was found


def step_of(setting: Setting) -> float | None:
    """How long a step takes from one checkpoint to the next where nothing fails, which is the useful part of the time: as
    loaded as the machine was, the same load is on both sides."""
    blocked = setting.metrics.get("checkpoint", {}).get("blocking_seconds", {})
    cost = blocked["sum"] / blocked["count"] if blocked.get("count") else 0.0
    steps = sum(steps for _, steps in setting.strides)
    return sum(seconds - cost for seconds, _ in setting.strides) / steps if steps else None


def ratio(windows: list[dict[str, Any]], step_seconds: float) -> tuple[float | None, float | None]:
    """Useful time over wall time, and half its 95 % confidence interval, from means over batches."""
    wall = sum(one["seconds"] for one in windows)
    if not wall:
        return None, None
    useful = step_seconds * sum(one["steps"] for one in windows)
    found = useful / wall
    batches = [windows[at:at + BATCH] for at in range(0, len(windows) - BATCH + 1, BATCH)]
    if len(batches) < 3:
        return found, None
    walls = [sum(one["seconds"] for one in batch) for batch in batches]
    offs = [step_seconds * sum(one["steps"] for one in batch) - found * long
            for batch, long in zip(batches, walls, strict=True)]
    error = math.sqrt(sum(off * off for off in offs) / (len(offs) - 1) / len(offs)) / statistics.mean(walls)
    degrees = len(offs) - 1
    student = next((value for key, value in sorted(STUDENT.items(), reverse=True) if key <= degrees), 12.7)
    return found, error * (2.0 if degrees > 40 else student)


def predicted(setting: Setting, chosen: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """What `backstay plan` says of the job, from what its own metrics say of costs, and the failures that came: of those
    that came while it was started again the job itself does not know."""
    if not setting.metrics or not setting.windows:
        return None
    wall = sum(one["seconds"] for one in setting.windows)
    counts = [sum(one["failed"].count(level) for one in setting.windows) for level in LEVELS]
    rates = {"failures": counts, "exposure_seconds": wall}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(setting.metrics | rates))
    if setting.archive:
        (folder / "archive.json").write_text(json.dumps(setting.archive))
    per_second = [max(count, 0.01) / wall for count in counts]
    of_nodes = per_second[1] + per_second[2]
    notice = statistics.mean(setting.notices) if setting.notices else 0.0
    words = [chosen.programs / "backstay", "plan", "--json", "--accept-unusual", "--from-run", folder,
             "--node-mtbf-hours", NODES / of_nodes / 3600, "--process-failures-per-day", per_second[0] * 86400,
             "--failure-shares", f"0,{per_second[1] / of_nodes},{1 - per_second[1] / of_nodes}",
             "--notice-seconds", notice, "--simulated-intervals", 20000]
    if not setting.is_auto:
        words += ["--interval-seconds", setting.interval, "--archive-every", setting.every]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip() or done.stdout.strip()}
    report = json.loads(done.stdout)
    keep = ("efficiency", "interval_seconds", "checkpoints_per_period", "failures_per_second", "checkpoint_seconds",
            "recovery_seconds", "latency_seconds", "losses")
    return {key: report[key] for key in keep}


def row(setting: Setting, chosen: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    step = step_of(setting) or bench.step_seconds
    found, half = ratio(setting.windows, step)
    plan = predicted(setting, chosen, bench.cluster.folder / f"plan-{setting.interval}")
    failed = [level for one in setting.windows for level in one["failed"]]
    downs = {level: [one["down_seconds"] for one in setting.windows if one["failed"] == [level]] for level in LEVELS}
    off = plan["efficiency"] / found - 1 if plan and found and "efficiency" in plan else None
    inside = None if off is None or half is None else abs(off * found) <= half
    return {"interval": setting.interval, "archive_every": None if setting.is_auto else setting.every,
            "failures": {level: failed.count(level) for level in LEVELS}, "voids": setting.voids, "broken": setting.broken,
            "step_seconds": step, "wall_seconds": sum(one["seconds"] for one in setting.windows), "efficiency": found, "half_interval": half,
            "predicted": plan, "off": off, "inside": inside,
            "notice_seconds": statistics.mean(setting.notices) if setting.notices else None,
            "down_seconds": {level: statistics.mean(values) if values else None for level, values in downs.items()},
            "windows": setting.windows, "metrics": {key: setting.metrics.get(key) for key in (
                "exposure_seconds", "failures", "restarts", "checkpoints", "schedule")}}


def write(chosen: argparse.Namespace, bench: Bench, settings: list[Setting], loads: list[float]) -> dict[str, Any]:
    rows = [row(setting, chosen, bench) for setting in settings if setting.windows]
    fixed = [one for one in rows if one["interval"] != "auto" and one["efficiency"]]
    best = max(fixed, key=lambda one: one["efficiency"], default=None)
    auto = next((one for one in rows if one["interval"] == "auto"), None)
    report = {"machine": machine(), "commit": bench.commit, "mpi": chosen.mpi, "nodes": NODES, "mtbf_seconds": chosen.mtbf,
              "shares": dict(zip(LEVELS, SHARES, strict=True)), "seed": chosen.seed, "pace_seconds": chosen.pace,
              "step_seconds": bench.step_seconds, "plate": [chosen.rows, chosen.rows],
              "load": [min(loads), statistics.mean(loads), max(loads)],
              "auto_over_best": auto["efficiency"] / best["efficiency"] if auto and best and auto["efficiency"] else None,
              "settings": rows}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    partly = chosen.out.with_suffix(".partly")
    partly.write_text(json.dumps(report, indent=1) + "\n")
    partly.replace(chosen.out)
    return report


def say(report: dict[str, Any]) -> None:
    for one in report["settings"]:
        plan = one["predicted"] or {}
        half = f" +- {one['half_interval']:.3f}" if one["half_interval"] is not None else ""
        told = f"{plan['efficiency']:.3f}" if "efficiency" in plan else str(plan.get("error"))
        off = f" ({100 * one['off']:+.1f} %)" if one["off"] is not None else ""
        print(f"interval {one['interval']:>5}: {sum(one['failures'].values())} failures, measured "
              f"{one['efficiency']:.3f}{half}, planned {told}{off}", flush=True)
    if report["auto_over_best"]:
        print(f"auto over the best of them: {report['auto_over_best']:.3f}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--mpi", choices=("openmpi", "mpich"), default="openmpi")
    parser.add_argument("--failures", type=int, default=200, help="of each setting")
    parser.add_argument("--mtbf", type=float, default=5, help="mean seconds between failures of the job")
    parser.add_argument("--intervals", default="0.08,0.2,0.5,1.2,3")
    parser.add_argument("--only", default="", help="settings: intervals and auto, with commas between")
    parser.add_argument("--archive-s", type=float, default=1, help="about so often a checkpoint is drained")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds of a step")
    parser.add_argument("--rows", type=int, default=600, help="of the plate, and columns")
    parser.add_argument("--warm", type=float, default=2, help="seconds without failures, after the first drain")
    parser.add_argument("--burn-in", type=int, default=2, help="rounds in which `auto` learns, that do not count")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no round after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    end = time.monotonic() + 60 * chosen.minutes
    names = [*chosen.intervals.split(","), "auto"]
    only = [name for name in chosen.only.split(",") if name]
    settings = [Setting(name, chosen.archive_s) for name in names if not only or name in only]
    loads: list[float] = []
    report = None
    with Cluster(NODES, shm="512m") as cluster:
        bench = Bench(chosen, cluster)
        bench.calibrate()
        print(f"a step takes {1e3 * bench.step_seconds:.2f} ms where nothing fails", flush=True)
        for setting in settings:
            # What it learns first is of rates that are a thousandth of these.
            for number in range(chosen.burn_in if setting.is_auto else 0):
                bench.round(setting, -1 - number)
                setting.windows, setting.notices, setting.strides, setting.voids = [], [], [], 0
        for number in range(math.ceil(chosen.failures / ROUND)):
            for setting in settings:
                if time.monotonic() > end:
                    break
                bench.round(setting, number)
                loads.append(os.getloadavg()[0])
                report = write(chosen, bench, settings, loads)
            if report:
                print(f"round {number + 1}, load {statistics.mean(loads):.1f}", flush=True)
                say(report)
    print(f"written: {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
