# SPDX-License-Identifier: Apache-2.0
"""
What `gpushare explain` reads of the API server: the pod, its Events, and as much of the cluster as it needs.

For a bound pod that is its node, the pods there and its exporter; for one that waits everything, as the
scheduler sees it. Decides nothing about the pod; raises ClusterError where the server cannot be read.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from dashboards.terminal.explain.explanation import BoundState, Explanation, PendingReason
from dashboards.terminal.explain.node_reasons import explain_nodes
from dashboards.terminal.explain.pod import find_faults, parse_events, parse_pod
from dashboards.terminal.explain.remedies import find_remedies
from dashboards.terminal.read.api_server import NODES, PODS, ask_exporters, first_page, items, read_into, reservations
from isolation.contract.codec import CodecError, decode_allocation
from isolation.contract.model import Placement, Request
from isolation.contract.names import ACK, ALLOCATION
from isolation.kube.core.errors import MalformedError, NotFoundError, RefusedError
from isolation.kube.informer import NOT_ENDED
from isolation.kube.store import Store
from isolation.placement.place import engine_of

if TYPE_CHECKING:
    from dashboards.terminal.explain.explanation import ExplainedPod, PodEvent
    from dashboards.terminal.read.api_server import ExporterAnswers
    from isolation.contract.model import Cluster, Slice
    from isolation.contract.reservation import Reservation
    from isolation.kube.access import Access
    from isolation.placement.engine import Engine


async def read_pod(access: Access, namespace: str, name: str, unit_bytes: int) -> Explanation | None:
    """Everything there is to say; None: there is no such pod."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
    try:
        raw = _json(await access.send("GET", path))
    except NotFoundError:
        return None
    notes: list[str] = []
    subject = _subject(raw, {}, unit_bytes)
    if subject.node and not subject.ended:
        return await _bound(access, raw, subject, notes, unit_bytes)
    waits = None
    if isinstance(subject.request, Request) and subject.request.cards and not subject.ended:
        waits = await _waits(access, subject, notes, unit_bytes)
    return Explanation(subject, find_faults(subject), waits, None, await _events(access, subject, notes), tuple(notes))


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise MalformedError(f"invalid object: {exc}") from None


def _subject(raw: Any, uuids: dict[int, str], unit_bytes: int) -> ExplainedPod:
    try:
        return parse_pod(raw, uuids, unit_bytes)
    except CodecError as exc:
        raise MalformedError(f"invalid pod: {exc}") from None


async def _events(access: Access, subject: ExplainedPod, notes: list[str]) -> tuple[PodEvent, ...]:
    path = f"/api/v1/namespaces/{quote(subject.namespace, safe='')}/events"
    query = {"fieldSelector": f"involvedObject.kind=Pod,involvedObject.name={subject.name}"}
    try:
        return parse_events([raw async for raw in items(access, path, query)], subject.uid)
    except RefusedError as exc:
        notes.append(f"cannot list its Events (HTTP {exc.status})")
        return ()


# A pod that waits.


async def _waits(access: Access, subject: ExplainedPod, notes: list[str], unit_bytes: int) -> PendingReason:
    request = subject.request
    if not isinstance(request, Request):
        raise TypeError("a pod with an invalid request cannot be placed")
    store, query = Store(unit_bytes=unit_bytes), {"fieldSelector": NOT_ENDED}
    first = first_page(access, PODS, query)
    try:
        await read_into(store.node_is, items(access, NODES, {}), notes)
        await read_into(store.pod_is, items(access, PODS, query, first), notes)
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    view = store.view()
    if view.unreadable:
        notes.append(f"{len(view.unreadable)} nodes or pods cannot be read and are ignored")
    kept = await reservations(access, notes)
    return explain_pending(view.cluster, kept, subject, unit_bytes, time.time())


