# SPDX-License-Identifier: Apache-2.0
"""
Counters of containers that never fall, although pods are replaced under the same name.

A pod may be replaced by one of the same name, and for a while both exist. Each promise has a count of its own; what is
shown is what all of them have grown by, so that neither a second pod's arrival nor the first one's end looks like a
counter that began again. Remembers, and decides nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from isolation.contract.metrics import Family

if TYPE_CHECKING:
    from collections.abc import Iterable

    from isolation.contract.metrics import MetricSpec

KEPT_PAGES: Final = 300
"""Pages for which a series that is gone is remembered: at one a cycle ten minutes, as its container is."""


@dataclass(slots=True)
class _Line:
    """One series."""

    total: float = 0.0
    parts: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    """What each promise stood at, and on which page it did last."""


class Counters:
    """The series of one exporter's containers. Not for several threads at once."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[tuple[str, ...], _Line]] = {}
        self._page = 0

    def turn(self) -> None:
        """A new page begins."""
        self._page += 1
        for lines in self._lines.values():
            for labels in list(lines):
                parts = lines[labels].parts
                for promise in [one for one, (_, page) in parts.items() if self._page - page > KEPT_PAGES]:
                    del parts[promise]
                if not parts:
                    del lines[labels]

    def family(self, spec: MetricSpec, rows: Iterable[tuple[tuple[str, ...], tuple[str, str], float | None]]) -> Family:
        """Samples by labels, of (labels, promise, count) rows; what is unknown now (None) is absent."""
        lines = self._lines.setdefault(spec.name, {})
        shown: dict[tuple[str, ...], float] = {}
        for labels, promise, value in rows:
            if value is None:
                continue
            line = lines.setdefault(labels, _Line())
            before, _ = line.parts.get(promise, (0.0, 0))
            line.total += value - before if value >= before else value
            line.parts[promise] = value, self._page
            shown[labels] = line.total
        return Family(spec, tuple(shown.items()))
