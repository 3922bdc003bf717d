# SPDX-License-Identifier: Apache-2.0
"""
The messages between the scheduler and its admission process: JSON, one message a line.

Pure. Both ends are of one release and started together, so the messages carry no version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from isolation.contract.cluster_autoscaler_annotations import Ours
from isolation.contract.codec.pools import PublishedPool, PublishedPools, decode_pools
from isolation.contract.codec.recommendations import Recommendations, Recommended, decode_recommendations
from isolation.contract.names import ACK
from isolation.placement.card_sizes import CardKind, CardSizes, measure_cards
from isolation.scheduler.admission.core.node_sizes import UNKNOWN, NodeSizes, measure_nodes

if TYPE_CHECKING:
    from isolation.contract.model import Node, Rules

MAX_LINE: Final = 16 << 20
"""Bytes: a batch of names has less than 2 MiB, a fleet of 50,000 different nodes 4 MiB."""
_FRESH_SECONDS: Final = 86_400.0
_Message = TypeVar("_Message", bound=msgspec.Struct)


class AdmissionConfiguration(msgspec.Struct, frozen=True):
    """The first message, from `SchedulerSettings`."""

    certificate: str
    key: str
    client_ca: str | None
    scheduler: str
    unit_bytes: int
    log_format: str = "text"
    log_level: str = "info"
    dialects: frozenset[str] = frozenset({ACK.name})
    left: frozenset[tuple[str, str]] = frozenset()
    trust_groups: tuple[tuple[str, str], ...] = ()


class CardKinds(msgspec.Struct, frozen=True):
    """`CardSizes` of the nodes that exist."""

    kinds: tuple[CardKind, ...]
    dropped: frozenset[str]


class ClusterUpdate(msgspec.Struct, frozen=True):
    """What has changed in the cluster since the last update; the first ones hold everything."""

    whole: bool
    """Whether all that the scheduler knows has been sent."""
    synced: bool
    """Whether the scheduler's informers are synced."""
    shared: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """Pods with shares (namespace, name) that are new."""
    gone: list[tuple[str, str]] = msgspec.field(default_factory=list)
    fleet: NodeSizes | None = None
    """None: as before."""
    pools: str | None = None
    """What the autoscaler has published (`codec.pools`), empty where that is nothing; None: as before."""
    cards: CardKinds | None = None
    """None: as before, or no dialect asks for parts of cards."""
    owned: dict[str, str] | None = None
    """`Offered.owned`; None: as before."""
    right_sizing: str | None = None
    """What the autoscaler recommends (`codec.recommendations`), empty where that is nothing; None: as before."""


class ProcessReport(msgspec.Struct, frozen=True):
    """What the process has done since it started, sent every second; it shows that its event loop runs."""

    outcomes: dict[str, int]
    """Requests answered, by outcome."""
    buckets: list[int]
    """Answers by duration, as `metrics.scheduler.BUCKETS`, and one more for the rest; not cumulative."""
    seconds: float
    """Sum of the durations."""
    connections: int
    dropped: dict[str, int]
    """Connections ended before they were answered, by reason."""
    loaded: float
    """When the serving certificate in use was read, seconds since the epoch."""
    ends: float | None
    """When it expires; None: unreadable."""


class ClusterView:
    """The cluster as the updates so far describe it."""

    def __init__(self) -> None:
        self.fleet, self.synced = UNKNOWN, False
        self.pools: tuple[PublishedPool, ...] = ()
        self.growth: NodeSizes | None = None
        """Sizes of nodes that the pools can add; None: not known, or not all of them."""
        self._shared: set[tuple[str, str]] = set()
        self._cards, self._sizes = CardSizes(), CardSizes()
        self.owned: dict[str, str] = {}
        self._recommendations = Recommendations()
        self._recommended = Recommended()

    def apply(self, update: ClusterUpdate) -> None:
        """Apply one update."""
        self.synced = update.synced
        self._shared.difference_update(update.gone)
        self._shared.update(update.shared)
        if update.fleet is not None:
            self.fleet = update.fleet
        if update.owned is not None:
            self.owned = update.owned
        if update.right_sizing is not None:
            text = update.right_sizing
            self._recommendations = decode_recommendations(text) if text else Recommendations()
            self._recommended = Recommended.of(self._recommendations.programs)
        if update.pools is not None:
            found = decode_pools(update.pools) if update.pools else PublishedPools()
            growing = (pool.fresh for pool in found.pools if pool.max_nodes)
            self.pools, self.growth = found.pools, measure_nodes(growing) if found.complete else None
        if update.cards is not None:
            self._cards = CardSizes(update.cards.kinds, update.cards.dropped)
        if update.cards is not None or update.pools is not None:
            coming = measure_cards(pool.fresh for pool in self.pools if pool.max_nodes)
            self._sizes = CardSizes(self._cards.kinds + coming.kinds, self._cards.dropped | coming.dropped)

    def recommended(self, now: float) -> Recommended:
        """For new pods; nothing in a dry run of the autoscaler, or after a day in which it published nothing."""
        fresh = now - self._recommendations.at < _FRESH_SECONDS
        return self._recommended if self._recommendations.applied and fresh else Recommended()

    def card_sizes(self, rules: Rules, *, compute: bool) -> frozenset[int] | None:
        """Sizes of cards that a pod with such rules could get; None: not known now."""
        return self._sizes.of(rules, compute=compute) if self.synced else None

    def labels_of(self, key: str) -> frozenset[str]:
        """Values of a label on nodes that have cards."""
        return frozenset(value for kind in self._sizes.kinds for name, value in kind.labels if name == key)

    @property
    def handed(self) -> list[tuple[Node, Ours]]:
        """Pools that gpushare scales instead of cluster-autoscaler: an empty node of each, and what it does there."""
        return [(pool.fresh, pool.ours) for pool in self.pools if pool.ours != Ours()]

    def is_shared(self, namespace: str, name: str) -> bool | None:
        """Whether a stored pod has shares; None: cannot tell now."""
        return True if (namespace, name) in self._shared else False if self.synced else None


def encode(message: msgspec.Struct) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes, kind: type[_Message]) -> _Message:
    """The message of a line; msgspec.MsgspecError where it is none."""
    return msgspec.json.decode(line, type=kind)
