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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from isolation.contract.metrics import Family, MetricSpec
    from isolation.contract.reading import CardReading, ContainerReading, NodeReading

_CARD_FIGURES: Final[tuple[tuple[MetricSpec, Callable[[CardReading], float | None]], ...]] = (
    (metrics.CARD_TOTAL, lambda card: card.total_bytes),
    (metrics.CARD_USED, lambda card: card.used_bytes),
    (metrics.CARD_RESERVED, lambda card: card.reserved_bytes),
    (metrics.CARD_ALLOCATED, lambda card: card.allocated_bytes),
    (metrics.CARD_OFFERED, lambda card: card.offered_bytes),
    (metrics.CARD_UNATTRIBUTED, lambda card: card.unattributed_bytes),
    (metrics.CARD_UTILISATION, lambda card: card.utilisation_ratio),
    (metrics.CARD_POWER, lambda card: card.power_watts),
    (metrics.CARD_TEMPERATURE, lambda card: card.temperature_celsius),
    (metrics.CARD_HEALTHY, lambda card: card.healthy),
)
_CONTAINER_FIGURES: Final[tuple[tuple[MetricSpec, Callable[[ContainerReading], float | None]], ...]] = (
    (metrics.CONTAINER_ALLOCATED, lambda use: use.allocated_bytes),
    (metrics.CONTAINER_USED, lambda use: use.used_bytes),
    (metrics.CONTAINER_CORE, lambda use: use.allocated_core_ratio),
    (metrics.CONTAINER_CORE_USED, lambda use: use.used_core_ratio),
    (metrics.OVER_LIMIT, lambda use: use.over_limit_seconds),
)


def card_families(nodes: Sequence[NodeReading]) -> Iterator[Family]:
    """Everything about cards, with no pod in any label."""
    cards = [(node, card, (node.node, card.uuid, str(card.index))) for node in nodes for card in node.cards]
    yield metrics.family(
        metrics.CARD_INFO,
        (((*labels, card.model, node.pool, node.mode, node.isolation), 1) for node, card, labels in cards),
    )
    for spec, figure in _CARD_FIGURES:
        yield metrics.family(spec, ((labels, figure(card)) for _, card, labels in cards))
    yield metrics.family(metrics.CARD_REMAINDER, _remainders(nodes))


def container_families(nodes: Sequence[NodeReading]) -> Iterator[Family]:
    """Everything about containers; allocated and used carry the same labels, so that they divide."""
    uses = [(use, _container_labels(node.node, use)) for node in nodes for use in node.containers]
    yield metrics.family(metrics.CONTAINER_INFO, (((*labels, use.promise, use.source), 1) for use, labels in uses))
    for spec, figure in _CONTAINER_FIGURES:
        yield metrics.family(spec, ((labels, figure(use)) for use, labels in uses))


def _container_labels(node: str, use: ContainerReading) -> tuple[str, ...]:
    mode = "exclusive" if use.exclusive else "shared"
    return (use.namespace, use.pod, use.container, node, use.uuid, str(use.index), mode)


def _remainders(nodes: Iterable[NodeReading]) -> Iterator[tuple[tuple[str, ...], float | None]]:
    for node in nodes:
        explained: dict[str, int | None] = {card.uuid: card.unattributed_bytes for card in node.cards}
        for use in node.containers:
            before = explained.get(use.uuid)
            explained[use.uuid] = None if before is None or use.used_bytes is None else before + use.used_bytes
        for card in node.cards:
            parts = explained[card.uuid]
            known = None if card.used_bytes is None or parts is None else card.used_bytes - parts - card.reserved_bytes
            yield (node.node, card.uuid, str(card.index)), known
