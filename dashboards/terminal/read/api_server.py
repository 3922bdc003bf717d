# SPDX-License-Identifier: Apache-2.0
"""
Reads a fleet from the API server, once: nodes, pods, reservations, and the exporters behind it.

Decides what is listed and how many exporters are asked one by one; everything has a deadline. A page is decoded while
the next one is on its way. Watches nothing: a view that is drawn again lists again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from dashboards.terminal.read.breaches import BreachError, parse_breaches
from dashboards.terminal.read.cluster import fleet_nodes, fleet_pods
from dashboards.terminal.read.fleet import Fleet
from dashboards.terminal.read.processes import Processes, parse_processes
from dashboards.terminal.read.usage import FAMILIES, Usage, build_usage
from dashboards.terminal.text_format import count
from isolation.contract.codec import CodecError
from isolation.contract.exposition import ExpositionError, parse_page
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.contract.reservation import RESERVATIONS_PATH, Reservation, reservation_of
from isolation.kube.core.errors import (
    ClusterError,
    ForbiddenError,
    GoneError,
    MalformedError,
    NotFoundError,
    RefusedError,
)
from isolation.kube.informer import NOT_ENDED
from isolation.kube.paging import list_objects
from isolation.kube.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from dashboards.terminal.read.breaches import BreachRow
    from dashboards.terminal.read.fleet import FleetNode, FleetPod
    from isolation.kube.access import Access
    from isolation.kube.store import StoreView

NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"
_ALL_PODS: Final = MappingProxyType({"fieldSelector": NOT_ENDED})
_PAGE: Final = 2500
MAX_ASKED: Final = 64
"""Exporters that are asked one by one; of a larger fleet a Prometheus knows."""
_AT_ONCE: Final = 16
_EXPORTER_SECONDS: Final = 4.0
_MAX_CAUSES: Final = 4
_ALL_SECONDS: Final = 10.0
"""For all of them: however many hang, what the API server said is shown."""
_MAX_UNREADABLE: Final = 3
_EXPORTER_PORT: Final = 9445
_EXPORTERS: Final = "app.kubernetes.io/name=gpushare-exporter"


class _Named(msgspec.Struct):
    name: str


class _Placed(msgspec.Struct):
    nodeName: str = ""  # noqa: N815 (Kubernetes' spelling)


class _ExporterPod(msgspec.Struct):
    metadata: _Named
    spec: _Placed


class _Known(msgspec.Struct):
    uid: str = ""


class _Identified(msgspec.Struct):
    metadata: _Known


_IDENTIFIED: Final = msgspec.json.Decoder(_Identified)
_EXPORTER: Final = msgspec.json.Decoder(_ExporterPod)


@dataclass(slots=True)
class ExporterAnswers:
    """What exporters answered, and notes on those that did not."""

    usage: Usage = field(default_factory=Usage)
    breaches: tuple[BreachRow, ...] = ()
    notes: list[str] = field(default_factory=list)


def first_page(access: Access, path: str, query: Mapping[str, str]) -> asyncio.Task[bytes]:
    """Request the first page of a list ahead of its use."""
    return asyncio.create_task(access.page(path, {**query, "limit": str(_PAGE)}))


def items(
    access: Access, path: str, query: Mapping[str, str], first: asyncio.Task[bytes] | None = None
) -> AsyncIterator[msgspec.Raw]:
    """Every object of a list, in pages as `first_page` requests them."""
    return list_objects(access, path, query, _PAGE, first)


async def read_fleet(
    access: Access, unit_bytes: int, namespace: str = "", node_selector: str = "", pod_selector: str = ""
) -> Fleet:
    """
    The fleet as it is now; `namespace`: with pods of this one where not all may be listed. Raises ClusterError.

    Selectors are Kubernetes' label selectors: nodes that they leave out are not there, pods are counted all the same.
    """
    try:
        return await _read_fleet(access, unit_bytes, namespace, node_selector, pod_selector)
    except GoneError:  # a page's version was compacted away while we read: once more
        return await _read_fleet(access, unit_bytes, namespace, node_selector, pod_selector)


async def _read_fleet(access: Access, unit_bytes: int, namespace: str, node_selector: str, pod_selector: str) -> Fleet:
    store = Store(unit_bytes=unit_bytes)
    notes: list[str] = []
    kept = asyncio.create_task(reservations(access, notes))
    first = first_page(access, PODS, _ALL_PODS)
    try:
        await read_into(store.node_is, items(access, NODES, _selecting(node_selector)), notes)
        partly = await _read_pods(access, store, namespace, notes, first)
        stored = await kept
        selected = await _selected(access, namespace, pod_selector) if pod_selector else None
    finally:
        kept.cancel()
        first.cancel()
        await asyncio.gather(kept, first, return_exceptions=True)
    view = store.view()
    nodes, pods = fleet_nodes(view), fleet_pods(view)
    notes += _complaints(view, nodes, pods)
    used, now = {pod.reservation for pod in pods if pod.reservation}, time.time()
    standing = tuple(one for one in stored if one.name not in used and one.expires > now)
    return Fleet(tuple(nodes), tuple(pods), standing, partly, tuple(notes), selected)


def _selecting(selector: str) -> dict[str, str]:
    return {"labelSelector": selector} if selector else {}


async def _selected(access: Access, namespace: str, selector: str) -> frozenset[str]:
    """UIDs of the pods that the selector chooses."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else PODS
    found = items(access, path, {**_ALL_PODS, **_selecting(selector)})
    return frozenset([_IDENTIFIED.decode(raw).metadata.uid async for raw in found])


