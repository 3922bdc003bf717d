# SPDX-License-Identifier: Apache-2.0
"""
ACK node pools by the vendor's own SDK over HTTP, against a server with the documented paths and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiohttp import web

from autoscaler.providers import ack
from autoscaler.providers.ack import AckProvider, AckSettings
from autoscaler.providers.base import (
    ChangedError,
    DeniedError,
    InstanceState,
    OutOfStockError,
    ProviderUnreachableError,
)

pytest.importorskip("alibabacloud_cs20151215", reason="the SDK is not installed: gpushare-k8s[ack]")

CLUSTER, POOL = "c23421cfa74454bc8b37163fd19af", "np31da1b38983f4511b490fc62108a"


class NodePools:
    """The service: one node pool of one cluster; `stock` is what can be made yet."""

    def __init__(self, size=0, **more):
        self.desired = size
        self.stock = 1000
        self.error = None
        self.slow = 0.0
        self.state = "active"
        self.scaled = False
        self.said = []
        self.nodes = []
        self.max_nodes = None
        self.__dict__.update(more)
        self.made = 0
        self.work(size)

    def work(self, size=None):
        """What is desired is made, while there is any."""
        wanted = self.desired if size is None else size
        live = [node for node in self.nodes if node["state"] not in ("removing", "failed")]
        for _ in range((wanted or 0) - len(live)):
            self.made += 1
            well, self.stock = self.stock > 0, self.stock - 1
            self.nodes.append(
                {
                    "instance_id": f"i-bp{self.made:04}" if well else f"i-none{self.made}",
                    "node_name": f"cn-hangzhou.192.168.0.{self.made}" if well else "",
                    "nodepool_id": POOL,
                    "state": "running" if well else "failed",
                    "error_message": "" if well else "OperationDenied.NoStock: sold out in this zone",
                }
            )

    def app(self):
        """The paths of the API reference."""
        place = f"/clusters/{CLUSTER}/nodepools/{POOL}"
        app = web.Application(middlewares=[self._troubled])
        app.router.add_get(place, self._detail)
        app.router.add_get(f"/clusters/{CLUSTER}/nodes", self._list)
        app.router.add_put(place, self._modify)
        app.router.add_post(place, self._scale)
        app.router.add_delete(f"{place}/nodes", self._remove)
        return app

    @web.middleware
    async def _troubled(self, request, handler):
        self.said.append((request.method, request.path))
        await asyncio.sleep(self.slow)
        if self.error is not None:
            status, code = self.error
            return web.json_response({"code": code, "message": "for a test", "requestId": "r"}, status=status)
        return await handler(request)

    async def _detail(self, _):
        group = {} if self.desired is None else {"desired_size": self.desired}
        return web.json_response(
            {
                "auto_scaling": {"enable": self.scaled, "max_instances": 0, "min_instances": 0},
                "max_nodes": self.max_nodes,
                "nodepool_info": {"nodepool_id": POOL},
                "scaling_group": group,
                "status": {"state": self.state, "total_nodes": len(self.nodes)},
            }
        )

    async def _list(self, request):
        number, size = int(request.query["pageNumber"]), int(request.query["pageSize"])
        assert POOL == request.query["nodepool_id"]
        part = self.nodes[(number - 1) * size : number * size]
        page = {"page_number": number, "page_size": size, "total_count": len(self.nodes)}
        return web.json_response({"nodes": part, "page": page})

    async def _modify(self, request):
        self.desired = (await request.json())["scaling_group"]["desired_size"]
        return web.json_response({"task_id": "T-1", "nodepool_id": POOL})

    async def _scale(self, request):
        live = sum(1 for node in self.nodes if node["state"] != "removing")
        self.work(live + (await request.json())["count"])
        return web.json_response({"task_id": "T-2"})

    async def _remove(self, request):
        ids = json.loads(request.query["instance_ids"])
        assert ("true", "false") == (request.query["release_node"].lower(), request.query["drain_node"].lower())
        for node in self.nodes:
            if node["instance_id"] in ids:
                node["state"] = "removing"
                self.desired = None if self.desired is None else self.desired - 1
        return web.json_response({"task_id": "T-3"})


@contextlib.asynccontextmanager
async def served(cloud):
    """A provider that speaks to this service."""
    runner = web.AppRunner(cloud.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    api = ack.make_client(
        "cn-hangzhou",
        access_key_id="test",
        access_key_secret="test",  # noqa: S106 (the server asks nobody)
        endpoint=f"127.0.0.1:{port}",
        protocol="http",
    )
    try:
        yield AckProvider(api, {"a": AckSettings("cn-hangzhou", CLUSTER, POOL)})
    finally:
        await runner.cleanup()


def run_story(cloud, story):
    """What a story with the provider came to."""

    async def run():
        async with served(cloud) as provider:
            return await story(provider)

    return asyncio.run(run())


def test_a_pool_of_many_pages_is_read_whole():
    """
    Names and IDs as the cluster knows them.
    """
    states = run_story(NodePools(230), lambda provider: provider.pools())

    assert (230, 230, 0) == (states[0].target, len(states[0].nodes), states[0].missing)
    assert ("cn-hangzhou.i-bp0001", "cn-hangzhou.192.168.0.1") == (states[0].nodes[0].id, states[0].nodes[0].node)


def test_a_pool_grows_by_its_desired_size_and_gives_back_the_named_node():
    """
    Released and not drained again; asked twice, it is not lowered twice.
    """
    cloud = NodePools(1)

    async def story(provider):
        target = await provider.grow("a", 2, seen=1)
        cloud.work()
        name = (await provider.pools())[0].nodes[1].node
        gone = [await provider.remove("a", [name]) for _ in range(2)]
        return target, name, gone, (await provider.pools())[0]

    target, name, gone, state = run_story(cloud, story)

    assert (3, [(name,), (name,)]) == (target, gone)
    assert (2, 2) == (state.target, len(state.standing))
    assert InstanceState.LEAVING == {one.node: one.state for one in state.nodes}[name]


def test_a_pool_without_a_desired_size_is_asked_for_more_and_no_number_is_overwritten():
    """
    Its target is what stands.
    """
    cloud = NodePools(2, desired=None)
    cloud.desired = None

    async def story(provider):
        return await provider.grow("a", 1), (await provider.pools())[0].target, await provider.cancel("a", 1)

    assert 2 == len(cloud.nodes)
    assert (3, 3, 3) == run_story(cloud, story)
    assert not [path for method, path in cloud.said if method == "PUT"]


def test_what_is_out_of_stock_is_said_and_can_be_given_up():
    """
    The failed machine is removed by its ID; ACK lowers the desired size.
    """
    cloud = NodePools(1)
    cloud.stock = 0

    async def story(provider):
        await provider.grow("a", 1)
        coming = (await provider.pools())[0]
        cloud.work()
        failed = (await provider.pools())[0]
        bad = next(one for one in failed.nodes if one.state is InstanceState.FAILED)
        await provider.remove("a", [bad.id])
        cloud.nodes = [node for node in cloud.nodes if node["state"] != "removing"]
        return coming, failed, bad, (await provider.pools())[0]

    coming, failed, bad, after = run_story(cloud, story)

    assert (1, "") == (coming.missing, coming.short)
    assert "NoStock" in failed.short
    assert "NoStock" in bad.note
    assert "" == after.short
    assert 1 == after.target == len(after.standing)


def test_a_wish_that_nobody_fills_can_be_taken_back():
    """
    Down to what stands, never below.
    """
    cloud = NodePools(1)

    async def story(provider):
        await provider.grow("a", 3)
        return await provider.cancel("a", 1), await provider.cancel("a", 9)

    assert (3, 1) == run_story(cloud, story)


@pytest.mark.parametrize(
    ("about", "error", "remedy"),
    [
        ({"scaled": True}, DeniedError, "turn off auto scaling"),
        ({"state": "updating"}, ChangedError, "retry when it is active"),
        ({"max_nodes": 2}, DeniedError, "raise it"),
        ({"desired": 1}, ChangedError, "another client"),
    ],
    ids=str,
)
def test_a_pool_that_is_not_ours_to_change_now_is_left_alone(about, error, remedy):
    """
    Another autoscaler's, being rebuilt, full, or changed by somebody meanwhile.
    """
    cloud = NodePools(2)
    cloud.__dict__.update(about)

    with pytest.raises(error, match=remedy):
        run_story(cloud, lambda provider: provider.grow("a", 1, seen=2))

    assert {"GET"} == {method for method, _ in cloud.said}


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "Forbidden.RAM", DeniedError),
        (404, "ErrorNodePoolNotFound", DeniedError),
        (400, "OperationDenied.NoStock", OutOfStockError),
        (429, "Throttling.User", ProviderUnreachableError),
        (400, "Throttling.User", ProviderUnreachableError),
        (503, "ServiceUnavailable", ProviderUnreachableError),
    ],
)
def test_the_services_errors_are_distinguished(status, code, expected):
    """
    Never, not now, not known.
    """
    cloud = NodePools(1)
    cloud.error = (status, code)

    with pytest.raises(expected):
        run_story(cloud, lambda provider: provider.grow("a", 1))


def test_a_service_that_does_not_answer_has_a_deadline(monkeypatch):
    """
    Whether it happened is unknown, and that is said in time.
    """
    monkeypatch.setattr(ack, "WRITE_SECONDS", 0.2)
    cloud = NodePools(1)
    cloud.slow = 3600.0

    with pytest.raises(ProviderUnreachableError):
        run_story(cloud, lambda provider: provider.grow("a", 1))


def test_nobody_there_is_unreachable():
    """
    A closed port is no answer.
    """
    api = ack.make_client(
        "cn-hangzhou",
        access_key_id="test",
        access_key_secret="test",  # noqa: S106 (nobody is asked)
        endpoint="127.0.0.1:9",
        protocol="http",
    )

    with pytest.raises(ProviderUnreachableError):
        asyncio.run(AckProvider(api, {"a": AckSettings("cn-hangzhou", CLUSTER, POOL)}).pools())


def test_the_template_is_learnt_and_not_guessed():
    """
    ACK names instance types, not their cards.
    """
    assert run_story(NodePools(1), lambda provider: provider.template("a")) is None
