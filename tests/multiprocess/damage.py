# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Damaged stores: an older checkpoint where there is one, a message that says what is wrong, never
wrong words."""

import struct

from faults import store_path
from job import History, expect
from store_file import HEAD, ROOTS, SUPERBLOCKS, StoreFile

CONFIGURATION, CORRUPT, UNSUPPORTED = 12, 30, 50
STEPS = 6


def ended(place, fixed=1, **options):
    """A store of a job that was killed after some checkpoints, and what the next start must restore."""
    history = History()
    job = place.job(fixed=fixed, **options)
    job.must_see("committed", job.ranks * STEPS)
    job.kill()
    history.judge(job)
    return StoreFile(store_path(place.folder / "store")), history


def goes_on(place, history, step=None, fixed=1, **options):
    """The next start must restore `step`, or whatever the history asks for; its output."""
    if step is not None:
        history.complete = min(history.complete, step)
    job = place.job(start=history.starts + 1, steps=history.begun + 2, fixed=fixed, **options)
    job.end()
    restored = {int(e.words[2]) for e in job.all("restored")}
    begun = history.begun
    history.judge(job, killed=False)
    expect(step is None or restored == {step}, f"restored {restored} of {begun}, not {step}")
    return job.text()


def says(text, *wanted):
    for pattern in wanted:
        expect(pattern in text, f"the message does not say {pattern!r}: {text[-2000:]}")


def own_pieces(store, kind):
    """Pieces of `kind` that only the newest revision has."""
    older, newest = store.revisions()[-2:]
    shared = {piece.offset for piece in store.pieces(older)}
    return [piece for piece in store.pieces(newest) if piece.kind == kind and piece.offset not in shared]


def shared_pieces(store, kind):
    """Pieces of `kind` that all retained revisions share."""
    revisions = store.revisions()
    sets = [{piece.offset for piece in store.pieces(revision)} for revision in revisions[:-1]]
    return [piece for piece in store.pieces(revisions[-1])
            if piece.kind == kind and all(piece.offset in offsets for offsets in sets)]


def flip_in(place, store, pieces):
    expect(pieces, "nothing of that kind stands in the store")
    piece = place.random.choice(pieces)
    store.flip(piece.offset + place.random.randrange(piece.length))


def first_superblock(place):
    store, history = ended(place)
    store.flip(SUPERBLOCKS[0] + place.random.randrange(56))
    text = goes_on(place, history)
    says(text, "superblock at byte 0", "expected", "found")


def both_superblocks(place):
    store, _ = ended(place)
    for offset in SUPERBLOCKS:
        store.flip(offset + 40)
    place.job(start=2, fixed=1).refused("open", CORRUPT, "store.backstay", "superblock at byte 0", "checksum",
                                       "expected", "found")


def another_format_version(place):
    store, _ = ended(place)
    for offset in SUPERBLOCKS:
        store.write(offset + 8, struct.pack("<H", 2))
        store.seal(offset)
    place.job(start=2, fixed=1).refused("open", UNSUPPORTED, "store.backstay", "superblock", "version",
                                       "expected 1", "found 2")


def newest_root(place):
    store, history = ended(place)
    older = store.revisions(1 - store.newest_slot())[-1].number
    store.flip(ROOTS[store.newest_slot()] + place.random.randrange(200))
    text = goes_on(place, history, step=older)
    says(text, "root slot at byte", "expected", "found", "the other root slot is used")


def both_roots(place):
    store, _ = ended(place)
    for offset in ROOTS:
        store.flip(offset + 70)
    place.job(start=2, fixed=1).refused("open", CORRUPT, "root slot at byte", "expected", "found")


def first_copies_of_segment_records(place):
    store, history = ended(place)
    for slot in store.slots().values():
        store.flip(store.record_offset(slot, 0) + place.random.randrange(56))
    newest = store.revisions()[-1].number
    says(goes_on(place, history, step=newest), "segment record at byte", "expected", "found")


def both_copies_of_a_segment_record(place):
    """A whole segment cannot be found: every checkpoint in it is named, none restored wrongly."""
    store, history = ended(place)
    slots = store.slots()
    used = sorted({revision.table.address >> 16 for revision in store.revisions()})
    for copy in (0, 1):
        store.flip(store.record_offset(slots[place.random.choice(used)], copy) + 33)
        store.flip(store.record_offset(slots[used[0]], copy) + 34)
    refused_or_older(place, history, "segment")


def refused_or_older(place, history, *wanted):
    """Nothing is restored wrongly: an older checkpoint, or an error on all ranks; the output."""
    job = place.job(start=history.starts + 1, steps=history.begun + 2, fixed=1)
    job.end()
    text = job.text() + " ".join(" ".join(e.words) for e in job.all("error"))
    says(text, *wanted, "expected", "found")
    expect(not job.all("fresh"), f"all is damaged, and it begins anew as if nothing had been: {text[-2000:]}")
    for event in job.all("wrong") + job.all("mix"):
        expect(False, f"rank {event.rank}: {event.name} {' '.join(event.words)}")
    if job.all("error"):
        expect(len(job.all("error")) == job.ranks, f"not every rank has the error; {job.last_words()}")
    else:
        expect(len(job.all("verified")) == job.ranks, f"not verified; {job.last_words()}")
    return text


def page_of_the_newest(place):
    store, history = ended(place)
    older = store.revisions()[-2].number
    flip_in(place, store, own_pieces(store, "page of block"))
    says(goes_on(place, history, step=older), "store.backstay", "tree page", "at byte", "expected", "found")


def block_of_the_newest(place):
    store, history = ended(place)
    older = store.revisions()[-2].number
    flip_in(place, store, own_pieces(store, "block"))
    says(goes_on(place, history, step=older), "store.backstay", "block", "at byte", "expected", "found",
         "cannot be restored")


def block_of_the_newest_with_other_shapes(place):
    """The older checkpoint has arrays of other sizes: the program is told, asks again, and gets it."""
    store, history = ended(place, fixed=0)
    older = store.revisions()[-2].number
    flip_in(place, store, own_pieces(store, "block"))
    goes_on(place, history, step=older, fixed=0)


def rank_root_and_tables_of_the_newest(place):
    for kind in ("rank root", "table of variables", "table of ranks"):
        store, history = ended(place, store=place.folder / "store")
        older = store.revisions()[-2].number
        flip_in(place, store, own_pieces(store, kind))
        says(goes_on(place, history, step=older), "expected", "found")
        store.path.unlink()


def shared_page(place):
    """A page that all retained checkpoints share: none can be had, and that is no first start."""
    store, history = ended(place)
    flip_in(place, store, shared_pieces(store, "page of block"))
    refused_or_older(place, history, "tree page", "at byte")


def shared_block(place):
    store, history = ended(place)
    flip_in(place, store, shared_pieces(store, "block"))
    refused_or_older(place, history, "block", "at byte")


def truncated(place):
    """Cut at any length: an older checkpoint or an error, never wrong words, never a new beginning."""
    store, history = ended(place)
    whole = store.path.read_bytes()
    lengths = [1, 4095, 4096, 16384, 32768, HEAD - 1, HEAD + 100, len(whole) // 3, len(whole) // 2]
    lengths += [place.random.randrange(HEAD, len(whole)) for _ in range(3)]
    for length in lengths:
        store.path.write_bytes(whole[:length])
        job = place.job(start=2, steps=1, fixed=1)
        job.end()
        text = " ".join(" ".join(e.words) for e in job.all("error")) + job.text()
        expect(not job.all("wrong") and not job.all("mix"), f"cut to {length} bytes: {job.last_words()}")
        expect(not job.all("fresh"), f"cut to {length} bytes, and it begins anew: {text[-2000:]}")
        outcome = max(len(job.all("error")), len(job.all("verified")))
        expect(outcome == job.ranks, f"cut to {length} bytes: {job.last_words()}")
        if job.all("error"):
            says(text, "store.backstay")
        expect(not job.all("error") or store.path.stat().st_size >= length, "the store was cut further")


def store_that_was_being_made(place):
    """What a kill leaves of a store that never held a checkpoint: empty, zeros, no superblock, half of it."""
    job = place.job(fixed=1, late="0:2:20000")
    job.must_see("committed", 4)
    job.kill()
    path = store_path(place.folder / "store")
    whole = path.read_bytes()
    first_root = next((whole[o:o + 16384] for o in ROOTS
                       if whole[o:o + 8] == b"BKSTROOT" and whole[o + 32] == 1), None)
    zeros = bytes(len(whole))
    images = {"empty": b"", "zeros": zeros, "half a superblock": whole[:30] + zeros[30:]}
    if first_root is not None:
        with_root = zeros[:ROOTS[0]] + first_root + zeros[ROOTS[0] + 16384:]
        images["a first root"] = with_root
        images["a first root and half a superblock"] = whole[:41] + with_root[41:]
        images["a first root and a superblock"] = whole[:4096] + with_root[4096:]
    for name, image in images.items():
        path.write_bytes(image)
        job = place.job(start=2, steps=2, fixed=1)
        job.end()
        expect(len(job.all("fresh")) == 4 and len(job.all("closed")) == 4 and not job.all("failed"),
               f"{name}: {job.last_words()}")


def store_of_another_job(place):
    _, _ = ended(place)
    (place.folder / "store" / "oracle").rename(place.folder / "store" / "another")
    place.job(job="another", start=2, fixed=1).refused("open", CONFIGURATION, "store.backstay", "belongs to job",
                                                      "oracle", "another")


def roots_of_another_run(place):
    """Roots and records of a store of the same job, but another run of it."""
    store, _ = ended(place)
    former = store.read(0, HEAD)
    store.path.unlink()
    store, _ = ended(place)
    store.write(ROOTS[0], former[ROOTS[0]:HEAD])
    place.job(start=2, fixed=1).refused("open", CORRUPT, "root slot", "store id", "expected", "found")


TESTS = [
    first_superblock, both_superblocks, another_format_version, newest_root, both_roots,
    first_copies_of_segment_records, both_copies_of_a_segment_record, page_of_the_newest,
    block_of_the_newest, block_of_the_newest_with_other_shapes, rank_root_and_tables_of_the_newest,
    shared_page, shared_block, truncated, store_that_was_being_made, store_of_another_job,
    roots_of_another_run,
]
MAIN = [block_of_the_newest]
