# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Draws docs/figures/peers.svg from a result of run.py, and writes its tables into docs/performance.md.

    picture.py benchmarks/results/peers-MACHINE-COMMIT.json DOCS

With rsvg-convert a PNG lies beside it. Shapes and words say all that colours do.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, MARGIN = 760, 20
INK, PALE = "#1a1a1a", "#6b6b6b"
# Colours of Okabe and Ito, which most colour-blind people tell apart.
BLUE, SKY, GREEN, VERMILLION, PURPLE, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#AA4499", "#E69F00"
LINES = [
    ("backstay.hash", "Backstay", BLUE, "", "circle", 3.5),
    ("backstay.pages", "Backstay, pages", BLUE, "7 4", "circle", 3.5),
    ("scr.single", "SCR", VERMILLION, "", "square", 2.2),
    ("veloc.local", "VeloC", PURPLE, "", "triangle", 2.2),
    ("veloc.chksum", "VeloC, checksums", PURPLE, "7 4", "triangle", 2.2),
    ("fti.l1", "FTI L1", GREEN, "", "diamond", 2.2),
    ("fti.dcp", "FTI differential", GREEN, "7 4", "diamond", 2.2),
]
SHARES = [0, 3, 10, 100]
SYSTEMS = ["backstay", "scr", "fti", "veloc"]
NAMES = {"backstay": "Backstay", "scr": "SCR", "fti": "FTI", "veloc": "VeloC"}
# Rows of what survives: a title, and for each system its trials, and others beside them with what sets them apart.
HURTS: list[tuple[str, str, dict[str, tuple[str, str, list[tuple[str, str]]]]]] = [
    ("kill -9 inside", "a checkpoint", {
        "backstay": ("kill.backstay.hash", "", []), "scr": ("kill.scr.single", "", []),
        "fti": ("kill.fti.turns", "", [("kill.fti.dcp", "diff.")]),
        "veloc": ("kill.veloc.chksum", "", [])}),
    ("a bit flips in", "the newest one", {
        "backstay": ("flip.backstay.hash", "", []), "scr": ("flip.scr.single", "no checks", []),
        "fti": ("flip.fti.turns", "L1, L2 in turn", [("flip.fti.l1", "L1 only")]),
        "veloc": ("flip.veloc.chksum", "checksums", [("flip.veloc.local", "no checks")])}),
    ("the same, with", "parity (XOR, RS)", {
        "backstay": ("flip_redundant.backstay.xor", "", []), "scr": ("flip_redundant.scr.xor", "no checks", []),
        "fti": ("flip_redundant.fti.rs", "", []),
        "veloc": ("flip_redundant.veloc.xor_chksum", "checksums", [("flip_redundant.veloc.xor", "no checks")])}),
    ("memory full in", "a checkpoint", {
        "backstay": ("full.backstay.hash", "", []), "scr": ("full.scr.single", "", []),
        "fti": ("full.fti.l1", "", []), "veloc": ("full.veloc.chksum", "", [])}),
    ("1 of 4 nodes", "lost (XOR, L2)", {
        "backstay": ("lost1.backstay.xor", "", []), "scr": ("lost1.scr.xor", "", []),
        "fti": ("lost1.fti.partner", "", []), "veloc": ("lost1.veloc.xor", "", [])}),
    ("2 of 4 nodes", "lost (RS)", {
        "backstay": ("lost2.backstay.rs", "", []), "scr": ("lost2.scr.rs", "", []),
        "fti": ("lost2.fti.rs", "", []), "veloc": ("", "", [])}),
]
WORDS = {"newest": "newest", "older": "older", "refused": "refused", "nothing": "nothing", "wrong": "WRONG",
         "crash": "crash", "not tried": "not tried"}
GRADE = {"newest": 0, "older": 1, "refused": 2, "nothing": 3, "crash": 3, "wrong": 4, "not tried": 3}
FILLS = ["#cfe5f3", "#e9f3fa", "#fdf3d0", "#f6cf8a", "#c2410c", "#f0f0f0"]


