# SPDX-License-Identifier: Apache-2.0
"""
Memory that a new pod gets by the autoscaler's recommendation, where its annotations ask for it.

Decides which containers get less than they ask for, and what is written on the pod about it. Never gives more: what is
above the request would be charged against quotas that nobody chose. A recommendation is of the pod's own workload, so
that a tenant changes nothing for others. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isolation.contract.codec.cursor import At, show
from isolation.contract.codec.recommendations import Recommended, workload_of
from isolation.contract.codec.request import owner_of
from isolation.contract.names import ACK, RIGHT_SIZE, RIGHT_SIZE_LEAST, RIGHT_SIZE_MOST, RIGHT_SIZED, Dialect
from isolation.contract.quantity import GIB
from isolation.contract.right_size import AMOUNT, RightSize, read_wish, sized_units

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class SizedPod:
    """A pod's metadata and spec with other amounts."""

    metadata: At
    spec: At
    warnings: tuple[str, ...] = ()


def find_right_size_problems(metadata: At) -> Iterator[str]:
    """Annotations that mean nothing."""
    annotations = metadata["annotations"]
    mode = annotations[RIGHT_SIZE]
    if mode and mode.value not in tuple(RightSize):
        yield f"annotation {RIGHT_SIZE} is {show(mode.value)}; set one of {', '.join(RightSize)}"
    amounts = []
    for key in (RIGHT_SIZE_LEAST, RIGHT_SIZE_MOST):
        value = annotations[key]
        if not value:
            continue
        if not isinstance(value.value, str) or not AMOUNT.fullmatch(value.value):
            yield f"annotation {key} is {show(value.value)}; set a whole number of units of memory, in quotes"
        else:
            amounts.append(int(value.value))
    if len(amounts) == 2 and amounts[0] > amounts[1]:  # noqa: PLR2004 (least and most)
        yield f"annotation {RIGHT_SIZE_LEAST} is greater than {RIGHT_SIZE_MOST}; swap them"


def size_pod(
    metadata: At,
    spec: At,
    namespace: str,
    recommended: Recommended,
    *,
    unit_bytes: int = GIB,
    dialect: Dialect = ACK,
) -> SizedPod | None:
    """The pod with what is recommended; None: it stays as it is, or is refused for its annotations elsewhere."""
    annotations = metadata["annotations"]
    if annotations[RIGHT_SIZE].value not in (RightSize.INITIAL, RightSize.LIVE) or not recommended.by_program:
        return None
    wish = None if any(find_right_size_problems(metadata)) else read_wish(annotations.texts())
    if wish is None:
        return None
    labels = metadata["labels"].texts()
    owner, revision = workload_of(owner_of(metadata.value), labels, metadata["name"].text())
    count = labels.get(dialect.card_count, "1")
    if not AMOUNT.fullmatch(count):
        return None
    changed: dict[int, dict[str, Any]] = {}
    notes: dict[str, dict[str, object]] = {}
    for number, container in enumerate(spec["containers"].items()):
        asked = _asked(container, dialect)
        one = recommended.for_container((namespace, owner, container["name"].text()), revision)
        if not asked or asked % int(count) or one is None:
            continue
        units = sized_units(asked, int(count), one.next_bytes, wish, unit_bytes)
        if units < asked:
            changed[number] = _with_amount(container, dialect.memory, units)
            notes[container["name"].text()] = {"asked": asked, "got": units, "why": one.reason}
    if not changed:
        return None
    containers = [changed.get(number, one.value) for number, one in enumerate(spec["containers"].items())]
    written = {**annotations.texts(), RIGHT_SIZED: json.dumps(notes, separators=(",", ":"), sort_keys=True)}
    changes = "; ".join(
        f"container {name} gets {one['got']} {dialect.memory} of {one['asked']}" for name, one in notes.items()
    )
    return SizedPod(
        At({**metadata.mapping(), "annotations": written}, metadata.path),
        At({**spec.mapping(), "containers": containers}, spec.path),
        (f"by recommendation: {changes}",),
    )


def _asked(container: At, dialect: Dialect) -> int:
    """Units; 0 where that is no plain number, which is refused elsewhere."""
    text = container["resources"]["limits"][dialect.memory].value
    return (
        int(text) if isinstance(text, str | int) and not isinstance(text, bool) and AMOUNT.fullmatch(str(text)) else 0
    )


def _with_amount(container: At, resource: str, units: int) -> dict[str, Any]:
    resources = dict(container["resources"].mapping())
    for part in ("limits", "requests"):
        if resource in container["resources"][part].mapping():
            resources[part] = {**container["resources"][part].mapping(), resource: str(units)}
    return {**container.mapping(), "resources": resources}
