# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The storage for torch_checkpointing: what its documentation says of every storage, and what is ours.

The first part is written after the page on storages and the docstrings of `Storage` in torch_checkpointing 0.1.1, whose
sentences the docstrings here quote. It runs against the storage of that package as well, which shows that it asks for
what the package means.
"""

import concurrent.futures
import io
import json
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import time

import numpy
import pytest
import warm

import backstay

torch = pytest.importorskip("torch")
pytest.importorskip("torch_checkpointing")

from torch_checkpointing import CheckpointManager  # noqa: E402
from torch_checkpointing.storage.base_storage import ReadArgs, Storage, StorageConfig  # noqa: E402
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig  # noqa: E402
from torch_checkpointing.storage.torch_serialization import load_torch_serialized_from_storage  # noqa: E402

from backstay.torch.storage import PLAIN_BYTES_MAX, BackstayStorageConfig  # noqa: E402

SMALL, LARGE = b"a few bytes", bytes(range(256)) * 4096 + b"and some"
OURS, THEIRS = "backstay", "filesystem"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture(params=[OURS, THEIRS])
def config(request, root):
    if request.param == OURS:
        return BackstayStorageConfig(root=str(root), job="files")
    return LocalFileSystemStorageConfig(use_direct_io=False)


@pytest.fixture
def storage(config):
    made = config.create_storage()
    yield made
    if hasattr(made, "close"):
        made.close()


@pytest.fixture(params=[b"", SMALL, LARGE], ids=["empty", "small", "large"])
def data(request):
    return request.param


# ---- What every storage does


def test_every_backend_ships_a_config_class_whose_create_storage_returns_its_concrete_storage(config, storage):
    """Every backend ships a config class inheriting from `StorageConfig` and implements `create_storage()`."""
    assert isinstance(config, StorageConfig) and isinstance(storage, Storage)


def test_configs_are_serializable(config, root):
    """This keeps configs serializable and lets code that only needs to describe a backend stay decoupled."""
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    storage = again.create_storage()
    storage.write(root / "file", SMALL)
    assert storage.read(root / "file") == SMALL


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: numpy.frombuffer(data, numpy.uint8)])
def test_write_accepts_any_buffer_protocol_object(storage, root, data, kind):
    """Write the entire buffer to a file. [...] implementations should accept any buffer-protocol object."""
    storage.write(root / "file", kind(data))
    assert storage.read(root / "file") == data


def test_write_accepts_a_buffer_of_other_elements(storage, root):
    array = numpy.arange(20_000.0).reshape(100, 200)
    storage.write(root / "file", array)
    assert storage.read(root / "file") == array.tobytes()


def test_a_written_file_is_overwritten(storage, root, data):
    for before in (LARGE * 2, SMALL, data):
        storage.write(root / "file", before)
    assert storage.read(root / "file") == data
    assert storage.getsize(root / "file") == len(data)


def test_read_returns_the_entire_contents_as_bytes(storage, root, data):
    """Read the entire contents of a file. Returns: The file contents as bytes."""
    storage.write(root / "file", data)
    for arguments in (None, ReadArgs(), ReadArgs(pre_read_full_file=False), ReadArgs(known_size_bytes=len(data))):
        found = storage.read(root / "file", arguments)
        assert type(found) is bytes and found == data


def test_read_raises_file_not_found_error(storage, root):
    """Raises: FileNotFoundError: If the file does not exist."""
    for arguments in (None, ReadArgs(pre_read_full_file=False)):
        with pytest.raises(FileNotFoundError):
            storage.read(root / "absent", arguments)
        with pytest.raises(FileNotFoundError):
            storage.stream_read(root / "absent", arguments)


@pytest.mark.parametrize("ahead", [True, False])
def test_stream_read_returns_raw_io_so_callers_get_readinto_support(storage, root, ahead):
    """Stream data from the given file path in chunks. Returns RawIOBase to have readinto support."""
    storage.write(root / "file", LARGE)
    with storage.stream_read(root / "file", ReadArgs(pre_read_full_file=ahead)) as stream:
        assert stream.readable() and stream.seekable()
        buffer, found = bytearray(10_000), b""
        while count := stream.readinto(buffer):
            found += buffer[:count]
        assert found == LARGE
        assert stream.readinto(bytearray(5)) == 0 and stream.read(5) == b""


@pytest.mark.parametrize("ahead", [True, False])
def test_a_stream_seeks_where_it_is_told(storage, root, ahead):
    """Check where the seek landed (torch_serialization): it is the offset that was asked for."""
    storage.write(root / "file", LARGE)
    with storage.stream_read(root / "file", ReadArgs(pre_read_full_file=ahead)) as stream:
        for offset, count in [(0, 5), (16_384, 1), (16_383, 2), (len(LARGE) - 3, 3), (700_001, 100_000), (5, 0)]:
            assert stream.seek(offset) == offset == stream.tell()
            assert stream.read(count) == LARGE[offset:offset + count]
            assert stream.tell() == offset + count
        assert stream.seek(-4, io.SEEK_END) == len(LARGE) - 4
        assert stream.read() == LARGE[-4:]
        stream.seek(10)
        assert stream.seek(5, io.SEEK_CUR) == 15
        assert stream.seek(len(LARGE) + 10) == len(LARGE) + 10
        assert stream.read(3) == b""


def test_streams_of_a_file_are_independent(storage, root):
    """Each worker opens its own stream and seeks to its own offset."""
    storage.write(root / "file", LARGE)

    def part(offset):
        with storage.stream_read(root / "file", ReadArgs(pre_read_full_file=False)) as stream:
            stream.seek(offset)
            return stream.read(1000)

    offsets = range(0, len(LARGE), 100_000)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(part, offsets)) == [LARGE[offset:offset + 1000] for offset in offsets]


def test_stream_write_returns_a_file_like_object_for_writing(storage, root, data):
    """Return a file-like object for writing. The framework reads a written file only after close() returns."""
    with storage.stream_write(root / "file") as stream:
        for at in range(0, len(data), 100_000):
            piece = data[at:at + 100_000]
            assert stream.write(memoryview(piece)) == len(piece)
        stream.flush()
    assert storage.read(root / "file") == data
    assert storage.getsize(root / "file") == len(data)


def test_get_write_stream_returns_the_stream_used_to_serialize_data(storage, root):
    """Return the stream used to serialize ``data``."""
    tree = {"weight": torch.randn(300, 200), "step": 7}
    with storage.get_write_stream(root / "model.pt", tree) as stream:
        torch.save(tree, stream)
    for direct_io in (False, True):
        found = load_torch_serialized_from_storage(root / "model.pt", storage, direct_io=direct_io)
        assert torch.equal(found["weight"], tree["weight"]) and found["step"] == 7
    with storage.stream_read(root / "model.pt", ReadArgs(pre_read_full_file=False)) as stream:
        assert torch.equal(torch.load(stream)["weight"], tree["weight"])


def test_writing_fails_if_the_parent_is_not_there(storage, root):
    """Verifies the parent directory exists (raising `RuntimeError` otherwise): here any error of that kind."""
    with pytest.raises((OSError, RuntimeError)):
        storage.write(root / "absent" / "file", SMALL)
    with pytest.raises((OSError, RuntimeError)):
        with storage.stream_write(root / "absent" / "file") as stream:
            stream.write(SMALL)
    assert not storage.exists(root / "absent")


def test_writing_onto_a_directory_fails(storage, root, data):
    storage.mkdir(root / "folder")
    with pytest.raises(OSError):
        storage.write(root / "folder", data)
    assert storage.isdir(root / "folder")


def test_delete_deletes_a_file(storage, root, data):
    """Delete a file."""
    storage.write(root / "file", data)
    storage.write(root / "other", data)
    storage.delete(root / "file")
    assert not storage.exists(root / "file") and storage.ls(root) == ["other"]
    with pytest.raises(FileNotFoundError):
        storage.read(root / "file")
    with pytest.raises(FileNotFoundError):
        storage.delete(root / "file")
    assert storage.read(root / "other") == data


def test_delete_does_not_delete_a_directory(storage, root):
    storage.mkdir(root / "folder")
    with pytest.raises(OSError):
        storage.delete(root / "folder")
    assert storage.isdir(root / "folder")


def test_mkdir_creates_a_directory(storage, root):
    """Create a directory. [...] `exist_ok=True` when `recursive` (default)."""
    storage.mkdir(root / "a" / "b" / "c")
    storage.mkdir(root / "a" / "b" / "c")
    assert storage.isdir(root / "a" / "b") and storage.ls(root / "a" / "b") == ["c"]
    with pytest.raises(FileExistsError):
        storage.mkdir(root / "a", recursive=False)
    with pytest.raises(FileNotFoundError):
        storage.mkdir(root / "x" / "y", recursive=False)
    storage.mkdir(root / "x", recursive=False)
    assert storage.isdir(root / "x")
    storage.write(root / "file", SMALL)
    with pytest.raises(OSError):
        storage.mkdir(root / "file")


def test_rmdir_removes_a_directory(storage, root):
    """Remove a directory. [...] falls back to `shutil.rmtree`: with all that is in it."""
    for folder in ("empty", "full", "full/deeper"):
        storage.mkdir(root / folder)
    storage.write(root / "full" / "large", LARGE)
    storage.write(root / "full" / "deeper" / "small", SMALL)
    storage.write(root / "full2", SMALL)
    storage.rmdir(root / "empty")
    storage.rmdir(root / "full")
    assert storage.ls(root) == ["full2"]
    with pytest.raises(FileNotFoundError):
        storage.rmdir(root / "full")
    with pytest.raises(FileNotFoundError):
        storage.read(root / "full" / "large")


def test_rmdir_does_not_remove_a_file(storage, root):
    storage.write(root / "file", SMALL)
    with pytest.raises(OSError):
        storage.rmdir(root / "file")
    assert storage.read(root / "file") == SMALL


def occupied(storage, path, by):
    """Has this at a path; what is then to be found there."""
    if by == "empty directory":
        storage.mkdir(path)
    elif by == "populated directory":
        storage.mkdir(path)
        storage.write(path / "before", LARGE)
    elif by == "existing file":
        storage.write(path, LARGE + b"before")


@pytest.mark.parametrize("by", ["absent", "empty directory"])
def test_rename_of_a_directory_commits(storage, root, by):
    """directory onto absent: contents land AT ``dst_path``; onto an empty directory: replace it.

    A caller whose rename returned without raising must be able to read its files at ``dst_path``. A backend that
    cannot replace an empty destination should raise rather than emulate it.
    """
    storage.mkdir(root / "source" / "deeper")
    storage.write(root / "source" / "large", LARGE)
    storage.write(root / "source" / "deeper" / "small", SMALL)
    occupied(storage, root / "target", by)
    storage.rename(root / "source", root / "target", is_directory=True)
    assert sorted(storage.ls(root / "target")) == ["deeper", "large"]
    assert storage.read(root / "target" / "large") == LARGE
    assert storage.read(root / "target" / "deeper" / "small") == SMALL
    assert not storage.exists(root / "source")


@pytest.mark.parametrize("by", ["populated directory", "existing file"])
def test_rename_of_a_directory_onto_what_is_occupied_raises(storage, root, by):
    """An occupied destination raises; it is never merged into or deleted."""
    storage.mkdir(root / "source")
    storage.write(root / "source" / "large", LARGE)
    occupied(storage, root / "target", by)
    with pytest.raises(OSError):
        storage.rename(root / "source", root / "target", is_directory=True)
    assert storage.ls(root / "source") == ["large"] and storage.read(root / "source" / "large") == LARGE
    if by == "existing file":
        assert storage.read(root / "target") == LARGE + b"before"
    else:
        assert storage.ls(root / "target") == ["before"] and storage.read(root / "target" / "before") == LARGE


@pytest.mark.parametrize("by", ["absent", "existing file"])
def test_rename_of_a_file_commits_or_replaces(storage, root, data, by):
    """file onto absent: commit; onto an existing file: replace it."""
    storage.write(root / "source", data)
    occupied(storage, root / "target", by)
    storage.rename(root / "source", root / "target")
    assert storage.read(root / "target") == data and storage.ls(root) == ["target"]


@pytest.mark.parametrize("by", ["empty directory", "populated directory"])
def test_rename_of_a_file_onto_a_directory_raises(storage, root, data, by):
    """file onto directory: raise ``OSError`` (empty or not); never *inside* it."""
    storage.write(root / "source", data)
    occupied(storage, root / "target", by)
    with pytest.raises(OSError):
        storage.rename(root / "source", root / "target")
    assert storage.read(root / "source") == data and storage.isdir(root / "target")
    assert storage.ls(root / "target") == (["before"] if by == "populated directory" else [])


def test_rename_of_what_is_absent_raises(storage, root):
    for is_directory in (False, True):
        with pytest.raises(FileNotFoundError):
            storage.rename(root / "absent", root / "target", is_directory=is_directory)
    assert storage.ls(root) == []


def test_rename_takes_its_flags(storage, root):
    """If True, delete source objects in a background thread after copying completes [...]. Only directory renames."""
    storage.mkdir(root / "source")
    storage.write(root / "source" / "file", LARGE)
    storage.rename(src_path=root / "source", dst_path=root / "target", is_directory=True, background_cleanup=True)
    assert storage.read(root / "target" / "file") == LARGE


def test_ls_lists_a_single_level(storage, root):
    """List contents of a directory: a single-level listing of names."""
    assert storage.ls(root) == []
    storage.mkdir(root / "a" / "b")
    storage.write(root / "a" / "file", LARGE)
    storage.write(root / "file", SMALL)
    assert sorted(storage.ls(root)) == ["a", "file"] and sorted(storage.ls(root / "a")) == ["b", "file"]
    with pytest.raises(FileNotFoundError):
        storage.ls(root / "absent")
    with pytest.raises(OSError):
        storage.ls(root / "file")


def test_exists_and_isdir(storage, root, data):
    """Check if a file or directory exists. True if path is a directory, False otherwise."""
    storage.mkdir(root / "folder")
    storage.write(root / "file", data)
    paths = [root, root / "folder", root / "file", root / "absent", root / "file" / "below"]
    assert [storage.exists(path) for path in paths] == [True, True, True, False, False]
    assert [storage.isdir(path) for path in paths] == [True, True, False, False, False]


def test_getsize_is_the_size_in_bytes(storage, root, data):
    """Size of the file in bytes. Raises: FileNotFoundError: If the file does not exist."""
    storage.write(root / "file", data)
    assert storage.getsize(root / "file") == len(data)
    with pytest.raises(FileNotFoundError):
        storage.getsize(root / "absent")


def test_glob_matches_a_single_level(storage, root):
    """This is single level only. Returns: List of matching paths as strings."""
    for name in ("checkpoint_1", "checkpoint_2", "other"):
        storage.mkdir(root / name)
    storage.write(root / "checkpoint_3", LARGE)
    storage.write(root / "checkpoint_1" / "checkpoint_4", SMALL)
    found = storage.glob(str(root / "checkpoint_*"))
    assert sorted(found) == [str(root / f"checkpoint_{at}") for at in (1, 2, 3)]
    assert storage.glob(str(root / "absent" / "*")) == []


def test_remap_path_returns_the_path_where_there_is_no_mapping(storage, root):
    """Backends with no such mapping can just return `str(path)`."""
    assert storage.remap_path(root / "file") == str(root / "file")


def test_preferred_concurrency_is_none_or_positive(storage):
    """Override with the backend's preferred full-file read concurrency."""
    for preferred in (storage.mmap_fill_workers, storage.mmap_fill_chunk_bytes):
        assert preferred is None or preferred > 0


