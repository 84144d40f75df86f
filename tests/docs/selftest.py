# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What tests/docs finds: pages and lists of messages that are wrong fail, and those that are right do not."""

import contextlib
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "make"))
import book
import messages
import pages
import run
from job import Failure


class Bare:
    """What a page needs of its place, without an installation."""

    def __init__(self, folder):
        self.folder, self.environment = pathlib.Path(folder), dict(os.environ)


class Pages(unittest.TestCase):
    def page(self, text):
        """What becomes of a page of this text."""
        with tempfile.TemporaryDirectory() as folder:
            page = run.Page(Bare(folder), "page.md")
            with contextlib.closing(page):
                for block in pages.blocks(text):
                    page.block(block)
        return page

    def wrong(self, text, words):
        with self.assertRaisesRegex(Failure, words):
            self.page(text)

    def test_a_block_is_run_where_the_one_before_left_folder_and_environment(self):
        page = self.page("```sh\nmkdir here\ncd here\nexport WORD=said\n```\nand\n```console\n$ echo $WORD $(basename $PWD)\n"
                         "said here\n```\n")
        self.assertEqual(page.count, 2)

    def test_a_command_that_fails_and_one_that_should_have(self):
        self.wrong("```sh\nfalse\n```\n", "ended with 1")
        self.wrong("<!-- fails: 1 -->\n```console\n$ true\n```\n", "ended with 0")
        self.page("<!-- fails: 1 -->\n```console\n$ false\n```\n")

    def test_output_that_is_another(self):
        self.wrong("```console\n$ echo one two three\none ... four\n```\n", "is not in what")
        self.page("```console\n$ echo one two three\none ... three\n```\n")

    def test_a_question_is_answered(self):
        self.page("```console\n$ read word && echo got $word\ngot y\n```\n")

    def test_a_block_that_is_neither_run_nor_marked(self):
        self.wrong("```json\n{}\n```\n", "neither run nor marked")
        self.wrong("words\n\n    backstay ls\n", "neither run nor marked")
        self.wrong("<!-- not run: far above -->\n\nwords between\n\n```json\n{}\n```\n", "neither run nor marked")
        self.assertEqual(self.page("<!-- not run: a reason -->\n```json\n{}\n```\n").not_run, [(2, "a reason")])

    def test_what_is_not_run_is_a_script_all_the_same(self):
        self.wrong("<!-- not run: a reason -->\n```sh\nif true\n```\n", "bash -n")

    def test_lines_that_belong_to_a_list_are_no_block(self):
        self.assertEqual(pages.blocks("- one\n\n    and more of it\n"), [])


class Messages(unittest.TestCase):
    SOURCE = ('notice::warn(&format!("segment {segment} is damaged; it is \\\n    mended: {error}"));\n'
              'let context = format!("no place for {what}; set store_path");\nnotice::warn(&error.to_string());\n')

    def findings(self, page):
        return [line for line in messages.findings(page, [messages.code(self.SOURCE)]) if not line.startswith("only")]

    def test_what_both_have(self):
        self.assertEqual(self.findings("| `segment ... is damaged; it is mended: ...` | look |\n"
                                       "| `no place for ...; ...` | do so |\n"), [])

    def test_a_message_that_no_source_has(self):
        found = self.findings("| `segment ... is damaged; it is mended: ...` | look |\n| `no room for ...; ...` | do so |\n")
        self.assertEqual(found, ["the sources have no 'no room for ...; ...'"])

    def test_a_warning_that_the_page_has_not_with_all_of_its_words(self):
        for page in ("", "| `segment ...: ...` | look |\n", "| `segment ... is damaged; ...` | look |\n"):
            self.assertIn("the page has not the warning 'segment ... is damaged; it is mended: ...'", self.findings(page))

    def test_words_of_a_comment_are_no_message(self):
        self.assertEqual(messages.code('// warn("one two three")\n').strip(), "")


class Site(unittest.TestCase):
    KNOWN = {"README.md": "index.md", "docs/guide/files.md": "guide/files.md", "docs/format/README.md": "format/index.md"}

    def rewritten(self, source, text):
        return book.rewritten(source, text, self.KNOWN, "https://host/x")

    def test_links_lead_to_where_pages_stand_in_the_book(self):
        self.assertEqual(self.rewritten("README.md", "[a](docs/guide/files.md#b) [f](docs/format/README.md)"),
                         "[a](guide/files.md#b) [f](format/index.md)")
        self.assertEqual(self.rewritten("docs/guide/files.md", "[r](../../README.md) ![p](../figures/p.svg)"),
                         "[r](../index.md) ![p](../figures/p.svg)")

    def test_what_is_not_in_the_book_is_in_the_repository(self):
        self.assertEqual(self.rewritten("docs/guide/files.md", "[m](../../Makefile) [t](../../tests/docs)"),
                         "[m](https://host/x/blob/main/Makefile) [t](https://host/x/tree/main/tests/docs)")

    def test_code_and_other_sites_are_left_alone(self):
        text = "`[a](docs/guide/files.md)` [o](https://other) [h](#here)\n```c\nx[1](README.md)\n```\n"
        self.assertEqual(self.rewritten("README.md", text), text)

    def test_links_and_anchors_of_what_was_built(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder).resolve()
            (out / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#not"></a><img src="c.svg">')
            (out / "b.html").write_text('<h2 id="there"></h2>')
            wrong, count = book.built(out)
        self.assertEqual((wrong, count), (["a.html: b.html#not: there is no such heading", "a.html: c.svg leads nowhere"], 2))


if __name__ == "__main__":
    unittest.main()
