# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Code blocks of a page, with the comments that say what tests do with them.

Comments in the page's source, which a reader does not see; each but `run` stands right before its block:

    <!-- not run: REASON -->     the block cannot run here; commands are still looked at by `bash -n`
    <!-- fails: 1 3 -->          these of its commands end with a status other than 0, and have to
    <!-- file: NAME -->          the block is the content of this file
    <!-- in: NAME -->            the block stands in tests/docs/NAME, in the place of BLOCK
    <!-- run: COMMANDS -->       what a reader has already: run there, in the page's folder
"""

import dataclasses
import re

COMMENT = re.compile(r"<!--\s*(not run|fails|file|in|run):\s*(.*?)\s*-->", re.S)
FENCE = re.compile(r"^( *)```([a-z0-9+-]*)\s*$")
LIST = re.compile(r"^\s*([-*]|\d+\.) ")


@dataclasses.dataclass
class Block:
    """A code block, or, where `language` is `hidden`, commands of a comment."""
    line: int
    language: str
    text: str
    marks: dict


def blocks(text):
    """All of a page's blocks, in order; one that is indented has the language `indented`."""
    found, marks, lines, at = [], {}, text.splitlines(), 0
    prose, before = "", ""
    while at < len(lines):
        line = lines[at]
        if line.startswith("<!--"):
            end = next(i for i in range(at, len(lines)) if "-->" in lines[i])
            comment = COMMENT.fullmatch("\n".join(lines[at:end + 1]).strip())
            if comment and comment[1] == "run":
                found.append(Block(at + 1, "hidden", comment[2], {}))
            elif comment:
                marks[comment[1]] = comment[2]
            at = end + 1
            continue
        fence = FENCE.match(line)
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            body = [inside.removeprefix(fence[1]) for inside in lines[at + 1:end]]
            found.append(Block(at + 1, fence[2], "\n".join(body) + "\n", marks))
            marks, at, before = {}, end + 1, ""
            continue
        if line.startswith("    ") and not before and not LIST.match(prose):
            end = next((i for i in range(at, len(lines)) if lines[i] and not lines[i].startswith("    ")), len(lines))
            found.append(Block(at + 1, "indented", "\n".join(lines[at:end]).rstrip() + "\n", marks))
            marks, at = {}, end
            continue
        if line:
            marks = {}
        if line and not line.startswith(" "):
            prose = line
        before, at = line, at + 1
    return found


def console(text):
    """Commands of a block of `$ command` lines, each with the lines of output that follow it."""
    commands = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif commands and commands[-1][0].endswith("\\"):
            commands[-1] = (commands[-1][0] + "\n" + line, [])
        elif commands and line.strip():
            commands[-1][1].append(line)
    return commands


def says(line, output):
    """Whether the output has this line, in which `...` stands for anything."""
    words = re.sub(r"\s+", r"\\s+", re.escape(line.strip()).replace(r"\ ", " ")).replace(r"\.\.\.", ".*")
    return re.search(rf"^.*{words}\s*$" if not line.rstrip().endswith("...") else words, output, re.M) is not None