def test_files_are_written_by_several_threads(storage, root):
    contents = {f"file {at}": random.Random(at).randbytes(100_000 + at) for at in range(8)}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: storage.write(root / item[0], item[1]), contents.items()))
    assert {name: storage.read(root / name) for name in storage.ls(root)} == contents


def test_another_storage_of_the_same_config_reads_what_was_written(config, storage, root, data):
    storage.write(root / "file", data)
    assert config.create_storage().read(root / "file") == data


def test_a_manager_saves_and_loads_with_it(config, root):
    """Once defined, your backend plugs in exactly like the shipped one - pass the config to the manager."""
    made = CheckpointManager.Config.with_sync_save()
    made.storage_config = config
    manager = CheckpointManager(made)
    tree = {"model": {"weight": torch.randn(200, 300)}, "step": 5}
    manager.save(str(root / "step_5"), tree)
    into = {"model": {"weight": torch.zeros(200, 300)}, "step": 0}
    found = manager.load(str(root / "step_5"), into=into)
    manager.close()
    assert torch.equal(into["model"]["weight"], tree["model"]["weight"]) and found["step"] == 5


# ---- What is ours


@pytest.fixture
def ours(root):
    with BackstayStorageConfig(root=str(root), job="files").create_storage() as storage:
        yield storage


