# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs every fuzz target under cargo-fuzz, from the fixtures of its structure, for so many seconds.

Prints a line for each target and "N passed, N failed" last; what libFuzzer said is in fuzz/artifacts. Targets
are instrumented, which a stable rustc allows only with RUSTC_BOOTSTRAP=1.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "multiprocess"))

from record import Record  # noqa: E402

SEEDS = HERE.parent / "crates" / "format" / "fixtures" / "v1"
FILES = HERE.parent / "crates" / "hdf5" / "tests" / "fixtures"
LIMITS = ["-rss_limit_mb=512", "-malloc_limit_mb=128", "-print_final_stats=1"]


def cargo_fuzz(*words, **options):
    environment = {**os.environ, "RUSTC_BOOTSTRAP": "1"}
    return subprocess.run(["cargo", "fuzz", *words], cwd=HERE.parent, env=environment, check=False, **options)


def run(target, seconds):
    """Inputs that a target was tried with; None if one made it fail."""
    corpus, log = HERE / "corpus" / target, HERE / "artifacts" / f"{target}.log"
    corpus.mkdir(parents=True, exist_ok=True)
    for fixture in [*SEEDS.glob(f"{target.split('_')[0]}_*.bin"), *SEEDS.glob(f"{target}.bin")]:
        shutil.copy(fixture, corpus)
    for file in [*FILES.glob("*.h5"), *FILES.glob("*.nc")] if target == "hdf5" else []:
        shutil.copy(file, corpus)
    with open(log, "wb") as output:
        done = cargo_fuzz("run", target, "--", f"-max_total_time={seconds}", *LIMITS, stdout=output, stderr=output)
    text = log.read_text(errors="replace")
    inputs = re.search(r"number_of_executed_units: *(\d+)", text)
    if done.returncode != 0 or not inputs:
        print(f"FAILED  {target}: {log}\n{text[-3000:]}", flush=True)
        return None
    print(f"ok      {target}: {inputs[1]} inputs, no failure", flush=True)
    return int(inputs[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--only", default="", help="targets whose name matches this expression")
    parser.add_argument("--record", type=pathlib.Path, help="file for the counts of inputs")
    settings = parser.parse_args()
    if cargo_fuzz("--version", capture_output=True).returncode != 0:
        sys.exit("fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked")
    record, began = Record(settings.record, "fuzz"), time.monotonic()
    (HERE / "artifacts").mkdir(exist_ok=True)
    if cargo_fuzz("build").returncode != 0:
        sys.exit("the targets cannot be built: that takes a rustc that honours RUSTC_BOOTSTRAP=1, a C++ compiler "
                 "and a platform with AddressSanitizer")
    targets = sorted(path.stem for path in (HERE / "fuzz_targets").glob("*.rs") if re.search(settings.only, path.stem))
    with ThreadPoolExecutor(settings.jobs) as threads:
        found = dict(zip(targets, threads.map(lambda target: run(target, settings.seconds), targets)))
    good = {f"inputs of {target}": inputs for target, inputs in found.items() if inputs is not None}
    failed = len(found) - len(good)
    record.write(time.monotonic() - began, len(good), failed, {"seconds for each": settings.seconds, **good})
    print(f"{len(good)} passed, {failed} failed")
    return 1 if failed or not good else 0


if __name__ == "__main__":
    sys.exit(main())
