# SPDX-License-Identifier: Apache-2.0
"""
What a pod asks for, reduced to what placement needs, or why no fleet could serve it.

Decides whether the promise is possible at all: the N-over-M rule, whole against shared cards,
compute steps, init containers on several cards. Whether a node has room is placement's business.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from isolation.contract.codec.amounts import (
    MAX_BYTES,
    Asked,
    asked_of,
    machine_amounts,
    one_profile,
    other_resources,
    peak,
)
from isolation.contract.codec.cursor import At, CodecError, Unacceptable, show
from isolation.contract.codec.rules import CARD_RULES, rules_of, unmodelled
from isolation.contract.model import FULL_CORE, MAX_UID, MAX_WEIGHT, Ask, Compute, Refusal, Request, Why
from isolation.contract.names import (
    ACK,
    COMPUTE_ANNOTATIONS,
    CORE_LIMIT,
    CORE_STEPS,
    DIALECT,
    ONLINE,
    TRUST_GROUP,
    WEIGHT,
    Dialect,
)
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract.model import Rules

READ_ANNOTATIONS: Final = frozenset({DIALECT, *CARD_RULES, *COMPUTE_ANNOTATIONS, TRUST_GROUP})
"""All annotations of a pod on which its request depends."""
MAX_CARDS: Final = 64
"""No machine has more, and a card set is a 64-bit mask in placement."""
_COUNT: Final = re.compile(r"[1-9][0-9]{0,8}")
_COMPUTE: Final = Compute()
_LONGEST_GROUP: Final = 63


def request_of(metadata: object, spec: object, *, dialect: Dialect = ACK, unit_bytes: int = GIB) -> Request | Refusal:
    """
    A pod's request, from its metadata and spec as Kubernetes writes them.

    A request that contradicts itself is a Refusal; JSON of the wrong shape raises CodecError
    with a path that starts at `metadata` or `spec`.
    """
    try:
        return _request(At(metadata, ("metadata",)), At(spec, ("spec",)), dialect, unit_bytes)
    except Unacceptable as exc:
        return Refusal(Why.INVALID, str(exc))


def owner_of(metadata: object) -> str:
    """The controller that made the pod, as `Kind/namespace/name`; empty for a pod without one."""
    return controller_of(metadata)[0]


def goes_with_its_node(owner: str) -> bool:
    """Whether pods of this controller (`owner_of`) end with their node: a DaemonSet's, and the kubelet's own."""
    return owner.startswith(("DaemonSet/", "Node/"))


def owner_uid_of(metadata: object) -> str:
    """The UID of the controller that made the pod; empty for a pod without one."""
    return controller_of(metadata)[1]


def controller_of(metadata: object) -> tuple[str, str]:
    """The controller that made the pod: `owner_of` and `owner_uid_of` together, read once."""
    at = At(metadata, ("metadata",))
    for reference in at["ownerReferences"].items():
        if reference.flag_at("controller"):
            namespace = at["namespace"].label_name("default")
            name = f"{reference.text_at('kind')}/{namespace}/{reference.text_at('name')}"
            return name, reference.text_at("uid")
    return "", ""


def group_of(metadata: object) -> str:
    """The pod's part of `Trust`: admission lets nobody else write the annotation."""
    at = At(metadata, ("metadata",))
    named = at["annotations"].text_at(TRUST_GROUP)[:_LONGEST_GROUP]
    # No namespace has a slash in its name, so none is taken for a group of the operator's.
    return f"group/{named}" if named else at["namespace"].label_name("default")


def _uid_of(spec: At, asks: Sequence[Asked]) -> int | None:
    """The user of all containers with shares, where the spec says one: what an image says is not known here."""
    usual = spec["securityContext"]["runAsUser"].integer(-1, 0, MAX_UID)
    names = {ask.name for ask in asks if ask.units}
    every = (*spec["initContainers"].items(), *spec["containers"].items())
    found = {
        one["securityContext"]["runAsUser"].integer(usual, 0, MAX_UID) for one in every if one.text_at("name") in names
    }
    return found.pop() if len(found) == 1 and -1 not in found else None


