# SPDX-License-Identifier: Apache-2.0
"""
The metric reference for people, printed from the catalogue: `python -m exporter.reference > docs/metrics.md`.

Pure but for the last lines. Says only what the catalogue says; a test fails when the file is stale.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from exporter.compat.ack import SPECS
from isolation.contract.metrics import CATALOGUE, LABELS, Group, autoscaler, card, node, scheduler
from isolation.contract.metrics.card import COLLECTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from isolation.contract.metrics import MetricSpec

_OPTIONAL = {spec.name for specs in COLLECTED.values() for spec in specs}
_ALWAYS = [*CATALOGUE.values(), *(spec for name, spec in card.CATALOGUE.items() if name not in _OPTIONAL)]
_HEAD = """\
<!-- Printed by `python -m exporter.reference`; change isolation/contract/metrics instead. -->
# Metrics

Look up every metric of gpushare: of the exporter (cards, containers, breaches), and of [node agent](#node-agent),
[scheduler](#scheduler) and [autoscaler](#autoscaler) about themselves. Scraping: [monitoring.md](monitoring.md).

Values are in base units; ratios go from 0 to 1. An unknown value is absent, never 0. A collector that failed has
`gpushare_exporter_collector_success` 0 and none of its series. Each value appears once per card or once per
(card, container), so `sum()` over any labels counts nothing twice. For every card:

    memory_used = sum over containers (memory_used) + memory_unattributed + memory_reserved + memory_unaccounted

`memory_unaccounted` is 0 if the measurement explains all used memory of the card. Allocated and used series of
containers carry the same labels, so they can be divided without `on()`:

    gpushare_container_memory_used_bytes / gpushare_container_memory_allocated_bytes > 1

Card series carry no pod labels and do not change when pods come and go. Join them with container series on
`node`, `uuid` and `card`.

- **Containers and runs.** Container series describe a container of a pod or a command of `gpushare run`. For a
  command, `namespace` is empty, `pod` is the name of the run and `container` is its promise id. If a pod is replaced
  by a new pod of the same name, `promise` on `gpushare_container_info` distinguishes them; while both exist, the
  other series are their sum.
- **Source of a value.** `gpushare_container_info` states it. Page only on `source="nvml"`: `library` is what the
  container's own library reports. If `gpushare_card_usage_attributable` is 0, NVML's values for this card cannot be
  split by container.
- **Used memory is 0 from allocation on**, until the container uses the card. A time slice (`UUID::n`) promises no
  memory and has no allocated series.
- **Energy.** The idle power of a card is the lowest power measured while no process computes. It is attributed to
  containers by their promised memory; the rest is attributed by their share of all compute. Idle power of memory
  that is not promised, and energy of processes without a promise, is attributed to no container: the sum over
  containers never exceeds `gpushare_card_energy_joules_total`.
- **MIG.** A MIG instance is a card with `parent` and `profile`. Power, energy, temperature and errors are series of
  the physical card; memory and containers are series of its instances.
- **Breaches.** An over-limit breach begins 1 % (at most 64 MiB) above the promise and ends at the promise. Other
  measured breaches begin when two samples in a row show them. Counters of a container are kept for ten minutes after
  the container ends. Processes without a promise are a breach on Kubernetes nodes and on cards with promises; a
  display server is not a breach.
- **Seconds.** The rate of a `_seconds_total` series is the average over the range: of
  `gpushare_container_compute_seconds_total` the part of the card that the container used, of
  `gpushare_card_throttled_seconds_total` the part of the time. A gauge is the state at the scrape: what happens between
  two scrapes is not in it.
- **Size.** At most 11 samples per (container, card), 60 per card and 60 others, without `--collect`.
"""
_PROCESSES: tuple[tuple[str, str, Mapping[str, MetricSpec], Mapping[str, str]], ...] = (
    ("Node agent", "Port 9447 of each node with shared cards.", node.CATALOGUE, node.LABELS),
    ("Scheduler", "Port 9446 of each replica.", scheduler.CATALOGUE, scheduler.LABELS),
    (
        "Autoscaler",
        (
            "Port 9448 of each replica, with the metrics of [pools](#pools-and-autoscaler) above. For the fleet use\n"
            "those of the leader (`... and on (instance) gpushare_autoscaler_leader == 1`). Metrics of a pool are\n"
            "absent while there is no valid observation of it."
        ),
        autoscaler.CATALOGUE,
        autoscaler.LABELS,
    ),
)
"""What processes say of themselves: heading, where, metrics, labels."""
_COMPAT = """\
## Names of ACK's exporters (`--compat-metrics ack`)

The same values under ACK's names, labels and units, so that existing dashboards and HPA rules keep working.
`_PROCESS_` metrics describe one GPU process of a container; `_ILLEGAL_PROCESS_` metrics describe one of a container
without a promise on the card. `SupportDCGM` is always No, `PodSource` is always ecs, `NodePoolId` is the pool.
Compute is the average of the last minute. Of DCGM's profiling fields, only those that NVML provides are exported
(Hopper and later). Power and temperature of a shared card appear once, without a pod.
Process series come and go with the processes and with the names that processes give themselves, as in ACK's
exporters: use this option only if something needs these names.

| metric | labels | meaning |
|---|---|---|"""


def reference() -> str:
    """The whole reference as Markdown."""
    chapters = (*_chapters(_ALWAYS), *_collected(), *_labels(LABELS), *_processes())
    return "\n".join([_HEAD, *chapters, _COMPAT, *map(_compat_row, SPECS), ""])


def _chapters(specs: Iterable[MetricSpec]) -> Iterator[str]:
    order = list(Group)
    for group, members in groupby(sorted(specs, key=lambda spec: order.index(spec.group)), key=lambda spec: spec.group):
        yield f"## {group}\n"
        yield from _table(members)


def _table(specs: Iterable[MetricSpec]) -> Iterator[str]:
    yield "| metric | type | labels | meaning |\n|---|---|---|---|"
    for spec in specs:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        yield f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |"
    yield ""


def _processes() -> Iterator[str]:
    for heading, where, catalogue, labels in _PROCESSES:
        yield f"## {heading}\n"
        yield f"{where}\n"
        yield from _table(catalogue.values())
        yield from _labels(labels, heading="")


def _collected() -> Iterator[str]:
    yield "## Further card metrics (`--collect`)\n"
    yield "Off by default; `--collect pcie,gpm` adds groups, `--collect all` all of them.\n"
    yield "| group | metric | type | labels | meaning |\n|---|---|---|---|---|"
    for group, specs in COLLECTED.items():
        for spec in specs:
            labels = ", ".join(f"`{label}`" for label in spec.labels)
            yield f"| `{group}` | `{spec.name}` | {spec.kind} | {labels} | {spec.help} |"
    yield ""


def _compat_row(spec: MetricSpec) -> str:
    return f"| `{spec.name}` | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.help} |"


def _labels(labels: Mapping[str, str], heading: str = "## Labels\n") -> Iterator[str]:
    if heading:
        yield heading
    yield "| label | meaning |\n|---|---|"
    yield from (f"| `{name}` | {text} |" for name, text in sorted(labels.items()))
    yield ""


if __name__ == "__main__":
    sys.stdout.write(reference())
