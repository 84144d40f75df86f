# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How each system is set for each part of the comparison: a way is a system with settings.

Node-local levels lie in NODE on each node's own tmpfs; SHARED stands for the parallel file system.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NODE = "/dev/shm/peer"
CHANGED = [0, 3, 10, 100]


@dataclass
class Way:
    """A system and its settings. `files`: name of a file in the shared folder, and what stands in it."""

    id: str
    system: str
    label: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    extra_ranks: int = 0
    """Processes of the system's own beside those that compute, which mpirun starts."""


def backstay(id: str, label: str, *arguments: str, **settings: str) -> Way:
    names = {f"BACKSTAY_{key.upper()}": value for key, value in settings.items()}
    return Way(id, "backstay", label, {
        "BACKSTAY_STORE_PATH": NODE, "BACKSTAY_JOB": "work", "BACKSTAY_LOG": "warn", **names}, list(arguments))


def scr(id: str, label: str, copy: str, shared: str, *arguments: str, **settings: str) -> Way:
    return Way(id, "scr", label, {
        "SCR_PREFIX": shared, "SCR_CNTL_BASE": NODE, "SCR_CACHE_BASE": NODE, "SCR_CACHE_SIZE": "2",
        "SCR_CACHE_BYPASS": "0", "SCR_COPY_TYPE": copy, "SCR_SET_SIZE": "4", "SCR_SET_FAILURES": "2",
        "SCR_FLUSH": "0", "SCR_USER_NAME": "peers", "SCR_JOB_ID": "work", **settings},
        [f"prefix={shared}", *arguments])


def fti(id: str, label: str, level: int, shared: str, *, real: bool = False, head: int = 0, io: int = 1,
        differential: int = 0, pfs: str = "") -> Way:
    """FTI wants groups of two nodes or more: on one node its ranks count as nodes (local_test), else hosts do."""
    pfs = pfs or f"{shared}/global"
    text = f"""[basic]
head = {head}
node_size = {1 + head}
ckpt_dir = {NODE}/local
glbl_dir = {pfs}
meta_dir = {shared}/meta
ckpt_l1 = 0
ckpt_l2 = 0
ckpt_l3 = 0
ckpt_l4 = 0
dcp_l4 = 0
inline_l2 = {1 - head}
inline_l3 = {1 - head}
inline_l4 = {1 - head}
keep_last_ckpt = 0
keep_l4_ckpt = 0
group_size = {4 if real else 2}
max_sync_intv = 0
ckpt_io = {io}
enable_staging = 0
enable_dcp = {1 if differential else 0}
dcp_mode = {max(differential, 1)}
dcp_block_size = 16384
verbosity = 3
[restart]
failure = 0
exec_id = 2026-01-01_00-00-00
[injection]
rank = 0
number = 0
position = 0
frequency = 0
[advanced]
block_size = 1024
transfer_size = 16
general_tag = 2612
ckpt_tag = 711
stage_tag = 406
final_tag = 3107
local_test = {0 if real else 1}
lustre_striping_unit = 4194304
lustre_striping_factor = -1
lustre_striping_offset = -1
"""
    words = [f"config={shared}/config.fti", f"level={level}"]
    if head:
        words.append(f"watch={f'{pfs}/*/l4' if level == 4 else f'{NODE}/local/*/l{level}'}")
    return Way(id, "fti", label, {}, words, {"config.fti": text},
               [f"{NODE}/local", pfs, f"{shared}/meta"], head if real else 2 * head)


def veloc(id: str, label: str, shared: str, **settings: str) -> Way:
    # With persistent_interval = -1 it does not read back what it wrote to scratch.
    lines = {"scratch": f"{NODE}/scratch", "persistent": f"{shared}/persistent", "mode": "sync",
             "meta": f"{shared}/meta", "scratch_versions": "2", "ec_interval": "-1",
             "persistent_interval": "1000000000", **settings}
    text = "".join(f"{key} = {value}\n" for key, value in lines.items())
    return Way(id, "veloc", label, {}, [f"config={shared}/veloc.cfg"], {"veloc.cfg": text},
               [f"{NODE}/scratch", f"{shared}/persistent", f"{shared}/meta"])


