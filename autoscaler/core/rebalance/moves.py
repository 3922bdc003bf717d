# SPDX-License-Identifier: Apache-2.0
"""
Which single pods move now, and why: room for those that wait, relief for hot cards, fewer fragments.

Rescue comes before a purchase that it makes unnecessary; the others come only in calm turns, and
never beside a drain that begins. Pure. Whether a move is worth it is `rebalance_worth`'s answer, how many
may be made `budget`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoscaler.core.expander import PoolExpander
from autoscaler.core.plan import Move
from autoscaler.core.rebalance.defragment import find_defragment_moves, should_defragment
from autoscaler.core.rebalance.hot_cards import find_hot_card_moves, track_hot_cards
from autoscaler.core.rebalance.make_room import RoomMaker
from autoscaler.core.templates import get_templates

if TYPE_CHECKING:
    from autoscaler.core.observation import Observation, Reservation
    from autoscaler.core.rebalance.defragment import DefragmentMove
    from autoscaler.core.rebalance.inputs import RebalanceInputs
    from autoscaler.core.rebalance.make_room import MadeRoom
    from autoscaler.core.scale_up import Demand, PlannedNode
    from autoscaler.core.state import AutoscalerState
    from isolation.contract.model import Pod


def plan_make_room(now: RebalanceInputs, want: Demand) -> tuple[tuple[Move, ...], Demand]:
    """Moves that make a purchase unnecessary, and the demand that is left."""
    if not (want.planned_nodes or want.capped) or now.budget.free < 1:
        return (), want
    rescuer = RoomMaker(now)
    moves: list[Move] = []
    spared: list[PlannedNode] = []
    # the last node bought is the emptiest: it is the one most likely to be spared
    for lot in reversed(want.planned_nodes):
        if len(lot.pods) <= rescuer.left:
            found = rescuer.all_of(lot.pods, now.weights.price_ratio(now.seen.pools[lot.pool].price))
            moves += [move for each in found for move in _moves(each, f"instead of adding a node to pool {lot.pool}")]
            spared += [lot] * bool(found)
    saved = set[str]()
    for pod in (pod for pod in now.seen.pending if pod.uid in want.capped):
        found = rescuer.all_of((pod,), now.weights.price_ratio(_value(now.seen, pod)))
        moves += [move for each in found for move in _moves(each, "because no pool can scale up for it")]
        saved |= {each.pod.uid for each in found}
    if not moves:
        return (), want
    fits = [*want.fits, *(pod.uid for lot in spared for pod in lot.pods), *sorted(saved)]
    lots = [lot for lot in want.planned_nodes if lot not in spared]
    capped = {uid: why for uid, why in want.capped.items() if uid not in saved}
    return tuple(moves), replace(want, planned_nodes=lots, fits=fits, capped=capped)


def plan_rebalance(
    now: RebalanceInputs, memory: AutoscalerState, most: int, *, defragment: bool
) -> tuple[tuple[Move, ...], AutoscalerState]:
    """Relief and defragmentation, while nothing else goes on."""
    since = track_hot_cards(now.seen, now.limits, memory.hot)
    broken = should_defragment(now.seen, now.budget, before=memory.defragmenting)
    memory = replace(memory, hot=since, defragmenting=broken)
    moves = [
        _move(
            each.pod,
            each.reservation,
            "mitigate_hot_card",
            f"to the less busy {each.reservation.placement.node}: "
            f"its card is hot ({each.heat:.0%} for {each.seconds:.0f} s)",
            card=each.card,
        )
        for each in find_hot_card_moves(now, most, since)
    ]
    # half of the hour is kept for what gives nodes back
    most = min(most, now.budget.free - now.budget.hourly // 2)
    if defragment and broken and not moves and most > 0:
        moves = [
            _move(
                each.pod,
                each.reservation,
                "defragment",
                f"to {each.reservation.placement.node}: {_frees(each)}makes {each.gain:.2f} stranded idle cards usable",
            )
            for each in find_defragment_moves(now, most)
        ]
    return tuple(moves), memory


def remember_hot_cards(now: RebalanceInputs, memory: AutoscalerState) -> AutoscalerState:
    """What to remember of a turn in which nothing is rebalanced."""
    return replace(memory, hot=track_hot_cards(now.seen, now.limits, memory.hot))


def _frees(shift: DefragmentMove) -> str:
    """Which cards will have nobody on them, by name: a promise that can be checked."""
    source = shift.pod.placement
    if source is None or not shift.frees:
        return ""
    which = ", ".join(str(index) for index in shift.frees)
    return f"frees card{'s' * (len(shift.frees) > 1)} {which} of {source.node}, "


def _value(seen: Observation, pod: Pod) -> float:
    """What the room that a pod waits for costs where it is cheapest."""
    templates = get_templates(tuple(seen.pools.values()))
    market = PoolExpander(seen.pools, frozenset(), templates)
    prices = [pool.price for name, pool in seen.pools.items() if templates.hosts(name, pod.request)]
    return min(prices, default=0.0) * market.weigh(pod.request)


def _moves(rescue: MadeRoom, why: str) -> list[Move]:
    return [
        _move(
            mover,
            home,
            "make_room",
            f"to {home.placement.node}: makes room on {rescue.node} for {rescue.pod.key} {why}",
            (rescue.pod.uid,),
        )
        for mover, home in rescue.moves
    ]


def _move(pod: Pod, home: Reservation, kind: str, reason: str, serves: tuple[str, ...] = (), *, card: str = "") -> Move:
    node = pod.placement.node if pod.placement is not None else ""
    return Move(pod.uid, node, pod.request.owner, home, kind, reason, serves, card)
