# SPDX-License-Identifier: Apache-2.0
"""
What the pods of manifests become, template by template: translated, refused, or left as they are, and why.

Pure. The same translation as at admission; a template is found by its form, so that the objects of other systems are
judged too. Those are never changed: their own controllers read them, and only the pods that they make are translated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract.codec import request_of
from isolation.contract.codec.cursor import At, CodecError, show, show_path
from isolation.contract.dialects import SYSTEMS, translate
from isolation.contract.model import Refusal
from isolation.contract.names import ACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isolation.contract.codec.cursor import Path
    from isolation.contract.dialects import Line, Offered
    from isolation.contract.model import Rules

KUBERNETES: Final = frozenset({"", "apps", "batch"})
"""API groups system objects are rewritten."""
_FOREIGN: Final = MappingProxyType(
    {
        "volcano.sh": "Volcano",
        "run.ai": "KAI",
        "kai.scheduler": "KAI",
        "koordinator.sh": "Koordinator",
        "hami.io": "HAMi",
        "sigs.k8s.io": "a scheduler plugin",
        "x-k8s.io": "Kueue or a scheduler plugin",
    }
)
"""Whose an object is, by the end of its API group."""
_DOMAINS: Final = frozenset(
    {name.partition("/")[0] for one in SYSTEMS.values() for name in (*one.resources, *one.implied)} | {"hami.io"}
)
_STAYS: Final = "the object itself stays: admission translates the pods that its controller makes"
_GROUP: Final = (
    "Volcano starts its pods as a group, and admission refuses pods of a group: write a Job of batch/v1, or leave its "
    "namespace to Volcano"
)
_MAX_DEEP: Final = 24
"""Levels below an object in which a template is looked for: a CronJob's stands on the fourth."""


