# SPDX-License-Identifier: Apache-2.0
"""DECISIONS.md: every entry has a status, the index equals the entries, and amended ones name what amends them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[3] / "DECISIONS.md").read_text()
INDEX, *ENTRIES = re.split(r"^(?=## )", TEXT, flags=re.MULTILINE)
STATUS = re.compile(r"accepted|(?:amended|superseded) by \d+(?:, \d+)*")
FOLLOWS = re.compile(r"^(Amends|Replaces) (\d+(?:(?:, | and )\d+)*)", re.MULTILINE)


def entries():
    """Number, title, status and text of each."""
    for entry in ENTRIES:
        found = re.match(r"## (\d+)\. (.+)\nStatus: (.+)\n\n(?=\S)", entry)
        assert found, f"not '## N. Title', 'Status: ...' and an empty line: {entry[:90]!r}"
        yield int(found[1]), found[2], found[3], entry[found.end() :]


def numbers(text):
    """All of them, in order."""
    return [int(one) for one in re.findall(r"\d+", text)]


def test_every_entry_has_a_status_and_names_only_later_ones():
    """Numbers rise; one that is gone is gone for good."""
    listed = list(entries())
    known = {number for number, *_ in listed}

    assert [] == [(number, status) for number, _, status, _ in listed if not STATUS.fullmatch(status)]
    assert [] == [(n, status) for n, _, status, _ in listed if not set(numbers(status)) <= {k for k in known if k > n}]
    assert all(number < following for (number, *_), (following, *_) in pairwise(listed))


def test_the_index_equals_the_entries():
    """One row each, in their order."""
    assert [f"| {number} | {title} | {status} |" for number, title, status, _ in entries()] == re.findall(
        r"^\| \d.*$", INDEX, re.MULTILINE
    )


def test_what_says_that_it_amends_another_is_in_the_status_of_that_one():
    """A reader of the older entry learns of the newer one."""
    statuses = {number: status for number, _, status, _ in entries()}
    supersessions = [
        (number, verb, older)
        for number, _, _, text in entries()
        for verb, list_of in FOLLOWS.findall(text)
        for older in numbers(list_of)
    ]

    assert supersessions
    for number, verb, older in supersessions:
        assert number in numbers(statuses[older]), f"{number} says '{verb} {older}', and {older} has: {statuses[older]}"
        assert verb == "Amends" or statuses[older].startswith("superseded by")
