# SPDX-License-Identifier: Apache-2.0
"""A configuration mistake and a restart, under a real API server: the cluster goes on, and is told why."""

from __future__ import annotations

import asyncio

from e2e.apiclient import RefusedError, connected
from e2e.autoscaler_process import autoscaler, config, eventually, fleet, one_pool
from e2e.metrics_harness import available, granted, leads_here, settings
from e2e.sharing import our_pod, workload

from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL

BROKEN = config(one_pool(max_nodes="many"))
FIGURES = f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/*/gpu_mem_allocated_bytes"


def options(wish):
    """Both APIs."""
    return (
        "--metrics-api=custom",
        "--metrics-api=external",
        f"--metrics-api-listen={wish.host}:{wish.port}",
        f"--metrics-api-cert={wish.certificate}",
        f"--metrics-api-key={wish.key}",
        f"--metrics-api-ca={wish.authority}",
    )


async def refused(client, path):
    """The status and the words of a request that is."""
    try:
        await client.get(path)
    except RefusedError as exc:
        return exc.status, str(exc)
    return 200, ""


async def gone(client, path):
    """Whether it is."""
    return (await refused(client, path))[0] == 404


async def stale(client):
    """Whether our groups are stale for controllers that discover now."""
    found = {group["metadata"]["name"]: group["versions"] for group in (await client.discovery())["items"]}
    return all(each["freshness"] == "Stale" for group in (CUSTOM, EXTERNAL) for each in found[group])


def test_after_a_restart_on_a_broken_file_namespaces_are_deleted_and_figures_are_503(plane, tmp_path):
    """
    Discovery is answered, every question says what is wrong with the file, the process is alive and not ready, leaves
    the Lease alone, and takes the file over as soon as it is mended. Without a server the namespace would stay.
    """
    wish = settings(plane, CUSTOM, EXTERNAL)

    async def story():
        async with fleet(plane, tmp_path, "gpu-a") as (client, _), granted(client), leads_here(client, wish.port):
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config(one_pool()))
                await client.create(workload("Deployment", "web", 1, our_pod("x", 8)))
                one.start(*options(wish))
                await available(client)
                one.config.write_text(BROKEN)
                one.end()

                # The namespace controller waits for five seconds, and then believes kube-apiserver's copy.
                assert await eventually(lambda: stale(client))
                doomed = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}}
                await client.create(doomed)
                await client.delete("/api/v1/namespaces/doomed")
                stuck = await client.until(
                    lambda found: [
                        each["message"]
                        for each in found["status"].get("conditions", ())
                        if (each["type"], each["status"]) == ("NamespaceDeletionDiscoveryFailure", "True")
                    ],
                    "/api/v1/namespaces/doomed",
                )

                one.start(*options(wish))
                assert await eventually(lambda: gone(client, "/api/v1/namespaces/doomed")), one.log()[-3000:]
                await available(client)
                status, said = await refused(client, FIGURES)
                probes = [await one.probe(path) for path in ("/healthz", "/readyz")]
                values = [
                    await one.sample(f"gpushare_autoscaler_{name}")
                    for name in ("config_last_reload_successful", "leader")
                ]

                one.config.write_text(config(one_pool()))
                pods = await client.until(lambda found: len(found["items"]) == 1, FIGURES, labelSelector="app=web")
                await one.answers("/readyz")
                return stuck, (status, said), probes, values, pods

    stuck, (status, said), probes, values, _ = asyncio.run(story())
    assert stuck["status"]["phase"] == "Terminating"
    assert (503, True, True) == (status, "no configuration is in force" in said, "max_nodes" in said)
    assert [(200, "ok"), 503] == [(probes[0][0], probes[0][1].strip()), probes[1][0]]
    assert "max_nodes" in probes[1][1]
    assert [0.0, 0.0] == values


def test_a_process_without_metrics_apis_does_not_start_on_a_broken_file(plane, tmp_path):
    """
    Whoever nobody waits for says so and ends, with every mistake and a status of its own.
    """
    with autoscaler(plane, tmp_path, "one") as one:
        one.config.write_text(BROKEN)
        one.start()
        assert 2 == one._process.wait(60)
        assert "max_nodes" in one.log()


def test_grpc_that_cannot_be_served_takes_no_metrics_api_away(plane, tmp_path):
    """
    A key that is missing is said in readiness; the APIs stay, and the port opens when it is there.
    """
    wish = settings(plane, CUSTOM)

    async def story():
        async with connected(plane) as client, granted(client), leads_here(client, wish.port):
            with autoscaler(plane, tmp_path, "one") as one:
                one.config.write_text(config())
                key = tmp_path / "late.key"
                more = (f"--grpc-cert={wish.certificate}", f"--grpc-key={key}", f"--grpc-client-ca={wish.authority}")
                one.start("--metrics-api=custom", *options(wish)[2:], "--grpc-listen=0.0.0.0:0", *more)

                async def is_reported():
                    return "gRPC is not served" in (await one.probe("/readyz"))[1]

                assert await eventually(is_reported), one.log()[-3000:]
                listed = await client.until(lambda found: found["resources"], f"/apis/{CUSTOM}/v1beta1")
                key.write_bytes(wish.key.read_bytes())
                await one.answers("/readyz")
                return listed

    assert asyncio.run(story())["groupVersion"] == f"{CUSTOM}/v1beta1"
