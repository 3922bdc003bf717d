# SPDX-License-Identifier: Apache-2.0
"""
Our admission in front of a real API server: the handler behind TLS, the objects as they are installed.

Decides only where the webhook is reached (a port of this process instead of a Service) and waits until
the API server has taken notice of what was installed or removed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiohttp import web
from e2e.apiclient import RefusedError
from e2e.kubelets import share_pod
from support.ports import free_port

from isolation.scheduler.admission.core.admission_review import MAX_BYTES
from isolation.scheduler.admission.core.serving import ONLY_ACK, Serving
from isolation.scheduler.admission.core.webhook import SLICED, ReviewContext, review
from isolation.scheduler.admission.objects import build_objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from e2e.apiclient import ApiClient
    from e2e.plane import ControlPlane

GROUP = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "MutatingWebhookConfiguration": f"{GROUP}/mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": f"{GROUP}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{GROUP}/validatingadmissionpolicybindings",
}
PODS = "/api/v1/namespaces/default/pods"


class Stand:
    """One running handler; counts what it was asked."""

    def __init__(self, plane: ControlPlane) -> None:
        self.port = free_port()
        self.asked: list[str] = []
        self.ill: Callable[[], Awaitable[bytes]] | None = None
        """What it does in the place of answering."""
        self.timeout_seconds = 30
        """What a busy machine needs; what we ship waits less."""
        self.shared: dict[tuple[str, str], bool | None] = {}
        self.world = ReviewContext(lambda namespace, name: self.shared.get((namespace, name), False))
        self.systems = ONLY_ACK
        self.slices: frozenset[str] = frozenset()
        self._plane = plane
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Answer from now on."""
        pair = self._plane._authority.issue("admission", hosts=("127.0.0.1",))
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pair.certificate, pair.key)
        app = web.Application(client_max_size=MAX_BYTES)
        app.router.add_post("/admit/{what}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls).start()

    async def stop(self) -> None:
        """Nobody listens any more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.match_info["what"])
        if self.ill is not None:
            return web.Response(body=await self.ill(), content_type="application/json")
        world = self.world
        if request.match_info["what"] == SLICED:
            world = replace(world, offered=replace(world.offered, slices=self.slices))
        return web.Response(body=review(await request.read(), world), content_type="application/json")

    def reached_here(self, configuration: dict[str, Any]) -> dict[str, Any]:
        """The webhook configuration, with our port in the place of the Service."""
        made = copy.deepcopy(configuration)
        authority = base64.b64encode(self._plane.ca.read_bytes()).decode()
        for hook in made["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["timeoutSeconds"] = self.timeout_seconds
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": authority}
        return made


async def tried(client: ApiClient, thing: dict[str, Any], path: str = PODS) -> str:
    """What the API server says to an object that is not kept: empty where it is admitted."""
    try:
        await client.call("POST", path, thing, dryRun="All")
    except RefusedError as exc:
        return str(exc)
    return ""


async def until_tried(client: ApiClient, thing: dict[str, Any], said: str, path: str = PODS) -> None:
    """Wait until the answer is this one (a part of it; empty: admitted)."""
    answer = "?"
    for _ in range(3000):
        answer = await tried(client, thing, path)
        if (said in answer) if said else not answer:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"expected {said!r}, the API server says {answer!r}")


@contextlib.asynccontextmanager
async def policed(client: ApiClient, systems: Serving = ONLY_ACK) -> AsyncIterator[None]:
    """The policies are in force."""
    async with _installed(client, build_objects("policies.yaml", systems=systems)):
        await until_pinned(client, pinned=True)
        yield
    await until_pinned(client, pinned=False)


async def until_pinned(client: ApiClient, *, pinned: bool) -> None:
    """By the policy that is installed last, about which no webhook has a say: a node agent without a node."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe"}}
    agent = {"Impersonate-User": "system:serviceaccount:gpushare-system:gpushare-node"}
    headers = agent | {"Impersonate-Group": "system:masters"}
    text = ""
    for _ in range(3000):
        async with client._session.post("/api/v1/nodes?dryRun=All", json=node, headers=headers) as answer:
            text = await answer.text()
            if (answer.status, pinned) in {(201, False), (403, True)}:
                return
        await asyncio.sleep(0.05)
    raise AssertionError(f"policies are {'not ' if pinned else ''}in force: {text}")


@contextlib.asynccontextmanager
async def webhooked(client: ApiClient, stand: Stand) -> AsyncIterator[Stand]:
    """The webhook is asked, and answers."""
    await stand.start()
    made = build_objects("webhooks.yaml", systems=stand.systems)
    bad = share_pod("probe", hostPID=True)
    try:
        async with _installed(client, [stand.reached_here(thing) for thing in made]):
            await until_tried(client, bad, "hostPID exposes")
            stand.asked.clear()
            yield stand
        await until_tried(client, share_pod("probe", units=3, cards=2), "")
    finally:
        await stand.stop()


@contextlib.asynccontextmanager
async def _installed(client: ApiClient, made: list[dict[str, Any]]) -> AsyncIterator[None]:
    try:
        for thing in made:
            await client.call("POST", PATHS[thing["kind"]], thing)
        yield
    finally:
        for thing in reversed(made):
            await client.delete(f"{PATHS[thing['kind']]}/{thing['metadata']['name']}")
