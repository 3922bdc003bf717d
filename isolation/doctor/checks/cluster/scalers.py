# SPDX-License-Identifier: Apache-2.0
"""
Findings about a cluster-autoscaler beside us: a flag that makes it evict our pods, and pods that it does not know of.

Pure. Who buys and who drains a pool is what the autoscaler has published; how it treats pods is
in their annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.cluster_autoscaler_annotations import DELAY, Ours
from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.pools import decode_pools
from isolation.contract.names import POOLS, SAFE_TO_EVICT, SCALE_UP_DELAY, SCHEDULER, SYSTEM_NAMESPACE
from isolation.doctor.checks.cluster.autoscaler import leader_of
from isolation.doctor.checks.cluster.facts import Unavailable
from isolation.doctor.checks.finding import Finding, counted, named, ok, problem, unknown, warning

if TYPE_CHECKING:
    from isolation.contract.codec.pools import PublishedPool
    from isolation.doctor.checks.cluster.facts import AutoscalerFacts, ClusterNode, PodFacts, ScalerFacts, Workload

_NAME: Final = "cluster-autoscaler"
_FLAG: Final = "allowed-scheduler-names"
_PAGE: Final = "docs/cluster-autoscaler.md"
_NOTHING: Final = Ours()


def is_cluster_autoscaler(one: Workload) -> bool:
    """Whether it is a cluster-autoscaler, by the name of its image or of its program."""
    images = (image.partition("@")[0].rpartition("/")[2].partition(":")[0] for image in one.images)
    programs = (word.split(" ", 1)[0].rpartition("/")[2] for word in one.words)
    return any(name.startswith(_NAME) for name in (*images, *programs)) or any(_FLAG in word for word in one.words)


def check_scalers(
    facts: ScalerFacts,
    pods: tuple[PodFacts, ...] | Unavailable,
    nodes: tuple[ClusterNode, ...] | Unavailable,
    autoscaler: AutoscalerFacts | None,
    now: float,
) -> list[Finding]:
    """Nothing where there is no cluster-autoscaler, unless pods tell it what is not so."""
    flag = [_check_flag(facts.found)] if facts.found else []
    if isinstance(pods, Unavailable) or isinstance(nodes, Unavailable):
        return flag
    check = "cluster.handover"
    if isinstance(facts.pools, Unavailable):
        evidence = f"cannot read ConfigMap {SYSTEM_NAMESPACE}/{POOLS}: {facts.pools.why}"
        return [*flag, unknown(check, evidence, "use credentials that may read it")] if facts.found else []
    try:
        pools = decode_pools(facts.pools).pools if facts.pools else ()
    except CodecError as exc:
        evidence = f"ConfigMap {SYSTEM_NAMESPACE}/{POOLS} cannot be read: {exc}"
        return [*flag, warning(check, evidence, "delete it; the autoscaler writes it again when it next starts")]
    live = [one for one in pods if one.asks and one.scheduler == SCHEDULER and not (one.done or one.resident)]
    return [
        *flag,
        *_check_handover(live, nodes, pools, facts, dead=autoscaler is not None and not leader_of(autoscaler, now)),
    ]


def _check_flag(found: tuple[Workload, ...]) -> Finding:
    check = "cluster.cluster_autoscaler"
    wrong = [one for one in found if any(_FLAG in word for word in one.words)]
    if wrong:
        names = named(f"{one.kind} {one.key}" for one in wrong)
        evidence = f"{names} runs with --{_FLAG}: it overlooks running pods with shares, and evicts them as it drains"
        return problem(check, evidence, f"remove the flag ({_PAGE})")
    return ok(check, f"{named(f'{one.kind} {one.key}' for one in found)} sees pods with shares")


def _check_handover(
    live: list[PodFacts],
    nodes: tuple[ClusterNode, ...],
    pools: tuple[PublishedPool, ...],
    facts: ScalerFacts,
    *,
    dead: bool,
) -> list[Finding]:
    check = "cluster.handover"
    ours = {pool.name: pool.ours for pool in pools if pool.ours != _NOTHING}
    hidden = [one for one in live if not one.node and one.annotations.get(SCALE_UP_DELAY) == DELAY]
    if dead and (ours or hidden):
        waiting = f"{counted(len(ours), 'pool')} and {counted(len(hidden), 'pending pod')}"
        evidence = f"no autoscaler leads, and {waiting} wait for it"
        fix = "bring it back, or run `gpushare autoscaler hand-back` (docs/runbooks/GpushareAutoscalerHandoverStuck.md)"
        return [warning(check, evidence, fix)]
    if not facts.found:
        return []
    pool_of = {one.name: one.node.pool for one in nodes if one.node is not None}
    drained = {name for name, each in ours.items() if each.drains}
    exposed = [
        one for one in live if pool_of.get(one.node) in drained and one.annotations.get(SAFE_TO_EVICT) != "false"
    ]
    if exposed:
        where = named(sorted({one.node for one in exposed}))
        evidence = (
            f"{counted(len(exposed), 'pod')} on {where} not protected: cluster-autoscaler may drain nodes that are ours"
        )
        return [warning(check, evidence, "the autoscaler adds the annotations within seconds: see its log")]
    return [ok(check, f"{counted(len(ours), 'pool')} scaled by gpushare in place of cluster-autoscaler")]
