# SPDX-License-Identifier: Apache-2.0
"""
The configuration of the autoscaler (pools, bounds, source of metrics): one YAML file, read again when it changes.

Values only. `autoscaler.kube.config` reads the file; which provider serves a pool, and whether it takes its settings,
`autoscaler.providers.registry` knows.

    version: 1
    pools:
      - name: gpu-a
        provider: scale
        settings: {name: gpu-a, namespace: default}
        min_nodes: 0
        max_nodes: 20
        price: 3.1
        priority: 10
        spare_nodes: 1
        skip_nodes_with_local_storage: true
        skip_nodes_with_custom_controller_pods: true
        scale_up: gpushare
        scale_down: gpushare
        mode: cgpu
        placement: binpack
        node_template: {cpu: 16000, memory: 68719476736, cards: {...}}
    limits: {scale_down_unneeded_seconds: 900}
    metrics: {source: exporter, scrape_interval_seconds: 15}
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.drain_rules import DrainRules
from autoscaler.core.limits import ScalingLimits
from isolation.contract.cluster_autoscaler_annotations import Ours, Scaler
from isolation.contract.model import Mode
from isolation.host.core.context_memory import server_bytes, under_mps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.core.pools import Pool
    from autoscaler.providers.registry import PoolSource
    from isolation.contract.codec.template import NodeTemplate
    from isolation.contract.model import Card, CardChoice

SOURCES: Final = ("exporter", "prometheus", "none")


class ConfigError(ValueError):
    """A file that cannot be used; every reason, a line each."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """One pool as its operator wants it."""

    name: str
    source: PoolSource
    """Provider and its settings."""
    min_nodes: int = 0
    max_nodes: int = 10
    price: float = 1.0
    priority: int = 0
    """A pool of a higher one is asked first, whatever it costs."""
    spare_nodes: int = 0
    """So many nodes more than those in use are kept ready, up to the largest."""
    mode: Mode | None = None
    """What its nodes serve; None: as the profile says."""
    choice: CardChoice | None = None
    profile: NodeTemplate | None = None
    """A fresh node as its operator describes it; None: from the provider, or learnt from the first node."""

    drain_rules: DrainRules = field(default_factory=DrainRules)
    """Which pods keep its nodes."""
    scale_up: Scaler = Scaler.GPUSHARE
    """Who buys its nodes."""
    scale_down: Scaler = Scaler.GPUSHARE
    """Who drains and removes its nodes, and moves their pods."""

    @property
    def ours(self) -> Ours:
        """What is configured to be done here."""
        return Ours(self.scale_up is Scaler.GPUSHARE, self.scale_down is Scaler.GPUSHARE)

    def shaped(self, known: NodeTemplate | None) -> NodeTemplate | None:
        """What a fresh node is like, as nodes or the provider show it: what is configured here is not overruled."""
        base = self.profile or known
        if base is None:
            return None
        mode = self.mode or base.mode
        cards = _under_mps(base) if mode is Mode.MPS else base.cards
        return replace(base, mode=mode, choice=self.choice or base.choice, cards=cards)


def _under_mps(base: NodeTemplate) -> tuple[Card, ...]:
    """
    Cards of a fresh node of mode mps, without what their servers have, as its agent will state them.

    Nodes of that mode state it so already, and whoever describes one copies that. What comes from a node of another
    mode, or keeps too little for a server, does not contain it.
    """
    other = base.mode not in {Mode.MPS, Mode.NONE}
    return tuple(
        under_mps(card) if other or card.reserved_bytes < server_bytes(card.model) else card for card in base.cards
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """Where measured figures come from."""

    source: str = "exporter"
    """exporter (each node's own), prometheus, or none: then nothing rests on what is measured."""
    url: str = ""
    """Of Prometheus."""
    port: int = 9445
    """Of the exporters."""
    scrape_interval_seconds: float = 15.0
    """How often they measure; figures older than three of these are not used."""

    @property
    def stale_seconds(self) -> float:
        """Older ones are not used."""
        return 3 * self.scrape_interval_seconds


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file."""

    pools: tuple[PoolConfig, ...] = ()
    limits: ScalingLimits = field(default_factory=ScalingLimits)
    metrics: Figures = field(default_factory=Figures)

    @property
    def fresh_seconds(self) -> float:
        """Older usage is not given to others: stale ones, but what a cycle has read lasts for three cycles at least."""
        return max(self.metrics.stale_seconds, 3 * self.limits.scan_interval_seconds)

    def ranked(self, pools: Mapping[str, Pool]) -> dict[str, Pool]:
        """The pools of a reading, with their priorities."""
        ranks = {pool.name: pool.priority for pool in self.pools}
        return {name: replace(pool, priority=ranks.get(name, 0)) for name, pool in pools.items()}

    @property
    def sources(self) -> tuple[PoolSource, ...]:
        """For the providers."""
        return tuple(pool.source for pool in self.pools)
