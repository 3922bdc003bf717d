# SPDX-License-Identifier: Apache-2.0
"""
What the node says of itself to the API server: cards, plain resources, labels, and that an agent is there.

Decides what should stand in the node's object and writes only what differs, on every word of the watch: a
kubelet that makes its Node anew forgets what no device plugin owns. Reads from the same object what the node
serves. Shares themselves are the kubelet's to state.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from isolation.contract.codec import CodecError, encode_cards, encode_isolation
from isolation.contract.codec.cursor import At
from isolation.contract.codec.resize import decode_applied, encode_applied
from isolation.contract.model import FULL_CORE, SHARED_MODES, Mode
from isolation.contract.names import (
    ACK,
    AGENT,
    BACKEND,
    CARD_COUNT,
    CARD_UNITS,
    CARDS,
    ISOLATION,
    MIG_PREFIX,
    RESIZED,
    UNHEALTHY_CARDS,
)
from isolation.contract.quantity import MIB, QuantityError, parse
from isolation.kube.core.errors import ClusterError, MalformedError
from isolation.kube.core.wire import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isolation.contract.backends import BackendChoice
    from isolation.contract.model import Applied, Card
    from isolation.kube.writes import Writer, WriteResult
    from isolation.node.inventory import NodeInventory

log = logging.getLogger(__name__)
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_LABEL: Final = 63
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_OURS: Final = (ACK.card_count, ACK.compute)
READY, LEAVING = "ready", "stopping"


@dataclass(frozen=True, slots=True)
class Said:
    """What stands in the node's object, or should."""

    resources: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """None: it should not be there."""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """The same."""


@dataclass(frozen=True, slots=True)
class Resized:
    """What is in force of records that were changed."""

    applied: Mapping[str, Applied] = field(default_factory=dict)
    """By pod UID."""
    extra_core: int = 0
    """Percent of compute that resized pods hold less than they request; below 0: more."""


