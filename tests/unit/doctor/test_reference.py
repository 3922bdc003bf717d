# SPDX-License-Identifier: Apache-2.0
"""docs/api.md: what the tables of names say, and every name that people see."""

from __future__ import annotations

import re
from pathlib import Path

from isolation.contract import names
from isolation.doctor.reference import known_names, reference

PAGE = Path(__file__).resolve().parents[3] / "docs" / "api.md"
QUALIFIED = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z0-9._=-]+")
ELSEWHERE = {
    names.CARD_KIND: "kinds of CDI devices, not names of their own",
    names.GATE_KIND: "the same",
    names.MIRROR: "Kubernetes' own, read only",
}


def test_the_page_is_current():
    """If not: python -m isolation.doctor.reference > docs/api.md."""
    assert reference() == PAGE.read_text(encoding="utf-8")


def test_every_qualified_name_stands_on_the_page():
    """Labels, annotations, resources and taints: a name whose docstring does not say its kind is missed by nobody."""
    values = {value for value in vars(names).values() if isinstance(value, str) and QUALIFIED.fullmatch(value)}

    assert values - set(ELSEWHERE) == values & {one.text for one in known_names()}


def test_no_name_stands_twice_and_every_meaning_is_a_sentence():
    """A constant in backticks would be a word of the code."""
    found = known_names()

    assert len({(one.text, one.kind) for one in found}) == len(found)
    assert [] == [one for one in found if not one.meaning.endswith(".") or re.search(r"`[A-Z_]+`", one.meaning)]
