# SPDX-License-Identifier: Apache-2.0
"""
The processes on this node's cards as a JSON document: for people who look at one card, not for time series.

Pure. Names of processes are their tenants' own words, and are cut.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from exporter.evaluate import CycleResult
    from exporter.pipeline.process_binding import BoundProcess

VERSION: Final = 1
_MAX_PROCESSES: Final = 4096
_LONGEST_NAME: Final = 64


def to_json(result: CycleResult | None, node: str) -> str:
    """
    `{"version", "node", "processes"}`; a process is on the card for as many times as it stands in the list.

    `memory_bytes` and `compute_ratio` (0..1 of the last cycle) are null where the driver does not tell them.
    """
    found = result.found if result is not None else None
    machine = result.snapshot.machine.value if result is not None else None
    if found is None or machine is None:
        return json.dumps({"version": VERSION, "node": node, "processes": None})
    busy = {card.uuid: card.busy for card in machine.cards}
    processes = found.processes[:_MAX_PROCESSES]
    return json.dumps({"version": VERSION, "node": node, "processes": [_process(one, busy) for one in processes]})


def _process(one: BoundProcess, busy: dict[str, Any]) -> dict[str, Any]:
    owner, allocation, computed = one.owner, one.allocation, busy.get(one.uuid)
    return {
        "uuid": one.uuid,
        "card": one.index,
        "pid": one.process.pid,
        "name": owner.name[:_LONGEST_NAME] if owner else None,
        "kind": one.process.kind,
        "memory_bytes": one.process.bytes,
        "compute_ratio": None if computed is None else computed.get(one.process.pid, 0.0),
        "namespace": allocation.namespace if allocation else owner.namespace if owner else "",
        "pod": allocation.pod if allocation else owner.pod if owner else "",
        "container": allocation.container if allocation else owner.container if owner else "",
        "attributed": one.binding.value,
    }
