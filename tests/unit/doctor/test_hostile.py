# SPDX-License-Identifier: Apache-2.0
"""The doctor before something that calls itself an API server."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from support.waiting import PATIENCE_SECONDS

from isolation.doctor import cluster_reader
from isolation.doctor.checks.cluster.findings import check_cluster
from isolation.doctor.checks.finding import FindingState
from isolation.kube import paging

VERSION = {"gitVersion": "v1.36.2"}
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
OURS = "gpushare-scheduler"
ODD = {
    "items": [
        {"metadata": {"name": OURS}, "webhooks": 1.5, "spec": {"policyName": OURS, "validationActions": 7}},
        {"metadata": {"name": OURS}, "webhooks": "x", "spec": {"policyName": OURS, "validationActions": "NoDeny"}},
    ]
}
STRANGE = {
    "items": [{"metadata": None}, {"metadata": {"name": ["x"], "labels": 3}, "spec": [], "status": "x"}, 7, None],
    "metadata": {"continue": ""},
    "status": {"allowed": "yes"},
    "spec": 5,
    "data": {"tls.crt": "####"},
}


async def looked(tmp_path, answer):
    """A look at a server that gives this answer to everything but its version."""

    async def serve(request):
        return web.json_response(VERSION) if request.path == "/version" else await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "t", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "t", "user": {}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        "current-context": "t",
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    try:
        return await cluster_reader.read_cluster(path, None)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>sign in</html>",
        "[]",
        "7",
        DEEP,
        "\ud800".encode("utf-8", "surrogatepass"),
        json.dumps(STRANGE),
        json.dumps(ODD),
    ],
    ids=["empty", "html", "list", "number", "deep", "surrogate", "strange", "odd"],
)
def test_whatever_it_answers_there_is_a_report(tmp_path, body):
    """
    Nothing of it is believed to be well: no rule of ours is called in force, no leader alive.
    """
    raw = body if isinstance(body, bytes) else body.encode()

    async def answer(_request):
        return web.Response(body=raw, content_type="application/json")

    seen = asyncio.run(looked(tmp_path, answer))

    states = {one.check: one.state for one in check_cluster(seen, 0.0)}

    assert states
    believed = (
        "cluster.admission",
        "cluster.admission_denies",
        "cluster.scheduler_leader",
        "cluster.webhook",
        "cluster.rights",
    )
    assert FindingState.OK not in {states[check] for check in believed}


def test_a_list_without_end_ends(tmp_path, monkeypatch):
    """
    A server that always has one more page is not read for ever.
    """
    monkeypatch.setattr(paging, "_MAX_PAGES", 3)
    asked = []

    async def page(request):
        asked.append(request.path)
        return web.json_response({"items": [], "metadata": {"continue": "more", "resourceVersion": "1"}})

    seen = asyncio.run(looked(tmp_path, page))

    assert asked.count("/api/v1/pods") in (3, 4)  # the next page is asked for while one is read
    assert "list has more than 3 pages" in str(seen.pods)


def test_a_server_that_stops_answering_is_left(tmp_path, monkeypatch):
    """
    The whole look has a deadline.
    """
    monkeypatch.setattr(cluster_reader, "_WHOLE_SECONDS", 0.5)

    async def never(_request):
        await asyncio.sleep(3600)

    async def patient():
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await looked(tmp_path, never)

    [one] = check_cluster(asyncio.run(patient()), 0.0)
    assert ("cluster.server_version", FindingState.UNKNOWN) == (one.check, one.state)
    assert "timed out after" in one.evidence
