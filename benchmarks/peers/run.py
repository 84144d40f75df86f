# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Backstay beside SCR, FTI and VeloC on the same work: what a checkpoint blocks, and what survives.

    run.py --ours PREFIX [--peers PREFIX] [--quick] [PART...]

Parts: local, nodes, flush (times), kill, flip, full, lost (trials); all by default. Each system is measured if
its library stands under the prefix, else said to be skipped. Root is needed: nodes are namespaces. PREFIX/versions.json
of the peers ({"scr": "3.1.0 (commit)"}) is copied into the result; else their CMake files say a version.
Writes target/bench/peers.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "benchmarks/python"))
import ways  # noqa: E402
from figures import commit, machine, spread  # noqa: E402
from places import Place, Run  # noqa: E402
from trials import OUTCOMES, Trial  # noqa: E402
from ways import Way  # noqa: E402

LIBRARIES = {"backstay": "backstay", "scr": "scr", "fti": "fti", "veloc": "veloc-client"}
CMAKE = {"scr": "share/scr/cmake/scrConfigVersion.cmake", "fti": "share/FTI/cmake/FTIConfigVersion.cmake",
         "veloc": "share/veloc/cmake/velocConfigVersion.cmake"}
TIMES = {"local": (1, 256, 5, "0,3,10,100"), "nodes": (4, 64, 3, "3,100"), "flush": (1, 256, 3, "3,100")}
TRIALS = {"kill": 20, "flip": 20, "full": 10, "lost": 4}
LIMIT_SECONDS = 600


def build(system: str, prefix: Path, folder: Path) -> bool:
    """The program with one system; False where that is not installed."""
    library = LIBRARIES[system]
    if not any((prefix / "lib" / f"lib{library}.{kind}").exists() for kind in ("so", "a")):
        print(f"{system}: skipped, no lib{library} under {prefix}", flush=True)
        return False
    subprocess.run(["mpicc.openmpi", "-std=gnu99", "-O2", "-Wall", "-Wextra", f"-I{HERE}", f"-I{prefix}/include",
                    "-o", folder / system, HERE / "work.c", HERE / f"peer_{system}.c", f"-L{prefix}/lib",
                    f"-Wl,-rpath,{prefix}/lib", f"-l{library}"], check=True)
    return True


