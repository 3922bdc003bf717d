"""
The metric reference for people, printed from the catalogue: `python -m exporter.reference > docs/metrics.md`.

Pure but for the last lines. Says only what the catalogue says; a test fails when the file is stale.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from exporter.compat import SPECS
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

Card series carry no pod labels, and do not change when pods come and go: join them with container series on
`node`, `uuid` and `card`.

- **Who.** A container of a pod, or a command of `gpushare run`: then `namespace` is empty, `pod` is the run's
  name and `container` its promise id. Pods of one name one after the other are told apart by `promise` on
  `gpushare_container_info`; while both live, the other series are their sum.
- **Where a figure comes from** stands on `gpushare_container_info`. Page on `source="nvml"`: `library` is the
  container's own word. `gpushare_card_attributable` 0 says that NVML cannot be split by container on this card.
- **Used is 0 from allocation on.** A time slice (`UUID::n`) promises no memory and has no allocated series.
- **Energy.** What a card draws idle (the lowest power seen while nobody computed) is put down to containers by
  the memory that they were promised, the rest by their part of all compute. What nobody was promised, and what
  strangers compute, is nobody's: containers never add up to more than `gpushare_card_energy_joules_total`.
- **MIG.** An instance is a card with `parent` and `profile`; power, energy, temperature and errors stand with
  the divided card, memory and containers with its instances.
- **Breaches.** An over-limit begins 1 % (at most 64 MiB) above the promise and ends at the promise; what is
  measured otherwise must be seen in two samples in a row. Counters of a container are kept for ten minutes
  after it has gone. Processes outside any claim are a breach on Kubernetes nodes and on cards of which
  something is promised; a display server is none.
- **Size.** At most 10 samples per (container, card), about 30 per card and 60 besides.
"""
_COMPAT = """\
## Names of ACK's exporters (`--compat ack`)

The same facts once more, with ACK's names, labels and units, so that dashboards and HPA rules for them keep
working. `_PROCESS_` stands for one GPU process of a container, `_ILLEGAL_PROCESS_` for one of a container that
was promised nothing of the card. `SupportDCGM` is No, `PodSource` ecs, `NodePoolId` the pool. Not emitted: DCGM's
profiling fields, which need DCGM. Power and temperature of a shared card stand once, under no pod. Series of
single processes come and go with them, and with the names that processes give themselves, as ACK's do: turn this
on where something asks for these names.

| metric | labels | meaning |
|---|---|---|"""


def reference() -> str:
    """The whole reference as Markdown."""
    return "\n".join([_HEAD, *_chapters(CATALOGUE.values()), *_labels(), _COMPAT, *map(_compat_row, SPECS), ""])


def _chapters(specs: Iterable[MetricSpec]) -> Iterator[str]:
    order = list(Group)
    for group, members in groupby(sorted(specs, key=lambda spec: order.index(spec.group)), key=lambda spec: spec.group):
        yield f"## {group}\n"
        yield "| metric | type | labels | meaning |\n|---|---|---|---|"
        for spec in members:
            labels = ", ".join(f"`{label}`" for label in spec.labels)
            yield f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |"
        yield ""


def _compat_row(spec: MetricSpec) -> str:
    return f"| `{spec.name}` | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.help} |"


def _labels() -> Iterator[str]:
    yield "## Labels\n"
    yield "| label | meaning |\n|---|---|"
    yield from (f"| `{name}` | {text} |" for name, text in sorted(LABELS.items()))
    yield ""


if __name__ == "__main__":
    sys.stdout.write(reference())
