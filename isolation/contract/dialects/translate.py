# SPDX-License-Identifier: Apache-2.0
"""
One pod into its canonical form, line by line, or why not.

Decides what is the same in every dialect: which one is spoken, that a pod speaks one only, how amounts become units,
that all containers share one set of cards, and what is removed. Translating twice changes nothing more. Never raises
for what a pod says: a pod that cannot be translated is a refusal, and wrong JSON a CodecError as everywhere.

A percentage of a card is that of the whole units the card offers, rounded down, at least one: two halves fit a card.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from isolation.contract.codec.cursor import At, Unacceptable, show
from isolation.contract.codec.rules import rules_of
from isolation.contract.dialects.groups import explain_group
from isolation.contract.dialects.system import CONTAINER, ForeignContainer, ForeignPod, System, whole_number
from isolation.contract.dialects.systems import SCHEDULERS, SYSTEMS
from isolation.contract.model import FULL_CORE, Refusal, Why
from isolation.contract.names import ACK, ASKED, DEFAULT_SCHEDULER, DIALECT
from isolation.contract.quantity import MIB, show_bytes
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from isolation.contract.dialects.system import Offered, Want

MAX_CARDS: Final = 64
_SHOWN: Final = 60
_KINDS: Final = ("initContainers", "containers")
_PARTS: Final = ("limits", "requests")
_BY_RESOURCE: Final = {name: system for system in SYSTEMS.values() for name in system.resources}
_BY_ANNOTATION: Final = {name: system for system in SYSTEMS.values() for name in system.annotations}
_BY_CONTAINER: Final = [
    (*name.partition(CONTAINER)[::2], one) for one in SYSTEMS.values() for name in one.container_annotations
]
_REMOVED: Final = {one.name: frozenset((*one.resources, *one.implied)) for one in SYSTEMS.values()}
_BY_SELECTOR: Final = [one for one in SYSTEMS.values() if one.selector]
_BOOKED: Final = "its request is in the amounts now"
_OWN: Final = frozenset({ACK.memory, ACK.compute})
_METADATA: Final = ("metadata",)
_SPEC: Final = ("spec",)


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a translation changes."""

    before: str
    after: str
    """Empty: removed."""
    why: str


class Translation(NamedTuple):
    """What a pod becomes."""

    metadata: At
    spec: At
    """The pod's own where nothing is translated."""
    dialect: str = ""
    """Of a pod that was translated or refused; empty: it is canonical, or asks nothing."""
    asked: str = ""
    """JSON, for people: the words that were removed."""
    changes: tuple[Callable[[], Line], ...] = ()
    warnings: tuple[str, ...] = ()
    refusal: Refusal | None = None
    """Then the pod is as it was."""

    @property
    def lines(self) -> tuple[Line, ...]:
        """What has changed, for people: put into words only where somebody reads them."""
        return tuple(change() for change in self.changes)


def spoken(metadata: At, spec: At, *, sliced: bool = False) -> tuple[System, ...]:
    """
    The dialects whose names the pod has, on or off; by name, a few steps for each container.

    `sliced`: its namespace is one of time slices.
    """
    return _spoken(metadata, spec, sliced=sliced)[0]


def _spoken(metadata: At, spec: At, *, sliced: bool) -> tuple[tuple[System, ...], bool]:
    """Likewise, and whether a container asks in our words."""
    own = spec.value if isinstance(spec.value, dict) else {}
    containers, named = _resources_in(own)
    found: dict[str, System] = {}
    ours = False
    for part in [*named, *_limits_and_requests(own["resources"])] if "resources" in own else named:
        for name in part:
            if name in _BY_RESOURCE:
                found[_BY_RESOURCE[name].name] = _BY_RESOURCE[name]
            elif name in _OWN:
                ours = True
    if not found and (sliced or own.get("nodeSelector")):  # HAMi's form of the same resource goes before
        for one in _BY_SELECTOR:
            if _is_tied(one, own, sliced=sliced) and any(name in part for part in named for name in one.selected):
                found[one.name] = one
    annotations = metadata.value.get("annotations") if isinstance(metadata.value, dict) else None
    if isinstance(annotations, dict) and annotations:
        for one in _annotated(annotations, containers):
            found[one.name] = one
    return tuple(found.values()), ours


def _resources_in(spec: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, object]]]:
    """The containers, and what they name under limits and under requests."""
    containers: list[dict[str, Any]] = []
    named: list[dict[str, object]] = []
    for kind in _KINDS:
        for one in _listed_in(spec, kind):
            if isinstance(one, dict):
                containers.append(one)
                if "resources" in one:
                    named += _limits_and_requests(one["resources"])
    return containers, named