def test_a_size_that_the_caller_knows_is_validated(ours, root, data):
    """Backends [...] must validate it against the storage response before copying data."""
    ours.write(root / "file", data)
    with pytest.raises(OSError):
        ours.stream_read(root / "file", ReadArgs(known_size_bytes=len(data) + 1))


def kept(store):
    """How many contents there are in the store."""
    return sum(one.pinned for path in store.glob("files*") for one in backstay.read(path).checkpoints)


def test_contents_are_given_up_when_their_names_are_gone(ours, root, store):
    for step in range(4):
        ours.mkdir(root / f"step {step}")
        ours.write(root / f"step {step}" / "model", LARGE + bytes([step]))
        ours.write(root / f"step {step}" / "optimizer", LARGE[:100_000])
    assert kept(store) == 8
    ours.rmdir(root / "step 0")
    assert kept(store) == 6
    ours.delete(root / "step 1" / "model")
    assert kept(store) == 5
    ours.write(root / "step 2" / "model", SMALL)
    assert kept(store) == 4
    ours.write(root / "step 2" / "model", LARGE)
    ours.rename(root / "step 2" / "model", root / "step 3" / "model")
    assert kept(store) == 4
    assert ours.read(root / "step 3" / "model") == LARGE
    ours.rename(root / "step 3", root / "moved")
    assert kept(store) == 4


