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

from isolation.contract.codec import CodecError, encode_cards
from isolation.contract.codec.cursor import At
from isolation.contract.model import FULL_CORE, Mode
from isolation.contract.names import ACK, AGENT, CARD_COUNT, CARD_UNITS, CARDS, SICK
from isolation.contract.quantity import MIB, QuantityError, parse
from isolation.kube.core.errors import ClusterError, MalformedError
from isolation.kube.core.wire import identity_of
from isolation.node.core.judge import SERVED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.model import Card
    from isolation.kube.writes import Writer, WriteResult
    from isolation.node.inventory import NodeInventory

log = logging.getLogger(__name__)
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_LABEL: Final = 63
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
READY, LEAVING = "ready", "stopping"


@dataclass(frozen=True, slots=True)
class Said:
    """What stands in the node's object, or should."""

    resources: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """None: it should not be there."""
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    """The same."""


def wish(cards: Sequence[Card], mode: Mode, agent: str, sick: Mapping[str, str] | None = None) -> Said:
    """What this node should say; `sick`: why cards get no newcomers, by UUID."""
    if mode not in SERVED:
        cards = ()
    ill = {card.uuid: sick[card.uuid] for card in cards if sick and card.uuid in sick}
    units = max((card.allocatable_bytes // card.unit_bytes for card in cards), default=0)
    models = {card.model for card in cards}
    sizes = {card.total_bytes // MIB for card in cards}
    return Said(
        resources={
            ACK.card_count: len(cards),
            ACK.compute: FULL_CORE * len(cards) if mode is Mode.CORE_MEM else 0,
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
            SICK: "; ".join(f"{uuid}: {why}" for uuid, why in ill.items()) or None,
        },
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
    amounts = {name: _amount(status, name) for name in (ACK.card_count, ACK.compute)}
    mode = labels.get(ACK.mode_label, Mode.NONE)
    return (
        Said({k: v for k, v in amounts.items() if v is not None}, labels, metadata["annotations"].texts()),
        Mode(mode) if mode in frozenset(Mode) else Mode.NONE,
        bool(_amount(status, ACK.whole)),
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
    if name == ACK.whole:
        return int(capacity or allocatable or 0)
    return int(capacity) if capacity is not None and capacity == allocatable else None


class NodeWatch:
    """The node's object as it was told last; a sink for `follow`."""

    def __init__(self, name: str, inventory: NodeInventory) -> None:
        self._name, self._inventory = name, inventory
        self.said: Said | None = None
        """None: not read yet, or the node is not there."""
        self.news = asyncio.Event()

    def put(self, raw: msgspec.Raw) -> str:
        """The node as it is now."""
        name = identity_of(raw).name
        if name == self._name:
            try:
                self.said, mode, whole = read(msgspec.json.decode(raw))
            except (CodecError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
                raise MalformedError(f"node {name}: {exc}") from None
            if self._inventory.serves(mode, whole=whole):
                log.info("node mode is %s%s", mode, " (whole cards are offered too: no shares)" if whole else "")
            self.news.set()
        return name

    def drop(self, raw: msgspec.Raw) -> None:
        """It is gone: what was written is gone with it."""
        self.only(frozenset({self._name} - {identity_of(raw).name}))

    def only(self, keys: frozenset[str]) -> None:
        """See `isolation.kube.listwatch.Sink`."""
        if self._name not in keys:
            self.said = None


class NodeStatus:
    """Keeps the node's object as it should be."""

    def __init__(self, writer: Writer, node: str, watch: NodeWatch, inventory: NodeInventory) -> None:
        self._writer, self._node, self._watch, self._inventory = writer, node, watch, inventory
        self._agent = LEAVING
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

    def look(self) -> None:
        """Something of ours has changed."""
        self._watch.news.set()

    async def turn(self) -> bool:
        """Compare and write; whether the node says what it should."""
        async with self._lock:
            if self._watch.said is None:
                return False
            mode = self._inventory.mode()
            wanted = wish(self._inventory.cards(), mode, self._agent, self._inventory.sick)
            wrong = amiss(wanted, self._watch.said, writes_anything=mode in SERVED)
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