def build_all(chosen: argparse.Namespace, folder: Path) -> dict[str, str]:
    """The systems that are here, and their versions."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = {}
    if build("backstay", chosen.ours, folder):
        versions["backstay"] = f"{version_of_ours()} ({commit()})"
    link(folder / "lib", (chosen.peers or chosen.ours) / "lib")
    for system in ("scr", "fti", "veloc"):
        if chosen.peers is None:
            print(f"{system}: skipped, PEERS is not set", flush=True)
        elif build(system, chosen.peers, folder):
            versions[system] = version_of(system, chosen.peers)
    if "veloc" in versions:
        link(folder / "veloc-backend", chosen.peers / "bin/veloc-backend")
    return versions


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target.resolve())


def version_of_ours() -> str:
    found = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return found[1] if found else "?"


def version_of(system: str, prefix: Path) -> str:
    named = prefix / "versions.json"
    if named.exists():
        return str(json.loads(named.read_text()).get(system, "?"))
    file = prefix / CMAKE[system]
    found = re.search(r'PACKAGE_VERSION "([^"]*)"', file.read_text()) if file.exists() else None
    return found[1] if found else "?"


# ---- Times


def measure(part: str, chosen: argparse.Namespace, programs: Path, systems: set[str]) -> list[dict[str, Any]]:
    nodes, mib, rounds, shares = TIMES[part]
    if chosen.quick:
        mib, rounds = 16, 1
    mib, rounds = chosen.mib or mib, chosen.rounds or rounds
    found = []
    with Place(nodes, "6g") as place:
        for way in those(getattr(ways, part)(str(place.shared)), systems, chosen):
            place.prepare(way)
            begun = load()
            words = [f"mib={mib}", f"rounds={rounds}", f"shares={shares}"]
            run = Run(place, way, programs, 2 if nodes == 1 else 1, words)
            try:
                ended = run.until(("end",), LIMIT_SECONDS)
            except TimeoutError:
                ended = None
            run.kill()
            if not ended:
                found.append({"id": f"{part}.{way.id}", "system": way.system, "label": way.label, "value": None,
                              "failed": run.said[-5:], "unsettled": 0, "restored": None})
                print(f"{part} {way.id}: FAILED {run.said[-5:]}", flush=True)
                continue
            back = restarted(place, way, programs, words)
            for figure in figures_of(run, part, way):
                found.append(figure | {"mib_a_rank": mib, "load": [begun, load()], "restored": back})
                print(row(figure), flush=True)
    return found


def restarted(place: Place, way: Way, programs: Path, words: list[str]) -> dict[str, Any]:
    """What is measured is a checkpoint only if it comes back."""
    run = Run(place, way, programs, 2 if place.nodes == 1 else 1, [*words, "only_restart=1"])
    try:
        event = run.until(("restored", "refused", "nothing"), LIMIT_SECONDS)
    except TimeoutError:
        event = None
    run.kill()
    if not event or event[0] != "restored" or int(event[2]):
        return {"outcome": event, "said": run.said[-5:]}
    return {"outcome": "right", "ms": float(event[3]) * 1e3}


def figures_of(run: Run, part: str, way: Way) -> Iterator[dict[str, Any]]:
    """For each share the blocking time and what goes on behind it, beside what the same round's baselines took."""
    took: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
    shares: dict[float, list[int]] = defaultdict(list)
    for name, step, changed, seconds, cpu in (event for event in run.events if len(event) == 5):
        took[name][int(step)] = (float(seconds), float(cpu))
        if name == "begin" and int(step) > 3:
            shares[float(changed)].append(int(step))
    for share, steps in shares.items():
        good = [step for step in steps if step in took["done"]]
        wall = [took["done"][step][0] for step in good]
        behind = [took["settled"].get(step, (None,))[0] for step in good]
        yield {
            "id": f"{part}.{way.id}.{share:g}", "system": way.system, "label": way.label, "share": share, "unit": "ms",
            "failed": len(steps) - len(good), "unsettled": sum(one is None for one in behind),
            **spread([1e3 * one for one in wall]),
            "cpu_ms": spread([1e3 * took["done"][step][1] for step in good]),
            "behind_ms": spread([1e3 * one for one in behind if one is not None]),
            "to_memcpy": spread([took["done"][step][0] / took["memcpy"][step][0] for step in good]),
            "to_plain": spread([took["done"][step][0] / took["plain"][step][0] for step in good]),
            "until_to_plain": spread([(took["done"][step][0] + one) / took["plain"][step][0]
                                      for step, one in zip(good, behind, strict=True) if one is not None]),
            "memcpy_ms": spread([1e3 * took["memcpy"][step][0] for step in good]),
            "plain_ms": spread([1e3 * took["plain"][step][0] for step in good]),
        }


def row(figure: dict[str, Any]) -> str:
    def number(key: str) -> float:
        return figure[key]["value"] if figure[key]["value"] is not None else float("nan")

    median = figure["value"] if figure["value"] is not None else float("nan")
    return (f"{figure['id']:32} {median:9.1f} ms ({figure['min'] or 0:.1f} to {figure['max'] or 0:.1f}), "
            f"{number('to_memcpy'):.2f} memcpy, {number('to_plain'):.2f} plain, behind {number('behind_ms'):.1f} ms")


# ---- Trials

EXPECTED = {"kill": {"newest"}, "flip": {"older", "newest"}, "full": {"newest"}, "lost1": {"newest"},
            "lost2": {"refused", "newest"}, "flip_redundant": {"newest"}}
"""What Backstay says of itself: any other outcome of its trials is a failure of this run."""


def hurt(part: str, chosen: argparse.Namespace, programs: Path, systems: set[str]) -> list[dict[str, Any]]:
    count = chosen.trials or (2 if chosen.quick else TRIALS[part])
    found: list[dict[str, Any]] = []
    if part == "lost":
        with Place(4, "1g") as place:
            for way in those(ways.nodes(str(place.shared)), systems, chosen):
                if way.id.endswith((".none", "_head", "_async")):
                    continue
                for nodes in (1, 2):
                    found.append(trials(f"lost{nodes}", place, way, programs, count, partial(Trial.lose, nodes=nodes)))
                found.append(trials("flip_redundant", place, way, programs, count, Trial.flip))
        return found
    with Place(1, "1g") as place:
        if part == "full":
            place.limit("200m")
        for way in those(ways.hurt(str(place.shared)), systems, chosen):
            found.append(trials(part, place, way, programs, count, getattr(Trial, part)))
    return found


