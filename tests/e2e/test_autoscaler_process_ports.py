# SPDX-License-Identifier: Apache-2.0
"""What others ask the running autoscaler: cluster-autoscaler and KEDA over gRPC, kube-apiserver for figures."""

from __future__ import annotations

import asyncio

import grpc
from e2e.autoscaler_process import autoscaler, config, eventually, fleet, grown, one_pool
from e2e.metrics_harness import granted, leads_here, settings
from e2e.sharing import PODS, our_pod, workload
from support.ports import free_port
from support.rpc_harness import GENERATIONS
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL
from isolation.contract.protobuf import Wire

KEDA = Wire().package(
    "asks",
    {
        "Ref": {"name": "1 string", "namespace": "2 string", "scalerMetadata": "3 {string}"},
        "Ask": {"scaledObjectRef": "1 Ref", "metricName": "2 string"},
        "Values": {"metricValues": "1 *Value"},
        "Value": {"metricName": "1 string", "metricValue": "2 int64", "metricValueFloat": "3 double"},
    },
)
"""As KEDA declares them."""


async def pending(channel):
    """Memory of cards that pods of the default namespace wait for, as KEDA asks."""
    ask = channel.unary_unary(
        "/externalscaler.ExternalScaler/GetMetrics",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=KEDA["Values"].FromString,
    )
    ref = KEDA["Ref"](
        name="x", namespace="default", scalerMetadata={"metric": "gpu_mem_pending_bytes", "target": "1Gi"}
    )
    answer = await ask(KEDA["Ask"](scaledObjectRef=ref), timeout=PATIENCE_SECONDS)
    return answer.metricValues[0].metricValueFloat


async def heard(call):
    """An answer, as soon as somebody listens."""
    found = []

    async def claim():
        try:
            found.append(await call())
        except grpc.aio.AioRpcError:
            return False
        return True

    assert await eventually(claim)
    return found[-1]


def test_a_pool_is_ordered_of_cluster_autoscaler_and_keda_hears_who_waits(plane, tmp_path):
    """
    The pod's node is an order: the group's smallest size is raised and nothing is bought by us; cluster-autoscaler's
    increase brings the machine, and the order is over. KEDA hears 8 GiB while the pod waits, and 0 afterwards.
    """
    port = free_port()

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, machines):
            with autoscaler(plane, tmp_path, "one") as one:
                inside = {"provider": "scale", "settings": {"name": "gpu-a"}}
                one.config.write_text(config(one_pool(provider="externalgrpc", settings=inside)))
                await client.create(our_pod("waits", 8))
                one.start(f"--grpc-listen=127.0.0.1:{port}")
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    ca = GENERATIONS[1].provider(channel)
                    await heard(ca["Refresh"])

                    async def groups():
                        await ca["Refresh"]()
                        return [(g.id, g.minSize, g.maxSize) for g in (await ca["NodeGroups"]()).nodeGroups]

                    async def ordered():
                        return await groups() == [("gpu-a", 1, 3)]

                    assert await eventually(ordered), await groups()
                    waiting = await heard(lambda: pending(channel)), await machines.replicas("gpu-a")
                    node = GENERATIONS[1].node_of(await ca["NodeGroupTemplateNodeInfo"](id="gpu-a"))
                    await ca["NodeGroupIncreaseSize"](id="gpu-a", delta=1)
                    await grown(machines, "gpu-a", 1)
                    await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/waits")

                    async def nobody():
                        return await pending(channel) == 0

                    served = await eventually(nobody)
                    calls = await one.sample(
                        'gpushare_autoscaler_grpc_requests_total{code="OK",method="NodeGroupIncreaseSize"}'
                    )
                    return waiting, dict(node.metadata.labels), await groups(), served, calls, one.log()

    waiting, labels, groups, served, calls, log = asyncio.run(story())
    assert (8 * 2**30, 0) == waiting
    assert "gpu-a" == labels["gpushare.dev/pool"]
    assert ([("gpu-a", 0, 3)], True) == (groups, served)
    assert 1 == calls
    assert "Traceback" not in log


def test_figures_of_pools_and_pods_come_through_kube_apiserver(plane, tmp_path):
    """
    The process enters its APIs itself, and serves what it sees: who waits, and what running pods were promised; what
    no exporter has measured is not reported.
    """
    wish = settings(plane, CUSTOM, EXTERNAL)

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, _), granted(client), leads_here(client, wish.port):
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(one_pool(max_nodes=1)))
                await client.create(workload("Deployment", "web", 2, our_pod("x", 8)))
                one.start(
                    "--metrics-api=custom",
                    "--metrics-api=external",
                    f"--metrics-api-listen={wish.host}:{wish.port}",
                    f"--metrics-api-cert={wish.certificate}",
                    f"--metrics-api-key={wish.key}",
                    f"--metrics-api-ca={wish.authority}",
                )
                path = f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/*/gpu_mem_allocated_bytes"
                pods = await client.until(lambda found: len(found["items"]) == 2, path, labelSelector="app=web")
                await client.create(our_pod("waits", 12))
                who = await client.until(
                    lambda found: any(item["value"] == "12884901888" for item in found["items"]),
                    f"/apis/{EXTERNAL}/v1beta1/namespaces/default/gpu_mem_pending_bytes",
                )
                used = f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/*/gpu_mem_used_bytes"
                status = 0
                try:
                    await client.get(used, labelSelector="app=web")
                except Exception as exc:  # noqa: BLE001 (any refusal; its status is the claim)
                    status = getattr(exc, "status", -1)
                return [item["value"] for item in pods["items"]], who["items"], status, one.log()

    values, waiting, status, log = asyncio.run(story())
    assert ["8589934592"] * 2 == values
    assert {"gpu-a": "12884901888", "": "0"} == {item["metricLabels"]["pool"]: item["value"] for item in waiting}
    assert 503 == status
    assert "Traceback" not in log


def test_without_prometheus_pools_grow_and_the_reason_for_no_relief_is_visible(plane, tmp_path):
    """
    Figures decide about heat alone: their absence is said, by node, and nothing else waits for them.
    """

    async def story():
        async with fleet(plane, tmp_path, "gpu-a", start=1) as (client, machines):
            with autoscaler(plane, tmp_path, "one") as one:
                figures = {
                    "source": "prometheus",
                    "url": f"http://127.0.0.1:{free_port()}",
                    "scrape_interval_seconds": 1,
                }
                one.config.write_text(config(one_pool(), metrics=figures))
                await client.create(our_pod("waits", 12, 1))
                await client.create(workload("Deployment", "full", 2, our_pod("x", 12)))
                one.start()
                await one.says("Prometheus is unreachable")
                await one.reaches('gpushare_autoscaler_inhibited{reason="metrics"}', 1)
                await grown(machines, "gpu-a", 2)
                return await one.sample('gpushare_autoscaler_metrics_nodes{state="fresh"}'), one.log()

    fresh, log = asyncio.run(story())
    assert 0 == fresh
    assert "Traceback" not in log
