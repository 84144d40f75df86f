# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Calls of the C library on routed names, as Python makes them: each does what it does on a file system, but links are
refused. The names that match are out/restart.* and steps.{step}/part.*."""

import errno
import glob
import mmap
import os
import pathlib
import shutil
import subprocess
import tempfile


def write(name, text, mode="w"):
    with open(name, mode) as file:
        file.write(text)


def read(name):
    return pathlib.Path(name).read_text()


def raises(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{call} {arguments} went well")


def names():
    write("out/restart.1", "one")
    assert read("out/restart.1") == "one"
    assert os.path.exists("out/restart.1") and os.path.getsize("out/restart.1") == 3
    assert os.access("out/restart.1", os.R_OK) and not os.access("out/restart.0", os.F_OK)
    assert os.listdir("out") == ["restart.1"], os.listdir("out")
    assert glob.glob("out/restart.*") == ["out/restart.1"]
    assert [entry.stat().st_size for entry in os.scandir("out")] == [3]
    os.chmod("out/restart.1", 0o600)
    os.utime("out/restart.1", (5, 5))
    assert os.stat("out/restart.1").st_mtime == 5
    assert os.statvfs("out/restart.1").f_bsize > 0
    raises(FileNotFoundError, os.statvfs, "out/restart.0")
    assert os.path.realpath("out/restart.1") == os.getcwd() + "/out/restart.1"
    os.rename("out/restart.1", "out/restart.2")
    assert not os.path.exists("out/restart.1")
    raises(FileNotFoundError, open, "out/restart.77")
    raises(FileNotFoundError, os.remove, "out/restart.77")
    raises(FileExistsError, open, "out/restart.2", "x")
    raises(PermissionError, os.link, "out/restart.2", "out/restart.9")
    raises(PermissionError, os.symlink, "out/restart.2", "out/restart.9")
    write("out/restart.2", "more", "a")
    assert read("out/restart.2") == "onemore"
    os.truncate("out/restart.2", 2)
    assert read("out/restart.2") == "on"


def other_ways():
    """The same file by other paths, by descriptors of folders, by names that are no text, and by names too long."""
    os.chdir("out")
    assert read("restart.2") == "on" and read("../out/./restart.2") == "on"
    os.chdir("..")
    os.symlink("out", "link")
    assert read("link/restart.2") == "on"
    folder = os.open("out", os.O_RDONLY)
    assert os.stat("restart.2", dir_fd=folder).st_size == 2
    assert os.read(os.open("restart.2", os.O_RDONLY, dir_fd=folder), 9) == b"on"
    assert "restart.2" in os.listdir(folder)
    name = b"out/restart.\xff\xfe"
    write(name, "bytes")
    assert b"restart.\xff\xfe" in os.listdir(b"out")
    os.remove(name)
    assert raises(OSError, open, "out/restart." + "n" * 300, "w").errno == errno.ENAMETOOLONG
    deep = "out/" + "./" * 2000 + "restart.2"
    assert len(deep) > 4000 and read(deep) == "on"
    assert raises(OSError, open, "out/" + "./" * 2100 + "restart.2").errno == errno.ENAMETOOLONG


def across():
    """Between names that are routed and names that are not, and folders."""
    write("plain.txt", "plain")
    os.rename("plain.txt", "out/restart.3")
    assert read("out/restart.3") == "plain" and not os.path.exists("plain.txt")
    os.rename("out/restart.3", "plain.txt")
    assert read("plain.txt") == "plain" and not os.path.exists("out/restart.3")
    shutil.copy("out/restart.2", "out/restart.6")
    shutil.copy2("out/restart.6", "copy")
    shutil.move("out/restart.6", "moved")
    assert read("copy") == read("moved") == "on"
    os.mkdir("out/restart.d")
    write("out/restart.d/x", "not routed")
    assert os.path.isdir("out/restart.d") and "restart.d" in os.listdir("out")
    shutil.rmtree("out/restart.d")
    os.mkdir("steps.1")
    write("steps.1/part.1", "part")
    assert os.listdir("steps.1") == ["part.1"]
    raises(OSError, os.rmdir, "steps.1")
    os.rename("steps.1", "steps.2")
    assert read("steps.2/part.1") == "part" and not os.path.exists("steps.1/part.1")
    descriptor, path = tempfile.mkstemp(prefix="restart.", dir="out")
    os.write(descriptor, b"zz")
    os.close(descriptor)
    os.replace(path, "out/restart.2")
    assert read("out/restart.2") == "zz"


def processes():
    """Children, programs that they become, mappings."""
    line = ("cat out/restart.2; echo; echo hi > out/restart.5; cat < out/restart.5; ls out; rm out/restart.5; "
            "test ! -e out/restart.5; (exec 3> out/restart.7; echo deep >&3); cat out/restart.7; rm out/restart.7")
    done = subprocess.run(line, shell=True, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["zz", "hi", "restart.2", "restart.5", "deep"], done.stdout
    child = os.fork()
    if child == 0:
        write("out/restart.8", "child")
        os._exit(0)
    os.waitpid(child, 0)
    assert read("out/restart.8") == "child"
    with open("out/restart.10", "wb+") as file:
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 0)
        memory[5:8] = b"abc"
        memory.close()
    assert pathlib.Path("out/restart.10").read_bytes()[5:8] == b"abc"
    # A child that is given the descriptor and does nothing with it keeps the file incomplete, and no longer.
    with open("out/restart.8", "r+") as file:
        os.set_inheritable(file.fileno(), True)
        subprocess.run(["true"], close_fds=False, check=True)


names()
other_ways()
across()
processes()
