# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The site: docs/ as a book, with README, the C reference and the documentation of Rust beside it.

    make/book.py --check       every page of docs/ is in SUMMARY.md, once, and every link of all pages leads somewhere
    make/book.py OUT MDBOOK [RUSTDOC]
                               builds it into OUT with the program MDBOOK; RUSTDOC is a folder of rustdoc. Fails where a
                               link of what was built leads nowhere.

Pages keep their places; those from elsewhere in the tree get one (PLACES). Links to files that are not in the book
lead to the repository.
"""

import html.parser
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Where what is not below docs/ stands in the book.
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "deploy/README.md": "guide/sites.md",
    "packaging/README.md": "guide/packaging.md",
    "bindings/c/include/backstay/backstay.h": "reference/c.md",
    "crates/backstay/src/lib.rs": "reference/rust.md",
}
RUST = """# Rust

The documentation of the crate, made by rustdoc: [backstay](../rust/backstay/index.html). The guide is
[Rust](../guide/rust.md).
"""
# Lines of code here have up to 120 characters; tables are read from the left.
STYLE = """:root { --content-max-width: 1000px; }
table { margin-left: 0; }
th { text-align: left; }
"""
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^()\s]+)(\))")
IMAGE = re.compile(r'(<img src=")([^"]+)(")')
FENCE = re.compile(r"^ *```")
COMMENT = re.compile(r"<!--.*?-->\n?", re.S)
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1")


def repository():
    return re.search(r'^repository = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def pages():
    """Pages of the book by their path in the tree, and the path in the book."""
    found = {path.relative_to(ROOT).as_posix(): path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))}
    # mdBook makes index.html of README.md, and does not follow links to it.
    found = {name: re.sub(r"README\.md$", "index.md", place) for name, place in found.items()}
    return {**found, **PLACES}


def lines(text):
    """Lines of a page, and whether each is prose."""
    fenced = False
    for line in text.splitlines(keepends=True):
        fence = FENCE.match(line) is not None
        fenced = fenced != fence
        yield line, not fenced and not fence and not line.startswith("    ")


def linked(text, change):
    """A page with each target of a link changed by `change`; code is left alone."""
    out = []
    for line, is_prose in lines(text):
        kept = []

        def put_away(found):
            kept.append(found[0])
            return f"\0{len(kept) - 1}\0"

        if is_prose:
            line = CODE.sub(put_away, line)
            for pattern in (LINK, IMAGE):
                line = pattern.sub(lambda found: found[1] + change(found[2]) + found[3], line)
            line = re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], line)
        out.append(line)
    return "".join(out)


def is_elsewhere(target):
    return re.match(r"[a-z]+:", target) is not None


def rewritten(source, text, known, url):
    """A page's text in the book."""
    place = known[source]

    def change(target):
        path, hash_, anchor = target.partition("#")
        if is_elsewhere(target) or not path:
            return target
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), urllib.parse.unquote(path)))
        if meant in known:
            return posixpath.relpath(known[meant], posixpath.dirname(place) or ".") + hash_ + anchor
        if meant.startswith("docs/figures/"):
            return posixpath.relpath(meant.removeprefix("docs/"), posixpath.dirname(place) or ".")
        sort = "tree" if (ROOT / meant).is_dir() else "blob"
        return f"{url}/{sort}/main/{meant}{hash_}{anchor}"

    return linked(COMMENT.sub("", text), change)


def check():
    """What is wrong with SUMMARY.md and with links to what the tree has not."""
    known, wrong, listed = pages(), [], []
    linked((DOCS / "SUMMARY.md").read_text(), lambda target: listed.append(target) or target)
    named = [posixpath.normpath(posixpath.join("docs", target)) for target in listed]
    for name in sorted({name for name in named if named.count(name) > 1}):
        wrong.append(f"docs/SUMMARY.md: {name} is listed more than once")
    for name in sorted(set(named) - known.keys()):
        wrong.append(f"docs/SUMMARY.md: there is no page {name}")
    for name in sorted(known.keys() - set(named) - {"docs/SUMMARY.md"}):
        wrong.append(f"docs/SUMMARY.md: {name} is not listed")
    for name in known:
        if not name.endswith(".md"):
            continue
        folder = posixpath.dirname(name)

        def look(target):
            path = urllib.parse.unquote(target.partition("#")[0])
            if path and not is_elsewhere(target) and not (ROOT / folder / path).exists():
                wrong.append(f"{name}: {target} leads nowhere")
            return target

        linked((ROOT / name).read_text(), look)
    return wrong


class Html(html.parser.HTMLParser):
    """Links and anchors of a page that was built."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.anchors.add(value)
            if key in ("href", "src") and value and tag != "base":
                self.links.append(value)


def built(out):
    """What is wrong with links of the pages that were built; rustdoc checks its own."""
    files = [path for path in out.rglob("*.html") if "rust" not in path.relative_to(out).parts and path.name != "404.html"]
    parsed = {path: Html(path.read_text()) for path in files}
    wrong = []
    for path, page in parsed.items():
        for link in page.links:
            address, _, anchor = link.partition("#")
            if is_elsewhere(link) or link.startswith("//"):
                continue
            meant = path if not address else (path.parent / urllib.parse.unquote(address)).resolve()
            if not meant.exists():
                wrong.append(f"{path.relative_to(out)}: {link} leads nowhere")
            elif anchor and meant in parsed and urllib.parse.unquote(anchor) not in parsed[meant].anchors:
                wrong.append(f"{path.relative_to(out)}: {link}: there is no such heading")
    return sorted(set(wrong)), len(parsed)


def config(url):
    return f"""[book]
title = "Backstay"
description = "Scalable checkpoint and restart"
language = "en"
src = "src"

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"
git-repository-url = "{url}"
no-section-label = true
smart-punctuation = false
additional-css = ["site.css"]

[output.html.search]
enable = true

[output.html.print]
enable = true
"""


def build(out, mdbook, rustdoc):
    url, known = repository(), pages()
    work = out.with_name(out.name + "-source")
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    for source, place in known.items():
        target = work / "src" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".h"):
            text = subprocess.run([sys.executable, ROOT / "bindings/c/reference.py", "--markdown"], check=True,
                                  capture_output=True, text=True).stdout
        elif source.endswith(".rs"):
            text = RUST
        else:
            text = rewritten(source, (ROOT / source).read_text(), known, url)
        target.write_text(text)
    shutil.copytree(DOCS / "figures", work / "src/figures")
    (work / "book.toml").write_text(config(url))
    (work / "site.css").write_text(STYLE)
    subprocess.run([mdbook, "build", "--dest-dir", out.resolve(), work], check=True,
                   env={**os.environ, "RUST_LOG": "warn"})
    if rustdoc:
        shutil.copytree(rustdoc, out / "rust")
    else:
        (out / "rust/backstay").mkdir(parents=True)
        (out / "rust/backstay/index.html").write_text("<p>Built without rustdoc: <code>make docs</code> has it.</p>\n")
    return built(out.resolve())


def main():
    arguments = sys.argv[1:]
    if arguments == ["--check"]:
        wrong = check()
    elif len(arguments) in (2, 3):
        wrong, count = build(pathlib.Path(arguments[0]), arguments[1], arguments[2] if len(arguments) == 3 else None)
        print(f"{count} pages in {arguments[0]}")
    else:
        raise SystemExit(__doc__)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
