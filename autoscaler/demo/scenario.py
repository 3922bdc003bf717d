# SPDX-License-Identifier: Apache-2.0
"""
Which embedded cluster runs: the built-in demonstration, a user's manifests, or a trace.

Reads files and builds the world; knows nothing of how long it runs or where it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from autoscaler.demo.embedded.embedded_cluster import Embedded
from autoscaler.demo.embedded.node_pools import demo_fleet, demo_limits, fleet_of
from autoscaler.demo.embedded.workload import Arrival, arrivals_of_rows, demo_workload
from isolation.contract.model import Ask, Refusal, Toleration
from isolation.contract.names import ACK
from isolation.contract.quantity import GIB
from isolation.simulator.place.manifests import STDIN, ManifestError, read, wanted
from isolation.simulator.traces import openb
from isolation.simulator.traces.csvfile import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autoscaler.demo.stack.autoscaler_metrics import Turns
    from isolation.contract.model import Request

DEMO_SPEED: Final = 60.0
TRACE_SPEED: Final = 3600.0
QUIET_SHARE: Final = 100
"""A trace is replayed from where one in so many of its pods has come: recordings can begin with idle months."""
DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class Scene:
    """A world at its beginning, and the speed at which it is worth looking at."""

    world: Embedded
    speed: float
    remarks: tuple[str, ...] = ()
    """What of the input was passed over."""


def demo(seed: int, turns: Turns | None = None) -> Scene:
    """Pools of every mode and pods without end; `turns` watches the autoscaler's loop."""
    hooks: dict[str, Any] = {} if turns is None else {"decider": turns.decide, "done": turns.done}
    workload, limits = demo_workload(seed), demo_limits()
    world = Embedded(demo_fleet(), workload, seed=seed, limits=limits, **hooks)
    return Scene(world, DEMO_SPEED)


def from_manifests(paths: Sequence[str], stdin: BinaryIO, seed: int) -> Scene:
    """The pools of the demonstration, and the pods of these manifests."""
    if paths.count(STDIN) > 1:
        raise ManifestError("stdin can be read only once; use - only once")
    asked = wanted([read(path, stdin) for path in paths], GIB)
    refused = [(pod, pod.request) for pod in asked.pods if isinstance(pod.request, Refusal)]
    if refused:
        pod, refusal = refused[0]
        raise ManifestError(f"pod {pod.key}: {refusal.reason}")
    if not asked.pods:
        raise ManifestError("\n".join([*asked.notes, "these manifests contain no pods; add at least one workload"]))
    # Nobody would make a bare pod again, so nobody may move it.
    arrivals = [
        Arrival(0.0, pod.name, _tolerant(pod.request), namespace=pod.namespace, evictable=bool(pod.request.owner))
        for pod in asked.pods
        if not isinstance(pod.request, Refusal)
    ]
    world = Embedded(demo_fleet(), arrivals, seed=seed, limits=demo_limits())
    pinned = [
        f"pod {pod.key}: nodeName {pod.node} is ignored, because the simulated cluster has no such node"
        for pod in asked.pods
        if pod.node
    ]
    return Scene(world, DEMO_SPEED, (*asked.notes, *pinned))


def _tolerant(request: Request) -> Request:
    """Whole cards stand on tainted nodes; whoever asks for them may go there (as with ExtendedResourceToleration)."""
    if not request.whole:
        return request
    tolerations = request.rules.tolerations | {Toleration(ACK.whole, exists=True)}
    return replace(request, rules=replace(request.rules, tolerations=tolerations))


def from_trace(nodes_csv: str, pods_csv: str, seed: int) -> Scene:
    """The nodes of a trace as pools, and its pods when they came."""
    nodes = openb.read_nodes(nodes_csv)
    rows = list(openb.arrivals(openb.read_pods(pods_csv)))
    if not rows:
        raise TraceError(
            f"{pods_csv}: no pod has both creation_time and deletion_time, so there is nothing to replay; "
            "use a pod list with these columns, or use: gpushare sim"
        )
    start = rows[len(rows) // QUIET_SHARE].at
    skipped = start - rows[0].at
    remarks = (f"the replay starts {skipped / DAY:.1f} days into the trace, where its load begins",) * (skipped > DAY)
    world = Embedded(fleet_of(nodes), arrivals_of_rows(_from(rows, start)), seed=seed)
    return Scene(world, TRACE_SPEED, remarks)


def _from(rows: Iterable[openb.Arrival], start: float) -> Iterator[tuple[float, float, Request, str]]:
    """The rows of a trace from this moment on; pods that still run then come first, for the rest of their time."""
    asking: dict[Request, Request] = {}
    for row in rows:
        left = row.at + row.seconds - max(row.at, start)
        if left > 0 or row.at >= start:
            request = asking.setdefault(row.request, _as_container(row.request))
            yield max(row.at, start), left, request, row.name


def _as_container(request: Request) -> Request:
    """The same request with a container to measure: a trace names none."""
    if not request.cards or request.asks:
        return request
    ask = Ask("main", request.card_bytes * request.cards, request.card_core * request.cards)
    return replace(request, asks=(ask,))
