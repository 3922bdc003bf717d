# SPDX-License-Identifier: Apache-2.0
"""
A Kubernetes node as the model sees it: its cards, its mode, its room.

Decides what the node *has*; what is held on it follows from the pods there. Our own annotation
names the cards; without it they follow from capacity, all alike, under ids made of node and
index. Which card is unhealthy only the annotation can tell: without it as many as the kubelet
withholds are taken from the end.

The annotation `gpushare.dev/cards`, version 1 (amounts in bytes; `healthy` is true if absent):
    {"version": 1, "cards": [{"uuid": "GPU-...", "index": 0, "model": "Tesla-T4",
                              "total": 16106127360, "reserved": 0, "unit": 1073741824, "healthy": true}]}
A MIG instance also has
    "mig": {"parent": "GPU-...", "profile": "1g.10gb", "gi": 7, "ci": 0, "slices": 1}
"""

from __future__ import annotations

import json
import re
from dataclasses import astuple, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from isolation.contract import quantity
from isolation.contract.codec.cursor import LARGEST, At, CodecError, decoded, show
from isolation.contract.codec.isolation import decode_isolation
from isolation.contract.codec.request import MAX_CARDS
from isolation.contract.codec.resize import decode_applied
from isolation.contract.model import SHARED_MODES, Card, CardChoice, ComputePolicy, Instance, Mode, Node, Taint
from isolation.contract.names import (
    ACK,
    AGENT,
    CARDS,
    COMPUTE_POLICY,
    ISOLATION,
    MIG_PREFIX,
    POOL,
    QGPU_POLICY_LABEL,
    RESIZED,
    Dialect,
)
from isolation.contract.quantity import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

    from isolation.contract.model import Applied

CARDS_VERSION: Final = 1
_INTERNAL: Final = "InternalIP"
_DEFAULT_PODS: Final = 110  # pods: the kubelet's own default
_MAX_PODS: Final = 1 << 20  # pods: placement counts them in 32 bits
_PROFILE: Final = re.compile(r"([1-9])g\.([1-9][0-9]{0,3})gb")
"""How a MIG profile begins: slices of compute, and memory in GB."""
# A card's memory in MiB, on nodes of whole cards (gpu-feature-discovery; ACK writes "16160MiB").
_MIB_TEXT: Final = re.compile(r"([1-9][0-9]{0,9})(?:MiB)?")


# cGPU numbers its policies (ACK, "Configure the computing power scheduling policy of cGPU"). 0, a part of the card that
# follows from the largest number of containers, is none of ours.
POLICY_NUMBERS: Final = MappingProxyType(
    {
        "1": ComputePolicy.WEIGHT,
        "2": ComputePolicy.WEIGHT,
        "3": ComputePolicy.FIXED,
        "4": ComputePolicy.BURST,
        "5": ComputePolicy.NONE,
    }
)
QGPU_POLICIES: Final = MappingProxyType(
    {
        "best-effort": ComputePolicy.NONE,
        "be": ComputePolicy.NONE,
        "fixed-share": ComputePolicy.FIXED,
        "fs": ComputePolicy.FIXED,
        "burst-share": ComputePolicy.BURST,
        "bs": ComputePolicy.BURST,
    }
)


@dataclass(frozen=True, slots=True)
class _Stated:
    """What the kubelet states: all the machine has, and what it leaves to pods."""

    capacity: At
    allocatable: At

    def all(self, name: str) -> int:
        """Whole amount in the machine; what is not stated is not there, as in Kubernetes."""
        return int(_stated(self.capacity[name] or self.allocatable[name]))

    def left(self, name: str) -> Fraction:
        """Amount left to pods."""
        return _stated(self.allocatable[name] or self.capacity[name])

    def says(self, name: str) -> bool:
        """Whether the kubelet states this resource at all."""
        return bool(self.allocatable[name] or self.capacity[name])


