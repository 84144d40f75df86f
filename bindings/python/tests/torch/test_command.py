# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`backstay export --safetensors`: what safetensors reads of its file is what PyTorch saved, to the last byte."""

import os
import subprocess

import pytest

import backstay

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
pytest.importorskip("safetensors")

from safetensors.torch import load_file  # noqa: E402

from backstay.torch import Checkpointer, Shelf, Writer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

COMMAND = os.environ.get("BACKSTAY_SITE_COMMAND", "backstay")


def exported(store, path):
    """The tensors in the file that the command writes."""
    file = path / "out.safetensors"
    words = [COMMAND, "export", store, "-o", file]
    subprocess.run(words, check=True, capture_output=True)
    return load_file(file)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        bytes_of = [one.detach().contiguous().reshape(-1).view(torch.uint8) for one in (found[name], tensor)]
        assert torch.equal(*bytes_of), name


def tensors():
    """Of several types and orders in memory."""
    return {
        "conv": torch.randn(8, 3, 5, 7).to(memory_format=torch.channels_last),
        "bf16": torch.randn(4, 1000).to(torch.bfloat16),
        "columns": torch.randn(300, 20).t(),
        "mask": torch.rand(33) > 0.5,
        "half": torch.randn(2, 3).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(7),
        "none": torch.zeros(0, 4),
    }


def test_of_a_shelf(store, tmp_path):
    saved = tensors()
    with Shelf() as shelf:
        shelf.put("key", {"inner": saved})
    same(exported(store, tmp_path), {f"inner/{name}": tensor for name, tensor in saved.items()})


def test_of_a_checkpointer(store, tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.LazyLinear(2))
    model(torch.randn(2, 3, 6, 6))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3, 6, 6)).sum().backward()
    optimizer.step()
    with Checkpointer(model=model, optimizer=optimizer) as checkpointer:
        checkpointer.checkpoint()
    found = exported(store, tmp_path)
    weights = {f"model/{name}": value for name, value in model.state_dict().items()}
    same({name: value for name, value in found.items() if name.startswith("model/")}, weights)
    assert any(name.startswith("optimizer/") and name.endswith("/exp_avg") for name in found)


def test_of_a_writer(store, tmp_path):
    state = tensors()
    state["other"] = {"not": ["a", "tensor"]}
    with Writer() as writer:
        dcp.save({"model": state}, storage_writer=writer, checkpoint_id="first", no_dist=True)
    expected = {f"model.{name}": tensor for name, tensor in state.items() if name != "other"}
    same(exported(store, tmp_path), expected)


def test_without_safetensors_types_there_is_no_file(store, tmp_path):
    with backstay.open() as session:
        session.protect("double", torch.zeros(5, dtype=torch.complex128))
        session.checkpoint()
    file = tmp_path / "out.safetensors"
    ran = subprocess.run([COMMAND, "export", store, "-o", file], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and '"double" is complex128' in ran.stderr, ran
    assert not file.exists()
