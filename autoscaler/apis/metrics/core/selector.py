# SPDX-License-Identifier: Apache-2.0
"""
Label selectors as Kubernetes writes them in queries, read and applied.

Pure, and bounded: a selector is untrusted. Decides which labels match; a text that is no
selector is an error with what to write instead.

Source of the grammar: Kubernetes documentation, "Labels and Selectors", "API".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LETTERS: Final = 8192
MAX_TERMS: Final = 64
MAX_VALUES: Final = 1024
_KEY: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_SET: Final = re.compile(rf"\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*")
_EQUAL: Final = re.compile(rf"\s*({_KEY})\s*(==|=|!=|<|>)\s*([^,\s()=<>!]*)\s*")
_BARE: Final = re.compile(rf"\s*(!?)\s*({_KEY})\s*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_EXAMPLE: Final = "write for example app=web,tier in (a,b),!canary"


class SelectorError(ValueError):
    """Text that is no selector."""


@dataclass(frozen=True, slots=True)
class Term:
    """One requirement on one label."""

    key: str
    op: str
    """in, notin, exists, absent, gt or lt."""
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels fulfil it; as in Kubernetes, `notin` holds where the label is absent."""
        value = labels.get(self.key)
        if self.op == "absent":
            return value is None
        if value is None:
            return self.op == "notin"
        if self.op in ("in", "notin"):
            return (value in self.values) is (self.op == "in")
        if self.op == "exists":
            return True
        if not _NUMBER.fullmatch(value):
            return False
        (bound,) = self.values
        return int(value) > int(bound) if self.op == "gt" else int(value) < int(bound)


@dataclass(frozen=True, slots=True)
class Selector:
    """All of these requirements; none: everything."""

    terms: tuple[Term, ...] = ()
    text: str = ""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels fulfil every requirement."""
        return all(term.matches(labels) for term in self.terms)

    @property
    def keys(self) -> frozenset[str]:
        """Labels that it speaks of."""
        return frozenset(term.key for term in self.terms)


def parse_selector(text: str) -> Selector:
    """Read one; raises SelectorError."""
    if len(text) > MAX_LETTERS:
        raise SelectorError(f"the selector is longer than {MAX_LETTERS} characters; use fewer values")
    terms: list[Term] = []
    at = 0
    while text[at:].strip():
        term, at = _term(text, at)
        terms.append(term)
        if len(terms) > MAX_TERMS:
            raise SelectorError(f"the selector has more than {MAX_TERMS} requirements")
        if at == len(text):
            break
        if text[at] != "," or not text[at + 1 :].strip():
            raise SelectorError(f"unexpected {text[at : at + 40]!r} at character {at} of the selector; {_EXAMPLE}")
        at += 1
    return Selector(tuple(terms), text)


def _term(text: str, at: int) -> tuple[Term, int]:
    """The requirement that begins here, and where it ends."""
    if found := _SET.match(text, at):
        values = frozenset(value.strip() for value in found[3].split(","))
        if len(values) > MAX_VALUES:
            raise SelectorError(f"a requirement of the selector has more than {MAX_VALUES} values")
        return Term(found[1], found[2], _checked(values)), found.end()
    if found := _EQUAL.match(text, at):
        return _compared(found[1], found[2], found[3]), found.end()
    if found := _BARE.match(text, at):
        return Term(found[2], "absent" if found[1] else "exists"), found.end()
    raise SelectorError(f"{text[at : at + 40]!r} at character {at} of the selector is not a requirement; {_EXAMPLE}")


def _compared(key: str, sign: str, value: str) -> Term:
    if sign in "<>":
        if not _NUMBER.fullmatch(value):
            raise SelectorError(f"{value[:40]!r} is not an integer; {key}{sign} needs one")
        return Term(key, "gt" if sign == ">" else "lt", frozenset({value}))
    return Term(key, "notin" if sign == "!=" else "in", _checked(frozenset({value})))


def _checked(values: frozenset[str]) -> frozenset[str]:
    for value in values:
        if not _VALUE.fullmatch(value):
            raise SelectorError(f"{value[:40]!r} is not a valid label value; {_EXAMPLE}")
    return values