def node_of(node: object, *, dialect: Dialect = ACK, unit_bytes: int = GIB) -> Node:
    """One node; raises CodecError for JSON of the wrong shape."""
    at = At(node)
    metadata, spec, status = at["metadata"], at["spec"], at["status"]
    name, labels = metadata["name"].name(), metadata["labels"].texts()
    has = _Stated(status["capacity"], status["allocatable"])
    mode = _mode(labels, has, dialect)
    return Node(
        name=name,
        cards=_cards(metadata, mode, has, dialect, unit_bytes),
        mode=mode,
        choice=_choice(labels, dialect),
        cpu_milli=int(has.left("cpu") * 1000),
        memory_bytes=int(has.left("memory")),
        pods=min(_MAX_PODS, int(has.left("pods"))) if has.says("pods") else _DEFAULT_PODS,
        labels=labels,
        taints=tuple(_taint(item) for item in spec["taints"].items()),
        ready=any(c.text_at("type") == "Ready" and c.text_at("status") == "True" for c in status["conditions"].items()),
        cordoned=spec.flag_at("unschedulable"),
        pool=labels.get(POOL, ""),
        serving=_serving(metadata, mode, has, dialect),
        unheld=_unheld(metadata, mode),
        policy=policy_of(labels) or ComputePolicy.FIXED,
        applied=_applied(metadata["annotations"].texts()),
        address=next((a.text_at("address") for a in status["addresses"].items() if a.text_at("type") == _INTERNAL), ""),
    )


def _applied(annotations: Mapping[str, str]) -> Mapping[str, Applied] | None:
    """What is in force of changed records; None where the agent does not say, or not so that it can be read."""
    try:
        return decode_applied(annotations[RESIZED]) if RESIZED in annotations else None
    except CodecError:
        return None


def encode_cards(cards: Iterable[Card]) -> str:
    """The annotation `gpushare.dev/cards` for these cards."""
    listed = [
        {
            "uuid": card.uuid,
            "index": card.index,
            "model": card.model,
            "total": card.total_bytes,
            "reserved": card.reserved_bytes,
            "unit": card.unit_bytes,
            "healthy": card.healthy,
            **({} if card.instance is None else {"mig": dict(zip(_MIG, astuple(card.instance), strict=True))}),
        }
        for card in cards
    ]
    return json.dumps({"version": CARDS_VERSION, "cards": listed}, separators=(",", ":"))


_MIG: Final = ("parent", "profile", "gi", "ci", "slices")
"""Of an instance, in the order of `Instance`."""


class _InstanceShape(msgspec.Struct):
    parent: Annotated[str, msgspec.Meta(min_length=1)]
    profile: Annotated[str, msgspec.Meta(min_length=1)]
    gi: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CARDS)]
    ci: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CARDS)]
    slices: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CARDS)] = 0


class _CardShape(msgspec.Struct):
    uuid: Annotated[str, msgspec.Meta(min_length=1)]
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CARDS)]
    total: Annotated[int, msgspec.Meta(ge=1, lt=LARGEST)]
    reserved: Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
    unit: Annotated[int, msgspec.Meta(ge=1, lt=LARGEST)]
    healthy: bool
    model: str = ""
    mig: _InstanceShape | None = None


class _CardsShape(msgspec.Struct):
    version: int
    cards: Annotated[list[_CardShape], msgspec.Meta(max_length=MAX_CARDS)]


_CARDS_DECODER: Final = msgspec.json.Decoder(_CardsShape)


def decode_cards(text: str) -> tuple[Card, ...]:
    """The cards of an annotation, by index; raises CodecError where it is not sane."""
    # A large cluster has tens of thousands of cards, nearly all written by encode_cards: those are decoded in one step.
    try:
        shape = _CARDS_DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _cards_at(decoded(text))
    cards = shape.cards
    unique = len({card.uuid for card in cards}) == len({card.index for card in cards}) == len(cards)
    if shape.version != CARDS_VERSION or not unique or any(card.reserved > card.total for card in cards):
        return _cards_at(decoded(text))
    cards.sort(key=lambda card: card.index)
    return tuple(
        [
            Card(
                card.uuid,
                card.index,
                card.total,
                card.reserved,
                card.unit,
                card.model,
                card.healthy,
                None if card.mig is None else Instance(*msgspec.structs.astuple(card.mig)),
            )
            for card in cards
        ]
    )


