# SPDX-License-Identifier: Apache-2.0
"""What the metrics APIs look after while they serve."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl

import aiohttp
import pytest
from e2e.certificates import Authority
from support.waiting import PATIENCE_SECONDS, soon

from autoscaler.apis.metrics import app
from autoscaler.apis.metrics.app import MetricsApiSettings, serve_metrics_api
from autoscaler.apis.metrics.core.readings import LatestSnapshot
from autoscaler.apis.metrics.core.responses import CUSTOM
from autoscaler.apis.metrics.registration import PATH, ServiceRef, build_api_services
from isolation.kube.background import Background
from isolation.kube.core.errors import RefusedError, UnreachableError


class ApiServer:
    """Keeps APIServices and one ConfigMap; may be down."""

    def __init__(self, authority):
        self.down, self.services = False, {}
        self.refused = 0
        self.data = {"requestheader-client-ca-file": authority.certificate.read_text()}

    async def page(self, path, _query):
        """The list of APIServices."""
        assert path == PATH
        if self.down:
            raise UnreachableError("down")
        return json.dumps({"items": list(self.services.values())}).encode()

    async def send(self, method, path, body=None, _kind="json", seconds=None):
        """The ConfigMap, and writes of APIServices."""
        assert seconds is None or seconds <= 5
        if self.down:
            self.refused += 1
            raise UnreachableError("down")
        if method == "GET":
            return json.dumps({"data": self.data}).encode()
        if method == "PATCH":
            self.services[path.rpartition("/")[2]]["spec"].update(body["spec"])
            return b"{}"
        if body["metadata"]["name"] in self.services:
            raise RefusedError(409, "AlreadyExists", "")
        self.services[body["metadata"]["name"]] = json.loads(json.dumps(body))
        return b"{}"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """An API server, settings, and everything looked at in moments."""
    for name in ("FILES_SECONDS", "TRUST_SECONDS", "ENTRY_SECONDS", "_AGAIN_SECONDS"):
        monkeypatch.setattr(app, name, 0.02)
    web, proxy = Authority(tmp_path, "web"), Authority(tmp_path, "proxy")
    pair = web.issue("server", hosts=("127.0.0.1",))
    return ApiServer(proxy), MetricsApiSettings(
        pair.certificate, pair.key, host="127.0.0.1", port=0, authority=web.certificate
    )


async def ready(port, ca, expected):
    """Until readiness says this; what else it said last."""
    tls = ssl.create_default_context(cafile=str(ca))
    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with session.get(f"https://127.0.0.1:{port}/readyz", ssl=tls) as answer:
                if expected in await answer.text():
                    return answer.status
            await asyncio.sleep(0.02)


def test_an_api_server_that_is_down_at_the_start_is_waited_for(made):
    """
    Served, not ready, with the reason; ready once everything is known and entered.
    """
    server, settings = made
    server.down = True

    async def story():
        async with serve_metrics_api(server, LatestSnapshot(), settings, Background()) as port:
            early = await ready(port, settings.authority, "down")
            server.down = False
            late = await ready(port, settings.authority, "ok")
            server.down, server.refused = True, 0  # what was known stays in force
            await soon(lambda: server.refused > 3)
            return early, late, await ready(port, settings.authority, "ok")

    assert (503, 200, 200) == asyncio.run(story())
    assert ["v1beta1", "v1beta2"] == sorted(each["spec"]["version"] for each in server.services.values())


def test_what_somebody_else_serves_is_left_alone_and_said_and_the_rest_is_served(made):
    """
    At the start and later on: an API that no server answers for keeps every namespace from being deleted.
    """
    server, settings = made
    (theirs,) = (
        each
        for each in build_api_services({CUSTOM}, ServiceRef("x", "adapter"), None)
        if each["spec"]["version"] == "v1beta1"
    )
    name = theirs["metadata"]["name"]

    async def story(*, early):
        server.services = {name: theirs} if early else {}
        async with serve_metrics_api(server, LatestSnapshot(), settings, Background()) as port:
            server.services[name] = theirs
            return await ready(port, settings.authority, "served by x/adapter")

    assert 503 == asyncio.run(story(early=True))
    assert {name: theirs} == server.services
    assert 503 == asyncio.run(story(early=False))
    assert theirs is server.services[name]


def test_a_cluster_without_an_aggregation_layer_is_said_in_readiness(made):
    """
    With what to start kube-apiserver with.
    """
    server, settings = made
    server.data = {}

    async def story():
        async with serve_metrics_api(server, LatestSnapshot(), settings, Background()) as port:
            return await ready(port, settings.authority, "--requestheader-client-ca-file")

    assert 503 == asyncio.run(story())


def test_a_new_certificate_comes_with_its_authority(made, tmp_path):
    """
    Into the APIServices, so that kube-apiserver believes what it is shown.
    """
    server, settings = made

    async def story():
        async with serve_metrics_api(server, LatestSnapshot(), settings, Background()):
            Authority(tmp_path, "web").issue("server", hosts=("127.0.0.1",))
            expected = base64.b64encode(settings.authority.read_bytes()).decode()
            return await soon(lambda: all(each["spec"]["caBundle"] == expected for each in server.services.values()))

    assert asyncio.run(story())
