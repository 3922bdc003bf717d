# SPDX-License-Identifier: Apache-2.0
"""
What admission has for other dialects, as templates: their names are a table, and a template joins those that are on.

Pure. The expressions are those of `isolation.scheduler.admission`: what it makes of all dialects at once is found in
its objects and replaced by a call of `gpushare.speaks`, which is written by hand beside the templates. A test compares
what helm makes with what admission makes of the same dialects.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from charts.merging import Branch, none_of
from charts.sources import key_of
from isolation.contract.dialects import SYSTEMS, time_slices
from isolation.contract.dialects.system import CONTAINER
from isolation.contract.names import ACK, GROUP, SCHEDULER, WARNS_ONLY
from isolation.scheduler.admission.core import cel
from isolation.scheduler.admission.core.matching import workloads_by_path
from isolation.scheduler.admission.core.serving import Serving
from isolation.scheduler.admission.core.webhook import SLICED
from isolation.scheduler.admission.objects import build_objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from charts.sources import Key

MORE: Final = "gt (len .Values.admission.dialects) 1"
"""The condition that any dialect but ACK's is on."""
_ALL: Final = f"eq (len .Values.admission.dialects) {len(SYSTEMS) + 1}"
_PODS: Final = ("object", *(".".join(("object", *map(str, path))) for path in workloads_by_path()))
_TITLES: Final = " or ".join(one.title for one in SYSTEMS.values())


def with_all(objects: Mapping[Key, dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """The objects with every dialect on, as templates."""
    systems = Serving(frozenset({ACK.name, *SYSTEMS}))
    made = [one for file in ("webhooks.yaml", "policies.yaml") for one in build_objects(file, systems=systems)]
    kept = {key: one for key, one in objects.items() if not key[1].startswith(WARNS_ONLY)}
    return kept | {key_of(one): templated(one, "on") for one in made}


def templated(thing: Any, which: str) -> Any:
    """With a call in place of what is said of all dialects that are on, or off."""
    if isinstance(thing, dict):
        return {key: templated(value, which) for key, value in thing.items()}
    if isinstance(thing, list):
        return [templated(value, which) for value in thing]
    if not isinstance(thing, str):
        return thing
    for pod in _PODS:
        call = f'{{{{ include "gpushare.speaks" (list . "{pod}" "{which}") }}}}'
        thing = thing.replace(cel.speaks(pod, list(SYSTEMS.values())), call)
    return thing.replace(_TITLES, '{{ include "gpushare.titles" . }}')


def correct(found: Mapping[Key, Branch]) -> None:
    """Give what belongs to one dialect its own condition: merged, it stands under that of any or of none."""
    named = {name: f'has "{name}" .Values.admission.dialects' for name in SYSTEMS}
    sliced = named[time_slices.SYSTEM.name]
    for (_, name), top in found.items():
        if name.startswith(WARNS_ONLY):
            top.condition = none_of((".Values.ack.enabled", _ALL))
        elif name == f"gpushare-{SLICED}":
            top.condition = f"and ({sliced}) (not .Values.ack.enabled)"
    for key in found:
        if key[0] == "ValidatingAdmissionPolicy" and key[1].startswith(WARNS_ONLY):
            warnings = _inside(found[key], "spec", "validations").node.branches
            for branch, condition in zip(warnings, named.values(), strict=True):
                branch.condition = none_of((condition,))
    for branch in _inside(found[("MutatingWebhookConfiguration", SCHEDULER)], "webhooks").node.branches:
        if _inside(branch, "name").node == f"{SLICED}.{GROUP}":
            branch.condition = sliced


def _inside(branch: Branch, *keys: str) -> Branch:
    for key in keys:
        [branch] = [one for one in branch.node.branches if one.key == key]
    return branch


def table_text() -> str:
    """The names of each dialect, for the templates."""
    table = [
        {
            "name": one.name,
            "title": one.title,
            "resources": list(one.resources),
            "annotations": list(one.annotations),
            "selector": one.selector,
            "selected": list(one.selected),
            "byContainer": [name.split(CONTAINER) for name in one.container_annotations],
        }
        for one in SYSTEMS.values()
    ]
    return f'{{{{- define "gpushare.dialects" -}}}}\n{json.dumps(table, indent=2)}\n{{{{- end -}}}}\n'
