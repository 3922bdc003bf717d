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
    from collections.abc import Callable, Mapping

    from isolation.contract.dialects.system import Offered, Want

MOST_CARDS: Final = 64
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


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a translation changes."""

    before: str
    after: str
    """Empty: removed."""
    why: str


@dataclass(frozen=True, slots=True)
class Translation:
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
    return _spoken(metadata, spec, _amounts_named(spec), sliced=sliced)


def _spoken(metadata: At, spec: At, named: list[dict[str, object]], *, sliced: bool) -> tuple[System, ...]:
    found: dict[str, System] = {}
    own = spec.value if isinstance(spec.value, dict) else {}
    for part in (*_limits_and_requests(own.get("resources")), *named):
        if not _BY_RESOURCE.keys().isdisjoint(part):
            found |= {_BY_RESOURCE[name].name: _BY_RESOURCE[name] for name in part if name in _BY_RESOURCE}
    selector = own.get("nodeSelector")
    for one in _BY_SELECTOR if not found else ():  # HAMi's form of the same resource goes before
        tied = sliced or (isinstance(selector, dict) and one.selector in selector)
        if tied and any(name in part for part in named for name in one.selected):
            found[one.name] = one
    annotations = metadata.value.get("annotations") if isinstance(metadata.value, dict) else None
    if isinstance(annotations, dict) and annotations:
        found |= {one.name: one for name, one in _BY_ANNOTATION.items() if name in annotations}
        names = [one.get("name") for one in _raw_containers(spec)]
        for before, after, one in _BY_CONTAINER:
            if any(f"{before}{name}{after}" in annotations for name in names):
                found[one.name] = one
    return tuple(found.values())


def translate(pod: Mapping[str, object], offered: Offered, namespace: str = "") -> Translation:
    """
    The canonical form of a pod, or of a pod template (`metadata` and `spec`), in its namespace.

    A pod in none of the dialects that are switched on is returned as it is.
    """
    metadata, spec = At(pod.get("metadata"), ("metadata",)), At(pod.get("spec"), ("spec",))
    named = _amounts_named(spec)
    found = _spoken(metadata, spec, named, sliced=offered.slices is not None)
    if not found:
        return Translation(metadata, spec)
    on = [one for one in found if one.name in offered.dialects]
    if not on:
        return Translation(metadata, spec, warnings=tuple(explain_off(one) for one in found))
    if all((one.name, namespace) in offered.left for one in found):
        return Translation(metadata, spec)
    try:
        _check_mixture(metadata, spec, found, named)
        return _translate(metadata, spec, found[0], offered)
    except Unacceptable as exc:
        return Translation(metadata, spec, on[0].name, refusal=Refusal(Why.INVALID, f"{on[0].title}: {exc}"))


def explain_off(system: System) -> str:
    """The warning for a pod of a dialect that is not served."""
    return (
        f"the pod asks for GPUs in the words of {system.title}, which gpushare does not serve here (dialect "
        f"{system.name} is off): without {system.title} it gets none; request {ACK.memory} instead, or have the "
        "dialect switched on"
    )


def _translate(metadata: At, spec: At, system: System, offered: Offered) -> Translation:
    _check_served(metadata, spec, system, offered)
    pod = ForeignPod(metadata, spec, _containers(spec), written=metadata["annotations"].mapping())
    if offered.slices is not None and len(offered.slices) == 1:
        (pod.slices,) = offered.slices
    wants = system.read(pod)
    if not wants:
        raise Unacceptable(
            f"no container asks for a card; request {system.better}, or remove what is left of the request"
        )
    count = _one_set(wants, system)
    whole = next(iter(wants.values())).whole
    card_bytes = _card_size(wants, pod, system, offered)
    lines: list[Callable[[], Line]] = []
    new = dict(spec.mapping())
    asked: dict[str, dict[str, str]] = {}
    units = _Units(count, card_bytes, offered.unit_bytes, _REMOVED[system.name])
    made = iter([_container(one, wants.get(one.name), units, asked, lines) for one in pod.containers])
    for kind in _KINDS:
        if listed := spec.value.get(kind):  # type: ignore[attr-defined]
            new[kind] = [next(made) for _ in listed]
    said: dict[str, Any] = {"containers": asked}
    if any(spec["nodeSelector"].mapping().get(key) != value for key, value in pod.selector.items()):
        new["nodeSelector"] = {**spec["nodeSelector"].mapping(), **pod.selector}
        shown = ", ".join(f"{key}: {value}" for key, value in pod.selector.items())
        lines.append(lambda: Line("", f"nodeSelector {shown}", "its namespace"))
    scheduler = spec["schedulerName"].text()
    if scheduler in SCHEDULERS:
        said["schedulerName"], new["schedulerName"] = scheduler, DEFAULT_SCHEDULER
        why = "gpushare's scheduler places shares, the default one whole cards"
        lines.append(lambda: Line(f"schedulerName {scheduler}", "", why))
    annotations = _annotations(pod, system, said, lines)
    text = msgspec.json.encode(said, order="sorted").decode()
    labels = dict(metadata["labels"].mapping())
    if count > 1 and not whole:
        labels[ACK.card_count] = str(count)
        spread = "cards over which the memory is spread, the same on each"
        lines.append(lambda: Line("", f"label {ACK.card_count}: {count}", spread))
    meta = {**metadata.mapping(), "annotations": {**annotations, DIALECT: system.name, ASKED: text}}
    if labels:
        meta["labels"] = labels
    return Translation(
        At(meta, metadata.path), At(new, spec.path), system.name, text, tuple(lines), tuple(pod.warnings)
    )


def _check_served(metadata: At, spec: At, system: System, offered: Offered) -> None:
    """That the pod is ours to serve, and can be served alone."""
    if webhook := offered.owned.get(system.name):
        raise Unacceptable(
            f"{system.title} itself serves such pods in this cluster (webhook {webhook}), and gpushare does not take "
            f"them over; an administrator must remove it, or set --leave-to {system.name}=NAMESPACE,..."
        )
    if group := explain_group(metadata, spec):
        raise Unacceptable(group)


def _check_mixture(metadata: At, spec: At, found: tuple[System, ...], named: list[dict[str, object]]) -> None:
    """A pod speaks one dialect: two readings of one pod would be two promises."""
    for part in _PARTS if spec["resources"] else ():
        for name in spec["resources"][part].mapping():
            if name in _BY_RESOURCE:
                raise Unacceptable(f"{name} is set under pod-level resources.{part}; move it to a container")
    titles = [one.title for one in found]
    if not all(map(_OWN.isdisjoint, named)) or ACK.card_count in metadata["labels"].mapping():
        titles.append("ACK")
    if len(titles) > 1:
        raise Unacceptable(f"the pod asks for GPUs in the words of {' and '.join(titles)}; use those of one of them")


def _one_set(wants: Mapping[str, Want], system: System) -> int:
    """All containers of a pod share one set of cards."""
    (first, one), *others = wants.items()
    for name, want in others:
        if want.whole != one.whole:
            raise Unacceptable(
                f"container {show(first)} and container {show(name)} ask for a share and for whole cards; a pod gets "
                "one or the other: make them alike"
            )
        if want.cards != one.cards and not one.whole:
            raise Unacceptable(
                f"container {show(first)} asks for {one.cards} cards and container {show(name)} for {want.cards}; the "
                "containers of a pod share one set of cards: ask for the same number"
            )
    if not 0 < max(want.cards for want in wants.values()) <= MOST_CARDS:
        raise Unacceptable(f"no machine has that many cards ({system.title}); request at most {MOST_CARDS}")
    if (core := max(want.core for want in wants.values())) > FULL_CORE:
        raise Unacceptable(f"{core} percent of a card's compute; request at most {FULL_CORE}")
    return one.cards


def _card_size(wants: Mapping[str, Want], pod: ForeignPod, system: System, offered: Offered) -> int:
    """Bytes that one card offers, where a part of one is asked for; 0 where none is."""
    if all(want.part is None for want in wants.values()):
        return 0
    compute = any(want.core for want in wants.values())
    selector = {**pod.spec["nodeSelector"].mapping(), **pod.selector}
    spec = At({**pod.spec.mapping(), "nodeSelector": selector}, pod.spec.path) if pod.selector else pod.spec
    rules = rules_of(spec, ACK, At({**pod.metadata["annotations"].mapping(), **pod.annotations}))
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
) -> object:
    """One container with canonical amounts in the place of foreign ones; `said` gets what they were."""
    was = {name: value for part in (one.requests, one.limits) for name, value in part.items() if name in units.removed}
    if want is None and not was:
        return one.at.value
    words = said[one.name] = {key: _plain(value) for key, value in was.items()} if was else {}
    amounts = _amounts(want, units) if want is not None else {}
    resources = dict(one.at["resources"].mapping())
    for part, before in zip(_PARTS, (one.limits, one.requests), strict=True):
        kept = {key: value for key, value in before.items() if key not in units.removed}
        if kept or amounts:
            resources[part] = {**kept, **amounts}
        else:
            resources.pop(part, None)
    lines.append(
        lambda: Line(
            f"container {one.name}: {_listed(words) or 'nothing'}", _listed(amounts), _explain_amounts(want, units)
        )
    )
    return {**one.at.mapping(), "resources": resources}


def _plain(value: object) -> str:
    """A stranger's amount or annotation for people, without quotes."""
    text = str(whole_number(value) or value) if type(value) in {str, int} else show(value)
    return text if len(text) <= _SHOWN and text.isprintable() else printable(text, _SHOWN)


