# SPDX-License-Identifier: Apache-2.0
"""Label selectors as strangers write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.apis.metrics.core.selector import MAX_LETTERS, SelectorError, parse_selector

WEB = {"app": "web", "tier": "a", "example.com/build": "12"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("app=web", True),
        ("app==web, tier = a", True),
        ("app!=web", False),
        ("none!=web", True),
        ("app in (db, web),tier in (a)", True),
        ("tier notin (a,b)", False),
        ("none notin (a,b)", True),
        ("app", True),
        ("!app", False),
        ("!none", True),
        ("example.com/build>11", True),
        ("example.com/build<12", False),
        ("app>1", False),
        ("app=", False),
        ("in in (in)", False),
    ],
)
def test_a_selector_matches_as_in_kubernetes(text, expected):
    """
    Equality, sets, existence and numbers, all of which must hold.
    """
    assert expected is parse_selector(text).matches(WEB)


@pytest.mark.parametrize(
    "text",
    [
        "app=web,",
        ",app",
        "app in a",
        "app in (a",
        "a b",
        "app=web;x",
        "app>x",
        "app=(a)",
        "=",
        "!",
        "app in (a b)",
        "x" * 64,
    ],
)
def test_what_is_no_selector_is_refused_with_the_place(text):
    """
    Never read as something that it does not say.
    """
    with pytest.raises(SelectorError):
        parse_selector(text)


def test_a_selector_is_bounded():
    """
    A stranger sends it.
    """
    with pytest.raises(SelectorError, match="characters"):
        parse_selector("a" * (MAX_LETTERS + 1))
    with pytest.raises(SelectorError, match="requirements"):
        parse_selector(",".join(f"k{i}" for i in range(65)))
    with pytest.raises(SelectorError, match="values"):
        parse_selector(f"k in ({','.join(str(i) for i in range(1025))})")


@given(st.text(alphabet="ab=!<>(), in.-/\t0\u00e9", max_size=60))
def test_any_text_is_a_selector_or_an_error(text):
    """
    Nothing else comes out of it.
    """
    try:
        found = parse_selector(text)
    except SelectorError:
        return
    found.matches(WEB)
    found.matches({})
