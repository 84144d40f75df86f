# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a child made by fork inherits of sessions: nothing that the job needs back.

Locks belong to the open file, which a child shares: one that outlives a killed program, as workers of data loaders do
for some seconds, would keep the job's locks. In a child, descriptors and mappings of our files lead to nowhere instead. They
are not closed: the child's copy of the session still has their numbers and addresses.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import weakref
from typing import Any

_OURS = re.compile(r"\.backstay( \(deleted\))?$|/backstay-archive-[^/]*/[^/]*\.lock$")
_ARCHIVE_LOCK = re.compile(r"/running$")

_map = ctypes.CDLL(None).mmap
_map.restype = ctypes.c_void_p
_map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_MAP_FIXED = 0x10

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def watch(session: Any) -> None:
    """Remembers a session until it is gone."""
    _open.add(session)


def forget(session: Any) -> None:
    """It was closed, or abandoned."""
    _open.discard(session)


def _inherited() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # The descriptor of the listing itself.
            continue
    return found


def _lead_descriptors_nowhere() -> None:
    paths = _inherited()
    ours = {number for number, path in paths.items() if _OURS.search(path)}
    folders = {os.path.dirname(paths[number]) for number in ours}
    ours |= {number for number, path in paths.items()
             if _ARCHIVE_LOCK.search(path) and os.path.dirname(path) in folders}
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in ours:
        os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)


def _replace_mappings() -> None:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as listed:
        lines = [line.rstrip("\n").split(maxsplit=5) for line in listed]
    how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    for fields in lines:
        if len(fields) == 6 and _OURS.search(fields[5]):
            first, end = (int(address, 16) for address in fields[0].split("-"))
            _map(first, end - first, mmap.PROT_READ | mmap.PROT_WRITE, how, -1, 0)


def _let_go() -> None:
    # What a session is asked may wait for a lock that a thread had which is not in this process.
    if not _open:
        return
    try:
        _lead_descriptors_nowhere()
        _replace_mappings()
    except OSError:
        # A child that cannot look is as one was before; what it keeps ends with it.
        return


os.register_at_fork(after_in_child=_let_go)
