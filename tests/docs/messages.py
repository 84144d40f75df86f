# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Whether docs/guide/troubleshooting.md and the sources have the same messages.

Each message of the page, in the first column of its tables or a heading, stands in the sources; each warning that
the sources give stands in the page with all of its words, and so does each kind of error. `...` in the page stands for what varies. A warning
that only passes on the text of an error or of a caller has no words of its own, and none is asked for it.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = "docs/guide/troubleshooting.md"
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
MESSAGE = re.compile(r"^(?:### |\| )`([^`]+)`", re.M)
WARNING = re.compile(r"(?<!fn )(?<!tracing::)\bwarn\(\s*(?:&?format!\(\s*)?" + LITERAL.pattern, re.S)
MEANING = re.compile(r"pub const fn meaning\(.*?\n    \}\n", re.S)
VARIES = "\0"


def template(literal):
    """A text of the sources with `\\0` for each value that is put into it."""
    text = re.sub(r"\\\n\s*", "", literal).replace('\\"', '"')
    return re.sub(r"\{[^{}]*\}", VARIES, text)


def code(text):
    """Sources without comments and without their tests."""
    return re.sub(r"^\s*//.*$", "", text.split("#[cfg(test)]\nmod tests {")[0], flags=re.M)


def sources(root):
    for path in sorted(root.glob("crates/*/src/**/*.rs")):
        if "/tests" not in path.as_posix():
            yield code(path.read_text())


def stands_in(message, text):
    """Whether the fixed parts of a message stand in a template, in order, with nothing fixed before, between or behind
    that `...` does not allow."""
    wanted = "".join(".*" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", message))
    return re.fullmatch(wanted, text, re.S) is not None


def words(text):
    return re.findall("[A-Za-z]{2,}", text.replace(VARIES, " "))


def findings(page, texts):
    """What is wrong, of a page and the sources."""
    texts, messages = list(texts), MESSAGE.findall(page)
    literals = {template(found) for text in texts for found in LITERAL.findall(text)}
    warnings = {template(found) for text in texts for found in WARNING.findall(text)}
    meanings = {found for text in texts for part in MEANING.findall(text) for found in LITERAL.findall(part)}
    for message in messages:
        if len(words(message.replace("...", " "))) > 1 and not any(stands_in(message, text) for text in literals):
            yield f"the sources have no {message!r}"
    for text in sorted(warnings):
        whole = (message for message in messages if set(words(text)) <= set(words(message)))
        if words(text) and not any(stands_in(message, text) for message in whole):
            yield f"the page has not the warning {text.replace(VARIES, '...')!r}"
    for meaning in sorted(meanings - set(messages)):
        yield f"the page has not the kind of error {meaning!r}"
    if len(warnings) < 50 or not meanings:
        yield f"only {len(warnings)} warnings and {len(meanings)} kinds of errors are found in the sources"


def main():
    found = list(findings((ROOT / PAGE).read_text(), sources(ROOT)))
    for line in found:
        print(f"{PAGE}: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
