# SPDX-License-Identifier: Apache-2.0
"""Who reaches the metrics APIs, and whose they are: a real kube-apiserver, its front proxy, its rights."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import aiohttp
import pytest
from e2e.apiclient import RefusedError, connected
from e2e.kubelets import Kubelets, share_pod, shared_node
from e2e.metrics_harness import ACCOUNT, APISERVICES, NAME, PODS, granted, leads_here, own_address, served, settings
from e2e.sharing import clear, untainted
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.metrics.app import serve_metrics_api
from autoscaler.apis.metrics.core.readings import LatestSnapshot
from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL
from autoscaler.apis.metrics.registration import ServiceRef as Leads
from autoscaler.apis.metrics.registration import build_api_services
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.kube.access import Access
from isolation.kube.background import Background

PODS_PATH = f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/%2A/gpu_mem_used_bytes"


@contextlib.asynccontextmanager
async def two_pods(client):
    """Two running pods with labels."""
    async with Kubelets(client, [shared_node("asked")]).alive():
        await untainted(client)
        for name in ("one", "two"):
            pod = share_pod(name, units=0)
            pod["metadata"]["labels"] = {"tier": name}
            await client.create(pod)
        try:
            await client.until(lambda p: [one["status"].get("phase") for one in p["items"]] == ["Running"] * 2, PODS)
            yield
        finally:
            await clear(client)


async def settled(client, path, claim, **params):
    """The items of an answer, once the claim about them holds."""
    return (await client.until(lambda found: claim(found["items"]), path, **params))["items"]


def test_figures_come_through_the_aggregator_in_every_version(plane):
    """
    Discovery, all pods, pods by set-based selectors, one pod, parts of pods, pools: as kubectl and HPA ask.
    """

    async def story():
        async with served(plane, fresh=PATIENCE_SECONDS) as (client, _), two_pods(client):
            pods = f"/apis/{CUSTOM}/v1beta1/namespaces/default/pods"
            old = await settled(client, f"{pods}/*/gpu_mem_used_bytes", lambda items: len(items) == 2)
            new = await client.get(f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/one/gpu_core_used_ratio")
            some = await client.get(f"{pods}/*/gpu_mem_used_bytes", labelSelector="tier in (two,three),!canary")
            with pytest.raises(RefusedError, match=r"any of 2 pods.*card=7"):
                await client.get(f"{pods}/*/gpu_mem_used_bytes", metricLabelSelector="card=7")
            with pytest.raises(RefusedError, match="unknown metric") as unknown:
                await client.get(f"{pods}/*/gpu_mem_user_bytes")
            external = f"/apis/{EXTERNAL}/v1beta1/namespaces/default"
            largest = await client.get(f"{external}/gpu_mem_largest_free_bytes", labelSelector="pool notin (b)")
            everywhere = await client.get(f"{external}/gpu_mem_largest_free_bytes")
            groups = {group["name"]: group for group in (await client.get("/apis"))["groups"]}
            preferred = groups[CUSTOM]["preferredVersion"]["version"]
            return old, new, some["items"], unknown.value.status, largest, everywhere, preferred

    old, new, some, unknown, largest, everywhere, preferred = asyncio.run(story())
    assert [("one", "2Gi"), ("two", "2Gi")] == sorted((i["describedObject"]["name"], _gib(i["value"])) for i in old)
    assert {"gpu_mem_used_bytes"} == {item["metricName"] for item in old}
    assert [("one", "gpu_core_used_ratio", "500m")] == [
        (i["describedObject"]["name"], i["metric"]["name"], i["value"]) for i in new["items"]
    ]
    assert ["two"] == [item["describedObject"]["name"] for item in some]
    assert 404 == unknown
    assert ["3Gi"] == [_gib(item["value"]) for item in largest["items"]]
    assert ["7Gi"] == [_gib(item["value"]) for item in everywhere["items"]]
    assert "v1beta2" == preferred


def _gib(value):
    return f"{int(value) >> 30}Gi"


def test_only_the_front_proxy_may_say_who_asks(plane):
    """
    Headers count with the front proxy's certificate alone; the user behind it needs the right.
    """

    async def story():
        async with served(plane, fresh=PATIENCE_SECONDS) as (_, figures):
            boss = {"X-Remote-User": "boss", "X-Remote-Group": "system:masters"}
            stranger = plane._proxy_authority.issue("someone-else")
            return {
                "proxy": await asked(plane, figures.port, plane._proxy, boss),
                "no right": await asked(plane, figures.port, plane._proxy, {"X-Remote-User": "nobody"}),
                "no user": await asked(plane, figures.port, plane._proxy, {}),
                "no certificate": await asked(plane, figures.port, None, boss),
                "other name": await asked(plane, figures.port, stranger, boss),
                "other authority": await asked(plane, figures.port, plane.pair_for("admin"), boss),
                "probe": await asked(plane, figures.port, None, {}, "/healthz"),
                "ready": await asked(plane, figures.port, None, {}, "/readyz"),
                "write": await asked(plane, figures.port, plane._proxy, boss, method="DELETE"),
            }

    assert {
        "proxy": 200,
        "no right": 403,
        "no user": 401,
        "no certificate": 401,
        "other name": 401,
        "other authority": 0,
        "probe": 200,
        "ready": 200,
        "write": 405,
    } == asyncio.run(story())


async def asked(plane, port, pair, headers, path=PODS_PATH, *, method="GET"):
    """The status of one request past kube-apiserver; 0 where TLS ends it."""
    tls = ssl.create_default_context(cafile=str(plane.ca))
    tls.check_hostname = False
    if pair is not None:
        tls.load_cert_chain(pair.certificate, pair.key)
    url = f"https://{own_address()}:{port}{path}"
    async with aiohttp.ClientSession() as session:
        try:
            async with session.request(method, url, headers=headers, ssl=tls) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0


async def readiness(plane, host, port):
    """What it says."""
    tls = ssl.create_default_context(cafile=str(plane.ca))
    tls.check_hostname = False
    async with aiohttp.ClientSession() as session, session.get(f"https://{host}:{port}/readyz", ssl=tls) as answer:
        return await answer.text()


def test_an_api_that_somebody_else_serves_is_left_alone(plane):
    """
    The process says who has it and what to do, and changes nothing; the other group is served, and may still be ours.
    """

    async def story():
        theirs = build_api_services({CUSTOM}, Leads("monitoring", "adapter"), None)[0]
        async with connected(plane) as client, granted(client):
            wish = settings(plane, CUSTOM, EXTERNAL)
            async with leads_here(client, wish.port), Access(plane.kubeconfig_for(ACCOUNT)) as access:
                await client.create(theirs)
                async with serve_metrics_api(access, LatestSnapshot(), wish, Background()) as port:
                    said = await readiness(plane, wish.host, port)
                    left = await client.get(APISERVICES)
                async with serve_metrics_api(access, LatestSnapshot(), settings(plane, EXTERNAL), Background()):
                    entered = await client.get(APISERVICES)
                return said, left["items"], entered["items"]

    said, left, entered = asyncio.run(story())
    assert "monitoring/adapter" in said
    assert "kubectl delete apiservice v1beta1.custom.metrics.k8s.io" in said
    services = [each["spec"]["service"]["name"] for each in left if each["spec"].get("service")]
    assert ["adapter"] == services
    assert {"adapter", NAME} == {each["spec"]["service"]["name"] for each in entered if each["spec"].get("service")}


def test_our_account_enters_nothing_but_our_own(plane):
    """
    RBAC lets it create APIServices, the policy only these of ours; another's cannot be patched.
    """

    async def tried(client, thing):
        try:
            await client.call("POST", APISERVICES, thing, dryRun="All")
        except RefusedError as exc:
            return str(exc)
        return ""

    async def story():
        ours = Leads(SYSTEM_NAMESPACE, NAME)
        mine, theirs = (
            build_api_services({CUSTOM}, where, b"x")[1] for where in (ours, Leads("monitoring", "adapter"))
        )
        other = {**mine, "metadata": {"name": "v9.batch"}, "spec": mine["spec"] | {"group": "batch", "version": "v9"}}
        async with connected(plane) as client, granted(client), connected(plane, ACCOUNT) as account:
            for _ in range(3000):  # until the policy is in force
                if "only" in await tried(account, other):
                    break
                await asyncio.sleep(0.05)
            said = [await tried(account, thing) for thing in (mine, theirs, other)]
            await client.create(theirs)
            try:
                patch = {"spec": {"service": {"namespace": SYSTEM_NAMESPACE, "name": NAME}}}
                with pytest.raises(RefusedError) as hijack:
                    await account.merge(f"{APISERVICES}/{theirs['metadata']['name']}", patch)
            finally:
                await client.delete(f"{APISERVICES}/{theirs['metadata']['name']}")
            return said, str(hijack.value)

    (mine, theirs, other), hijack = asyncio.run(story())
    assert (
        "" == mine.replace("caBundle", "") or "caBundle" in mine
    )  # b"x" is no certificate; the policy has let it pass
    assert "only its own Service" in theirs
    assert "APIServices of custom.metrics.k8s.io" in other
    assert "must not take over an APIService of another server" in hijack