def _cards_at(at: At) -> tuple[Card, ...]:
    """The same, field by field: defaults for what is absent, and an error that names the field."""
    if at["version"].integer(0) != CARDS_VERSION:
        raise at["version"].wrong(f"{show(at['version'].value)} is not a supported version; expected {CARDS_VERSION}")
    items = at["cards"].items()
    if len(items) > MAX_CARDS:
        raise at["cards"].wrong(f"expected at most {MAX_CARDS} cards, not {len(items)}")
    cards = sorted((_card(item) for item in items), key=lambda card: card.index)
    for what, seen in (("uuid", {c.uuid for c in cards}), ("index", {c.index for c in cards})):
        if len(seen) != len(cards):
            raise at["cards"].wrong(f"two cards have the same {what}")
    return tuple(cards)


def _card(item: At) -> Card:
    uuid = item.text_at("uuid")
    if not uuid:
        raise item["uuid"].wrong("a card needs a uuid")
    total = item["total"].integer(-1, 1, LARGEST - 1)
    if total < 0:
        raise item["total"].wrong("a card needs its total memory in bytes")
    index, healthy = item["index"], item["healthy"]
    if not index:
        raise index.wrong("a card needs an index")
    return Card(
        uuid=uuid,
        index=index.integer(-1, 0, MAX_CARDS - 1),
        total_bytes=total,
        reserved_bytes=item["reserved"].integer(0, 0, total),
        unit_bytes=item["unit"].integer(GIB, 1, LARGEST - 1),
        model=item.text_at("model"),
        healthy=healthy.flag() if healthy else True,
        instance=_instance(item["mig"]) if item["mig"] else None,
    )


def _instance(item: At) -> Instance:
    parent, profile = item.text_at("parent"), item.text_at("profile")
    if not parent or not profile:
        raise item.wrong("a MIG instance needs the UUID of its card (parent) and a profile")
    return Instance(parent, profile, *(item[name].integer(0, 0, MAX_CARDS - 1) for name in _MIG[2:]))


def _cards(metadata: At, mode: Mode, has: _Stated, dialect: Dialect, unit_bytes: int) -> tuple[Card, ...]:
    """The annotation's cards where it makes sense, else what the kubelet states; a label names the model."""
    if mode is Mode.NONE:
        return ()
    labels, record = metadata["labels"].texts(), metadata["annotations"].texts().get(CARDS, "")
    model = next((labels[key] for key in dialect.model_labels if labels.get(key)), "")
    try:
        cards = decode_cards(record)
    except CodecError:
        name = metadata.text_at("name")
        if mode is not Mode.EXCLUSIVE:
            return _alike(name, model, _shares(has, unit_bytes, dialect), unit_bytes)
        whole = _alike(name, model, _whole(has, _labelled_bytes(labels) or unit_bytes, dialect), unit_bytes)
        return whole + _stated_instances(name, model, has, len(whole))
    return tuple(replace(card, model=model) for card in cards) if model else cards


def _stated_instances(node: str, model: str, has: _Stated, first: int) -> tuple[Card, ...]:
    """
    Whole MIG instances that the vendor's plugin serves by profile (its strategy `mixed`), numbered from `first` on.

    Which of them lie on one card is not stated: each is its own.
    """
    cards: list[Card] = []
    for name in sorted(name for name, _ in has.capacity.fields() if name.startswith(MIG_PREFIX)):
        profile, count, sound = name.removeprefix(MIG_PREFIX), has.all(name), int(has.left(name))
        size = _PROFILE.match(profile)
        if first + len(cards) + count > MAX_CARDS:
            raise has.capacity[name].wrong(f"{count} MIG instances are more than any machine has")
        for at in range(count):
            uuid, index = f"{node}/mig-{profile}/{at}", first + len(cards)
            instance = Instance(f"{node}/{index}", profile, slices=int(size[1]) if size else 0)
            cards.append(
                Card(
                    uuid, index, int(size[2]) * GIB if size else GIB, model=model, healthy=at < sound, instance=instance
                )
            )
    return tuple(cards)


def _whole(has: _Stated, size: int, dialect: Dialect) -> tuple[int, int, int]:
    """Count, bytes each, and how many are sound, of a node that serves whole cards."""
    return has.all(dialect.whole), size, int(has.left(dialect.whole))


