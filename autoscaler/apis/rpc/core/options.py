# SPDX-License-Identifier: Apache-2.0
"""
Which of the node groups that cluster-autoscaler would grow is the best to grow, counted card by card.

cluster-autoscaler adds up a node's cards, so it offers groups on whose nodes a pod has room in sum and on no
card. Such an option is left out; of the others those are best that serve the demand at the lowest price, as
where our own loop buys. Selectors, taints and whatever else was simulated there is believed. An option whose
node or pods cannot be read is never vetoed: a veto needs knowledge. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.bin_packing import group_pods
from autoscaler.core.expander import PoolExpander
from autoscaler.core.pools import Pool
from autoscaler.core.templates import Templates
from isolation.contract.model import Node, Pod, Request, Rules

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_NODES: Final = 1000
"""cluster-autoscaler's own bound on one scale-up."""


@dataclass(frozen=True, slots=True)
class ExpansionOption:
    """One group that could grow, and whom that is said to help."""

    group: str
    node: Node | None
    """A fresh node of it; None: it cannot be read."""
    pods: tuple[Request, ...] = ()
    unread: int = 0
    """Pods that cannot be read."""
    refused: int = 0
    """Pods that no fleet could serve."""
    price: float = 1.0


@dataclass(frozen=True, slots=True)
class OptionScore:
    """Score of one option; `cost` is the price of the demand that its next node would serve."""

    group: str
    served: int
    nodes: int
    cost: float | None
    """None: unknown."""
    reason: str

    @property
    def vetoed(self) -> bool:
        """Whether it would help no pod."""
        return self.served == 0 and self.cost is not None


def score_options(options: Sequence[ExpansionOption]) -> tuple[tuple[OptionScore, ...], tuple[OptionScore, ...]]:
    """The best options, more than one where they are equally good, and what is thought of each."""
    verdicts = _judged(options)
    left = [verdict for verdict in verdicts if not verdict.vetoed]
    known = [verdict for verdict in left if verdict.cost is not None]
    if not known:
        return tuple(left), verdicts
    least = min((verdict.cost or 0.0, -verdict.served) for verdict in known)
    return tuple(v for v in known if (v.cost or 0.0, -v.served) == least), verdicts


def _judged(options: Sequence[ExpansionOption]) -> tuple[OptionScore, ...]:
    # Positions as names: a group may be offered twice, and its own name may be anything.
    pools = {
        str(at): Pool(str(at), _open(option.node), price=option.price)
        for at, option in enumerate(options)
        if option.node is not None
    }
    templates = Templates(pools.values())
    return tuple(
        _verdict(option, str(at), PoolExpander(pools, frozenset(), templates)) for at, option in enumerate(options)
    )


def _verdict(option: ExpansionOption, name: str, market: PoolExpander) -> OptionScore:
    if option.node is None:
        return OptionScore(option.group, 0, 0, None, "cannot read its node: left to cluster-autoscaler")
    pods = (Pod(str(at), str(at), request=replace(asked, rules=Rules())) for at, asked in enumerate(option.pods))
    opened = [served for _, served in market.open_nodes({name: _MAX_NODES}, group_pods(pods))]
    count, asked = sum(map(len, opened)), len(option.pods) + option.unread + option.refused
    if not opened:
        if option.unread or not asked:
            return OptionScore(option.group, 0, 0, None, "cannot read its pods: left to cluster-autoscaler")
        return OptionScore(option.group, 0, 0, 0.0, f"none of its {asked} pods fits on the cards of one node")
    value = sum(market.weigh(each.pod.request) for each in opened[0])
    reason = f"{count} of {asked} pods on {len(opened)} nodes, card by card"
    return OptionScore(option.group, count, len(opened), option.price / value, reason)


def _open(node: Node) -> Node:
    """The node without what was weighed elsewhere already, and as it will be when it is ready."""
    return replace(node, taints=(), ready=True, cordoned=False, serving=True)
