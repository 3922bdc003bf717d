"""
A look at a cluster through its API server: lists, a few questions, two pods shown to admission and never made.

Decides what is asked and how long; judges nothing. Whatever is refused or does not answer is `Untold`.
Nothing is changed: the two pods are dry runs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from isolation.cluster.access import Access, Deadlines
from isolation.cluster.failure import ClusterError, MalformedError, RefusedError
from isolation.contract.names import ACK, EXEMPT, GROUP, RESERVATIONS, SCHEDULER, SHARED, SYSTEM_NAMESPACE
from isolation.doctor.cluster_admission import PROBED
from isolation.doctor.cluster_facts import ClusterFacts, NodeFacts, PodFacts, Probe, Untold, Workload
from isolation.doctor.cluster_read import asks_for_shares, node_facts, pod_facts, table, tables, unit_of, workload
from isolation.doctor.rights import RIGHTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from isolation.doctor.rights import Right

_DEADLINES: Final = Deadlines(page=30.0, write=10.0)
_WHOLE_SECONDS: Final = 300.0
"""40,000 pods are read in half a minute."""
_PAGE: Final = "500"
_MOST_PAGES: Final = 400
_AT_ONCE: Final = 8
_NOT_FOUND: Final = 404
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SECRET: Final = f"{SCHEDULER}-tls"
"""Where the webhook's certificate is, in our namespace."""


async def look(kubeconfig: Path | None, context: str | None) -> ClusterFacts:
    """Everything, once."""
    try:
        async with asyncio.timeout(_WHOLE_SECONDS), Access(kubeconfig, context, _DEADLINES) as access:
            return await _Look(access).all()
    except ClusterError as exc:
        return ClusterFacts(Untold(str(exc)))
    except TimeoutError:
        return ClusterFacts(Untold(f"no whole look within {_WHOLE_SECONDS:.0f} s"))


