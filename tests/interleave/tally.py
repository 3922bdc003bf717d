# SPDX-License-Identifier: Apache-2.0
"""
What a run amounts to when it is over: what is left although everybody went, what happened how often.

Asks the programs for what they still hold, the machines and the server for what still stands.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interleave.chaos import Cast

IDLE = "bound and not running"


def left(cast: Cast) -> Iterator[tuple[str, str]]:
    """What stands although every pod was deleted: about what, and a sentence."""
    server = cast.net.server
    for pod in server.things["pods"].values():
        yield pod["metadata"]["uid"], f"pod {pod['metadata']['name']} is still there"
    for _, name in server.things["reservations"]:
        yield name, f"reservation {name} is still there"
    for replica in cast.replicas:
        used = sum(node.used for node in replica.cache.inspect()) if replica.cache else 0
        assumed = replica.cache.assumed_pods() if replica.cache else ()
        if used or assumed:
            yield replica.name, f"cache of {replica.name}: {used} units, {len(assumed)} assumed"
    for agent, kubelet in zip(cast.agents, cast.kubelets, strict=True):
        machine, runtime = kubelet.machine, kubelet.runtime
        if agent.allocations is not None and len(agent.allocations):
            yield machine.name, f"the agent of {machine.name} counts {[one.key for one in agent.allocations.all()]}"
        if machine.disk or machine.marks:
            yield (
                f"{machine.name} files",
                f"{machine.name}: {sorted(machine.disk)}, marks {sorted(machine.marks)} stand",
            )
        if machine.containers or runtime.containers or runtime.sandboxes:
            what = (
                f"{len(machine.containers)} of {len(runtime.containers)} containers, {len(runtime.sandboxes)} sandboxes"
            )
            yield f"{machine.name} containers", f"{machine.name}: {what}"


def counts(cast: Cast) -> Counter[str]:
    """What programs did, by name."""
    writes = cast.net.server.writes

    def written(who: str, what: str) -> int:
        return sum(n for (name, did), n in writes.items() if name.startswith(who) and did == what)

    return Counter(
        rejected=sum(len(kubelet.rejected) for kubelet in cast.kubelets),
        unadjusted=sum(kubelet.runtime.unadjusted for kubelet in cast.kubelets),
        refused_unprepared=sum(plugin.refused for plugin in cast.device_plugins),
        refused_by_guard=sum(kubelet.runtime.refused for kubelet in cast.kubelets),
        bindings_sent=written("scheduler", "POST pods/binding"),
        scheduler_patches=written("scheduler", "PATCH pods"),
    )