def _listed(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in amounts.items())


def _units_of(want: Want, units: _Units) -> int:
    """Units of memory on each card."""
    if want.part is None:
        return -(-want.bytes // units.unit_bytes)
    return max(1, want.part.numerator * (units.card_bytes // units.unit_bytes) // want.part.denominator)


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


def _added(system: System, key: str, value: str) -> Line:
    return Line("", f"annotation {key}: {value}", f"as {system.title} has it")


def _annotations(
    pod: ForeignPod, system: System, said: dict[str, Any], lines: list[Callable[[], Line]]
) -> dict[str, object]:
    """The pod's annotations without those that ask, and with canonical ones."""
    before = pod.written
    gone = [key for key in (*system.annotations, *system.also_removed) if key in before]
    for template in (*system.container_annotations,):
        start, end = template.split(CONTAINER)
        gone += [key for one in pod.containers if (key := f"{start}{one.name}{end}") in before]
    if gone:
        said["annotations"] = {key: _plain(before[key]) for key in gone}
        lines += [partial(Line, f"annotation {key}: {said['annotations'][key]}", "", _BOOKED) for key in gone]
    lines += [partial(_added, system, key, value) for key, value in pod.annotations.items()]
    kept = {key: value for key, value in before.items() if key not in gone} if gone else dict(before)
    return {**kept, **pod.annotations}


def _containers(spec: At) -> tuple[ForeignContainer, ...]:
    found = tuple(ForeignContainer(at) for kind in _KINDS for at in spec[kind].items())
    if len({one.name for one in found}) < len(found):
        raise Unacceptable("two containers have the same name; give each its own name")
    return found


def _raw_containers(spec: At) -> list[dict[str, Any]]:
    """Whatever is in the place of containers and can be one; of the wrong shape is for others to say."""
    own = spec.value if isinstance(spec.value, dict) else {}
    lists = [listed for kind in _KINDS if isinstance(listed := own.get(kind), list)]
    return [one for listed in lists for one in listed if isinstance(one, dict)]


def _amounts_named(spec: At) -> list[dict[str, object]]:
    """Limits and requests of all containers."""
    return [part for one in _raw_containers(spec) for part in _limits_and_requests(one.get("resources"))]


def _limits_and_requests(resources: object) -> list[dict[str, object]]:
    if not isinstance(resources, dict):
        return []
    return [found for part in _PARTS if isinstance(found := resources.get(part), dict)]
