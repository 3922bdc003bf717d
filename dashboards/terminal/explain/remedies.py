# SPDX-License-Identifier: Apache-2.0
"""
Remedies for a pending pod: each is tried out on a copy of the cluster before it is named.

Pure. Smaller, over other numbers of cards, with or without compute, on a node that is cordoned, on a new node
of a pool, or after a few pods have moved to places that the engine found for them. Promises nothing: others
may be quicker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dashboards.terminal.explain.explanation import Remedy
from dashboards.terminal.explain.node_reasons import NO_AGENT
from dashboards.terminal.text_format import count
from isolation.contract.codec.request import core_step
from isolation.contract.dialects import SYSTEMS, Words
from isolation.contract.model import Mode, Placement, Refusal, Why
from isolation.contract.names import ACK, ONLINE
from isolation.contract.quantity import show_bytes
from isolation.placement.engine import Engine
from isolation.placement.node_rules import RequestKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dashboards.terminal.explain.explanation import NodeReason
    from isolation.contract.model import Node, Pod, Request

MAX_CARDS_TRIED: Final = 16
_MAX_POOLS: Final = 8
_MAX_NODES_FOR_MOVES: Final = 16
_MAX_MOVES: Final = 3
_WAITING: Final = "the pod that waits"
_MOVABLE: Final = frozenset({Why.CARDS, Why.FRAGMENTED})


def find_remedies(  # noqa: PLR0917 (what there is to try, and in whose words)
    engine: Engine,
    request: Request,
    whys: Sequence[NodeReason],
    pods: Mapping[str, Pod],
    unit_bytes: int,
    dialect: str = ACK.name,
) -> tuple[Remedy, ...]:
    """Every remedy that was tried and works, in the words of the pod's own dialect."""
    if not request.cards:
        return ()
    words = SYSTEMS[dialect].words if dialect in SYSTEMS else _ack_words(unit_bytes)
    step = core_step(dialect)
    found = [*_split(engine, request, unit_bytes, words, step), *_smaller(engine, request, unit_bytes, words)]
    found += [
        *_mode(engine, request, words, step),
        *_moves(engine, request, whys, pods),
        *_nodes(engine, request, whys),
    ]
    found += _pools(engine, request, whys)
    return tuple(found)


def _ack_words(unit_bytes: int) -> Words:
    return Words(ACK.memory, unit_bytes, ACK.compute, f"pod label {ACK.card_count}", total=True)


def _at(placement: Placement) -> str:
    cards = ", ".join(str(part.index) for part in placement.slices)
    return f"{placement.node} (card{'s' if len(placement.slices) > 1 else ''} {cards})"


def _smaller(engine: Engine, request: Request, unit: int, words: Words) -> Iterator[Remedy]:
    """The most per card that would fit now, by halving."""
    if request.whole:
        return
    low, high, best = 1, request.card_bytes // unit - 1, None
    while low <= high:
        middle = (low + high) // 2
        found = engine.place(replace(request, card_bytes=middle * unit))
        if isinstance(found, Placement):
            best, low = (middle, found), middle + 1
        else:
            high = middle - 1
    if best is not None:
        units, found = best
        each = " per card" if request.cards > 1 else ""
        own = words.show_memory(units * unit, request.cards)
        text = f"request {show_bytes(units * unit)}{each} ({own}): fits {_at(found)}"
        yield Remedy("smaller", text)


