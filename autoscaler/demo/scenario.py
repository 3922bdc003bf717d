# SPDX-License-Identifier: Apache-2.0
"""
Which embedded cluster runs: the built-in demonstration, a user's manifests, or a trace.

Reads the files and builds the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
from autoscaler.demo.embedded.node_pools import build_fleet, demo_fleet, demo_limits
from autoscaler.demo.embedded.workload import PodArrival, demo_workload, trace_arrivals
from isolation.contract.dialects import Offered
from isolation.contract.model import Ask, Refusal, Toleration
from isolation.contract.names import ACK, CORE_STEPS
from isolation.simulator.place.manifests import STDIN, ManifestError, read, read_pods
from isolation.simulator.traces import openb
from isolation.simulator.traces.csvfile import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autoscaler.demo.stack.autoscaler_metrics import LoopMetrics
    from isolation.contract.model import Request

DEMO_SPEED: Final = 60.0
TRACE_SPEED: Final = 3600.0
QUIET_SHARE: Final = 100
"""A trace is replayed from where one in so many of its pods has come: recordings can begin with idle months."""
DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster at its beginning, and the speed at which to show it."""

    cluster: EmbeddedCluster
    speed: float
    remarks: tuple[str, ...] = ()
    """What of the input was passed over."""


def load_demo(seed: int, metrics: LoopMetrics | None = None) -> Scenario:
    """Pools of every mode and pods without end; `metrics` watches the autoscaler's loop."""
    hooks: dict[str, Any] = {} if metrics is None else {"decider": metrics.decide, "done": metrics.record_done}
    workload, limits = demo_workload(seed), demo_limits()
    cluster = EmbeddedCluster(demo_fleet(), workload, seed=seed, limits=limits, **hooks)
    return Scenario(cluster, DEMO_SPEED)


def load_manifests(paths: Sequence[str], stdin: BinaryIO, seed: int) -> Scenario:
    """The pools of the demonstration, and the pods of these manifests."""
    if paths.count(STDIN) > 1:
        raise ManifestError("stdin can be read only once; use - only once")
    asked = read_pods([read(path, stdin) for path in paths], Offered(frozenset(CORE_STEPS)))
    refused = [(pod, pod.request) for pod in asked.pods if isinstance(pod.request, Refusal)]
    if refused:
        pod, refusal = refused[0]
        raise ManifestError(f"pod {pod.key}: {refusal.reason}")
    if not asked.pods:
        raise ManifestError("\n".join([*asked.notes, "these manifests contain no pods; add at least one workload"]))
    # No controller recreates a pod without an owner, so it may not be moved.
    arrivals = [
        PodArrival(
            0.0,
            pod.name,
            _tolerate_whole_cards(pod.request),
            namespace=pod.namespace,
            evictable=bool(pod.request.owner),
        )
        for pod in asked.pods
        if not isinstance(pod.request, Refusal)
    ]
    cluster = EmbeddedCluster(demo_fleet(), arrivals, seed=seed, limits=demo_limits())
    pinned = [
        f"pod {pod.key}: nodeName {pod.node} is ignored, because the simulated cluster has no such node"
        for pod in asked.pods
        if pod.node
    ]
    return Scenario(cluster, DEMO_SPEED, (*asked.notes, *pinned))


def _tolerate_whole_cards(request: Request) -> Request:
    """Whole cards stand on tainted nodes; whoever asks for them may go there (as with ExtendedResourceToleration)."""
    if not request.whole:
        return request
    tolerations = request.rules.tolerations | {Toleration(ACK.whole, exists=True)}
    return replace(request, rules=request.rules._replace(tolerations=tolerations))


def load_trace(nodes_csv: str, pods_csv: str, seed: int) -> Scenario:
    """The nodes of a trace as pools, and its pods when they came."""
    nodes = openb.read_nodes(nodes_csv)
    rows = list(openb.list_arrivals(openb.read_pods(pods_csv)))
    if not rows:
        raise TraceError(
            f"{pods_csv}: no pod has both creation_time and deletion_time, so there is nothing to replay; "
            "use a pod list with these columns, or use: gpushare sim"
        )
    start = rows[len(rows) // QUIET_SHARE].at
    skipped = start - rows[0].at
    remarks = (f"the replay starts {skipped / DAY:.1f} days into the trace, where its load begins",) * (skipped > DAY)
    cluster = EmbeddedCluster(build_fleet(nodes), trace_arrivals(_rows_from(rows, start)), seed=seed)
    return Scenario(cluster, TRACE_SPEED, remarks)


def _rows_from(rows: Iterable[openb.TraceArrival], start: float) -> Iterator[tuple[float, float, Request, str]]:
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
