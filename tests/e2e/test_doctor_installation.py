# SPDX-License-Identifier: Apache-2.0
"""The doctor before installations as they are applied: well, on ACK, and with what runs out or goes away."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from e2e.doctor_answers import examined
from e2e.manifest_answers import answers, until_gone
from e2e.manifest_harness import APISERVICES, NODE, VERSIONS, installed, standing
from e2e.manifest_installation import ADDRESS, INSIDE

from isolation.contract.names import AUTOSCALER, SCHEDULER, SYSTEM_NAMESPACE

GRPC = f"{INSIDE}/secrets/{AUTOSCALER}-grpc-tls"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of our own."""
    with standing(tmp_path_factory.mktemp("doctor")) as started:
        yield started


async def look(plane):
    """What the doctor says, by check."""
    return (await asyncio.to_thread(examined, plane.kubeconfig))[0]


async def led(installation):
    """The autoscaler acts, and says so."""
    for _ in range(3000):
        page = await answers(f"http://{ADDRESS}:9448/metrics")
        if "gpushare_autoscaler_leader 1.0" in page and "gpushare_autoscaler_config_last_reload_successful" in page:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(installation.words())


def test_the_overlay_for_ack_is_whole(plane, tmp_path):
    """
    Beside the vendor's scheduler nothing of admission is missing, nor a right that nobody needs where no pod moves.
    """

    async def story():
        given = {"overlay": "ack", "components": ("cluster-api",), "pairs": ()}
        async with installed(plane, tmp_path, **given) as installation, installation.process(AUTOSCALER):
            await led(installation)
            label = {"metadata": {"labels": {"ack.aliyun.com": "c1"}}}
            await installation.client.call("PATCH", f"/api/v1/nodes/{NODE}", label, kind="merge")
            findings = await look(plane)
            await installation.client.delete(
                f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
            )  # the next one is of another shape
            await until_gone(installation.client)
            return findings

    findings = asyncio.run(story())
    assert {} == {check: said for check, said in findings.items() if said[0] in {"problem", "unknown"}}
    assert "ACK" in findings["cluster.ack"][1]
    assert "dry run" in findings["cluster.autoscaler_config"][1]
    assert not {
        "cluster.admission",
        "cluster.scheduler_leader",
        "cluster.webhook_certificate",
        "cluster.allocations",
    } & set(findings)


def test_what_runs_out_or_goes_away_is_told_where_all_was_well(plane, tmp_path):
    """
    A whole installation, read through the API server; then certificates that end or are gone, a switch that nobody
    understands, and metrics APIs whose server is away.
    """

    async def story():
        async with installed(plane, tmp_path) as installation, installation.process(SCHEDULER):
            await installation.served(SCHEDULER)
            async with installation.process(AUTOSCALER):
                await led(installation)
                for version in VERSIONS:
                    await installation.client.until(
                        lambda api: any(c["status"] == "True" for c in api.get("status", {}).get("conditions", ())),
                        f"{APISERVICES}/{version}.metrics.k8s.io",
                    )
                well = await look(plane)
                pair = plane.serving_pair("short", ("short.svc",))
                short = {"data": {"tls.crt": base64.b64encode(pair.certificate.read_bytes()).decode()}}
                await installation.client.call("PATCH", GRPC, short, kind="merge")
                words = {"data": {"enabled": "perhaps"}}
                await installation.client.call("PATCH", f"{INSIDE}/configmaps/{AUTOSCALER}", words, kind="merge")
                short = await look(plane)
                await installation.client.delete(GRPC)
            await installation.client.until(
                lambda api: any(c["status"] == "False" for c in api.get("status", {}).get("conditions", ())),
                f"{APISERVICES}/{VERSIONS[0]}.metrics.k8s.io",
            )
            return well, short, await look(plane)

    well, short, gone = asyncio.run(story())
    good = (
        "rights",
        "webhook_certificate",
        "certificates",
        "autoscaler",
        "autoscaler_config",
        "metrics_apis",
        "versions",
        "admission",
    )
    assert dict.fromkeys(good, "ok") == {name: well[f"cluster.{name}"][0] for name in good}, json.dumps(well, indent=1)
    assert "unknown" != well["cluster.autoscaler_inhibited"][0]
    assert ["warning"] * 2 == [short[f"cluster.{name}"][0] for name in ("certificates", "autoscaler_config")], short
    assert ["problem"] * 2 == [gone[f"cluster.{name}"][0] for name in ("certificates", "metrics_apis")], gone