def trials(part: str, place: Place, way: Way, programs: Path, count: int,
           act: Callable[[Trial], dict[str, Any]]) -> dict[str, Any]:
    each = []
    for seed in range(1, count + 1):
        try:
            each.append(act(Trial(place, way, programs, seed)))
        except (RuntimeError, TimeoutError) as error:
            each.append({"seed": seed, "outcome": "not tried", "said": [str(error)[:300]]})
    outcomes = {name: sum(one["outcome"] == name for one in each) for name in (*OUTCOMES, "not tried")}
    counted = {name: number for name, number in outcomes.items() if number}
    print(f"{part} {way.id}: {counted}", flush=True)
    return {"id": f"{part}.{way.id}", "system": way.system, "label": way.label, "trials": count, "outcomes": counted,
            "each": each}


# ---- All of it


def those(all_ways: list[Way], systems: set[str], chosen: argparse.Namespace) -> list[Way]:
    return [way for way in all_ways if way.system in systems and re.search(chosen.only, way.id)]


def load() -> float:
    return round(os.getloadavg()[0], 2)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=Path, required=True, help="where Backstay is installed")
    parser.add_argument("--peers", type=Path, help="where SCR, FTI and VeloC are installed")
    parser.add_argument("--quick", action="store_true", help="small, one round, two trials: whether it works")
    parser.add_argument("--only", default=".", help="ways whose id has this pattern")
    parser.add_argument("--mib", type=int, help="MiB a rank for times")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--into", type=Path, help="a result of which the parts that run are replaced")
    parser.add_argument("parts", nargs="*", help="parts to run")
    chosen = parser.parse_args()
    unknown = set(chosen.parts) - set(TIMES) - set(TRIALS)
    if unknown:
        parser.error(f"no such part: {' '.join(sorted(unknown))}")
    return chosen


def main() -> int:
    # A cluster and its mounts go away with it.
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(1))
    chosen = arguments()
    programs = (Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "peers").resolve()
    versions = build_all(chosen, programs)
    parts = chosen.parts or [*TIMES, *TRIALS]
    result: dict[str, Any] = {
        "machine": machine(), "commit": commit(), "date": datetime.date.today().isoformat(), "versions": versions,
        "mpi": subprocess.run(["mpirun.openmpi", "--version"], capture_output=True, text=True,
                              check=True).stdout.splitlines()[0],
        "nice": os.nice(0), "commits": {}, "figures": [], "trials": []}
    if chosen.into and chosen.into.exists():
        former = json.loads(chosen.into.read_text())
        result["commits"] = former.get("commits", {})
        result["figures"] = [one for one in former["figures"] if one["id"].split(".")[0] not in parts]
        result["trials"] = [one for one in former["trials"] if part_of(one["id"]) not in parts]
    for part in parts:
        result["commits"][part] = result["commit"]
        begun = time.monotonic()
        if part in TIMES:
            result["figures"] += measure(part, chosen, programs, set(versions))
        else:
            result["trials"] += hurt(part, chosen, programs, set(versions))
        print(f"{part}: {time.monotonic() - begun:.0f} s", flush=True)
    path = chosen.into or ROOT / "target/bench/peers.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path}")
    wrong = list(failures(result))
    for line in wrong:
        print(f"failed: {line}")
    return bool(wrong)


def failures(result: dict[str, Any]) -> Iterator[str]:
    """Where Backstay does not do what it says."""
    for one in result["figures"]:
        if one["system"] == "backstay" and (one["failed"] or one["unsettled"] or one["restored"]["outcome"] != "right"):
            yield f"{one['id']}: {one['failed']} failed, {one['restored']}"
    for one in result["trials"]:
        if one["system"] == "backstay":
            unexpected = set(one["outcomes"]) - EXPECTED[one["id"].split(".")[0]]
            if unexpected:
                yield f"{one['id']}: {sorted(unexpected)}"


def part_of(id: str) -> str:
    name = id.split(".")[0]
    return "lost" if name in ("lost1", "lost2", "flip_redundant") else name


if __name__ == "__main__":
    sys.exit(main())
