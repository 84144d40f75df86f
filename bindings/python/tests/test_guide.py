# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guide, the examples and the notebook do what they say; the wheel links nothing that it should not."""

import os
import pathlib
import re
import subprocess
import sys
import venv

import pytest
from test_mpi import Mpi

import backstay

ROOT = pathlib.Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/guide/python.md").read_text()
WAVES = ROOT / "examples/python/waves.py"
LIMIT_SECONDS = 180


@pytest.fixture
def openmpi(tmp_path, store):
    return Mpi("openmpi", tmp_path)


def run(command, **words):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True, **words)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S)


def test_the_commands_of_the_guide_are_those_that_are_tested():
    assert blocks("sh") == [
        "pip install ./bindings/python\n",
        "mpirun -n 4 python examples/python/waves.py 2000\n"
        "mpirun -n 3 python examples/python/waves.py 4000 target/waves.png\n",
    ]


def test_the_programs_of_the_guide_run(openmpi, store, tmp_path):
    first, second = blocks("python")
    (tmp_path / "heat.py").write_text(first)
    environment = {**openmpi.environment, "BACKSTAY_INTERVAL": "0.001"}
    done = run([openmpi.launcher, "-n", "2", sys.executable, tmp_path / "heat.py"], env=environment)
    assert done.stdout.count("from the beginning") == 2 and "checkpoint 1: 7.6 MiB of 7.6 MiB" in done.stdout
    (tmp_path / "look.py").write_text(
        second.replace('"/dev/shm/backstay"', repr(str(store))).replace('["plate"]', '.part("plate", 1)'))
    shown = run([sys.executable, tmp_path / "look.py"]).stdout
    assert "heat" in shown and "(1000, 1000)" in shown


def test_the_example_goes_on_with_another_number_of_processes(openmpi, tmp_path):
    def waves(ranks, *arguments):
        return run([openmpi.launcher, "-n", str(ranks), sys.executable, WAVES, *map(str, arguments)],
                   env=openmpi.environment).stdout

    waves(4, 300)
    resumed = waves(3, 600, tmp_path / "waves.png")
    assert "going on from step 300" in resumed
    assert (tmp_path / "waves.png").read_bytes().startswith(b"\x89PNG")
    os.environ["BACKSTAY_JOB"] = openmpi.environment["BACKSTAY_JOB"] = "whole"
    assert re.search("step 600: .*", waves(2, 600))[0] == re.search("step 600: .*", resumed)[0]


@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(store):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(ROOT / "examples/python/reading.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=LIMIT_SECONDS, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output["data"] for output in outputs if "data" in output]
    assert sum("text/html" in data for data in shown) == 2 and any("image/png" in data for data in shown)


@pytest.mark.skipif("COMMAND_LINE" not in os.environ, reason="make test-python names the command line")
def test_the_command_line_reads_what_python_wrote(store, tmp_path):
    import numpy

    plate = numpy.arange(12.0).reshape(3, 4)
    with backstay.open() as session:
        session.protect("plate", plate)
        session.checkpoint()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "backstay").symlink_to(os.environ["COMMAND_LINE"])
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    shown = run([sys.executable, "-m", "backstay", "inspect", store, "--json"], env=environment).stdout
    assert '"plate"' in shown and '"f64"' in shown
    run([sys.executable, "-m", "backstay", "export", store, "-v", "plate", "-o", tmp_path / "plate.npy"],
        env=environment)
    assert (numpy.load(tmp_path / "plate.npy") == plate).all()


WHEELS = sorted((ROOT / "target/wheels").glob("backstay-*.whl"))


@pytest.mark.skipif(not WHEELS, reason="make wheel makes it")
def test_the_wheel_works_alone(store, tmp_path):
    wheel = WHEELS[-1]
    assert "-cp311-abi3-manylinux" in wheel.name
    venv.create(tmp_path / "bare", with_pip=True)
    python = tmp_path / "bare/bin/python"
    run([python, "-m", "pip", "install", "--quiet", "--no-index", wheel])
    program = ("import backstay\n"
               "text = bytearray(b'hello')\n"
               "with backstay.open() as session:\n"
               "    session.protect('text', text)\n"
               "    session.checkpoint()\n"
               "    text[:] = b'xxxxx'\n"
               "    session.restore()\n"
               "print(text.decode(), backstay.__version__)\n")
    assert run([python, "-c", program], cwd=tmp_path).stdout == f"hello {backstay.__version__}\n"
    library = next(pathlib.Path(tmp_path / "bare").rglob("_native.abi3.so"))
    needed = re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", library]).stdout)
    assert {name.split(".so")[0] for name in needed} <= {
        "libc", "libm", "libgcc_s", "libpthread", "libdl", "librt", "ld-linux-x86-64"}
