# SPDX-License-Identifier: Apache-2.0
"""
What a scraper can take: its Accept and Accept-Encoding headers against what we have.

Pure. We have two formats and may compress them; a scraper that names none of them gets the plain text, a
scraper that forbids every way of sending it gets None: not acceptable.

Source: RFC 9110, sections 12.4 and 12.5 (the most specific range decides, q=0 excludes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_RANGES: Final = 32
"""No scraper lists more; what comes after is not read."""
_OPENMETRICS: Final = "application/openmetrics-text"
_PLAIN: Final = "text/plain"


def openmetrics(accept: str) -> bool:
    """
    Whether OpenMetrics is preferred to plain text.

    Equal preference goes to whichever the scraper names first, and to plain text if it names neither.
    We write version 1.0.0: that is what whoever asks for a later one gets, and an earlier one is not had.
    """
    ranges = list(_ranges(accept))
    weight, at = _quality(ranges, _OPENMETRICS)
    other, other_at = _quality(ranges, _PLAIN)
    return weight > 0 and (weight, -at) > (other, -other_at)


def gzip(accept_encoding: str | None) -> bool | None:
    """Whether to compress; None: neither compressed nor plain is acceptable. No header: anything is, plain it is."""
    if accept_encoding is None:
        return False
    weights = {coding: weight for coding, weight, _ in _ranges(accept_encoding)}
    anything = weights.get("*")
    packed = max(weights.get("gzip", -1.0), weights.get("x-gzip", -1.0))
    if packed < 0:
        packed = anything or 0.0
    # identity is acceptable unless it is excluded, by name or by "*;q=0"
    plain = weights.get("identity")
    forbidden = plain == 0 or (plain is None and anything == 0)
    if packed > 0 and (forbidden or packed >= (plain or 0)):
        return True
    return None if forbidden else False


def _quality(ranges: list[tuple[str, float, Mapping[str, str]]], kind: str) -> tuple[float, int]:
    """How much a media type is wanted, and the place of the range that says so."""
    major = kind.partition("/")[0]
    found: dict[str, tuple[float, int]] = {}
    for at, (media, weight, parameters) in enumerate(ranges):
        if media == _OPENMETRICS and parameters.get("version", "1").startswith("0"):
            continue
        if media in {kind, f"{major}/*", "*/*"} and weight > found.get(media, (-1.0, 0))[0]:
            found[media] = (weight, at if media == kind else _MAX_RANGES)
    for media in (kind, f"{major}/*", "*/*"):
        if media in found:
            return found[media]
    return 0.0, _MAX_RANGES


def _ranges(header: str) -> Iterator[tuple[str, float, Mapping[str, str]]]:
    """(name, q, parameters) of each element; one that makes no sense is passed over."""
    for element in header.split(",", _MAX_RANGES)[:_MAX_RANGES]:
        name, *rest = (part.strip() for part in element.split(";"))
        parameters = {
            key.strip().lower(): value.strip().strip('"') for key, _, value in (p.partition("=") for p in rest)
        }
        try:
            weight = float(parameters.pop("q", "1"))
        except ValueError:
            continue
        if name and 0 <= weight <= 1:
            yield name.lower(), weight, parameters