def _is_tied(system: System, spec: Mapping[str, object], *, sliced: bool) -> bool:
    """Whether the pod is one of the nodes of a system that is known by a label of nodes."""
    selector = spec.get("nodeSelector")
    return sliced or (isinstance(selector, dict) and system.selector in selector)


def _annotated(annotations: dict[str, object], containers: list[dict[str, Any]]) -> Iterator[System]:
    """The dialects of annotations: looked up, however many there are."""
    for name, one in _BY_ANNOTATION.items():
        if name in annotations:
            yield one
    for container in containers:
        called = container.get("name")
        for before, after, one in _BY_CONTAINER:
            if f"{before}{called}{after}" in annotations:
                yield one


def translate(pod: Mapping[str, object], offered: Offered, namespace: str = "") -> Translation:
    """
    The canonical form of a pod, or of a pod template (`metadata` and `spec`), in its namespace.

    A pod in none of the dialects that are switched on is returned as it is.
    """
    metadata, spec = At(pod.get("metadata"), _METADATA), At(pod.get("spec"), _SPEC)
    found, ours = _spoken(metadata, spec, sliced=offered.slices is not None)
    if not found:
        return Translation(metadata, spec)
    on = [one for one in found if one.name in offered.dialects]
    if not on:
        return Translation(metadata, spec, warnings=tuple(explain_off(one) for one in found))
    if offered.left and all((one.name, namespace) in offered.left for one in found):
        return Translation(metadata, spec)
    try:
        labels = metadata["labels"].mapping()
        _check_mixture(spec, found, ours=ours or ACK.card_count in labels)
        return _translate(metadata, spec, labels, found[0], offered)
    except Unacceptable as exc:
        return Translation(metadata, spec, on[0].name, refusal=Refusal(Why.INVALID, f"{on[0].title}: {exc}"))


def explain_off(system: System) -> str:
    """The warning for a pod of a dialect that is not served."""
    return (
        f"the pod asks for GPUs in the words of {system.title}, which gpushare does not serve here (dialect "
        f"{system.name} is off): without {system.title} it gets none; request {ACK.memory} instead, or have the "
        "dialect switched on"
    )


def _translate(metadata: At, spec: At, labels: Mapping[str, object], system: System, offered: Offered) -> Translation:
    if shown := offered.owned.get(system.name):
        raise Unacceptable(
            f"{system.title} itself serves such pods in this cluster ({shown}), and gpushare does not take them over; "
            f"an administrator must remove it, or set --leave-to {system.name}=NAMESPACE,..."
        )
    (slices,) = offered.slices if offered.slices is not None and len(offered.slices) == 1 else ("",)
    before = spec.mapping()
    pod = ForeignPod(metadata, spec, _containers(spec, before), labels, slices)
    if group := explain_group(pod.written, labels, before):
        raise Unacceptable(group)
    wants = system.read(pod)
    cards, whole, parts, compute = _one_set(wants, system)
    card_bytes = _card_size(pod, system, offered, compute=compute) if parts else 0
    units = _Units(cards, card_bytes, offered.unit_bytes, _REMOVED[system.name])
    lines: list[Callable[[], Line]] = []
    asked: dict[str, dict[str, str]] = {}
    listed: dict[str, list[object]] = {}
    for one in pod.containers:
        listed.setdefault(one.kind, []).append(_container(one, wants.get(one.name), units, asked, lines))
    if not wants and not asked:
        raise Unacceptable(
            f"no container asks for a card; request {system.better}, or remove what is left of the request"
        )
    new: dict[str, object] = {**before, **listed}
    said: dict[str, Any] = {"containers": asked}
    if pod.selector:
        selector = spec["nodeSelector"].mapping()
        new["nodeSelector"] = {**selector, **pod.selector}
        added = ", ".join(f"{key}: {value}" for key, value in pod.selector.items() if selector.get(key) != value)
        if added:
            lines.append(partial(Line, "", f"nodeSelector {added}", "its namespace"))
    scheduler = new.get("schedulerName")
    if type(scheduler) is str and scheduler in SCHEDULERS:
        said["schedulerName"], new["schedulerName"] = scheduler, DEFAULT_SCHEDULER
        why = "gpushare's scheduler places shares, the default one whole cards"
        lines.append(partial(Line, f"schedulerName {scheduler}", "", why))
    annotations = _annotations(pod, system, said, lines)
    text = msgspec.json.encode(said, order="sorted").decode()
    annotations[DIALECT], annotations[ASKED] = system.name, text
    meta = {**metadata.mapping(), "annotations": annotations}
    if cards > 1 and not whole:
        meta["labels"] = {**labels, ACK.card_count: str(cards)}
        spread = "cards over which the memory is spread, the same on each"
        lines.append(partial(Line, "", f"label {ACK.card_count}: {cards}", spread))
    made = Translation(At(meta, _METADATA), At(new, _SPEC), system.name, text, tuple(lines), tuple(pod.warnings))
    _check_canonical(made, new, sliced=offered.slices is not None)
    return made