def _split(engine: Engine, request: Request, unit: int, words: Words, step: int) -> Iterator[Remedy]:
    """The same memory over another number of cards."""
    if request.whole or not words.count:
        return
    units = request.card_bytes * request.cards // unit
    core = request.card_core * request.cards
    for cards in range(1, MAX_CARDS_TRIED + 1):
        if cards == request.cards or units % cards or core % (cards * step):
            continue
        found = engine.place(replace(request, cards=cards, card_bytes=units // cards * unit, card_core=core // cards))
        if isinstance(found, Placement):
            each = show_bytes(units // cards * unit)
            what = f"{count(cards, 'card')} ({words.count}: {cards}) with {each} each"
            yield Remedy("split", f"request {what}: fits {_at(found)}")
            return


def _mode(engine: Engine, request: Request, words: Words, step: int) -> Iterator[Remedy]:
    """With or without a share of compute, which other nodes serve."""
    if kind_of(request) is RequestKind.COMPUTE:
        found = engine.place(replace(request, card_core=0))
        if isinstance(found, Placement):
            yield Remedy("mode", f"request no compute share (omit {words.compute}): fits {_at(found)}")
    elif kind_of(request) is RequestKind.MEMORY and words.compute:
        found = engine.place(replace(request, card_core=step))
        if isinstance(found, Placement):
            text = f"also request a compute share ({words.show_compute(step, request.cards)}): fits {_at(found)}"
            yield Remedy("mode", text)
    elif kind_of(request) is RequestKind.OFFLINE:
        found = engine.place(replace(request, compute=replace(request.compute, online=True)))
        if isinstance(found, Placement):
            yield Remedy("mode", f'remove annotation {ONLINE}: "false": fits {_at(found)}')


def _nodes(engine: Engine, request: Request, whys: Sequence[NodeReason]) -> Iterator[Remedy]:
    """A node that only has to become usable again."""
    barred = [one for one in whys if one.why is Why.NOT_READY]
    twin = engine.fork()
    for one in barred[:_MAX_NODES_FOR_MOVES]:
        node = twin.nodes[one.name]
        twin.put_node(_usable(node))
        found = twin.place_on(request, one.name)
        if isinstance(found, Placement):
            absent = "without its node agent" if one.text == NO_AGENT else "" if node.ready else "not ready"
            wrong = " and ".join(part for part in (absent, "cordoned" if node.cordoned else "") if part)
            yield Remedy("node", f"node {one.name} is {wrong}; when it is usable again, the pod fits {_at(found)}")
            return


def _usable(node: Node) -> Node:
    """The node when nothing is wrong with it any more: the taints that Kubernetes gave it for that go too."""
    taints = tuple(t for t in node.taints if not t.key.startswith("node.kubernetes.io/"))
    return replace(node, ready=True, cordoned=False, serving=True, taints=taints)


def _pools(engine: Engine, request: Request, whys: Sequence[NodeReason]) -> Iterator[Remedy]:
    """A new node like those of a pool: empty, ready; rather like one that the pod's own rules do not exclude."""
    excluded = {one.name for one in whys if one.why is Why.RULES}
    likes: dict[tuple[str, Mode, str, int], Node] = {}
    for node in sorted(engine.nodes.values(), key=lambda node: node.name in excluded):
        if node.cards and node.mode is not Mode.NONE:
            key = (node.pool, node.mode, node.cards[0].model, len(node.cards))
            likes.setdefault(key, node)
    for (pool, mode, model, cards), like in sorted(likes.items(), key=lambda one: one[0][:1] + one[0][2:])[:_MAX_POOLS]:
        empty = replace(_usable(like), cards=tuple(replace(card, healthy=True) for card in like.cards))
        found = Engine((empty,)).place(request)
        what = f"a new node of pool {pool}" if pool else f"a new node like {like.name}"
        if isinstance(found, Placement):
            yield Remedy("pool", f"{what} ({cards} x {model or 'card'}, {mode.value}): the pod fits")


def _moves(engine: Engine, request: Request, whys: Sequence[NodeReason], pods: Mapping[str, Pod]) -> Iterator[Remedy]:
    """The fewest pods whose leaving makes room on one node, each with a place to go."""
    best: tuple[int, str] | None = None
    nearest = [one.name for one in whys if one.why in _MOVABLE][:_MAX_NODES_FOR_MOVES]
    twin = engine.fork()
    for name in nearest:
        found = _clear(twin, request, name, pods)
        if found is not None and (best is None or found < best):
            best = found
    if best is not None:
        yield Remedy("move", best[1])


def _clear(twin: Engine, request: Request, name: str, pods: Mapping[str, Pod]) -> tuple[int, str] | None:
    """How many moves free the node for the pod, and which; None: no few do."""
    there = [
        pods[uid]
        for uid, (_, placement) in twin.holds.items()
        if placement.node == name and uid in pods and pods[uid].evictable and placement.slices
    ]
    # The smallest that is enough first, then larger ones; then pairs and triples of the smallest.
    there.sort(key=lambda pod: (pod.request.card_bytes, pod.key))
    for number in range(1, _MAX_MOVES + 1):
        for start in range(max(0, len(there) - number + 1)):
            description = _after(twin, request, name, there[start : start + number])
            if description is not None:
                return number, description
    return None


def _after(twin: Engine, request: Request, name: str, leaving: Sequence[Pod]) -> str | None:
    """The moves in words, if they make room and everybody finds a place; the twin is left as it was."""
    was = {pod.uid: twin.holds[pod.uid] for pod in leaving}
    for uid in was:
        twin.release(uid)
    moved: list[str] = []
    try:
        placed = twin.place_on(request, name)
        if isinstance(placed, Refusal):
            return None
        twin.hold(_WAITING, request, placed)
        moved.append(_WAITING)
        places = []
        for pod in leaving:
            found = twin.place(pod.request)
            if isinstance(found, Refusal):
                return None
            twin.hold(pod.uid, pod.request, found)
            moved.append(pod.uid)
            places.append(f"{pod.key} to {_at(found)}")
        return f"move {', '.join(places)}: then the pod fits {_at(placed)}"
    finally:
        for uid in moved:
            twin.release(uid)
        for uid, (asked, where) in was.items():
            twin.hold(uid, asked, where, force=True)