def _request(metadata: At, spec: At, dialect: Dialect, unit_bytes: int) -> Request:
    inits = [asked_of(c, dialect, unit_bytes, init=True) for c in spec["initContainers"].items()]
    apps = [asked_of(c, dialect, unit_bytes, init=False) for c in spec["containers"].items()]
    asks, profile = one_profile(inits + apps)
    if not apps:
        raise CodecError((*spec.path, "containers"), "a pod needs at least one container")
    _check_names(asks)
    cpu, memory = machine_amounts(spec, asks, dialect)
    count = _card_count(metadata, asks, dialect)
    annotations = metadata["annotations"]
    step = core_step(annotations[DIALECT].text(dialect.name))
    for ask in asks:
        _check_split(ask, count, step, dialect)
    _check_init(asks, count, dialect)
    units = int(peak(asks, lambda a: a.units)) // count
    core = int(peak(asks, lambda a: a.core)) // count
    whole = int(peak(asks, lambda a: a.whole))
    _check_totals(units * unit_bytes * count, core, whole, dialect)
    return Request(
        cards=whole or (count if units else 0),
        card_bytes=units * unit_bytes,
        card_core=core,
        whole=whole > 0,
        cpu_milli=cpu,
        memory_bytes=memory,
        rules=_with_profile(rules_of(spec, dialect, annotations), profile),
        owner=owner_of(metadata.value),
        asks=tuple(
            Ask(a.name, a.units * unit_bytes, a.core, a.whole, a.init, at - len(inits) if at >= len(inits) else -1)
            for at, a in enumerate(asks)
            if a.on_cards
        ),
        compute=_compute(metadata, core, dialect) if units else _COMPUTE,
        unmodelled=tuple(unmodelled(spec) + other_resources(spec, asks)),
        group=group_of(metadata.value) if units else "",
        uid=_uid_of(spec, asks) if units else None,
    )


def _with_profile(rules: Rules, profile: str) -> Rules:
    return rules._replace(cards=rules.cards._replace(profile=profile)) if profile else rules


def _compute(metadata: At, core: int, dialect: Dialect) -> Compute:
    """What the pod's annotations say of its compute; `core`: what it reserves of each card."""
    said = metadata["annotations"].mapping()
    if not any(key in said for key in COMPUTE_ANNOTATIONS):
        return _COMPUTE
    online = metadata["annotations"].text_at(ONLINE, "true")
    if online not in ("true", "false"):
        raise Unacceptable(f'annotation {ONLINE} is {show(online)}; set "true" or "false"')
    if online == "false" and core:
        raise Unacceptable(
            f'annotation {ONLINE} is "false", so no compute is guaranteed to the pod; remove {dialect.compute}, or the '
            "annotation"
        )
    ceiling = _number(metadata, CORE_LIMIT, FULL_CORE)
    if 0 < ceiling < core:
        raise Unacceptable(
            f"annotation {CORE_LIMIT} is {ceiling}, less than the {core} percent of each card that {dialect.compute} "
            "guarantees; raise it, or request less"
        )
    return Compute(online=online == "true", weight=_number(metadata, WEIGHT, MAX_WEIGHT), ceiling=ceiling)


def _number(metadata: At, key: str, most: int) -> int:
    """A whole number from 1 in an annotation; 0: there is none."""
    text = metadata["annotations"].text_at(key)
    if key not in metadata["annotations"].mapping():
        return 0
    if not _COUNT.fullmatch(text) or int(text) > most:
        raise Unacceptable(f"annotation {key} is {show(text)}; set a whole number from 1 to {most} in quotes")
    return int(text)


