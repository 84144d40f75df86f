# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Whole MPI jobs that are killed, stopped, starved and handed damaged stores.

Prints a line for each test, how to repeat those that failed, and "N passed, N failed, N skipped" last.
"""

import argparse
import pathlib
import re
import secrets
import sys
import time

import damage
import faults
import kills
from job import Failure, Skip, Workplace
from record import Record

HERE = pathlib.Path(__file__).resolve()
BOTH = ("openmpi", "mpich")
ONE = ("openmpi",)


def tests(trials):
    """Name, function, which MPI. `trials` starts are killed in each chain."""
    def chained(function, share=1.0):
        return lambda place: function(place, max(2, round(trials * share)))

    yield "kill all ranks", chained(kills.kill_all), BOTH
    yield "kill in the first checkpoint", chained(kills.kill_in_first_checkpoint, 0.8), BOTH
    yield "kill one rank", chained(kills.kill_one, 0.6), BOTH
    yield "kill in background commits", chained(kills.kill_background), BOTH
    yield "kill on two nodes", chained(kills.kill_nodes), BOTH
    yield "kill on three nodes, in background", chained(kills.kill_many_nodes, 0.6), ONE
    yield "kill on changing numbers of ranks", chained(kills.kill_slabs_on_other_numbers_of_ranks, 0.6), ONE
    for module in (kills, faults, damage):
        for function, which in listed(module):
            yield function.__name__.replace("_", " "), function, which


def listed(module):
    """The tests of a module without a number of starts; for both MPI where it says so."""
    if module is kills:
        return [(kills.other_numbers_of_ranks, BOTH),
                (kills.variables_of_a_rank_on_another_number_of_ranks, ONE)]
    return [(function, BOTH if function in module.MAIN else ONE) for function in module.TESTS]


def soak_tests():
    for name, function, which in tests(20):
        if name.startswith("kill"):
            yield name, function, which


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path, default=HERE.parents[2] / "target" / "multiprocess")
    parser.add_argument("--starts", type=int, default=10, help="killed in each chain")
    parser.add_argument("--soak", type=int, default=0, help="so many kills, chain after chain")
    parser.add_argument("--only", default="", help="tests whose name matches this expression")
    parser.add_argument("--mpi", choices=BOTH)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--record", type=pathlib.Path, help="file for what a soak did and survived")
    parser.add_argument("--keep", action="store_true", help="keep the folders of failed tests")
    return parser.parse_args()


class Runner:
    def __init__(self, settings):
        self.settings = settings
        self.passed, self.failed, self.skipped = 0, 0, 0
        self.starts, self.kills, self.inside = 0, 0, 0

    def run(self, name, function, mpi, seed):
        began = time.monotonic()
        place = Workplace(self.settings, mpi, name, seed)
        outcome, text = "ok", ""
        try:
            function(place)
        except Skip as reason:
            outcome, text = "skipped", f": {reason}"
        except Failure as failure:
            outcome, text = "FAILED", f": {failure}"
        except Exception as error:                  # a defect of the harness, told like the others
            outcome, text = "FAILED", f": {type(error).__name__}: {error}"
        starts = len(place.jobs)
        self.starts += starts
        self.kills += place.kills
        self.inside += place.inside
        if outcome == "FAILED" and self.settings.keep:
            for job in place.jobs:
                job.kill()
            text += f"\n        kept: {place.folder}"
        else:
            place.close()
        seconds = time.monotonic() - began
        print(f"{outcome:8}{name} [{mpi}], seed {seed}, {starts} starts, {seconds:.1f} s{text}", flush=True)
        if outcome == "FAILED":
            self.failed += 1
            print(f"        repeat: make multiprocess-programs && python3 tests/multiprocess/run.py "
                  f"--programs {self.settings.programs} --mpi {mpi} --seed {seed} "
                  f"--starts {self.settings.starts} --only '^{re.escape(name)}$' --keep", flush=True)
        elif outcome == "skipped":
            self.skipped += 1
        else:
            self.passed += 1


def main():
    settings = arguments()
    settings.programs = settings.programs.resolve()
    runner, record = Runner(settings), Record(settings.record, "soak")
    began = time.monotonic()
    if settings.soak:
        while runner.kills < settings.soak and runner.failed < 5:
            for name, function, which in soak_tests():
                for mpi in which:
                    if settings.mpi in (None, mpi) and re.search(settings.only, name) \
                            and runner.kills < settings.soak:
                        runner.run(name, function, mpi, settings.seed or secrets.randbelow(1 << 31))
    else:
        for name, function, which in tests(settings.starts):
            for mpi in which:
                if settings.mpi in (None, mpi) and re.search(settings.only, name):
                    runner.run(name, function, mpi,
                               secrets.randbelow(1 << 31) if settings.seed is None else settings.seed)
    print(f"{runner.starts} starts, {runner.kills} killed at random instants, {runner.inside} of them inside a "
          f"checkpoint, in {time.monotonic() - began:.0f} s")
    record.write(time.monotonic() - began, runner.passed, runner.failed,
                 {"starts": runner.starts, "killed": runner.kills, "killed inside a checkpoint": runner.inside})
    print(f"{runner.passed} passed, {runner.failed} failed, {runner.skipped} skipped")
    return 1 if runner.failed or not runner.passed else 0


if __name__ == "__main__":
    sys.exit(main())
