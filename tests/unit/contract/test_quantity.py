# SPDX-License-Identifier: Apache-2.0
"""Amounts are exact, and what cannot have more than 40 digits says so."""

from __future__ import annotations

from fractions import Fraction

import pytest

from isolation.contract.quantity import GIB, MIB, QuantityError, parse, show_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8),
        (8, 8),
        ("500m", Fraction(1, 2)),
        ("1.5Gi", 3 * GIB // 2),
        ("2e3", 2000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("-1", -1),
        (".5", Fraction(1, 2)),
        ("1n", Fraction(1, 10**9)),
        (0.1, Fraction(1, 10)),
    ],
)
def test_quantities_are_read_exactly(text, expected):
    """Kubernetes' grammar, without a float in between."""
    assert expected == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "1GiB",
        "1 Gi",
        "0x10",
        "1_0",
        "nan",
        "inf",
        None,
        True,
        [],
        "1" * 41,
        pytest.param(10**5000, id="huge"),
        "1e999",
        "٣",
    ],
)
def test_what_is_no_quantity_says_what_to_write(text):
    """Hostile text never becomes a number, and never another error."""
    with pytest.raises(QuantityError, match=r"is not a quantity|cannot have more than 40 digits"):
        parse(text)


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(2 * GIB, "2 GiB"), (3 * GIB // 2, "1.50 GiB"), (512 * MIB, "512 MiB"), (7, "7 B"), (0, "0 B")],
)
def test_amounts_for_people_keep_what_is_exact(amount, expected):
    """The largest unit that fits."""
    assert expected == show_bytes(amount)
