# SPDX-License-Identifier: Apache-2.0
"""
One placement decision on one reading of the cluster.

For callers that keep no engine; those that place many pods build one with `engine_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.model import Phase
from isolation.placement.engine import Engine
from isolation.placement.policy import DEFAULT

if TYPE_CHECKING:
    from isolation.contract.model import Cluster, Placement, Refusal, Request


def engine_of(cluster: Cluster, policy: str = DEFAULT, seed: int = 0) -> Engine:
    """
    An engine that holds what the cluster's pods hold and has learnt from them.

    What is held counts even where it over-commits a card.
    """
    engine = Engine(cluster.nodes, policy=policy, seed=seed)
    for pod in sorted(cluster.pods, key=lambda p: (p.created, p.uid)):
        engine.arrive(pod.request)
        if pod.placement is not None and pod.phase is not Phase.DONE and pod.placement.node in engine.nodes:
            engine.hold(pod.uid, pod.request, pod.placement, force=True)
    return engine


def place(request: Request, cluster: Cluster, policy: str = DEFAULT, seed: int = 0) -> Placement | Refusal:
    """Where the pod goes on this cluster, or why it cannot."""
    return engine_of(cluster, policy, seed).place(request)