def test_what_another_storage_deletes_is_given_up_at_the_next_write(ours, root, store):
    ours.write(root / "model", LARGE)
    BackstayStorageConfig(root=str(root), job="files").create_storage().delete(root / "model")
    assert kept(store) == 1
    ours.write(root / "other" / ".." / "model", LARGE)
    assert kept(store) == 1


def test_what_others_delete_is_given_up_by_the_next_start(ours, root, store):
    for name in ("a", "b"):
        ours.mkdir(root / name)
        ours.write(root / name / "model", LARGE)
    ours.close()
    other = BackstayStorageConfig(root=str(root), job="other").create_storage()
    other.rmdir(root / "a")
    os.rename(root / "b", root / "c")
    assert kept(store) == 2
    ours.write(root / "c" / "new", LARGE)
    ours.mkdir(root / "d")
    ours.write(root / "d" / "model", SMALL * 10_000)
    assert ours.read(root / "c" / "model") == LARGE
    assert kept(store) == 3


def test_at_the_limit_of_a_store_nothing_is_lost_and_room_is_found(ours, root):
    for at in range(57):
        ours.mkdir(root / f"{at}")
        ours.write(root / f"{at}" / "model", LARGE[:PLAIN_BYTES_MAX + 1 + at])
    ours.mkdir(root / "more")
    with pytest.raises(backstay.StoreFull):
        ours.write(root / "more" / "model", LARGE)
    assert not ours.exists(root / "more" / "model")
    os.unlink(root / "7" / "model")
    ours.write(root / "more" / "model", LARGE)
    assert ours.read(root / "more" / "model") == LARGE
    for at in (0, 6, 8, 56):
        assert ours.read(root / f"{at}" / "model") == LARGE[:PLAIN_BYTES_MAX + 1 + at]


