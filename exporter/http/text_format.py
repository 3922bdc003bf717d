# SPDX-License-Identifier: Apache-2.0
"""
Metric families as text: Prometheus' format 0.0.4 and OpenMetrics 1.0.

Pure but for what it remembers: a series' labels are written once and kept for as long as the series is in
the page, since they hardly change from one page to the next and cost most of the work. Which families there
are, and who asks for which format, is decided elsewhere.

Sources: Prometheus, "Exposition formats"; OpenMetrics 1.0 (names of counters and infos, units, EOF). Labels
stand in the order of their names, and numbers are written as Prometheus' own clients write them, so that
pages can be compared byte by byte.
"""

from __future__ import annotations

from functools import lru_cache
from math import isfinite, isnan
from typing import TYPE_CHECKING, Final

from isolation.contract.metrics import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from isolation.contract.metrics import Family, MetricSpec

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_EXPONENT_FROM: Final = 1e6
"""Go, and so every Prometheus client, writes larger numbers with an exponent."""
_REPR_EXPONENT_FROM: Final = 1e16
"""Python does so from here on by itself."""
_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Renderer:
    """Writes pages and remembers the labels of the last one. For one thread at a time."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}

    @property
    def remembered(self) -> int:
        """Label sets that are kept for the next page."""
        return sum(len(known) for known in self._written.values())

    def page(self, families: Iterable[Family], *, openmetrics: bool = False) -> bytes:
        """The whole page. A family without samples is left out; a name that comes twice is written once."""
        written: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
        numbers: dict[float, str] = {}
        lines: list[str] = []
        for family in _merged(families):
            spec = family.spec
            lines.append(_head(spec, openmetrics=openmetrics))
            name, names = spec.name, spec.labels
            fresh = written.setdefault(names, {})
            before = self._written.get(names, fresh)
            for labels, value in family.samples:
                text = fresh.get(labels)
                if text is None:
                    text = before.get(labels)
                    fresh[labels] = text = _writer(names)(labels) if text is None else text
                shown = numbers.get(value)
                if shown is None:
                    shown = number(value)
                    if value:  # 0.0 and -0.0 are one key
                        numbers[value] = shown
                lines.append(f"{name}{text} {shown}\n")
        self._written = written
        if openmetrics:
            lines.append("# EOF\n")
        return "".join(lines).encode("utf-8")


def number(value: float) -> str:
    """A value as Go writes it."""
    if isfinite(value):
        text = repr(float(value))
        if _EXPONENT_FROM <= value < _REPR_EXPONENT_FROM:
            whole, _, part = text.partition(".")
            digits = (whole + part).rstrip("0")
            mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
            return f"{mantissa}e+{len(whole) - 1:02d}"
        return text
    if isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"


def _merged(families: Iterable[Family]) -> Iterable[Family]:
    """Each name once, where it came first: a second block of one name would make a scraper refuse the page."""
    by_name: dict[str, Family] = {}
    for family in families:
        if not family.samples:
            continue
        known = by_name.get(family.spec.name)
        if known is not None:
            have = {labels for labels, _ in known.samples}
            more = tuple(sample for sample in family.samples if sample[0] not in have)
            family = type(family)(known.spec, known.samples + more)  # noqa: PLW2901 (the merged one takes its place)
        by_name[family.spec.name] = family
    return by_name.values()


@lru_cache(maxsize=1024)
def _head(spec: MetricSpec, *, openmetrics: bool) -> str:
    """What stands before the samples. OpenMetrics names the family without the suffix that its samples carry."""
    if not openmetrics:
        kind = Kind.GAUGE if spec.kind is Kind.INFO else spec.kind
        return f"# HELP {spec.name} {spec.help.translate(_HELP)}\n# TYPE {spec.name} {kind}\n"
    name = spec.name
    if spec.kind is Kind.COUNTER:
        name = name.removesuffix("_total")
    elif spec.kind is Kind.INFO:
        name = name.removesuffix("_info")
    unit = f"# UNIT {name} {spec.unit}\n" if spec.unit and name.endswith(f"_{spec.unit}") else ""
    return f"# HELP {name} {spec.help.translate(_LABEL)}\n# TYPE {name} {spec.kind}\n{unit}"


@lru_cache(maxsize=256)
def _writer(names: tuple[str, ...]) -> Callable[[tuple[str, ...]], str]:
    """How the labels of these names are written: `{a="1",b="2"}`, in the order of the names."""
    if not names:
        return lambda _: ""
    order = sorted(range(len(names)), key=names.__getitem__)
    parts = [(at, f'{names[at]}="') for at in order]

    def write(labels: tuple[str, ...]) -> str:
        return "{" + ",".join(f'{lead}{_escaped(labels[at])}"' for at, lead in parts) + "}"

    return write


def _escaped(label: str) -> str:
    # A lone surrogate (a name read from undecodable bytes) would fail the whole page.
    text = label if label.isascii() else label.encode("utf-8", "replace").decode("utf-8")
    return text.translate(_LABEL)
