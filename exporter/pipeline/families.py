# SPDX-License-Identifier: Apache-2.0
"""
Readings of nodes as metric families: what cards have, what containers were promised and use.

Pure. Every figure stands once per card or once per (card, container); a figure that could not be
read is absent. What the parts do not explain of a card's used memory is exported as its own
series instead of being spread over them. Nothing here knows how the figures were read or how
they travel (`exposition`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract import metrics
from isolation.contract.metrics import Kind
from isolation.contract.metrics import card as metrics_card

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from exporter.pipeline.counters import Counters
    from isolation.contract.metrics import Family, MetricSpec
    from isolation.contract.reading import CardReading, ContainerReading, Hardware, NodeReading

    Rows = Iterator[tuple[tuple[str, ...], float | None]]

_CARD_FIGURES: Final[tuple[tuple[MetricSpec, Callable[[CardReading], float | None]], ...]] = (
    (metrics.CARD_MEMORY_TOTAL, lambda card: _known(card, "total_bytes", card.total_bytes)),
    (metrics.CARD_MEMORY_USED, lambda card: card.used_bytes),
    (metrics.CARD_MEMORY_RESERVED, lambda card: _known(card, "reserved_bytes", card.reserved_bytes)),
    (metrics.CARD_MEMORY_ALLOCATED, lambda card: _known(card, "allocated_bytes", card.allocated_bytes)),
    (metrics.CARD_MEMORY_ALLOCATABLE, lambda card: _known(card, "allocatable_bytes", card.allocatable_bytes)),
    (metrics.CARD_MEMORY_UNATTRIBUTED, lambda card: card.unattributed_bytes),
    (metrics.CARD_MEMORY_LARGEST_FREE, lambda card: card.largest_free_bytes),
    (metrics.CARD_UTILISATION, lambda card: card.utilisation_ratio),
    (metrics.CARD_BUSY_SECONDS, lambda card: card.busy_seconds),
    (metrics.CARD_MEMORY_UTILISATION, lambda card: card.memory_utilisation_ratio),
    (metrics.CARD_POWER, lambda card: card.power_watts),
    (metrics.CARD_POWER_LIMIT, lambda card: card.power_limit_watts),
    (metrics.CARD_ENERGY, lambda card: card.energy_joules),
    (metrics.CARD_TEMPERATURE, lambda card: card.temperature_celsius),
    (metrics.CARD_HEALTHY, lambda card: card.healthy),
    (metrics_card.RECOVERY_ACTION, lambda card: card.hardware.recovery_action),
    (metrics_card.ROW_REMAP_PENDING, lambda card: card.hardware.remap_pending),
    (metrics_card.PROCESSES, lambda card: card.processes),
    (metrics.CARD_PCIE_REPLAYS, lambda card: card.pcie_replays),
    (metrics.CARD_NVLINK_ERRORS, lambda card: card.nvlink_errors),
    (metrics.CARD_EXCLUSIVE, lambda card: card.exclusive),
    (metrics.CARD_CONTAINERS, lambda card: card.holders),
    (metrics.CARD_USAGE_ATTRIBUTABLE, lambda card: card.attributable),
)
_CARD_PARTS: Final[tuple[tuple[MetricSpec, Callable[[CardReading], Iterable[tuple[str, float | None]]]], ...]] = (
    (metrics.CARD_CLOCK, lambda card: (("sm", card.sm_clock_hertz), ("memory", card.memory_clock_hertz))),
    (metrics.CARD_THROTTLED, lambda card: card.throttled_seconds or ()),
    (metrics.CARD_XIDS, lambda card: ((str(xid), number) for xid, number in card.xids)),
    (metrics.CARD_ECC, lambda card: (("corrected", card.ecc_corrected), ("uncorrected", card.ecc_uncorrected))),
    (metrics_card.UNHEALTHY, lambda card: ((card.unhealthy, 1.0),) if card.unhealthy else ()),
    (metrics.BREACHES_OPEN, lambda card: card.breaches or ()),
)
_CONTAINER_FIGURES: Final[tuple[tuple[MetricSpec, Callable[[ContainerReading], float | None]], ...]] = (
    (metrics.CONTAINER_MEMORY_ALLOCATED, lambda use: _known(use, "allocated_bytes", use.allocated_bytes)),
    (metrics.CONTAINER_MEMORY_USED, lambda use: use.used_bytes),
    (metrics.CONTAINER_COMPUTE_ALLOCATED, lambda use: use.allocated_core_ratio),
    (metrics.CONTAINER_COMPUTE_LIMIT, lambda use: use.limit_core_ratio),
    (metrics.CONTAINER_COMPUTE_USED, lambda use: use.used_core_ratio),
    (metrics.CONTAINER_COMPUTE_SECONDS, lambda use: use.compute_seconds),
    (metrics.CONTAINER_COMPUTE_OVERRUN, lambda use: use.overrun_seconds),
    (metrics.CONTAINER_MEMORY_PEAK, lambda use: use.peak_bytes),
    (metrics.CONTAINER_ENERGY, lambda use: use.energy_joules),
    (metrics.OVER_LIMIT, lambda use: use.over_limit_seconds),
    (metrics.OVER_LIMIT_INCIDENTS, lambda use: use.over_limit_episodes),
)
_LIBRARY: Final = "library"
_COLLECTED: Final[tuple[tuple[MetricSpec, Callable[[Hardware], float | None]], ...]] = (
    (metrics_card.ENCODER, lambda card: card.encoder_ratio),
    (metrics_card.DECODER, lambda card: card.decoder_ratio),
    (metrics_card.PCIE_GENERATION, lambda card: card.pcie_generation),
    (metrics_card.PCIE_WIDTH, lambda card: card.pcie_width),
    (metrics_card.PCIE_TRANSMIT, lambda card: card.pcie_sent_bytes),
    (metrics_card.PCIE_RECEIVE, lambda card: card.pcie_received_bytes),
    (metrics_card.NVLINK_ACTIVE_LINKS, lambda card: card.nvlink_links),
    (metrics_card.NVLINK_TRANSMIT, lambda card: card.nvlink_sent_bytes),
    (metrics_card.NVLINK_RECEIVE, lambda card: card.nvlink_received_bytes),
    (metrics_card.MEMORY_TEMPERATURE, lambda card: card.memory_celsius),
    (metrics_card.ROW_REMAP_FAILED, lambda card: card.remap_failed),
    (metrics_card.SM_ACTIVITY, lambda card: card.sm_activity),
    (metrics_card.SM_OCCUPANCY, lambda card: card.sm_occupancy),
    (metrics_card.TENSOR_ACTIVITY, lambda card: card.tensor_activity),
    (metrics_card.MEMORY_BANDWIDTH, lambda card: card.memory_bandwidth),
)
_COLLECTED_PARTS: Final[tuple[tuple[MetricSpec, Callable[[Hardware], Iterable[tuple[str, float]]]], ...]] = (
    (metrics_card.PCIE_ERRORS, lambda card: card.pcie_errors),
    (metrics_card.REMAPPED_ROWS, lambda card: card.remapped_rows),
    (metrics_card.RETIRED_PAGES, lambda card: card.retired_pages),
)
_COLLECTED_USES: Final[tuple[tuple[MetricSpec, Callable[[ContainerReading], float | None]], ...]] = (
    (metrics_card.CONTAINER_ENCODER, lambda use: use.encoder_ratio),
    (metrics_card.CONTAINER_DECODER, lambda use: use.decoder_ratio),
)


def card_families(nodes: Sequence[NodeReading]) -> Iterator[Family]:
    """Everything about nodes and cards, with no pod in any label."""
    yield from _node_families(nodes)
    cards = [(node, card, (node.node, card.uuid, str(card.index))) for node in nodes for card in node.cards]
    yield metrics.family(
        metrics.CARD_INFO,
        (
            ((*labels, card.model, node.pool, node.mode, node.isolation, card.parent, card.profile), 1)
            for node, card, labels in cards
        ),
    )
    for spec, figure in _CARD_FIGURES:
        yield metrics.family(spec, ((labels, figure(card)) for _, card, labels in cards))
    for spec, parts in _CARD_PARTS:
        yield metrics.family(
            spec, (((*labels, part), value) for _, card, labels in cards for part, value in parts(card))
        )
    yield metrics.family(metrics.CARD_MEMORY_UNACCOUNTED, _remainders(nodes))


def container_families(nodes: Sequence[NodeReading], counters: Counters | None = None) -> Iterator[Family]:
    """
    Everything about containers; allocated and used carry the same labels, so that they divide.

    Counters of several containers under one name are added up here, or by `counters`, which never lets them fall.
    """
    uses = [(use, _container_labels(node.node, use)) for node in nodes for use in node.containers]
    yield metrics.family(
        metrics.CONTAINER_INFO,
        (((*labels, *_provenance(use)), 1) for use, labels in uses),
    )
    for spec, figure in _CONTAINER_FIGURES:
        rows = [(labels, use, figure(use)) for use, labels in uses]
        yield _family(spec, rows, counters)
    yield _family(
        metrics.DENIED_ALLOCATIONS, [((*labels, _LIBRARY), use, use.denied) for use, labels in uses], counters
    )


def _family(
    spec: MetricSpec, rows: list[tuple[tuple[str, ...], ContainerReading, float | None]], counters: Counters | None
) -> Family:
    if counters is None or spec.kind is not Kind.COUNTER:
        return metrics.family(spec, ((labels, value) for labels, _, value in rows))
    return counters.family(spec, ((labels, (use.promise, use.pod_uid), value) for labels, use, value in rows))


def collected_families(nodes: Sequence[NodeReading], groups: Container[str]) -> Iterator[Family]:
    """What `--collect` adds: of the groups of `metrics.card.COLLECTED` that were chosen."""
    cards = [((node.node, card.uuid, str(card.index)), card.hardware) for node in nodes for card in node.cards]
    uses = [(_container_labels(node.node, use), use) for node in nodes for use in node.containers]
    wanted = {spec for group, specs in metrics_card.COLLECTED.items() if group in groups for spec in specs}
    for spec, figure in _COLLECTED:
        if spec in wanted:
            yield metrics.family(spec, ((labels, figure(card)) for labels, card in cards))
    for spec, parts in _COLLECTED_PARTS:
        if spec in wanted:
            yield metrics.family(
                spec, (((*labels, part), value) for labels, card in cards for part, value in parts(card))
            )
    for spec, figure_of in _COLLECTED_USES:
        if spec in wanted:
            yield metrics.family(spec, ((labels, figure_of(use)) for labels, use in uses))


def _node_families(nodes: Sequence[NodeReading]) -> Iterator[Family]:
    yield metrics.family(metrics.NODE_INFO, (((node.node, node.driver), 1) for node in nodes if node.driver))
    yield metrics.family(metrics.HOST_PIDS, (((node.node,), node.host_pids) for node in nodes))
    yield metrics.family(metrics.MPS_RUNNING, (((node.node,), node.mps) for node in nodes))
    yield metrics.family(
        metrics.BREACHES,
        (((node.node, kind), number) for node in nodes for kind, number in node.breach_counts or ()),
    )


def _known(reading: CardReading | ContainerReading, name: str, value: float) -> float | None:
    return None if name in reading.unknown else value


def _container_labels(node: str, use: ContainerReading) -> tuple[str, ...]:
    mode = "exclusive" if use.exclusive else "shared"
    return (use.namespace, use.pod, use.container, node, use.uuid, str(use.index), mode)


def _provenance(use: ContainerReading) -> tuple[str, ...]:
    return (use.promise, use.allocation_source, use.policy, use.source, use.core_source, use.peak_source)


def _remainders(nodes: Iterable[NodeReading]) -> Rows:
    for node in nodes:
        explained: dict[str, int | None] = {card.uuid: card.unattributed_bytes for card in node.cards}
        for use in node.containers:
            before = explained.get(use.uuid)
            explained[use.uuid] = None if before is None or use.used_bytes is None else before + use.used_bytes
        for card in node.cards:
            left: int | None = None
            parts, used = explained[card.uuid], card.used_bytes
            if parts is not None and used is not None and "reserved_bytes" not in card.unknown:
                left = used - parts - card.reserved_bytes
            yield (node.node, card.uuid, str(card.index)), left
