"""
The metric reference for people, printed from the catalogue: `python -m exporter.reference > docs/metrics.md`.

Pure but for the last lines. Says only what the catalogue says; a test fails when the file is stale.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from isolation.contract.metrics import CATALOGUE, LABELS, Group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from isolation.contract.metrics import MetricSpec

_HEAD = """\
<!-- Printed by `python -m exporter.reference`; change isolation/contract/metrics.py instead. -->
# Metrics

Base units, ratios from 0 to 1. What cannot be told is absent, never 0; a collector that failed has
`gpushare_exporter_collector_success` 0 and none of its series. A value stands once per card or once
per (card, container), so `sum()` over any labels counts nothing twice. On every card

    memory_used = sum over containers (memory_used) + memory_unattributed + memory_reserved + memory_remainder

and `memory_remainder` is 0 where the measurement explains the card. Allocated and used series of
containers carry the same labels, so that they divide without `on()`:

    gpushare_container_memory_used_bytes / gpushare_container_memory_allocated_bytes > 1

Card series carry no pod labels: join them with container series on `node`, `uuid` and `card`.
"""


def reference() -> str:
    """The whole reference as Markdown."""
    return "\n".join([_HEAD, *_chapters(CATALOGUE.values()), *_labels()])


def _chapters(specs: Iterable[MetricSpec]) -> Iterator[str]:
    order = list(Group)
    for group, members in groupby(sorted(specs, key=lambda spec: order.index(spec.group)), key=lambda spec: spec.group):
        yield f"## {group}\n"
        yield "| metric | type | labels | meaning |\n|---|---|---|---|"
        for spec in members:
            labels = ", ".join(f"`{label}`" for label in spec.labels)
            yield f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |"
        yield ""


def _labels() -> Iterator[str]:
    yield "## Labels\n"
    yield "| label | meaning |\n|---|---|"
    yield from (f"| `{name}` | {text} |" for name, text in sorted(LABELS.items()))
    yield ""


if __name__ == "__main__":
    sys.stdout.write(reference())
