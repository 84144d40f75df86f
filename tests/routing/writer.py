# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A program that knows nothing of Backstay: writes its state by h5py to two names in turn, and goes on from the newest.

    writer.py STEPS WORDS PAUSE_US

A file is closed and opened again within each dump. The output is that of writer.c.
"""

import glob
import os
import sys
import time

import h5py
import numpy


def say(text):
    print(text, flush=True)


def judge(name):
    try:
        with h5py.File(name, "r") as file:
            step = int(file.attrs["step"])
            values, more = file["values"][...], file["more"][...]
    except (OSError, KeyError) as error:
        say(f"bad {name}: {error}")
        sys.exit(3)
    if not numpy.array_equal(values, numpy.arange(len(values)) * step) or more[0] != step:
        say(f"bad {name} is not of one step")
        sys.exit(3)
    return step


def write(name, step, words):
    with h5py.File(name, "w") as file:
        file["values"] = numpy.arange(1 + step * 7919 % words) * step
    with h5py.File(name, "a") as file:
        file["more"] = numpy.full(10, step)
        file.attrs["step"] = step


def main():
    steps, words, pause_us = map(int, sys.argv[1:])
    say(f"pid {os.getpid()}")
    found = max(map(judge, glob.glob("out/dump_*.h5")), default=0)
    say(f"found {found}")
    for step in range(found + 1, steps + 1):
        say(f"begun {step}")
        write(f"out/dump_{step % 2}.h5", step, words)
        say(f"done {step}")
        time.sleep(pause_us / 1e6)


main()
