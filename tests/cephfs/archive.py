# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The archive on a real CephFS: what its writer asks the metadata server, and the layout of its files.

Prints a line for each test and "N passed, N failed" last.
"""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1] / "cluster"), str(HERE.parents[1] / "multiprocess")]

from cephfs import CephFs  # noqa: E402
from job import expect  # noqa: E402
from selftest import arguments, run_all  # noqa: E402


def run_on(pfs, command, limit=300):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **pfs.environment()}, text=True,
                          capture_output=True, timeout=limit, check=False)
    expect(done.returncode == 0, f"exit {done.returncode}: {done.stdout[-1000:]} {done.stderr[-2000:]}")
    return done.stdout


def checkpoints_ask_the_metadata_server_nothing(settings):
    """16 and 32 writers through the archive: after set-up, not one request of any type."""
    with CephFs(mounts=4) as pfs:
        said = run_on(pfs, [settings.programs / "bench-cephfs", "--check", "--writers", "16,32", "--rounds", "4"])
    return said.strip().replace("\n", "; ")


def files_get_their_layout(settings):
    """The archive's tests of layouts, which only do something where there is a CephFS. Of the workspace, as built before."""
    cargo = os.environ.get("CARGO", "cargo")
    with CephFs(mounts=1) as pfs:
        said = run_on(pfs, [cargo, "test", "--quiet", "--locked", "--workspace", "--test", "it", "cephfs_"],
                      limit=1800)
    expect("2 passed" in said, said[-1000:])


TESTS = [checkpoints_ask_the_metadata_server_nothing, files_get_their_layout]


if __name__ == "__main__":
    sys.exit(run_all(TESTS, arguments(__doc__)))