async def read_into(
    read: Callable[[msgspec.Raw], object], listed: AsyncIterator[msgspec.Raw], notes: list[str]
) -> None:
    """Give every object of a list to the store; one that cannot even be identified is a note."""
    ignored, last = 0, ""
    async for raw in listed:
        try:
            read(raw)
        except MalformedError as exc:
            ignored, last = ignored + 1, str(exc)
    if ignored:
        notes.append(f"{count(ignored, 'object')} of a list ignored, not readable: {last}")


async def _read_pods(
    access: Access, store: Store, namespace: str, notes: list[str], first: asyncio.Task[bytes]
) -> bool:
    """All pods, or those of the namespace where not all may be listed: then True."""
    try:
        await read_into(store.pod_is, items(access, PODS, _ALL_PODS, first), notes)
    except ForbiddenError:
        if not namespace:
            raise
    else:
        return False
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
    notes.append(f"cannot list pods outside namespace {namespace} (forbidden): allocated memory is a lower bound")
    await read_into(store.pod_is, items(access, path, _ALL_PODS), notes)
    return True


async def reservations(access: Access, notes: list[str]) -> list[Reservation]:
    """What is kept for somebody; a cluster without our kind keeps nothing, and one that may not be asked is a note."""
    found = []
    try:
        async for raw in items(access, RESERVATIONS_PATH, {}):
            try:
                found.append(reservation_of(msgspec.json.decode(raw)))
            except (CodecError, msgspec.MsgspecError) as exc:
                notes.append(f"cannot read a reservation: {exc}")
    except NotFoundError:
        return found
    except RefusedError as exc:
        notes.append(f"cannot list reservations (HTTP {exc.status}): reserved memory is not counted")
    return found


def _complaints(view: StoreView, nodes: Iterable[FleetNode], pods: Iterable[FleetPod]) -> list[str]:
    notes = [f"cannot read {key}: {why}" for key, why in islice(view.unreadable.items(), _MAX_UNREADABLE)]
    if len(view.unreadable) > len(notes):
        notes.append(f"cannot read {len(view.unreadable) - len(notes)} more objects")
    known = {node.name for node in nodes}
    loose = [pod for pod in pods if pod.node in known and not pod.slices and not pod.wanted.whole]
    if loose:
        notes.append(
            f"{count(len(loose), 'pod')} with shares but without an allocation record, such as {loose[0].key} on "
            f"{loose[0].node}: not counted on any card"
        )
    return notes


# Exporters, through the API server.