def _check_mixture(spec: At, found: tuple[System, ...], *, ours: bool) -> None:
    """A pod speaks one dialect: two readings of one pod would be two promises."""
    resources = spec.mapping().get("resources")
    for part in _PARTS if isinstance(resources, dict) else ():
        for name in spec["resources"][part].mapping():
            if name in _BY_RESOURCE:
                raise Unacceptable(f"{name} is set under pod-level resources.{part}; move it to a container")
    if ours or len(found) > 1:
        titles = [one.title for one in found] + (["ACK"] if ours else [])
        raise Unacceptable(f"the pod asks for GPUs in the words of {' and '.join(titles)}; use those of one of them")


def _check_canonical(made: Translation, spec: Mapping[str, object], *, sliced: bool) -> None:
    """What is whole cards now must not be time slices for whoever reads the pod next."""
    for one in _BY_SELECTOR:
        if _is_tied(one, spec, sliced=sliced) and (left := spoken(made.metadata, made.spec, sliced=sliced)):
            raise Unacceptable(
                f"the pod asks for {ACK.whole} where that is {left[0].title} (by its namespace, or nodeSelector "
                f"{left[0].selector}); request a share of a card, or use nodes and a namespace without {left[0].title}"
            )


def _one_set(wants: Mapping[str, Want], system: System) -> tuple[int, bool, bool, bool]:
    """All containers share one set of cards: how many, whether whole, and whether parts and compute are asked for."""
    cards, whole, parts, compute, first = 1, False, False, False, ""
    for name, want in wants.items():
        if not first:
            first, cards, whole = name, want.cards, want.whole
        parts = parts or want.part is not None
        compute = compute or want.core > 0
        if want.whole != whole:
            raise Unacceptable(
                f"container {show(first)} and container {show(name)} ask for a share and for whole cards; a pod gets "
                "one or the other: make them alike"
            )
        if want.cards != cards and not whole:
            raise Unacceptable(
                f"container {show(first)} asks for {cards} cards and container {show(name)} for {want.cards}; the "
                "containers of a pod share one set of cards: ask for the same number"
            )
        if not 0 < want.cards <= MAX_CARDS:
            raise Unacceptable(f"no machine has that many cards ({system.title}); request at most {MAX_CARDS}")
        if want.core > FULL_CORE:
            raise Unacceptable(f"{want.core} percent of a card's compute; request at most {FULL_CORE}")
    return cards, whole, parts, compute


def _card_size(pod: ForeignPod, system: System, offered: Offered, *, compute: bool) -> int:
    """Bytes that one card offers, where a part of one is asked for."""
    spec = pod.spec
    if pod.selector:
        selector = {**spec["nodeSelector"].mapping(), **pod.selector}
        spec = At({**spec.mapping(), "nodeSelector": selector}, spec.path)
    written = At({**pod.written, **pod.annotations}) if pod.annotations else pod.noted
    rules = rules_of(spec, ACK, written)
    sizes = offered.card_sizes(rules, compute=compute)
    if sizes is None or not sizes:
        what = "it is not known yet which nodes there are" if sizes is None else "no node with cards could take the pod"
        raise Unacceptable(f"a part of a card is asked for, and {what}; request {system.better} instead")
    if len(sizes) > 1:
        shown = " and ".join(show_bytes(size) for size in sorted(sizes)[:4])
        raise Unacceptable(
            f"a part of a card is asked for, and cards of different sizes could take the pod ({shown}); request "
            f"{system.better} instead, or add a nodeSelector for nodes of one card size, such as {ACK.model_labels[0]}"
        )
    return next(iter(sizes))


class _Units(NamedTuple):
    """What one unit of a container's request is."""

    cards: int
    """Of the pod."""
    card_bytes: int
    unit_bytes: int
    removed: frozenset[str]
    """Resources that are no longer named."""


def _container(
    one: ForeignContainer,
    want: Want | None,
    units: _Units,
    said: dict[str, dict[str, str]],
    lines: list[Callable[[], Line]],
) -> dict[str, object]:
    """One container with canonical amounts in the place of foreign ones; `said` gets what they were."""
    words: dict[str, str] = {}
    amounts = _amounts(want, units) if want is not None else {}
    resources = one.value.get("resources")
    new: dict[str, object] = dict(resources) if isinstance(resources, dict) else {}
    removed = units.removed
    for part, before in (("requests", one.requests), ("limits", one.limits)):
        kept: dict[str, object] = {}
        for name, value in before.items():
            if name not in removed:
                kept[name] = value
            elif name not in words:
                words[name] = _plain(value)
        kept.update(amounts)
        if kept:
            new[part] = kept
        else:
            new.pop(part, None)
    if want is None and not words:
        return one.value
    if words:
        said[one.name] = words
    lines.append(partial(_explain_container, one.name, words, amounts, want, units))
    return {**one.value, "resources": new}