def test_two_roots_with_the_same_job_do_not_give_up_each_other_s(tmp_path, store):
    roots = [tmp_path / "one", tmp_path / "two"]
    for turn in range(3):
        for root in roots:
            root.mkdir(exist_ok=True)
            with BackstayStorageConfig(root=root, job="files").create_storage() as storage:
                storage.write(root / "model", LARGE + bytes([turn]))
    for root in roots:
        assert BackstayStorageConfig(root=root).create_storage().read(root / "model") == LARGE + b"\2"
    assert kept(store) == 2


def test_two_storages_write_the_same_name_at_once(ours, root):
    with BackstayStorageConfig(root=str(root), job="files").create_storage() as other:
        ours.write(root / "file", LARGE)
        other.write(root / "file", LARGE + b"other")
        assert ours.read(root / "file") == LARGE + b"other"
        ours.write(root / "file", LARGE)
        assert other.read(root / "file") == LARGE


def test_a_file_of_the_same_name_is_written_as_its_difference(ours, root, store):
    data = bytearray(random.Random(1).randbytes(4_000_000))
    for step in range(2):
        ours.mkdir(root / f"{step}")
        data[step] ^= 255
        ours.write(root / f"{step}" / "model", data)
        ours.write(root / f"{step}" / "optimizer", data)
    changed = [one.bytes_changed for one in backstay.read(store / "files.model").checkpoints]
    assert changed[0] >= 4_000_000 and changed[1] < 50_000