class ChangeState(StrEnum):
    """What became of a template."""

    TRANSLATED = "translated"
    REFUSED = "refused"
    UNRESOLVED = "unresolved"
    """It asks for a part of a card, and no nodes were named."""
    UNCHANGED = "unchanged"
    OTHER = "other"
    """An object of another system that makes no pods."""


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """One template of an object, or the object itself where it is a pod."""

    title: str
    state: ChangeState
    dialect: str = ""
    lines: tuple[Line, ...] = ()
    warnings: tuple[str, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class _Sizes:
    """Card sizes that are not known, and whether that mattered."""

    asked: bool = False

    def __call__(self, rules: Rules, *, compute: bool) -> None:
        """Not known."""
        del rules, compute
        self.asked = True


UNKNOWN: Final = _Sizes
"""For `Offered.card_sizes` where no nodes were named."""


@dataclass(slots=True)
class Changed:
    """An object: what became of its templates, and what it would be."""

    value: object
    changes: list[TemplateChange] = field(default_factory=list)


def change(at: At, offered: Offered) -> Changed:
    """
    What one object becomes; raises CodecError for one that Kubernetes would not read.

    Without any change for objects that make no pods and are of no other system.
    """
    group = at["apiVersion"].text().rpartition("/")[0]
    namespace = at["metadata"]["namespace"].label_name("default")
    made = Changed(at.value)
    found = list(_templates(at.value, ()))
    system = next((name for end, name in _FOREIGN.items() if group == end or group.endswith(f".{end}")), "")
    for path in found:
        title = _title(at, path if len(found) > 1 else ())
        one, value = _change(title, At(_at(at.value, path)), offered, namespace)
        if group not in KUBERNETES:
            one = _foreign(one, system)
        elif one.state is ChangeState.TRANSLATED:
            made.value = _replaced(made.value, path, value)
        made.changes.append(one)
    if not found and system:
        reason = f"is {system}'s own: gpushare has neither queues nor groups, and does not read it"
        made.changes.append(TemplateChange(_title(at, ()), ChangeState.OTHER, reason=reason))
    return made


def _foreign(one: TemplateChange, system: str) -> TemplateChange:
    """What becomes of the pods of an object that another controller reads."""
    if one.state is ChangeState.TRANSLATED and system == "Volcano":
        return replace(one, state=ChangeState.REFUSED, reason=_GROUP)
    return replace(one, warnings=(*one.warnings, _STAYS)) if one.state is ChangeState.TRANSLATED else one


def _change(title: str, template: At, offered: Offered, namespace: str) -> tuple[TemplateChange, object]:
    sizes = offered.card_sizes
    if isinstance(sizes, _Sizes):
        sizes.asked = False
    found = translate(template.mapping(), offered, namespace)
    refusal = found.refusal
    if refusal is None:
        request = request_of(found.metadata.value, found.spec.value, unit_bytes=offered.unit_bytes)
        refusal = request if isinstance(request, Refusal) else None
    if refusal is not None:
        unresolved = isinstance(sizes, _Sizes) and sizes.asked
        reason = refusal.reason
        if unresolved:
            reason += "; or name the nodes here, by --nodes-file or --node, to see what it is on them"
        state = ChangeState.UNRESOLVED if unresolved else ChangeState.REFUSED
        return TemplateChange(title, state, found.dialect, found.lines, found.warnings, reason), template.value
    if found.dialect:
        value = {**template.mapping(), "metadata": found.metadata.value, "spec": found.spec.value}
        return TemplateChange(title, ChangeState.TRANSLATED, found.dialect, found.lines, found.warnings), value
    return _unchanged(title, template, found.warnings), template.value


def _unchanged(title: str, template: At, warnings: tuple[str, ...]) -> TemplateChange:
    """Why nothing is translated, and what its owner may expect that will not be."""
    named: dict[str, object] = {}
    for kind in ("initContainers", "containers"):
        for container in template["spec"][kind].items():
            for part in ("requests", "limits"):
                named |= container["resources"][part].mapping()
    if ACK.memory in named or ACK.compute in named:
        return TemplateChange(
            title, ChangeState.UNCHANGED, warnings=warnings, reason="requests gpushare's own resources"
        )
    if ACK.whole not in named:
        return TemplateChange(title, ChangeState.UNCHANGED, warnings=warnings, reason="asks for no share of a card")
    rules = [key for key in template["metadata"]["annotations"].mapping() if key.partition("/")[0] in _DOMAINS]
    idle = tuple(f"annotation {show(key)[1:-1]} has no effect on whole cards: use a nodeSelector" for key in rules[:8])
    reason = f"{ACK.whole} {show(named[ACK.whole])}: whole cards stay the vendor's, exclusively"
    return TemplateChange(title, ChangeState.UNCHANGED, warnings=(*warnings, *idle), reason=reason)


def _title(at: At, path: Path) -> str:
    metadata = at["metadata"]
    name = metadata["name"].text() or metadata["generateName"].text() or "(no name)"
    namespace = metadata["namespace"].text()
    where = f"{show(namespace)[1:-1]}/" if namespace else ""
    return f"{show(at['kind'].text())[1:-1]} {where}{show(name)[1:-1]}" + (f" {show_path(path)}" if path else "")


def _templates(value: object, path: Path) -> Iterator[Path]:
    """Where a mapping has a `spec` with `containers`: a pod, or a template of pods."""
    if len(path) > _MAX_DEEP:
        return
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield path
            return
        for key, inner in value.items():
            if isinstance(inner, dict | list) and key not in {"metadata", "status"}:
                yield from _templates(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _templates(inner, (*path, index))


def _at(value: object, path: Path) -> object:
    for step in path:
        value = value[step]  # type: ignore[index]
    return value


def _replaced(value: object, path: Path, new: object) -> object:
    """A copy with another value there."""
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(value, list):
        return [_replaced(inner, rest, new) if index == first else inner for index, inner in enumerate(value)]
    if isinstance(value, dict):
        return {key: _replaced(inner, rest, new) if key == first else inner for key, inner in value.items()}
    raise CodecError(path, "not a mapping")
