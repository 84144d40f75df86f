# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What CephFS's daemons count, read from their admin sockets: about a millisecond each."""

import json
import pathlib
import socket
import struct


class AdminError(Exception):
    """What a daemon did not answer."""


def receive(connection, count):
    parts = b""
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise AdminError(f"{len(parts)} of {count} bytes of an answer")
        parts += part
    return parts


def ask(path, command, **words):
    """A command to the daemon that has this admin socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(json.dumps({"prefix": command, **words}).encode() + b"\0")
        length, = struct.unpack(">I", receive(connection, 4))
        answer = receive(connection, length)
    try:
        return json.loads(answer)
    except ValueError:
        # A daemon that is just starting says nothing, or something else.
        return None


def count_of(value):
    return value["avgcount"] if isinstance(value, dict) else value


def snapshot(run_folder):
    """All counters of one moment: "req.NAME" and "requests" of clients, "caps.NAME", "osd.NAME"."""
    dump = ask(pathlib.Path(run_folder) / "mds.a.asok", "perf dump")
    found = {"requests": dump["mds_server"]["handle_client_request"]}
    for key, value in dump["mds_server"].items():
        if key.startswith("req_") and key.endswith("_latency"):
            found[f"req.{key[4:-8]}"] = count_of(value)
    found["caps.from clients"] = dump["mds"]["handle_client_caps"]
    found["caps.dirty"] = dump["mds"]["handle_client_caps_dirty"]
    found["caps.revoked"] = dump["mds"]["ceph_cap_op_revoke"]
    found["journal"] = dump["mds_log"]["evadd"]
    for path in pathlib.Path(run_folder).glob("osd.*.asok"):
        counted = ask(path, "perf dump")["osd"]
        for key in ("op_w", "op_r", "op_rw", "op_w_in_bytes"):
            found[f"osd.{key}"] = found.get(f"osd.{key}", 0) + counted[key]
    return found


class Counted:
    """Differences between two moments."""

    def __init__(self):
        self.all = {}

    def take(self, before, after):
        self.all = {key: after[key] - before.get(key, 0) for key in after}

    def total(self):
        """Requests of clients at the metadata server."""
        return self.all["requests"]

    def requests(self):
        """{type: count} of them, without types that were not seen."""
        return {key[4:]: count for key, count in self.all.items() if key.startswith("req.") and count}

    def caps(self):
        return {key[5:]: count for key, count in self.all.items() if key.startswith("caps.") and count}

    def storage_writes(self):
        """Write operations at the object servers: those of files, and the metadata server's own."""
        return self.all["osd.op_w"] + self.all["osd.op_rw"]