def test_a_stream_that_is_left_by_an_error_leaves_what_was_there(ours, root, data):
    ours.write(root / "file", data)
    with pytest.raises(ZeroDivisionError), ours.stream_write(root / "file") as stream:
        stream.write(LARGE)
        raise ZeroDivisionError
    stream = ours.stream_write(root / "file")
    stream.write(SMALL)
    del stream
    stream = ours.stream_write(root / "file")
    stream.write(SMALL)
    stream.abort()
    stream.close()
    assert ours.read(root / "file") == data and ours.ls(root) == ["file"]


def test_a_content_that_looks_like_a_marker_is_none(ours, root):
    ours.write(root / "file", LARGE)
    data = (root / "file").read_bytes()
    assert len(data) < 1000
    ours.write(root / "copy", data)
    assert ours.read(root / "copy") == data and ours.getsize(root / "copy") == len(data)


def test_paths_are_below_the_root(ours, root):
    ours.mkdir("folder")
    ours.write("folder/file", SMALL)
    assert ours.read(root / "folder" / "file") == SMALL
    for path in ("/elsewhere", root / ".." / "file", str(root) + "2/file"):
        with pytest.raises(backstay.InvalidArgument):
            ours.write(pathlib.Path(path), SMALL)
    ours.write("folder/large", LARGE)
    own = root / ".backstay"
    for call in (lambda: ours.rmdir(root), lambda: ours.rename(root, root / "x"), lambda: ours.rmdir(own)):
        with pytest.raises(PermissionError):
            call()
    assert ours.ls(root) == ["folder"]


