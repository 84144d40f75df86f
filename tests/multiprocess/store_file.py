# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A store read as docs/format/store.md describes it, without checking digests: to aim at its parts."""

import collections
import ctypes
import struct

XXHASH = ctypes.CDLL("libxxhash.so.0")
XXHASH.XXH3_64bits.argtypes, XXHASH.XXH3_64bits.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64

SUPERBLOCKS = (0, 4096)
ROOTS = (16384, 32768)
# Of a root: the count of its revisions, behind the lineage, and the first of them.
REVISIONS, REVISION_BYTES = 100, 88
HEAD, ZONE_SLOTS, RECORD, FANOUT = 65536, 256, 64, 32

Revision = collections.namedtuple("Revision", "number incarnation flags ranks_of_job table")
Stream = collections.namedtuple("Stream", "length block height address")
# Something that stands in the file: "page", "block" or "rank root".
Piece = collections.namedtuple("Piece", "kind offset length")


class StoreFile:
    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            self.bytes = file.read(HEAD)
        self.segment_bytes = struct.unpack_from("<I", self.bytes, 32)[0] or \
            struct.unpack_from("<I", self.bytes, 4096 + 32)[0]

    def write(self, offset, new):
        with open(self.path, "r+b") as file:
            file.seek(offset)
            file.write(new)

    def read(self, offset, length):
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.read(length)

    def seal(self, offset):
        """Gives the frame at `offset` the checksum of what it says now."""
        length, = struct.unpack("<I", self.read(offset + 12, 4))
        frame = self.read(offset, length - 8)
        self.write(offset + length - 8, struct.pack("<Q", XXHASH.XXH3_64bits(frame, len(frame))))

    def flip(self, offset, mask=0x10):
        self.write(offset, bytes([self.read(offset, 1)[0] ^ mask]))

    # ---- Roots -----------------------------------------------------------------------------------------

    def newest_slot(self):
        def sequence(slot):
            if self.bytes[ROOTS[slot]:ROOTS[slot] + 8] != b"BKSTROOT":
                return 0
            return struct.unpack_from("<Q", self.bytes, ROOTS[slot] + 32)[0]
        return 1 if sequence(1) > sequence(0) else 0

    def revisions(self, slot=None):
        """Of the newest root, or that in `slot`, oldest first."""
        root = ROOTS[self.newest_slot() if slot is None else slot]
        if self.bytes[root:root + 8] != b"BKSTROOT":
            return []
        count, = struct.unpack_from("<I", self.bytes, root + REVISIONS)
        found = []
        for index in range(min(count, 64)):
            at = root + REVISIONS + 4 + REVISION_BYTES * index
            incarnation, number, flags, ranks = struct.unpack_from("<QQII", self.bytes, at)
            found.append(Revision(number, incarnation, flags, ranks, self.stream(self.bytes, at + 48)))
        return found

    @staticmethod
    def stream(data, at):
        length, block, height = struct.unpack_from("<QIB", data, at)
        return Stream(length, block, height, struct.unpack_from("<Q", data, at + 16)[0])

    # ---- Segments ----------------------------------------------------------------------------------------

    def slots(self):
        """Segment id to slot number."""
        with open(self.path, "rb") as file:
            size = file.seek(0, 2)
        zone = 2 * ZONE_SLOTS * RECORD + ZONE_SLOTS * self.segment_bytes
        found = {}
        for start in range(HEAD, size, zone):
            table = self.read(start, ZONE_SLOTS * RECORD)
            for index in range(ZONE_SLOTS):
                if table[index * RECORD:index * RECORD + 8] == b"BKSTSEGM":
                    segment, = struct.unpack_from("<Q", table, index * RECORD + 32)
                    found[segment] = (start - HEAD) // zone * ZONE_SLOTS + index
        return found

    def zone(self, slot):
        return HEAD + slot // ZONE_SLOTS * (2 * ZONE_SLOTS * RECORD + ZONE_SLOTS * self.segment_bytes)

    def record_offset(self, slot, copy):
        return self.zone(slot) + (copy * ZONE_SLOTS + slot % ZONE_SLOTS) * RECORD

    def offset(self, address):
        if not hasattr(self, "found_slots"):
            self.found_slots = self.slots()
        slot = self.found_slots[address >> 16]
        begin = self.zone(slot) + 2 * ZONE_SLOTS * RECORD + slot % ZONE_SLOTS * self.segment_bytes
        return begin + (address & 0xffff) * 64

    # ---- Trees -------------------------------------------------------------------------------------------

    def walk(self, stream, kind):
        """The pieces of a stream: pages and blocks."""
        counts = [-(-stream.length // stream.block)]
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // FANOUT))
        pieces = []

        def below(level, index, address):
            if level == 0:
                length = min(stream.block, stream.length - index * stream.block)
                pieces.append(Piece(kind, self.offset(address), length))
                return
            entries = min(FANOUT, counts[level - 1] - index * FANOUT)
            page = self.read(self.offset(address), 16 + 24 * entries)
            pieces.append(Piece(f"page of {kind}", self.offset(address), len(page)))
            for entry in range(entries):
                child, = struct.unpack_from("<Q", page, 16 + 24 * entry)
                below(level - 1, index * FANOUT + entry, child)

        if stream.length:
            below(stream.height, 0, stream.address)
        return pieces

    def content(self, stream, kind):
        return b"".join(self.read(p.offset, p.length) for p in self.walk(stream, kind) if p.kind == kind)

    def pieces(self, revision):
        """All that a revision refers to; "block" are the blocks of variables."""
        found = self.walk(revision.table, "table of ranks")
        ranks = self.content(revision.table, "table of ranks")
        for at in range(0, len(ranks), 32):
            root = self.offset(struct.unpack_from("<Q", ranks, at + 8)[0])
            found.append(Piece("rank root", root, 144))
            data = self.read(root, 144)
            found += self.walk(self.stream(data, 56), "descriptors")
            table = self.stream(data, 96)
            found += self.walk(table, "table of variables")
            streams = self.content(table, "table of variables")
            for variable in range(0, len(streams), 40):
                found += self.walk(self.stream(streams, variable), "block")
        return found