def wish(
    cards: Sequence[Card],
    mode: Mode,
    agent: str,
    unhealthy: Mapping[str, str] | None = None,
    resized: Resized | None = None,
    *,
    choice: BackendChoice | None = None,
) -> Said:
    """What this node should say; `unhealthy`: cards without new allocations, with the reason; `choice`: the backend."""
    if mode not in SHARED_MODES:
        cards = ()
    reasons = {card.uuid: unhealthy[card.uuid] for card in cards if unhealthy and card.uuid in unhealthy}
    units = max((card.allocatable_bytes // card.unit_bytes for card in cards), default=0)
    models = {card.model for card in cards}
    extra = resized.extra_core if resized is not None else 0
    # Within a MIG instance no share of compute is promised.
    whole = FULL_CORE * sum(not card.instance for card in cards)
    sizes = {card.total_bytes // MIB for card in cards}
    return Said(
        resources={
            ACK.card_count: len(cards),
            ACK.compute: max(0, whole + extra) if mode in {Mode.CORE_MEM, Mode.MPS} else 0,
        },
        labels={
            CARD_UNITS: str(units) if cards else None,
            CARD_COUNT: str(len(cards)) if cards else None,
            # One label speaks for all cards: of different ones it says nothing.
            ACK.model_labels[0]: (label_of(models.pop()) if len(models) == 1 else None) if cards else None,
            ACK.memory_labels[0]: (f"{sizes.pop()}MiB" if len(sizes) == 1 else None) if cards else None,
        },
        annotations={
            CARDS: encode_cards(cards),
            AGENT: agent,
            ISOLATION: encode_isolation(choice) if choice is not None and mode in SHARED_MODES else None,
            UNHEALTHY_CARDS: "; ".join(f"{uuid}: {why}" for uuid, why in reasons.items()) or None,
        }
        # Until the pods have been read nothing is said of them: what stands there stays.
        | ({} if resized is None else {RESIZED: encode_applied(resized.applied)}),
    )


def label_of(model: str) -> str | None:
    """A card's model as a label can hold it; None where nothing is left of it."""
    return _NOT_IN_LABELS.sub("-", model)[:_LONGEST_LABEL].strip("._-") or None


def amiss(wanted: Said, is_now: Said, *, writes_anything: bool) -> Said:
    """What must be written so that the node says what is wanted; nothing is said of a node that never served."""
    if not writes_anything and not any(name in is_now.annotations for name in (CARDS, AGENT)):
        return Said()
    return Said(
        # 0 and absent are the same to everybody who counts.
        {name: amount for name, amount in wanted.resources.items() if is_now.resources.get(name, 0) != amount},
        {name: text for name, text in wanted.labels.items() if is_now.labels.get(name) != text},
        {name: text for name, text in wanted.annotations.items() if is_now.annotations.get(name) != text},
    )


def read(node: object) -> tuple[Said, Mode, bool]:
    """What the node says, what it serves, and whether whole cards are offered; CodecError."""
    at = At(node)
    metadata, status = at["metadata"], at["status"]
    labels = metadata["labels"].texts()
    amounts = {name: _amount(status, name) for name in _OURS}
    mode = labels.get(ACK.mode_label, Mode.NONE)
    vendors = (ACK.whole, *(name for name, _ in status["capacity"].fields() if name.startswith(MIG_PREFIX)))
    return (
        Said({k: v for k, v in amounts.items() if v is not None}, labels, metadata["annotations"].texts()),
        Mode(mode) if mode in frozenset(Mode) else Mode.NONE,
        any(_amount(status, name) for name in vendors),
    )


def _amount(status: At, name: str) -> int | None:
    """Where capacity and allocatable differ, or are no whole number, it is None: to be written again."""
    found = []
    for part in ("capacity", "allocatable"):
        raw = status[part][name]
        try:
            found.append(parse(raw.value) if raw else None)
        except QuantityError:
            found.append(None)
    capacity, allocatable = found
    if name not in _OURS:
        return int(capacity or allocatable or 0)
    return int(capacity) if capacity is not None and capacity == allocatable else None


def applied_of(said: Said) -> Mapping[str, Applied]:
    """What the node says of records that were changed; nothing where that cannot be read."""
    try:
        return decode_applied(said.annotations.get(RESIZED) or "{}")
    except CodecError:
        return {}


def units_of(node: object) -> int | None:
    """Of shared memory, as the kubelet states what is allocatable; None where it states nothing."""
    raw = At(node)["status"]["allocatable"][ACK.memory]
    try:
        return int(parse(raw.value)) if raw else None
    except QuantityError:
        return None


class NodeWatch:
    """The node's object as it was told last; a sink for `follow`."""

    def __init__(self, name: str, inventory: NodeInventory) -> None:
        self._name, self._inventory = name, inventory
        self.said: Said | None = None
        """None: not read yet, or the node is not there."""
        self.units: int | None = None
        """Of shared memory that the kubelet says it may give out, those of containers among them; None: not known."""
        self.news = asyncio.Event()

    def put(self, raw: msgspec.Raw) -> str:
        """The node as it is now."""
        name = identity_of(raw).name
        if name == self._name:
            try:
                thing = msgspec.json.decode(raw)
                self.said, mode, whole = read(thing)
                self.units = units_of(thing)
            except (CodecError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
                raise MalformedError(f"node {name}: {exc}") from None
            if self._inventory.serves(mode, whole=whole, backend=self.said.labels.get(BACKEND) or ""):
                log.info("node mode is %s%s", mode, " (whole cards are offered too: no shares)" if whole else "")
            self.news.set()
        return name

    def drop(self, raw: msgspec.Raw) -> None:
        """It is gone: what was written is gone with it."""
        self.only(frozenset({self._name} - {identity_of(raw).name}))

    def only(self, keys: frozenset[str]) -> None:
        """See `isolation.kube.listwatch.Sink`."""
        if self._name not in keys:
            self.said = self.units = None


class NodeStatus:
    """Keeps the node's object as it should be."""

    def __init__(
        self,
        writer: Writer,
        node: str,
        watch: NodeWatch,
        inventory: NodeInventory,
        choice: Callable[[], BackendChoice | None] = lambda: None,
    ) -> None:
        """`choice`: what enforces promises here; it may look at the machine, in a thread."""
        self._writer, self._node, self._watch, self._inventory = writer, node, watch, inventory
        self._choice = choice
        self._agent = LEAVING
        self._resized: Resized | None = None
        self._lock = asyncio.Lock()
        self.trouble = "the Node object has not been read yet"
        """Why the node does not say what it should, for people."""
        self.writes = 0
        self._failures = 0
        """In a row."""

    async def cycle(self) -> float:
        """Look and write; seconds until the next look, or until something is told."""
        self._failures = 0 if await self.turn() or self._watch.said is None else self._failures + 1
        # Never more than one write a second, and fewer where they fail.
        await asyncio.sleep(min(_LONGEST_PAUSE, _PAUSE_SECONDS * 2.0 ** min(self._failures, 10)))
        return 0.0 if self._failures else _LONGEST_PAUSE

    def ready(self, *, yes: bool) -> None:
        """Whether pods may be bound to this node; written with the next turn."""
        agent = READY if yes else LEAVING
        if agent != self._agent:
            self._agent = agent
            self.look()

    def resized(self, now: Resized) -> None:
        """What is in force of changed records; written with the next turn."""
        if now != self._resized:
            self._resized = now
            self.look()

    def look(self) -> None:
        """Something of ours has changed."""
        self._watch.news.set()

    async def turn(self) -> bool:
        """Compare and write; whether the node says what it should."""
        async with self._lock:
            if self._watch.said is None:
                return False
            mode = self._inventory.mode()
            choice = await asyncio.to_thread(self._choice)
            wanted = wish(
                self._inventory.cards(), mode, self._agent, self._inventory.unhealthy, self._resized, choice=choice
            )
            wrong = amiss(wanted, self._watch.said, writes_anything=mode in SHARED_MODES)
            try:
                answers = await self._write(wrong)
            except ClusterError as exc:
                return self._failed(str(exc))
            refused = [answer.said for answer in answers if not answer]
            if refused:
                return self._failed(refused[0])
            self.trouble = ""
            self._watch.said = _over(self._watch.said, wrong)
            return True

    async def _write(self, wrong: Said) -> list[WriteResult]:
        answers = []
        if wrong.resources:
            answers.append(await self._writer.state_resources(self._node, wrong.resources))
        if wrong.labels or wrong.annotations:
            answers.append(await self._writer.label_node(self._node, wrong.labels, dict(wrong.annotations)))
        self.writes += len(answers)
        return answers

    def _failed(self, why: str) -> bool:
        if why != self.trouble:
            log.warning("cannot update Node object: %s", why)
        self.trouble = why
        return False


def _over(before: Said, written: Said) -> Said:
    """What the node says now that this was written; the watch will tell the same."""
    labels, annotations = {**before.labels, **written.labels}, {**before.annotations, **written.annotations}
    return Said(
        {**before.resources, **written.resources},
        {name: text for name, text in labels.items() if text is not None},
        {name: text for name, text in annotations.items() if text is not None},
    )
