# SPDX-License-Identifier: Apache-2.0
"""
Amounts: bytes inside, dialect units and Kubernetes quantities only at the edge.

The only place that converts. A quantity that cannot be represented exactly is an error with
the fix in it, never a rounded number.

Grammar and suffixes: Kubernetes API conventions, "Resource quantities"
(`k8s.io/apimachinery/pkg/api/resource`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
UNITS: Final = MappingProxyType({"1GiB": GIB, "256MiB": 256 * MIB})
"""What one unit of shared memory may be, as options say it: the same in a whole cluster."""
MAX_BITS: Final = 133
"""Bits of the largest number the grammar below takes, 40 digits."""

_SUFFIX: Final = MappingProxyType(
    {
        "": Fraction(1),
        "n": Fraction(1, 10**9),
        "u": Fraction(1, 10**6),
        "m": Fraction(1, 1000),
        **{s: Fraction(1000 ** (i + 1)) for i, s in enumerate(["k", "M", "G", "T", "P", "E"])},
        **{s: Fraction(1024 ** (i + 1)) for i, s in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])},
    }
)
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))(?:([eE][+-]?[0-9]{1,2})|([a-zA-Z]{0,2}))"
)


class QuantityError(ValueError):
    """Text that is no amount, or an amount that its use does not allow."""


def parse(text: object) -> Fraction:
    """The exact value of a Kubernetes quantity (`"500m"`, `"1.5Gi"`, `"2e3"`, `8`)."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise QuantityError(f'{text!r} is not a quantity; write a number such as 8 or "512Mi"')
    if isinstance(text, int) and text.bit_length() > MAX_BITS:
        raise QuantityError("a quantity cannot have more than 40 digits; check the unit")
    return _parse(str(text))


@lru_cache(4096)  # thousands of nodes and pods state the same few amounts
def _parse(text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    if match is None or (match[3] or "") not in _SUFFIX:
        raise QuantityError(f'{text[:60]!r} is not a quantity; write a number such as 8 or "512Mi"')
    number = Fraction(match[1])
    return number * Fraction(10) ** int(match[2][1:]) if match[2] else number * _SUFFIX[match[3] or ""]


def gib(amount: int) -> int:
    """Bytes in `amount` GiB."""
    return amount * GIB


def show_bytes(amount: int) -> str:
    """An amount for people, in the largest unit that keeps it exact or at two decimals: `2 GiB`, `1.50 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(amount) >= unit:
            return f"{amount // unit} {name}" if amount % unit == 0 else f"{amount / unit:.2f} {name}"
    return f"{amount} B"