SAVING = """
import sys, json, torch
from backstay.torch.storage import BackstayStorageConfig
root = sys.argv[1]
storage = BackstayStorageConfig(root=root, job="files").create_storage()
count = int(sys.argv[2])
print("begun", flush=True)
while True:
    count += 1
    storage.mkdir(root + "/new")
    storage.write(root + "/new/large", count.to_bytes(8, "little") * 10_000)
    storage.write(root + "/new/small", json.dumps(count).encode())
    if storage.exists(root + "/now"):
        storage.rename(root + "/now", root + "/old")
    storage.rename(root + "/new", root + "/now", is_directory=True)
    if storage.exists(root + "/old"):
        storage.rmdir(root + "/old")
    print(count, flush=True)
"""


def test_kills_at_random_moments_leave_whole_files_and_nothing_beside_them(root, store):
    told = 0
    for _ in range(4):
        process = warm.Popen(["-c", SAVING, root, told], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "begun\n"
        time.sleep(random.uniform(0, 0.4))
        os.kill(process.pid, signal.SIGKILL)
        told = max([told, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        with BackstayStorageConfig(root=str(root), job="files").create_storage() as storage:
            folder = root / ("now" if storage.exists(root / "now") else "old")
            if told:
                count = json.loads(storage.read(folder / "small"))
                assert told <= count <= told + 1
                assert storage.read(folder / "large") == count.to_bytes(8, "little") * 10_000
                told = count
            for name in storage.ls(root):
                if name != folder.name:
                    storage.rmdir(root / name)
            if storage.exists(root / "old"):
                storage.rename(root / "old", root / "now")
            storage.write(root / "large", LARGE)
            storage.delete(root / "large")
            assert kept(store) == (1 if told else 0)


KILLED = """
import os, signal, sys
from backstay.torch import storage
def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
made = storage.BackstayStorageConfig(root=sys.argv[1], job="files").create_storage()
made.write(sys.argv[1] + "/model", b"a" * 100_000)
where, what = sys.argv[2].split(".")
setattr(os if where == "os" else storage, what, kill)
made.write(sys.argv[1] + "/model", b"b" * 100_000)
"""


@pytest.mark.parametrize("where", ["storage.write_durably", "os.link", "storage.sync_folder", "os.replace"])
def test_a_kill_between_two_steps_of_a_write_leaves_the_file_before_and_nothing_beside_it(root, ours, store, where):
    """`sync_folder` is called between the second name and the first."""
    ended = warm.run(["-c", KILLED, root, where])
    assert ended.returncode == -signal.SIGKILL
    assert ours.read(root / "model") == b"a" * 100_000 and ours.ls(root) == ["model"]
    ours.mkdir(root / "other")
    ours.write(root / "other" / "model", LARGE)
    assert kept(store) == 2
    assert len(list((root / ".backstay" / "names" / "files.model").iterdir())) == 2


ASYNC = """
import sys, torch
from torch_checkpointing import CheckpointManager
from torch_checkpointing.config import AsyncCheckpointSaverConfig
from torch_checkpointing.staging import CheckpointStagerConfig
from backstay.torch.storage import BackstayStorageConfig

def main():
    root = sys.argv[1]
    staging = CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False)
    manager = CheckpointManager(CheckpointManager.Config(
        storage_config=BackstayStorageConfig(root=root, job="files"),
        save=AsyncCheckpointSaverConfig(staging_config=staging)))
    weight = torch.zeros(100, 1000)
    for step in range(3):
        weight += 1
        manager.save(f"{root}/{step}", {"model": {"weight": weight}, "step": step}).result()
    loaded = torch.empty(100, 1000)
    for step in range(3):
        found = manager.load(f"{root}/{step}", into={"model": {"weight": loaded}, "step": 0})
        assert found["step"] == step and (loaded == step + 1).all()
    manager.close()
    print("well")

if __name__ == "__main__":
    main()
"""


def test_a_manager_writes_from_its_own_process_while_this_one_reads(root, tmp_path, store):
    (tmp_path / "program.py").write_text(ASYNC)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "program.py"), str(root)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.endswith("well\n"), ended.stderr
    assert kept(store) == 3