def local(shared: str) -> list[Way]:
    """On the node only, which survives the death of all processes."""
    return [
        backstay("backstay.hash", "Backstay", tracking="hash"),
        backstay("backstay.pages", "Backstay, page tracking", tracking="pages"),
        scr("scr.single", "SCR SINGLE", "SINGLE", shared),
        fti("fti.l1", "FTI L1", 1, shared),
        fti("fti.dcp", "FTI differential (FTI-FF, CRC32)", 8, shared, io=3, differential=2,
            pfs=f"{NODE}/global"),
        fti("fti.dcp_md5", "FTI differential (FTI-FF, MD5)", 8, shared, io=3, differential=1,
            pfs=f"{NODE}/global"),
        veloc("veloc.local", "VeloC", shared),
        veloc("veloc.chksum", "VeloC, checksums", shared, chksum="true"),
    ]


def hurt(shared: str) -> list[Way]:
    """Those of which trials say what they survive on one node, beside levels in turn as FTI is meant to be used."""
    ids = ("backstay.hash", "scr.single", "fti.l1", "fti.dcp", "veloc.local", "veloc.chksum")
    turns = fti("fti.turns", "FTI L1 and L2 in turn", 12, shared)
    return [way for way in local(shared) if way.id in ids] + [turns]


def nodes(shared: str) -> list[Way]:
    """Across four nodes, one rank each; the first of each system without redundancy."""
    def ours(scheme: str, label: str, **more: str) -> Way:
        level = "level=1" if scheme == "none" else "level=2"
        return backstay(f"backstay.{scheme}", label, level, redundancy=scheme, **more)

    return [
        ours("none", "Backstay, none"), ours("partner", "Backstay partner"), ours("xor", "Backstay XOR"),
        ours("rs", "Backstay RS(2)", parity="2"),
        scr("scr.none", "SCR SINGLE", "SINGLE", shared), scr("scr.partner", "SCR PARTNER", "PARTNER", shared),
        scr("scr.xor", "SCR XOR", "XOR", shared), scr("scr.rs", "SCR RS(2)", "RS", shared),
        fti("fti.none", "FTI L1", 1, shared, real=True), fti("fti.partner", "FTI L2 (partner)", 2, shared, real=True),
        fti("fti.rs", "FTI L3 (RS(2))", 3, shared, real=True),
        fti("fti.partner_head", "FTI L2 by heads", 2, shared, real=True, head=1),
        fti("fti.rs_head", "FTI L3 by heads", 3, shared, real=True, head=1),
        veloc("veloc.none", "VeloC, none", shared), veloc("veloc.xor", "VeloC EC (XOR)", shared, ec_interval="0"),
        veloc("veloc.xor_chksum", "VeloC EC (XOR), checksums", shared, ec_interval="0", chksum="true"),
        veloc("veloc.xor_async", "VeloC EC (XOR), async", shared, mode="async", threaded="true", ec_interval="0"),
    ]


def flush(shared: str) -> list[Way]:
    """On the node, and to the file system behind the program's back."""
    return [
        backstay("backstay.flush", "Backstay", "level=3", archive=f"{shared}/archive", archive_every="1"),
        backstay("backstay.flush_raw", "Backstay, not compressed", "level=3", archive=f"{shared}/archive",
                 archive_every="1", archive_codec="raw"),
        scr("scr.flush", "SCR, PTHREAD", "SINGLE", shared, "flush=1", SCR_FLUSH="1", SCR_FLUSH_ASYNC="1",
            SCR_FLUSH_TYPE="PTHREAD", SCR_PREFIX_SIZE="2"),
        fti("fti.flush", "FTI L4 by a head", 4, shared, head=1),
        veloc("veloc.flush", "VeloC async", shared, mode="async", persistent_interval="0", max_versions="2"),
    ]
