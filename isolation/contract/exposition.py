# SPDX-License-Identifier: Apache-2.0
"""
Samples of a metrics page and of a Prometheus instant query: the only reader of either.

The sender is not trusted: sizes are bounded, a line that is no sample is left out, and so is a value that is not a
finite number. What a sample means is the caller's business. Pure.

Sources: Prometheus, "Exposition formats" (text-based format), "HTTP API" (instant queries).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

MAX_BYTES: Final = 256 << 20
MAX_SAMPLES: Final = 2_000_000
_MAX_LINE_CHARACTERS: Final = 8192
_MAX_LABEL_CHARACTERS: Final = 512
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+([^ \t]+)(?:[ \t]+[^ \t]+)?[ \t]*")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:, *|$)')
_ESCAPED: Final = re.compile(r"\\(.)")


class ExpositionError(ValueError):
    """A page or an answer that cannot be used at all."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_page(page: bytes, names: Container[str]) -> Iterator[MetricSample]:
    """The samples of these metrics; ExpositionError for a page that is too large."""
    if len(page) > MAX_BYTES:
        raise ExpositionError(f"the metrics page is larger than {MAX_BYTES >> 20} MiB")
    count = 0
    for line in page.decode("utf-8", "replace").split("\n"):
        name = line.split("{", 1)[0].split(" ", 1)[0].split("\t", 1)[0]
        if name not in names or len(line) > _MAX_LINE_CHARACTERS:
            continue
        sample = _sample(line.rstrip("\r"))
        if sample is not None:
            count += 1
            if count > MAX_SAMPLES:
                raise ExpositionError(f"the metrics page has more than {MAX_SAMPLES:,} samples")
            yield sample


def _sample(line: str) -> MetricSample | None:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        return None
    value, labels = _number(match[3]), _labels(match[2] or "")
    return None if value is None or labels is None else MetricSample(match[1], labels, value)


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None or len(match[2]) > _MAX_LABEL_CHARACTERS:
            return None
        word = match[2]
        labels[match[1]] = _ESCAPED.sub(_unescape, word) if "\\" in word else word
        at = match.end()
    return labels


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if "_" in text:  # Python's own spelling of numbers
        return None
    return value if isfinite(value) else None


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    resultType: str = ""  # noqa: N815 (Prometheus' spelling)
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


_ANSWER: Final = msgspec.json.Decoder(_Answer)


def parse_query_answer(body: bytes) -> Iterator[MetricSample]:
    """The vector of an instant query; ExpositionError for an error of Prometheus or any other answer."""
    try:
        answer = _ANSWER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ExpositionError("the answer is not from Prometheus") from None
    if answer.status != "success" or answer.data is None or answer.data.resultType != "vector":
        raise ExpositionError(f"Prometheus rejects the query: {answer.error[:200] or 'no reason given'}")
    for series in answer.data.result[:MAX_SAMPLES]:
        value = _number(series.value[1])
        if value is not None and all(len(word) <= _MAX_LABEL_CHARACTERS for word in series.metric.values()):
            yield MetricSample(series.metric.get("__name__", ""), series.metric, value)