class _Look:
    def __init__(self, access: Access) -> None:
        self._access = access
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def all(self) -> ClusterFacts:
        version = await self._version()
        if isinstance(version, Untold):
            return ClusterFacts(version)
        mutating, validating = (
            await self._list(f"{_ADMISSION}/mutatingwebhookconfigurations"),
            await self._list(f"{_ADMISSION}/validatingwebhookconfigurations"),
        )
        nodes = await self._nodes()
        return ClusterFacts(
            version=version,
            definition=await self._one(
                f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{RESERVATIONS}.{GROUP}"
            ),
            webhooks=mutating if isinstance(mutating, Untold) else _both(mutating, validating),
            policies=await self._list(f"{_ADMISSION}/validatingadmissionpolicies"),
            bindings=await self._list(f"{_ADMISSION}/validatingadmissionpolicybindings"),
            services=await self._list("/apis/apiregistration.k8s.io/v1/apiservices"),
            nodes=nodes,
            pods=await self._pods(() if isinstance(nodes, Untold) else nodes),
            exempt=await self._exempt(),
            workloads=await self._workloads(),
            lease=await self._one(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{SCHEDULER}"),
            certificate=await self._certificate(),
            good=await self._probe(2, 1),
            bad=await self._probe(3, 2),
            rights=await self._rights(),
        )

    async def _get(self, path: str, **query: str) -> dict[str, Any]:
        return _object(await self._access.page(path, query))

    async def _version(self) -> str | Untold:
        try:
            said = await self._get("/version")
        except ClusterError as exc:
            return Untold(str(exc))
        version = said.get("gitVersion")
        return version if isinstance(version, str) else Untold("what answers there is no Kubernetes")

    async def _one(self, path: str) -> Mapping[str, Any] | Untold | None:
        try:
            return await self._get(path)
        except RefusedError as exc:
            return None if exc.status == _NOT_FOUND else Untold(str(exc))
        except ClusterError as exc:
            return Untold(str(exc))

    async def _items(self, path: str, **query: str) -> AsyncIterator[dict[str, Any]]:
        """Page by page; ClusterError."""
        more = ""
        for _ in range(_MOST_PAGES):
            page = await self._get(path, limit=_PAGE, **query, **({"continue": more} if more else {}))
            for item in tables(page, "items"):
                yield item
            more = str(table(page, "metadata").get("continue") or "")
            if not more:
                return

    async def _list(self, path: str, **query: str) -> tuple[dict[str, Any], ...] | Untold:
        try:
            return tuple([item async for item in self._items(path, **query)])
        except ClusterError as exc:
            return Untold(str(exc))

    async def _nodes(self) -> tuple[NodeFacts, ...] | Untold:
        try:
            return tuple([node_facts(item) async for item in self._items("/api/v1/nodes")])
        except ClusterError as exc:
            return Untold(str(exc))

    async def _pods(self, nodes: tuple[NodeFacts, ...]) -> tuple[PodFacts, ...] | Untold:
        known = {one.name: one.node for one in nodes if one.node is not None}
        items, unit = self._items("/api/v1/pods"), unit_of(nodes)
        try:
            return tuple([pod_facts(item, known, unit) async for item in items if asks_for_shares(item)])
        except ClusterError as exc:
            return Untold(str(exc))

    async def _exempt(self) -> tuple[str, ...] | Untold:
        found = await self._list("/api/v1/namespaces", labelSelector=f"{EXEMPT}=true")
        return found if isinstance(found, Untold) else tuple(str(table(one, "metadata").get("name")) for one in found)

    async def _workloads(self) -> tuple[Workload, ...] | Untold:
        made: list[Workload] = []
        for kind, plural in (("Deployment", "deployments"), ("DaemonSet", "daemonsets")):
            found = await self._list(f"/apis/apps/v1/{plural}")
            if isinstance(found, Untold):
                return found
            made += [workload(kind, one) for one in found]
        return tuple(made)

    async def _certificate(self) -> bytes | Untold | None:
        found = await self._one(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{SECRET}")
        if found is None or isinstance(found, Untold):
            return found
        text = table(found, "data").get("tls.crt")
        try:
            return base64.b64decode(text, validate=True) if isinstance(text, str) else None
        except binascii.Error:
            return Untold(f"Secret {SECRET} holds no certificate")

    async def _probe(self, units: int, cards: int) -> Probe | Untold:
        """A pod that asks so much, as a dry run."""
        limits = {ACK.memory: str(units)}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "gpushare-doctor", "labels": {ACK.card_count: str(cards)} if cards > 1 else {}},
            "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
        }
        try:
            made = _object(await self._access.send("POST", f"/api/v1/namespaces/{PROBED}/pods?dryRun=All", pod))
        except RefusedError as exc:
            words = exc.message or exc.reason
            return Probe(words, by_admission="admission webhook" in words or "ValidatingAdmissionPolicy" in words)
        except ClusterError as exc:
            return Untold(str(exc))
        labels = table(table(made, "metadata"), "labels")
        return Probe(shared=labels.get(SHARED) == "true", scheduler=str(table(made, "spec").get("schedulerName") or ""))

    async def _rights(self) -> Mapping[str, bool | None]:
        asked = [
            (account, right, verb) for account, rights in RIGHTS.items() for right in rights for verb in right.verbs
        ]
        answers = await asyncio.gather(*(self._may(*one) for one in asked))
        told = [f"{account} may {verb} {right.resource}" for account, right, verb in asked]
        return dict(zip(told, answers, strict=True))

    async def _may(self, account: str, right: Right, verb: str) -> bool | None:
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM_NAMESPACE}", "system:authenticated"]
        wish = {"group": right.group, "resource": right.plain, "subresource": right.part, "verb": verb}
        wish |= {"namespace": SYSTEM_NAMESPACE} if right.local else {}
        wish |= {"name": right.names[0]} if right.names else {}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{quote(SYSTEM_NAMESPACE)}:{account}",
                "groups": groups,
                "resourceAttributes": wish,
            },
        }
        async with self._gate:
            try:
                said = _object(await self._access.send("POST", _REVIEWS, body))
            except ClusterError:
                return None
        allowed = table(said, "status").get("allowed")
        return allowed if isinstance(allowed, bool) else None


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise MalformedError("an answer that is no JSON") from None
    if not isinstance(found, dict):
        raise MalformedError("an answer that is no object")
    return found


def _both(
    one: tuple[dict[str, Any], ...], other: tuple[dict[str, Any], ...] | Untold
) -> tuple[dict[str, Any], ...] | Untold:
    return other if isinstance(other, Untold) else one + other