def _check_names(asks: Sequence[Asked]) -> None:
    seen: set[str] = set()
    for ask in asks:
        if ask.name in seen:
            raise Unacceptable(f"two containers are named {show(ask.name)}; give each its own name")
        seen.add(ask.name)


def _card_count(metadata: At, asks: Sequence[Asked], dialect: Dialect) -> int:
    """M of the N-over-M rule, from the pod's label."""
    shared, whole = [a for a in asks if a.units], [a for a in asks if a.whole]
    if shared and whole:
        raise Unacceptable(
            f"a pod cannot request both {dialect.memory} and {dialect.whole}; request GPU shares or whole cards"
        )
    label = metadata["labels"][dialect.card_count]
    if not label:
        return 1
    text = label.text()
    if not _COUNT.fullmatch(text) or int(text) > MAX_CARDS:
        raise Unacceptable(
            f"label {dialect.card_count} is {show(text)}; set a whole number from 1 to {MAX_CARDS} in quotes"
        )
    if whole:
        raise Unacceptable(
            f"label {dialect.card_count} applies only to GPU shares; remove it: {dialect.whole} already counts cards"
        )
    if not shared:
        raise Unacceptable(f"label {dialect.card_count} needs {dialect.memory}; request it or remove the label")
    return int(text)


def core_step(dialect: str) -> int:
    """Percent of which compute on each card is a multiple, in the words of this system; ACK's for an unknown one."""
    return CORE_STEPS.get(dialect, CORE_STEPS[ACK.name])


def _check_split(ask: Asked, count: int, step: int, dialect: Dialect) -> None:
    """N units over M cards: every card gives the same whole number."""
    where = f"container {show(ask.name)}"
    if ask.units % count:
        below, above = ask.units // count * count, -(-ask.units // count) * count
        better = f"{below} or {above}" if below else f"{above}"
        raise Unacceptable(
            f"{where}: {dialect.memory} {ask.units} does not divide evenly over {count} cards; "
            f"request {better}, or change label {dialect.card_count}"
        )
    each = ask.core // count
    if ask.core % count or each % step:
        raise Unacceptable(
            f"{where}: {dialect.compute} {ask.core} over {_cards(count)} is not a multiple of {step} on each; "
            f"request a multiple of {step * count}"
        )
    if each > FULL_CORE:
        raise Unacceptable(
            f"{where}: {dialect.compute} {ask.core} over {_cards(count)} is more than {FULL_CORE} on each; "
            f"request at most {FULL_CORE * count}, or spread it over more cards with label {dialect.card_count}"
        )


def _check_init(asks: Sequence[Asked], count: int, dialect: Dialect) -> None:
    """
    With several cards an init container must ask what its one successor asks.

    The kubelet hands an init container's devices on unasked, in no particular order: anything
    else would mix cards.
    """
    inits = [a for a in asks if a.init and a.units]
    if count == 1 or not inits:
        return
    after = [a for a in asks if not a.init and a.units]
    if len(after) == 1 and all((i.units, i.core) == (after[0].units, after[0].core) for i in inits):
        return
    raise Unacceptable(
        f"init container {show(inits[0].name)} requests {dialect.memory} on {count} cards; this works only with "
        "exactly one other container that requests the same: make them equal, or remove the init container's request"
    )


def _check_totals(total_bytes: int, core: int, whole: int, dialect: Dialect) -> None:
    if total_bytes >= MAX_BYTES:
        raise Unacceptable(f"{dialect.memory}: the containers together request more than any machine has; request less")
    if core > FULL_CORE:
        raise Unacceptable(
            f"{dialect.compute}: the containers together request {core} of each card; request at most {FULL_CORE}"
        )
    if whole > MAX_CARDS:
        raise Unacceptable(f"{dialect.whole} {whole} is more than any machine has; request at most {MAX_CARDS}")


def _cards(count: int) -> str:
    return "1 card" if count == 1 else f"{count} cards"
