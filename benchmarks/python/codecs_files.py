# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The studies of mcrEngine on files: what a checkpoint of 32 ranks takes, by how its files are merged.

Four programs' checkpoints (bench-datasets made them) are written by h5py, a file a rank: heat (f64, contiguous), blast
(f32, chunked), atoms (f64 and i64, a dataset a property), mesh (i32, of other lengths on each rank). Four ways, by the
number of ranks that are merged:

    aware            backstay import --merge concatenate: by datasets and their types, a rank behind the other
    aware-block      backstay import --merge interleave: by datasets, a block of each rank in turn
    agnostic         whole files one behind the other, and Zstandard of level 3
    agnostic-block   a block of 16 KiB of each file in turn, and Zstandard of level 3

Bytes of an import are those of its encoded segments, without trees and headers. Seconds of an import are those of the
command: reading twice, compressing, storing, syncing, reading back; those of the others are of compressing alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zstandard
from figures import Figures

CASES = ["heat-f64", "blast-f32", "atoms-f64", "mesh-i32"]
GROUPS = [1, 2, 4, 8, 16, 32]
PLACE = 3
BLOCK = 16 << 10
CHUNKED = "blast-f32"
REACH = 1.4


def geometric(values: list[float]) -> float:
    return prod(values) ** (1 / len(values))


def dtype(element: str) -> np.dtype:
    """What numpy calls an element type: i32, f64, or bytes."""
    if element == "bytes":
        return np.dtype("u1")
    return np.dtype(f"<{element[0]}{int(element[1:]) // 8}")


def write(case: str, data: Path, into: Path) -> list[Path]:
    """The files of a checkpoint, by rank."""
    manifest = json.loads((data / case / "manifest.json").read_text())
    found = next(one for one in manifest["checkpoints"] if one["place"] == PLACE and not one["close"])
    content = (data / case / found["file"]).read_bytes()
    into.mkdir(parents=True)
    files = []
    for rank, variables in enumerate(found["ranks"]):
        path = into / f"restart.{rank:03}.h5"
        with h5py.File(path, "w") as file:
            file.attrs["rank"] = rank
            for one in variables:
                kind = dtype(one["element"])
                count = one["length"] // kind.itemsize
                array = np.frombuffer(content, kind, count, one["offset"]).reshape(one["shape"])
                chunks = True if case == CHUNKED and array.size > 1024 else None
                file.create_dataset(one["name"], data=array, chunks=chunks)
        files.append(path)
    return files


def imported(backstay: Path, folder: Path, work: Path, merge: str, group: int) -> dict[str, Any]:
    archive = work / "archive"
    shutil.rmtree(archive, ignore_errors=True)
    words = [backstay, "import", folder, "--archive", archive, "--job", "bench", "--json", "--merge", merge,
             "--group-size", str(group)]
    began = time.perf_counter()
    said = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - began
    done = json.loads(said)["checkpoints"][0]
    return {"bytes": done["bytes_stored"], "seconds": seconds}


def agnostic(contents: list[bytes], group: int, in_blocks: bool) -> dict[str, Any]:
    total, began = 0, time.perf_counter()
    for start in range(0, len(contents), group):
        some = contents[start:start + group]
        longest = max(map(len, some))
        if in_blocks:
            turns = (one[at:at + BLOCK] for at in range(0, longest, BLOCK) for one in some)
            merged = b"".join(turns)
        else:
            merged = b"".join(some)
        total += len(zstandard.ZstdCompressor(level=3).compress(merged))
    return {"bytes": total, "seconds": time.perf_counter() - began}


def measure(case: str, settings: argparse.Namespace) -> list[dict[str, Any]]:
    work = settings.work / case
    shutil.rmtree(work, ignore_errors=True)
    files = write(case, settings.data, work / "files")
    contents = [path.read_bytes() for path in files]
    size = sum(map(len, contents))
    rows = []
    for group in settings.groups:
        ways = {
            "aware": imported(settings.backstay, work / "files", work, "concatenate", group),
            "aware-block": imported(settings.backstay, work / "files", work, "interleave", group),
            "agnostic": agnostic(contents, group, in_blocks=False),
            "agnostic-block": agnostic(contents, group, in_blocks=True),
        }
        for way, found in ways.items():
            rows.append({"case": case, "way": way, "group": group, "size": size, **found, "ratio": size / found["bytes"]})
            print(f"{case:10} {way:14} {group:3}  ratio {size / found['bytes']:8.3f}  {found['seconds']:7.2f} s", flush=True)
    # What was imported comes back.
    out = work / "out"
    subprocess.run([str(settings.backstay), "export", str(work / "archive"), "--files", "-o", str(out)], check=True,
                   capture_output=True)
    for path, content in zip(files, contents, strict=True):
        assert (out / path.name).read_bytes() == content, path
    shutil.rmtree(work)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("target/bench/datasets"), help="what bench-datasets made")
    parser.add_argument("--backstay", type=Path, default=Path("target/release/backstay"), help="the command")
    parser.add_argument("--work", type=Path, default=Path("target/bench/codecs-files"), help="a folder for files")
    parser.add_argument("--case", default=",".join(CASES), help="these file sets")
    parser.add_argument("--groups", default=",".join(map(str, GROUPS)), help="these numbers of ranks")
    settings = parser.parse_args()
    settings.groups = [int(group) for group in settings.groups.split(",")]
    rows = [row for case in settings.case.split(",") for row in measure(case, settings)]
    figures = Figures("codecs-files", rows=rows)
    most = max(settings.groups)
    gains = []
    for case in settings.case.split(","):
        of = {row["way"]: row["ratio"] for row in rows if row["case"] == case and row["group"] == most}
        gains.append(of["aware"] / of["agnostic"])
        figures.add(f"codecs.files.{case}", [gains[-1]], better="higher")
    figures.add("codecs.files", [geometric(gains)], reach=REACH, better="higher")
    print(f"written: {figures.write()}")


if __name__ == "__main__":
    main()