async def ask_exporters(access: Access, nodes: Iterable[str], *, breaches: bool = False) -> ExporterAnswers:
    """Metrics, and breaches if wanted, of the exporters on these nodes; one that cannot be read is a note."""
    heard, wanted = ExporterAnswers(), frozenset(nodes)
    if not wanted:
        return heard
    if len(wanted) > MAX_ASKED:
        heard.notes.append(
            f"memory in use is unknown: {len(wanted):,} nodes are too many to read each exporter (limit "
            f"{MAX_ASKED}); set --prometheus URL or --node NAME"
        )
        return heard
    try:
        found = await _exporters(access)
    except ClusterError as exc:
        heard.notes.append(f"memory in use is unknown, cannot list exporters: {exc}")
        return heard
    asked = {node: name for node, name in found.items() if node in wanted}
    if silent := sorted(wanted - asked.keys()):
        heard.notes.append(_unheard(silent, "no exporter is running"))
    failed = await _ask_all(access, asked, heard, breaches=breaches)
    causes: dict[str, list[str]] = {}
    for node in sorted(failed):
        causes.setdefault(failed[node], []).append(node)
    notes = [_unheard(those, why) for why, those in causes.items()]
    heard.notes += notes[:_MAX_CAUSES]
    if len(notes) > _MAX_CAUSES:
        rest = sum(len(those) for those in list(causes.values())[_MAX_CAUSES:])
        heard.notes.append(
            f"memory in use on {count(rest, 'more node')} is unknown, for {len(notes) - _MAX_CAUSES} other reasons"
        )
    return heard


async def _ask_all(
    access: Access, asked: Mapping[str, tuple[str, str]], heard: ExporterAnswers, *, breaches: bool
) -> dict[str, str]:
    """Collect each exporter's answer; returns by node why there is none."""
    turn, failed = asyncio.Semaphore(_AT_ONCE), dict[str, str]()

    async def ask(node: str, pod: tuple[str, str]) -> None:
        async with turn:
            try:
                page = await _ask(access, pod, "metrics")
                usage = build_usage(parse_page(page, FAMILIES), node)
                if usage.cards:
                    heard.usage = heard.usage.plus(usage)
                else:
                    failed[node] = "the exporter reports no cards; see its log"
                if breaches:
                    page = await _ask(access, pod, "breaches")
                    heard.breaches += parse_breaches(page, node)
            except (ClusterError, ExpositionError, BreachError) as exc:
                failed[node] = str(exc)

    asking = {asyncio.create_task(ask(node, pod)): node for node, pod in sorted(asked.items())}
    done, late = await asyncio.wait(asking, timeout=_ALL_SECONDS) if asking else (set(), set())
    for task in late:
        task.cancel()
        failed[asking[task]] = f"no answer within {_ALL_SECONDS:.0f} s"
    await asyncio.gather(*late, return_exceptions=True)
    for task in done:
        task.result()
    return failed


async def _ask(access: Access, pod: tuple[str, str], what: str) -> bytes:
    namespace, name = (quote(part, safe="") for part in pod)
    path = f"/api/v1/namespaces/{namespace}/pods/{name}:{_EXPORTER_PORT}/proxy/{what}"
    return await access.send("GET", path, seconds=_EXPORTER_SECONDS)


async def ask_processes(access: Access, node: str) -> Processes:
    """The processes on one node's cards, by its exporter."""
    try:
        pod = (await _exporters(access)).get(node)
        if pod is None:
            return Processes(node, why="no exporter is running on the node")
        return parse_processes(await _ask(access, pod, "processes"), node)
    except ClusterError as exc:
        return Processes(node, why=str(exc))


async def _exporters(access: Access) -> dict[str, tuple[str, str]]:
    """Namespace and name of the exporter that runs on each node."""
    found = {}
    query = {"labelSelector": _EXPORTERS, "fieldSelector": "status.phase=Running"}
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    async for raw in items(access, path, query):
        try:
            pod = _EXPORTER.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        found[pod.spec.nodeName] = (SYSTEM_NAMESPACE, pod.metadata.name)
    return found


def _unheard(nodes: list[str], why: str) -> str:
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")  # noqa: PLR2004 (names)
    return f"memory in use on {shown} is unknown: {why}"