def explain_pending(
    cluster: Cluster, kept: list[Reservation], subject: ExplainedPod, unit_bytes: int, now: float
) -> PendingReason:
    """Why it waits, by the engine that places pods, and what would help. Pure."""
    request = subject.request
    if not isinstance(request, Request):
        raise TypeError("a pod with an invalid request cannot be placed")
    engine = engine_of(cluster)
    away = _without_agent(engine, request)
    used = {pod.reservation for pod in cluster.pods if pod.reservation}
    mine = ""
    for one in kept:
        if one.name in used or one.expires <= now or not (one.pool or one.placement.node in engine.nodes):
            continue
        if one.holder in {subject.uid, subject.owner_uid}:
            mine = f"{one.name}: {f'next node of pool {one.pool}' if one.pool else one.placement.node}"
            continue
        if one.pool:  # which node it gets is known to the scheduler alone
            continue
        slices = one.placement.slices
        size, core = max(part.bytes for part in slices), max(part.core for part in slices)
        hold = Request(cards=len(slices), card_bytes=size, card_core=core)
        engine.hold(f"reservation/{one.name}", hold, one.placement, force=True)
    verdict = engine.place(request)
    whys = explain_nodes(engine, request, away)
    if isinstance(verdict, Placement):
        return PendingReason(verdict, whys, (), mine)
    pods = {pod.uid: pod for pod in cluster.pods}
    dialect = subject.dialect or ACK.name
    return PendingReason(verdict, whys, find_remedies(engine, request, whys, pods, unit_bytes, dialect), mine)


def _without_agent(engine: Engine, request: Request) -> frozenset[str]:
    """Nodes that take no shares for want of their agent: the scheduler offers them no pod, so the engine must not."""
    away = [node for node in engine.nodes.values() if request.shared and node.ready and not node.serving]
    for node in away:
        engine.put_node(replace(node, ready=False))
    return frozenset(node.name for node in away)


# A pod that is bound.


async def _bound(access: Access, raw: Any, subject: ExplainedPod, notes: list[str], unit_bytes: int) -> Explanation:
    store = Store(unit_bytes=unit_bytes)
    node_path = f"{NODES}/{quote(subject.node, safe='')}"
    try:
        store.node_is(msgspec.Raw(await access.send("GET", node_path)))
    except (RefusedError, MalformedError) as exc:
        notes.append(f"cannot read node {subject.node}: {exc}")
    query = {"fieldSelector": f"{NOT_ENDED},spec.nodeName={subject.node}"}
    await read_into(store.pod_is, items(access, PODS, query), notes)
    node = store.nodes.get(subject.node)
    subject = _subject(raw, {card.index: card.uuid for card in node.cards} if node else {}, unit_bytes)
    heard = await ask_exporters(access, [subject.node])
    notes += heard.notes
    bound = BoundState(
        node.mode.value if node else "",
        _used(heard, subject),
        _containers(raw, subject),
        _neighbours(store, subject),
        _over(store, subject),
    )
    return Explanation(subject, find_faults(subject), None, bound, await _events(access, subject, notes), tuple(notes))


def _used(heard: ExporterAnswers, subject: ExplainedPod) -> tuple[tuple[str, int, int | None, int | None], ...] | None:
    if not heard.usage.heard:
        return None
    return tuple(
        (one.container, one.index, one.bytes("used"), one.bytes("allocated"))
        for one in heard.usage.tenants
        if (one.namespace, one.pod) == (subject.namespace, subject.name)
    )


def _containers(raw: Any, subject: ExplainedPod) -> tuple[tuple[str, tuple[Slice, ...]], ...]:
    if subject.record != ALLOCATION:
        return ()
    record = raw["metadata"]["annotations"][ALLOCATION]
    return tuple((part.container, part.slices) for part in decode_allocation(record).parts)


def _on(store: Store, subject: ExplainedPod) -> dict[str, int]:
    """Bytes promised on each card of the pod."""
    allocated = {part.uuid: 0 for part in subject.slices}
    for pod in store.pods.values():
        placement = pod.placement or Placement("")
        for part in placement.slices:
            if part.uuid in allocated:
                allocated[part.uuid] += part.bytes
    return allocated


def _neighbours(store: Store, subject: ExplainedPod) -> tuple[str, ...]:
    mine = {part.uuid for part in subject.slices}
    found = (
        pod.key
        for pod in store.pods.values()
        if pod.uid != subject.uid and pod.placement and any(part.uuid in mine for part in pod.placement.slices)
    )
    return tuple(sorted(found))


def _over(store: Store, subject: ExplainedPod) -> tuple[int, ...]:
    node = store.nodes.get(subject.node)
    if node is None:
        return ()
    allocated = _on(store, subject)
    return tuple(card.index for card in node.cards if allocated.get(card.uuid, 0) > card.allocatable_bytes)
