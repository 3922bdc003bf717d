# SPDX-License-Identifier: Apache-2.0
"""
Which of our parts are meant to be in a cluster, and how they would be applied again.

Pure. Follows from what is there: workloads of ours, nodes of a vendor that owns these names, webhooks of ours.
Where our exporter and autoscaler stand alone, another one places and limits, and nothing is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import AUTOSCALER, EXPORTER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE
from isolation.doctor.checks.cluster.facts import ClusterFacts, Unavailable
from isolation.doctor.checks.cluster.parse import table, tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from isolation.doctor.checks.cluster.facts import Workload

OURS: Final = "gpushare"
"""How the names of our objects begin."""
_INJECTED: Final = "cert-manager.io/inject-ca-from"
_OTHERS: Final = ("gpushare-device-plugin", "gpushare-schd-extender", "gpushare-scheduler-extender", "cgpu")
"""In the images of those who serve the same names: Alibaba's open gpushare, and ACK's own."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed in this cluster, as far as it is known."""

    installed: Mapping[str, Workload] | None
    """Ours, by name; None: unknown."""
    vendors: tuple[str, ...] | None
    """Nodes of a cloud that owns these names; None: unknown."""
    others: tuple[str, ...]
    """Workloads of others that serve these names."""
    webhooks: bool
    """Whether admission asks us."""
    overlay: str
    """Of the manifests."""

    @property
    def watches(self) -> bool:
        """Whether we only measure and scale here: who places and limits is somebody else."""
        if self.installed is None or {SCHEDULER, NODE_AGENT} & set(self.installed):
            return False
        return bool(self.vendors) or (not self.webhooks and bool({EXPORTER, AUTOSCALER} & set(self.installed)))

    @property
    def apply(self) -> str:
        """How what is missing comes back."""
        return f"kubectl apply -k manifests/overlays/{self.overlay}, or your own kustomization based on it"


def find_installation(facts: ClusterFacts) -> Installation:
    """From everything that was found."""
    workloads = None if isinstance(facts.workloads, Unavailable) else facts.workloads
    prefix = f"{SYSTEM_NAMESPACE}/"
    mine = (
        None
        if workloads is None
        else {one.key.removeprefix(prefix): one for one in workloads if one.key.startswith(prefix)}
    )
    others = [one for one in workloads or () if not one.key.startswith(prefix)]
    vendors = None if isinstance(facts.nodes, Unavailable) else tuple(one.name for one in facts.nodes if one.vendors)
    webhooks = () if isinstance(facts.webhooks, Unavailable) else facts.webhooks
    return Installation(
        mine,
        vendors,
        tuple(one.key for one in others if any(word in image for image in one.images for word in _OTHERS)),
        any(True for _ in our_webhooks(webhooks)),
        _overlay(mine or {}, webhooks, on_ack=bool(vendors)),
    )


def our_webhooks(webhooks: tuple[Mapping[str, Any], ...]) -> Iterator[Mapping[str, Any]]:
    """The webhooks that lead to us."""
    for configuration in webhooks:
        if str(table(configuration, "metadata").get("name", "")).startswith(OURS):
            yield from tables(configuration, "webhooks")


def _overlay(mine: Mapping[str, Workload], webhooks: tuple[Mapping[str, Any], ...], *, on_ack: bool) -> str:
    if on_ack:
        return "ack"
    agent, scheduler = mine.get(NODE_AGENT), mine.get(SCHEDULER)
    if agent and any(word.startswith("--simgpu") for word in agent.words):
        return "demo"
    if scheduler and "--extender-listen=none" in scheduler.words:
        return "existing-scheduler"
    notes = [table(table(one, "metadata"), "annotations").get(_INJECTED) for one in webhooks]
    managed = any(str(note).startswith(f"{SYSTEM_NAMESPACE}/") for note in notes if note)
    return "cert-manager" if managed else "self-signed"