def _plain(value: object) -> str:
    """A stranger's amount or annotation for people, without quotes."""
    if type(value) is str:
        if len(value) <= _SHOWN and value.isdecimal():
            return value
        shortened = whole_number(value) if value.endswith("k") else None
        text = value if shortened is None else str(shortened)
    else:
        text = str(value) if type(value) is int else show(value)
    return text if len(text) <= _SHOWN and text.isprintable() else printable(text, _SHOWN)


def _listed(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in amounts.items())


def _units_of(want: Want, units: _Units) -> int:
    """Units of memory on each card."""
    if want.part is None:
        return -(-want.bytes // units.unit_bytes)
    numerator, denominator = want.part.as_integer_ratio()
    return max(1, numerator * (units.card_bytes // units.unit_bytes) // denominator)


def _amounts(want: Want, units: _Units) -> dict[str, str]:
    """Canonical amounts of one container."""
    if want.whole:
        return {ACK.whole: str(want.cards)}
    amounts = {ACK.memory: str(_units_of(want, units) * units.cards)}
    if want.core:
        amounts[ACK.compute] = str(want.core * units.cards)
    return amounts


def _explain_amounts(want: Want | None, units: _Units) -> str:
    """Why these amounts."""
    if want is None:
        return "asks for nothing"
    if want.whole:
        return "whole cards, exclusively"
    unit, cards = show_bytes(units.unit_bytes), "" if units.cards == 1 else f" on each of {units.cards} cards"
    if want.part is not None:
        offered, percent = units.card_bytes // units.unit_bytes, f"{float(want.part * FULL_CORE):g}"
        why = f"{percent} % of the {offered} units of {unit} that a card offers, rounded down{cards}"
    else:
        rounded = "" if want.bytes % units.unit_bytes == 0 else ", rounded up"
        why = f"{want.bytes // MIB} MiB in units of {unit}{rounded}{cards}"
    return f"{why}; {want.core} % of the compute of each card" if want.core else why


def _explain_container(
    name: str, words: Mapping[str, str], amounts: Mapping[str, str], want: Want | None, units: _Units
) -> Line:
    return Line(f"container {name}: {_listed(words) or 'nothing'}", _listed(amounts), _explain_amounts(want, units))


def _explain_removed(key: str, value: str) -> Line:
    return Line(f"annotation {key}: {value}", "", _BOOKED)


def _added(system: System, key: str, value: str) -> Line:
    return Line("", f"annotation {key}: {value}", f"as {system.title} has it")


def _annotations(
    pod: ForeignPod, system: System, said: dict[str, Any], lines: list[Callable[[], Line]]
) -> dict[str, object]:
    """The pod's annotations without those that ask, and with canonical ones."""
    kept = dict(pod.written)
    if system.annotations and kept:
        asking = [*system.annotations, *system.also_removed]
        for one in pod.containers:
            asking += [start + one.name + end for start, end, owner in _BY_CONTAINER if owner is system]
        words = said["annotations"] = {}
        for key in asking:
            if key in kept:
                words[key] = _plain(kept.pop(key))
                lines.append(partial(_explain_removed, key, words[key]))
    if pod.annotations:
        lines += [partial(_added, system, key, value) for key, value in pod.annotations.items()]
        kept.update(pod.annotations)
    return kept


def _containers(spec: At, said: Mapping[str, object]) -> tuple[ForeignContainer, ...]:
    """Init containers first; raises CodecError, Unacceptable."""
    found: list[ForeignContainer] = []
    for kind in _KINDS:
        if listed := said.get(kind):
            values = listed if type(listed) is list else At(listed, spec, kind).items()
            found += [ForeignContainer(spec, kind, i, value) for i, value in enumerate(values)]
    if len(found) > 1 and len({one.name for one in found}) < len(found):
        raise Unacceptable("two containers have the same name; give each its own name")
    return tuple(found)


def _listed_in(spec: Mapping[str, object], kind: str) -> list[object]:
    """Whatever is in the place of containers; of the wrong shape is for others to say."""
    listed = spec.get(kind)
    return listed if isinstance(listed, list) else []


def _limits_and_requests(resources: object) -> list[dict[str, object]]:
    if not isinstance(resources, dict):
        return []
    return [found for part in _PARTS if isinstance(found := resources.get(part), dict)]