def _shares(has: _Stated, unit_bytes: int, dialect: Dialect) -> tuple[int, int, int]:
    """The same of a node that serves shares: every card an equal part of the sum."""
    units, count = has.all(dialect.memory), has.all(dialect.card_count)
    if units and not count:
        raise has.capacity.wrong(f"{dialect.memory} needs {dialect.card_count}; set the number of cards too")
    each = units // count if count else 0
    return count, each * unit_bytes, int(has.left(dialect.memory)) // each if each else 0


def _alike(node: str, model: str, sizes: tuple[int, int, int], unit_bytes: int) -> tuple[Card, ...]:
    count, size, sound = sizes
    if count > MAX_CARDS or size >= LARGEST:
        raise CodecError(("status", "capacity"), f"{count} cards of {size} bytes is more than any machine has")
    return tuple(
        Card(f"{node}/{i}", i, size, unit_bytes=unit_bytes, model=model, healthy=i < sound) for i in range(count)
    )


def _labelled_bytes(labels: Mapping[str, str]) -> int:
    """Memory of one card by the node's labels; 0 where they do not tell."""
    found = (_MIB_TEXT.fullmatch(labels.get(key, "")) for key in ACK.memory_labels)
    return next((int(match[1]) * MIB for match in found if match), 0)


def _stated(raw: At) -> Fraction:
    try:
        value = quantity.parse(raw.value) if raw else quantity.parse(0)
    except ValueError:
        raise raw.wrong(f"{show(raw.value)} is not an amount") from None
    if not 0 <= value * 1000 < LARGEST:
        raise raw.wrong(f"{show(raw.value)} is negative or more than any machine has")
    return value


def _mode(labels: Mapping[str, str], has: _Stated, dialect: Dialect) -> Mode:
    """What the label says; without one, what the kubelet offers (whole cards win, shares are then 0)."""
    label = labels.get(dialect.mode_label)
    if label is not None:
        return Mode(label) if label in frozenset(Mode) else Mode.NONE
    if has.all(dialect.whole) or any(
        name.startswith(MIG_PREFIX) and has.all(name) for name, _ in has.capacity.fields()
    ):
        return Mode.EXCLUSIVE
    return Mode.SHARE if has.all(dialect.memory) else Mode.NONE


def _serving(metadata: At, mode: Mode, has: _Stated, dialect: Dialect) -> bool:
    """
    Whether the agent of a shared node is there, by its own word and by the kubelet's.

    Cards that the agent has named, of which the kubelet offers no unit: its device plugin is gone.
    """
    annotations = metadata["annotations"].texts()
    if mode not in SHARED_MODES:
        return True
    if _unheld(metadata, mode):
        return False
    return annotations.get(AGENT) != "stopping" and (CARDS not in annotations or has.left(dialect.memory) > 0)


def _unheld(metadata: At, mode: Mode) -> str:
    """Why the node's agent can promise nothing, by its own word; a word that cannot be read is none."""
    text = metadata["annotations"].texts().get(ISOLATION)
    if text is None or mode not in SHARED_MODES:
        return ""
    try:
        backend, why = decode_isolation(text)
    except CodecError:
        return ""
    return "" if backend else why or "its node agent does not say why"


def _choice(labels: Mapping[str, str], dialect: Dialect) -> CardChoice:
    """What the label says; a node with a shared mode and no label follows the dialect's default, binpack."""
    label = labels.get(dialect.choice_label, "")
    if label in (CardChoice.BINPACK, CardChoice.SPREAD):
        return CardChoice(label)
    return CardChoice.BINPACK if labels.get(dialect.mode_label) in SHARED_MODES else CardChoice.POLICY


def policy_of(labels: Mapping[str, str]) -> ComputePolicy | None:
    """
    The compute policy by a node's labels: ours, else qGPU's; fixed where neither stands.

    None for a value that means no policy: whoever places pods goes by fixed then, and `gpushare doctor` names the node.
    """
    if COMPUTE_POLICY in labels:
        value = labels[COMPUTE_POLICY]
        return ComputePolicy(value) if value in frozenset(ComputePolicy) else POLICY_NUMBERS.get(value)
    if QGPU_POLICY_LABEL in labels:
        return QGPU_POLICIES.get(labels[QGPU_POLICY_LABEL])
    return ComputePolicy.FIXED


def _taint(item: At) -> Taint:
    return Taint(item.text_at("key"), item.text_at("value"), item.text_at("effect"))