class Result:
    """A result of run.py."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all = json.loads(path.read_text())
        self.figures = {one["id"]: one for one in self.all["figures"]}
        self.trials = {one["id"]: one for one in self.all["trials"]}

    def versions(self) -> str:
        return ", ".join(f"{NAMES[one]} {self.all['versions'][one].split(' ')[0]}" for one in SYSTEMS
                         if one in self.all["versions"])


class Svg:
    """Elements of a picture, one after the other."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, size: float = 20, anchor: str = "start", fill: str = INK,
             weight: str = "normal") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}" '
                          f'font-weight="{weight}">{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = INK, width: float = 1,
             dash: str = "") -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
                          f'stroke-width="{width:g}"{dashes}/>')

    def path(self, points: list[tuple[float, float]], stroke: str, width: float, dash: str) -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{line}" fill="none" stroke="{stroke}" stroke-width="{width:g}" '
                          f'stroke-linejoin="round"{dashes}/>')

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" '
                          f'fill="{fill}"/>')

    def mark(self, x: float, y: float, kind: str, fill: str) -> None:
        shapes = {
            "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6"',
            "square": f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"',
            "triangle": f'<polygon points="{x:.1f},{y - 7:.1f} {x + 6.5:.1f},{y + 5:.1f} {x - 6.5:.1f},{y + 5:.1f}"',
            "diamond": f'<polygon points="{x:.1f},{y - 7.5:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 7.5:.1f} '
                       f'{x - 6:.1f},{y:.1f}"'}
        self.parts.append(f'{shapes[kind]} fill="{fill}" stroke="#ffffff" stroke-width="1.5"/>')

    def whole(self, height: float, about: str) -> str:
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
                f'height="{height:.0f}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" role="img">')
        return "\n".join([head, f"<title>{escape(about)}</title>",
                          f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>', *self.parts, "</svg>"]) + "\n"


# ---- How long the program waits


def times(svg: Svg, result: Result, top: float) -> float:
    """Lines over the share that changed; returns where it ends."""
    left, right, height = 92, WIDTH - 212, 400
    svg.text(MARGIN, top + 24, "How long a checkpoint keeps the program waiting", 25, weight="bold")
    svg.text(MARGIN, top + 52, "times a plain write of the whole state (log scale); lower is better", 19, fill=PALE)
    begin = top + 78
    lines = {id: [result.figures[f"local.{id}.{share}"]["to_plain"] for share in SHARES]
             for id, *_ in LINES if all(f"local.{id}.{share}" in result.figures for share in SHARES)}
    values = [one[key] for each in lines.values() for one in each for key in ("min", "max")]
    low, high = math.floor(math.log10(min(values)) * 3) / 3, math.ceil(math.log10(max(values)) * 3) / 3

    def y_of(value: float) -> float:
        return begin + height * (high - math.log10(value)) / (high - low)

    xs = [left + (right - left) * place for place in (0.04, 0.34, 0.64, 0.96)]
    for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        if low <= math.log10(tick) <= high:
            svg.line(left, y_of(tick), right, y_of(tick), "#e3e3e3" if tick != 1 else INK, 1.2, "" if tick != 1 else "3 3")
            svg.text(left - 10, y_of(tick) + 7, f"{tick:g}\u00d7", 19, "end", INK if tick == 1 else PALE)
    for x, share in zip(xs, SHARES, strict=True):
        svg.text(x, begin + height + 28, f"{share} %", 20, "middle")
    svg.text((left + right) / 2, begin + height + 54, "of the state changed since the checkpoint before", 19, "middle", PALE)
    for id, _, colour, dash, kind, width in reversed(LINES):
        if id in lines:
            points = [(x, y_of(one["value"])) for x, one in zip(xs, lines[id], strict=True)]
            for (x, _y), one in zip(points, lines[id], strict=True):
                svg.line(x, y_of(one["min"]), x, y_of(one["max"]), colour, 1.5)
            svg.path(points, colour, width, dash)
            for x, y in points:
                svg.mark(x, y, kind, colour)
    names(svg, [(y_of(lines[id][-1]["value"]), name, colour, id.startswith("backstay"))
                for id, name, colour, *_ in LINES if id in lines], xs[-1], begin, begin + height)
    return begin + height + 66


def names(svg: Svg, labels: list[tuple[float, str, str, bool]], x: float, top: float, bottom: float) -> None:
    """Each name beside the end of its line, pushed apart where they would overlap."""
    labels = sorted(labels)
    places = [y for y, *_ in labels]
    step = 27
    for _ in range(200):
        for index in range(1, len(places)):
            lack = step - (places[index] - places[index - 1])
            if lack > 0:
                places[index - 1] -= lack / 2
                places[index] += lack / 2
        places[0] = max(places[0], top)
        places[-1] = min(places[-1], bottom)
    for (y, name, colour, ours), place in zip(labels, places, strict=True):
        svg.line(x + 9, y, x + 30, place, colour, 1)
        svg.text(x + 34, place + 7, name, 19, fill=colour, weight="bold" if ours else "normal")


# ---- What survives


def counted(trial: dict[str, Any]) -> tuple[str, int]:
    """A word for its outcomes, and the worst of them."""
    outcomes = trial["outcomes"]
    if len(outcomes) == 1:
        name = next(iter(outcomes))
        return WORDS[name], GRADE[name]
    most = max(outcomes, key=lambda name: outcomes[name])
    return f"{outcomes[most]}/{trial['trials']} {WORDS[most]}", max(GRADE[name] for name in outcomes)


def cell(result: Result, id: str, note: str, others: list[tuple[str, str]]) -> tuple[str, str, int]:
    """Its words, a smaller line below, and how bad it is."""
    if not id:
        return "not offered", "", 5
    if id not in result.trials:
        return "not tried", "", 5
    trial = result.trials[id]
    word, grade = counted(trial)
    if id.startswith("flip_redundant") and word == "newest":
        word = "repaired"
    if id.startswith("full"):
        calls = {one.get("call") for one in trial["each"]}
        note = {"done": "and goes on", "failed": "after an error", "died": "but the job died"}.get(
            "died" if "died" in calls or "hung" in calls else "failed" if "failed" in calls else "done", "")
        grade = max(grade, 2 if "died" in calls or "hung" in calls else 0)
    for other, what in others:
        if other in result.trials:
            note = f"{what}: {counted(result.trials[other])[0]}"
    return word, note, grade


def survival(svg: Svg, result: Result, top: float) -> float:
    """A table of what came back; returns where it ends."""
    svg.text(MARGIN, top + 24, "What comes back after", 25, weight="bold")
    column = 182
    wide = (WIDTH - MARGIN - column) / len(SYSTEMS)
    for index, system in enumerate(SYSTEMS):
        svg.text(column + wide * (index + 0.5), top + 58, NAMES[system], 20, "middle", weight="bold",
                 fill=BLUE if system == "backstay" else INK)
    y, height = top + 70, 58
    for first, second, cells in HURTS:
        svg.text(MARGIN, y + 25, first, 18.5)
        svg.text(MARGIN, y + 47, second, 18.5)
        for index, system in enumerate(SYSTEMS):
            id, note, others = cells[system]
            word, note, grade = cell(result, id, note, others)
            x = column + wide * index
            svg.rectangle(x + 2, y + 2, wide - 4, height - 4, FILLS[grade])
            ink = "#ffffff" if grade == 4 else INK
            bold = "bold" if grade in (0, 4) else "normal"
            size = 18.5 if len(word) <= 11 else 15
            svg.text(x + wide / 2, y + (26 if note else 35), word, size, "middle", ink, bold)
            if note:
                svg.text(x + wide / 2, y + 46, note, 14 if len(note) < 16 else 12.8, "middle", ink)
        y += height
    return y


def draw(result: Result) -> str:
    svg = Svg()
    end = times(svg, result, 14)
    end = survival(svg, result, end + 14)
    plain = result.figures["local.backstay.hash.100"]["plain_ms"]["value"]
    mib = result.figures["local.backstay.hash.100"]["mib_a_rank"]
    cores = re.search(r"(\d+) cores", result.all["machine"])
    for index, words in enumerate([
            f"2 ranks of {mib} MiB, stores in memory (tmpfs); 1\u00d7 = {plain:.0f} ms; bars: least to most. "
            f"{count(result, 'kill')} kills, {count(result, 'flip')} flips,",
            f"{count(result, 'full')} of full memory, {count(result, 'lost1')} of lost nodes; every word compared. newest, "
            "older: which checkpoint came back.",
            f"{result.versions()}; {result.all['date']}, {short(result.all['machine'])}, {cores[1] if cores else '?'} cores, "
            "other work beside."]):
        svg.text(MARGIN, end + 26 + 20 * index, words, 13.6, fill=PALE)
    about = "Blocking time of a checkpoint and what survives: Backstay beside SCR, FTI and VeloC"
    return svg.whole(end + 80, about)


def count(result: Result, part: str) -> int:
    return max((one["trials"] for id, one in result.trials.items() if id.startswith(f"{part}.")), default=0)


def short(machine: str) -> str:
    return machine.split(" (")[0].replace(" Processor", "")


# ---- The tables of docs/performance.md


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table_of_times(result: Result) -> str:
    lines = ["| system | 0 % | 3 % | 10 % | 100 % | ms at 3 % (least to most) | restart, ms |", "|---|---|---|---|---|---|---|"]
    seen = []
    for one in result.all["figures"]:
        if one["id"].startswith("local.") and one["label"] not in seen:
            seen.append(one["label"])
            stem = one["id"].rpartition(".")[0]
            each = [result.figures.get(f"{stem}.{share}") for share in SHARES]
            three = each[1]
            if all(each) and three:
                ratios = " | ".join(number(figure["to_plain"]["value"]) for figure in each if figure)
                lines.append(f"| {one['label']} | {ratios} | {number(three['value'])} ({number(three['min'])} to "
                             f"{number(three['max'])}) | {number(three['restored'].get('ms'))} |")
    return "\n".join(lines)


def table_behind(result: Result, part: str) -> str:
    lines = ["| system | blocked, 3 % | until done, 3 % | blocked, 100 % | until done, 100 % | ms blocked, 100 % |",
             "|---|---|---|---|---|---|"]
    for one in result.all["figures"]:
        if one["id"].startswith(f"{part}.") and one["id"].endswith(".3"):
            full = result.figures[one["id"].removesuffix("3") + "100"]
            lines.append(f"| {one['label']} | {number(one['to_plain']['value'])} | {number(one['until_to_plain']['value'])} | "
                         f"{number(full['to_plain']['value'])} | {number(full['until_to_plain']['value'])} | "
                         f"{number(full['value'])} ({number(full['min'])} to {number(full['max'])}) |")
    return "\n".join(lines)


def table_of_trials(result: Result) -> str:
    parts = ["kill", "flip", "full", "flip_redundant", "lost1", "lost2"]
    lines = ["| system | kill -9 | flipped bit | full memory | flipped, redundant | 1 node lost | 2 nodes lost |",
             "|---|---|---|---|---|---|---|"]
    for label in dict.fromkeys(one["label"] for one in result.all["trials"]):
        row = []
        for part in parts:
            trial = next((one for one in result.all["trials"]
                          if one["label"] == label and one["id"].startswith(f"{part}.")), None)
            row.append(", ".join(f"{many} {WORDS[name]}" for name, many in trial["outcomes"].items()) + called(trial)
                       if trial else "")
        lines.append(f"| {label} | {' | '.join(row)} |")
    return "\n".join(lines)


def called(trial: dict[str, Any]) -> str:
    """What the call itself did where the memory was full."""
    calls = [one.get("call") for one in trial["each"] if one.get("call")]
    said = {"done": "taken", "failed": "an error", "died": "job died", "hung": "job hung"}
    return f" ({', '.join(f'{calls.count(one)} {said[one]}' for one in dict.fromkeys(calls))})" if calls else ""


def write_tables(result: Result, page: Path) -> None:
    text = page.read_text()
    loads = [load for one in result.all["figures"] for load in one.get("load", [])]
    trials = result.all.get("commits", {}).get("kill", result.all["commit"])
    head = (f"Machine: {result.all['machine']}, load average {min(loads):.0f} to {max(loads):.0f} with other work; commit "
            f"{result.all['commit']}, trials {trials}; {result.all['date']}; "
            f"Open MPI {result.all['mpi'].split()[-1]}; "
            + ", ".join(f"{NAMES[one]} {version}" for one, version in result.all["versions"].items())
            + f"; all of it in `benchmarks/results/{result.path.name}`.")
    for name, words in {"machine": head, "times": table_of_times(result), "nodes": table_behind(result, "nodes"),
                        "flush": table_behind(result, "flush"), "trials": table_of_trials(result)}.items():
        pattern = re.compile(rf"(<!-- peers:{name} -->\n).*?(<!-- peers:end -->)", re.DOTALL)
        text, done = pattern.subn(lambda found, words=words: f"{found[1]}{words}\n{found[2]}", text)
        if not done:
            print(f"{page}: no place for {name}")
    page.write_text(text)


def main() -> None:
    result, docs = Result(Path(sys.argv[1])), Path(sys.argv[2])
    picture = docs / "figures/peers.svg"
    picture.write_bytes(draw(result).encode("ascii", "xmlcharrefreplace"))
    if shutil.which("rsvg-convert"):
        subprocess.run(["rsvg-convert", "--width", "1140", "-o", picture.with_suffix(".png"), picture], check=True)
    write_tables(result, docs / "performance.md")


if __name__ == "__main__":
    main()
