# SPDX-License-Identifier: Apache-2.0
"""
Histories of programs as compact text, for the next leader.

Lists instead of names, then zlib and base64. What is read is not trusted: it is bounded before it is inflated, every
number is checked, and a program that is broken is left out. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from autoscaler.core.rightsizing.histogram import MAX_BUCKETS, Histogram
from autoscaler.core.rightsizing.history import (
    MAX_DAYS,
    MAX_LIVES,
    MAX_RUNNING,
    Life,
    ProgramHistory,
    ProgramKey,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PROGRAMS: Final = 4000
MAX_TEXT: Final = 520_000
_MAX_INFLATED: Final = 32 << 20
_VERSION: Final = 1
_LARGEST: Final = 1e18
_LIFE: Final = tuple(field.name for field in fields(Life))


class HistoryError(ValueError):
    """Text that is no history."""


def encode(histories: Mapping[ProgramKey, ProgramHistory]) -> str:
    """The text; of more than it holds those that were measured last."""
    latest = sorted(histories.items(), key=lambda entry: (-entry[1].seen, entry[0]))[:MAX_PROGRAMS]
    while True:
        shown = [_show(key, history) for key, history in latest]
        raw = json.dumps({"version": _VERSION, "programs": shown}, separators=(",", ":"))
        text = base64.b64encode(zlib.compress(raw.encode())).decode()
        if len(text) <= MAX_TEXT or not latest:
            return text
        latest = latest[: len(latest) * 3 // 4]


def decode(text: str, now: float) -> dict[ProgramKey, ProgramHistory]:
    """What the text says, with no time after `now`; HistoryError where it is none."""
    if len(text) > MAX_TEXT:
        raise HistoryError(f"usage history has {len(text)} characters: the maximum is {MAX_TEXT}")
    try:
        inflater = zlib.decompressobj()
        raw = inflater.decompress(base64.b64decode(text, validate=True), _MAX_INFLATED)
        if not inflater.eof:
            raise HistoryError("usage history is cut short, or too large")
        found = json.loads(raw)
        if found["version"] != _VERSION:
            raise HistoryError(f"usage history has version {found['version']!r}: this program reads {_VERSION}")
        programs = list(found["programs"])[:MAX_PROGRAMS]
    except (binascii.Error, zlib.error, ValueError, TypeError, KeyError, RecursionError) as exc:
        raise HistoryError(f"usage history is corrupt: {exc}") from None
    histories = {}
    for entry in programs:
        try:
            key, history = _read(entry, now)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            continue
        histories[key] = history
    return histories


def _show(key: ProgramKey, history: ProgramHistory) -> list[Any]:
    return [
        [key.namespace, key.owner, key.container, key.model, key.revision],
        [_show_histogram(history.peaks), _show_histogram(history.compute)],
        [_show_life(life) for life in history.ended],
        {name: _show_life(life) for name, life in history.running.items()},
        [int(history.finite), round(history.seen), history.needed_bytes, round(history.denied_at)],
    ]


def _show_histogram(one: Histogram) -> list[Any]:
    # weights in thousandths of the largest: what is less says nothing
    largest = max(one.weights.values(), default=0.0)
    weights = {str(bucket): round(weight / largest * 1000) for bucket, weight in one.weights.items() if largest}
    return [round(one.since), largest, {bucket: weight for bucket, weight in weights.items() if weight}]


def _show_life(life: Life) -> list[Any]:
    shown: list[Any] = []
    for name in _LIFE:
        value = getattr(life, name)
        shown.append(list(value) if isinstance(value, tuple) else round(value, 1) if value is not None else None)
    return shown


def _read(entry: Any, now: float) -> tuple[ProgramKey, ProgramHistory]:
    names, histograms, ended, running, more = entry
    key = ProgramKey(*(_text(name) for name in names))
    usual = ProgramHistory()
    finite, seen, needed, denied_at = more
    history = ProgramHistory(
        _read_histogram(usual.peaks, histograms[0], now),
        _read_histogram(usual.compute, histograms[1], now),
        tuple(_read_life(life, now) for life in list(ended)[-MAX_LIVES:]),
        {_text(name): _read_life(life, now) for name, life in list(running.items())[:MAX_RUNNING]},
        bool(finite),
        min(_number(seen), now),
        int(_number(needed)),
        min(_number(denied_at), now),
    )
    return key, history


def _read_histogram(usual: Histogram, entry: Any, now: float) -> Histogram:
    since, largest, weights = entry
    scale = _number(largest) / 1000
    found = {int(bucket): _number(weight) * scale for bucket, weight in weights.items()}
    if any(not 0 <= bucket < MAX_BUCKETS for bucket in found):
        raise ValueError("no bucket")
    return Histogram(usual.first, usual.half_life, min(_number(since), now), found)


def _read_life(entry: Any, now: float) -> Life:
    given = dict(zip(_LIFE, entry, strict=True))
    days = tuple(int(_number(day)) for day in list(given.pop("days"))[-MAX_DAYS:])
    compute = given.pop("compute_seconds")
    numbers = {name: _number(value) for name, value in given.items()}
    whole = {
        name: int(numbers[name]) for name in ("promised_bytes", "peak_bytes", "denied", "used_bytes", "day", "today")
    }
    return Life(
        started=min(numbers["started"], now),
        seen=min(numbers["seen"], now),
        grown=min(numbers["grown"], now),
        observed=numbers["observed"],
        flat=numbers["flat"],
        full=numbers["full"],
        busy=numbers["busy"],
        days=days,
        compute_seconds=None if compute is None else _number(compute),
        **whole,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 300:  # noqa: PLR2004 (more than any name in Kubernetes)
        raise ValueError("no name")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no number")
    if not 0 <= value <= _LARGEST:
        raise ValueError("out of range")
    return float(value)
