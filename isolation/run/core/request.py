# SPDX-License-Identifier: Apache-2.0
"""
Which cards a command gets, or the reason why it gets none.

The engine that places pods in a cluster places commands here, as a cluster of one node; only the wording of refusals is
our own. Runs with and without a compute limit never share a card: no percentage holds next to a neighbour without a
limit. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from isolation.contract.model import FULL_CORE, CardChoice, Mode, Node, Placement, Refusal, Request, Why
from isolation.contract.quantity import gib, show_bytes
from isolation.placement.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract.host_allocation import HostAllocation
    from isolation.contract.model import Card

NODE_NAME: Final = "here"
PERMANENT: Final = frozenset({Why.INVALID, Why.NO_NODES, Why.CARD_TOO_SMALL, Why.TOO_FEW_CARDS, Why.NOT_READY})
"""Refusals that no amount of waiting cures."""
MAX_CARDS: Final = 16
"""Cards that one limits file holds."""
MIG: Final = "MIG-"
"""How the UUID of an instance begins."""
_PLENTY: Final = 1 << 40
_MANY: Final = 1 << 20


class RunRequestError(ValueError):
    """A request that no machine could serve."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What one command asks for."""

    units: int
    """GiB over all cards."""
    cards: int = 1
    core: int = 0
    """Percent of one card over all cards; 0: no compute limit."""
    owner: str = ""

    def to_placement(self) -> Request:
        """What placement needs of it; RunRequestError where it contradicts itself."""
        if self.units % self.cards:
            below, above = self.units // self.cards * self.cards, -(-self.units // self.cards) * self.cards
            better = f"{below} or {above}" if below else f"{above}"
            raise RunRequestError(
                f"--gpu-mem {self.units} does not split evenly over {self.cards} cards:"
                f" request {better}, or change --gpu-count"
            )
        if self.core % self.cards:
            raise RunRequestError(
                f"--gpu-core {self.core} does not split evenly over {self.cards} cards:"
                f" request a multiple of {self.cards}"
            )
        if self.core > FULL_CORE * self.cards:
            most = FULL_CORE * self.cards
            raise RunRequestError(
                f"--gpu-core {self.core} is more than {_cards(self.cards)} provide: request at most {most}"
            )
        owner = f"run/{self.owner}" if self.owner else ""
        each = gib(self.units) // self.cards
        return Request(cards=self.cards, card_bytes=each, card_core=self.core // self.cards, owner=owner)


def choose_cards(
    wanted: RunRequest, cards: Sequence[Card], held: Sequence[HostAllocation], choice: CardChoice
) -> Placement | Refusal:
    """Which cards the command gets next to the allocations in `held`, or why none."""
    request = wanted.to_placement()
    if not cards:
        return Refusal(Why.NO_NODES, "NVML reports no GPU card on this machine")
    sound = [card for card in cards if card.healthy]
    unhealthy = len(cards) - len(sound)
    parts = [card for card in sound if card.uuid.startswith(MIG)] if request.cards > 1 else []
    if parts and len(sound) - len(parts) < request.cards:
        advice = "CUDA opens only one MIG instance per process: use --gpu-count 1 and run one command per instance"
        return Refusal(Why.TOO_FEW_CARDS, f"{describe_request(request)}: {advice}")
    sound = [card for card in sound if card not in parts]
    never = _place(request, sound, (), choice)
    if isinstance(never, Refusal):
        return _never(request, sound, unhealthy, never.why)
    others = {part.uuid for entry in held if bool(entry.core) != bool(request.card_core) for part in entry.slices}
    usable = [card for card in sound if card.uuid not in others]
    found = _place(request, usable, held, choice) if usable else Refusal(Why.CARDS, "")
    if isinstance(found, Placement):
        return found
    return Refusal(found.why if found.why not in PERMANENT else Why.CARDS, _full(request, usable, held, len(others)))


def _place(
    request: Request, cards: Sequence[Card], held: Sequence[HostAllocation], choice: CardChoice
) -> Placement | Refusal:
    mode = Mode.CORE_MEM if request.card_core else Mode.CGPU
    node = Node(NODE_NAME, tuple(cards), mode, choice, cpu_milli=_PLENTY, memory_bytes=_PLENTY, pods=_MANY)
    engine = Engine((node,))
    for at, entry in enumerate(held):  # two stores may have the same id
        owner = f"run/{entry.owner}" if entry.owner else ""
        first = entry.slices[0]
        booked = Request(cards=len(entry.slices), card_bytes=first.bytes, card_core=first.core, owner=owner)
        engine.hold(f"{at} {entry.id}", booked, Placement(NODE_NAME, entry.slices), force=True)
    return engine.place(request)


def describe_request(request: Request) -> str:
    """What the command asks for, in words."""
    each = show_bytes(request.card_bytes) + (f" and {request.card_core} % compute" if request.card_core else "")
    return f"{each} on one card" if request.cards == 1 else f"{each} on each of {request.cards} cards"


def _never(request: Request, sound: Sequence[Card], unhealthy: int, why: Why) -> Refusal:
    asked, advice = describe_request(request), ""
    if not sound:
        return Refusal(Why.NOT_READY, f"{asked}: this machine has no healthy card ({_cards(unhealthy)} unhealthy)")
    excluded = f" (excluding {unhealthy} unhealthy {'card' if unhealthy == 1 else 'cards'})" if unhealthy else ""
    if len(sound) < request.cards:
        advice = f"this machine has {_cards(len(sound))}{excluded}: lower --gpu-count to at most {len(sound)}"
        return Refusal(Why.TOO_FEW_CARDS, f"{asked}: {advice}")
    largest = sorted((card.allocatable_bytes for card in sound), reverse=True)[request.cards - 1]
    if request.cards == 1:
        advice = f"the largest card offers {show_bytes(largest)}{excluded}: request less, or raise --gpu-count"
    else:
        advice = f"{_cards(request.cards)} offer at most {show_bytes(largest)} each{excluded}: request less"
    return Refusal(why, f"{asked}: {advice}")


def _full(request: Request, usable: Sequence[Card], held: Sequence[HostAllocation], others: int) -> str:
    free = {card.uuid: [card.allocatable_bytes, FULL_CORE] for card in usable}
    for entry in held:
        for part in entry.slices:
            if part.uuid in free:
                free[part.uuid][0] -= part.bytes
                free[part.uuid][1] -= part.core
    fit = sum(room >= request.card_bytes and core >= request.card_core for room, core in free.values())
    text = f"not enough free capacity for {describe_request(request)}"
    if usable:
        text += f": {f'only {fit}' if fit else 'none'} of {_cards(len(usable))} {'have' if fit > 1 else 'has'} enough"
    if others:
        kind = "without --gpu-core" if request.card_core else "with --gpu-core"
        text += f"; {_cards(others)} excluded: in use by runs {kind} (the two kinds never share a card)"
    return text


def _cards(number: int) -> str:
    return f"{number} card" + ("" if number == 1 else "s")
