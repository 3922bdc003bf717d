# SPDX-License-Identifier: Apache-2.0
"""A real HorizontalPodAutoscaler on the figures of the running autoscaler: it follows them, and never their absence."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from e2e.autoscaler_process import autoscaler, config, fleet, one_pool
from e2e.exporter_harness import exporting
from e2e.kubelets import share_pod
from e2e.metrics_harness import HPAS, available, external_metric, granted, leads_here, pods_metric, settings
from e2e.metrics_harness import autoscaler as hpa_of
from e2e.sharing import PODS, our_pod, untainted, workload
from e2e.test_metrics_api_hpa import replicas, says, stays

from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL
from isolation.contract.quantity import GIB

FIGURES = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/gpu_mem_used_bytes"


@contextlib.asynccontextmanager
async def serving(plane, folder, metric, pod, **pools):
    """Two nodes with exporters, our process with both APIs, and a Deployment that an HPA scales on this metric."""
    wish = settings(plane, CUSTOM, EXTERNAL)
    doors = (
        "--metrics-api=custom",
        "--metrics-api=external",
        f"--metrics-api-listen={wish.host}:{wish.port}",
        f"--metrics-api-cert={wish.certificate}",
        f"--metrics-api-key={wish.key}",
        f"--metrics-api-ca={wish.authority}",
    )
    async with (
        fleet(plane, folder, "gpu-a", start=2) as (client, machines),
        granted(client),
        leads_here(client, wish.port),
        exporting(client, *await machines.settled("gpu-a")) as exporters,
    ):
        await untainted(client)
        with autoscaler(plane, folder, "one") as one:
            figures = {"source": "exporter", "port": exporters.port, "scrape_interval_seconds": 1}
            one.config.write_text(config(one_pool(**({"min_nodes": 2, "max_nodes": 2} | pools)), metrics=figures))
            one.start(*doors)
            await available(client)
            await client.create(workload("Deployment", "web", 1, pod))
            await client.call("POST", HPAS, hpa_of("web", metric))
            try:
                yield client, exporters, one, doors
            finally:
                await client.delete(f"{HPAS}/web")


async def follows(client):
    """Until the HPA has a figure again."""
    await says(client, "ValidMetricFound")


def test_a_deployment_follows_what_exporters_measure_and_stands_still_while_they_do_not(swift, tmp_path):
    """
    1.2 GiB are wanted in each pod: at 3 GiB one becomes five. Exporters that hang, that name no pod, that are gone:
    five stay five, whatever stood on the last page. Then idle pods become one.
    """

    async def story():
        seen_values = {}
        metric = pods_metric("gpu_mem_used_bytes", "1200Mi")
        async with serving(swift, tmp_path, metric, our_pod("x", 4)) as (client, exporters, one, _doors):
            exporters.used = lambda _name: 3.0 * GIB
            await replicas(client, 5)
            await follows(client)
            # a pod that was never measured is not reported as old
            await client.until(lambda seen_values: len(seen_values["items"]) == 5, FIGURES)

            exporters.hangs = True
            seen_values["stale"] = await says(client, "FailedGetPodsMetric", "old")
            await one.shows('gpushare_autoscaler_inhibited{reason="metrics"}', 2)
            await stays(client, 5, 2.5)
            exporters.hangs = False
            await follows(client)

            exporters.used = lambda _name: None
            seen_values["absent"] = await says(client, "FailedGetPodsMetric", " is missing")
            await stays(client, 5, 2.5)
            exporters.used = lambda _name: 3.0 * GIB
            await follows(client)

            await exporters.leave()
            seen_values["gone"] = await says(client, "FailedGetPodsMetric")
            await stays(client, 5, 2.5)
            await exporters.come()
            await follows(client)

            exporters.used = lambda _name: 0.0
            await replicas(client, 1)
            return seen_values, one.log()

    seen_values, log = asyncio.run(story())
    assert "old" in seen_values["stale"]
    assert " is missing" in seen_values["absent"]
    assert seen_values["gone"]
    assert "Traceback" not in log


def test_a_deployment_follows_who_waits_for_cards_and_stands_still_while_nobody_knows(swift, tmp_path):
    """
    One replica for each 4 GiB that the namespace waits for: three for 12 GiB. The process is frozen, then killed, and
    nobody waits any more: three stay three until it is back and says so.
    """
    selector = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu-a"]}]}

    async def story():
        metric = external_metric("gpu_mem_pending_bytes", "4Gi", selector)
        async with serving(swift, tmp_path, metric, share_pod("x", units=0)) as (client, _, one, doors):
            await client.create(workload("Deployment", "full", 4, our_pod("x", 15)))
            full = lambda p: [o["status"].get("phase") for o in p["items"]] == ["Running"] * 4  # noqa: E731
            await client.until(full, PODS, labelSelector="app=full")
            await client.create(our_pod("waits", 12))
            await replicas(client, 3)
            one.send(signal.SIGSTOP)
            await client.delete(f"{PODS}/waits")
            await stays(client, 3, 2.5)
            one.end(signal.SIGKILL)
            seen_values = await says(client, "FailedGetExternalMetric")
            await stays(client, 3, 2.5)
            one.start(*doors)
            await replicas(client, 1)
            return seen_values, one.log()

    seen_values, log = asyncio.run(story())
    assert seen_values
    assert "Traceback" not in log
