# SPDX-License-Identifier: Apache-2.0
"""The hardened variant: the API server shows a client certificate to our admission, and nobody else gets in."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import subprocess

import aiohttp
import pytest
from e2e.admission_harness import tried
from e2e.apiclient import connected
from e2e.binaries import Missing, find
from e2e.kubelets import share_pod
from e2e.manifest_build import MANIFESTS, operator
from e2e.plane import ControlPlane
from e2e.sharing import prepare, replica
from e2e.test_scheduler_admission import door, hooked
from support.ports import free_port
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import SYSTEM_NAMESPACE

SECRET = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/gpushare-scheduler-admission-clients"


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """
    A control plane whose API server was started again with the files of `certificate.sh admission`; our port, and the
    authority of its certificate as the script has put it into the cluster.
    """
    programs = find()
    if isinstance(programs, Missing):
        pytest.fail(str(programs)) if os.environ.get("CI") == "true" else pytest.skip(str(programs))
    folder, out, port = tmp_path_factory.mktemp("certified"), tmp_path_factory.mktemp("out"), free_port()
    plane = ControlPlane(programs, folder)
    plane.start()
    try:
        authority = folder / "admission-clients.crt"
        authority.write_bytes(asyncio.run(handed_out(plane, out, port)))
        plane._flags = (f"--admission-control-config-file={out}/admission.yaml",)
        plane.restart_apiserver()
        yield plane, port, authority
    finally:
        plane.stop()


async def handed_out(plane, out, port):
    """Run the script as an operator does; the authority."""
    async with connected(plane) as client:
        await prepare(client)
        env = operator(KUBECONFIG=plane.kubeconfig, OUT=out, AT=out, WEBHOOK=f"127.0.0.1:{port}")
        command = ["sh", MANIFESTS / "certificate.sh", "admission"]
        await asyncio.to_thread(
            subprocess.run, command, env=env, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_SECONDS
        )
        secret = await client.get(SECRET)
        return base64.b64decode(secret["data"]["ca.crt"])


def test_only_the_api_server_is_let_in(certified, tmp_path):
    """
    Its reviews are answered; a caller without the certificate does not get through the handshake.
    """
    plane, port, authority = certified

    async def story():
        async with connected(plane) as client:
            with replica(plane, tmp_path, "one") as ours:
                ours.start(*door(plane, port), f"--admission-client-ca={authority}")
                await ours.answers("/readyz")
                async with hooked(plane, client, port):
                    assert "2 cards" in await tried(client, share_pod("odd", units=7, cards=2))
                    assert "" == await tried(client, share_pod("even", units=8, cards=2))
                    context = ssl.create_default_context(cafile=str(plane.ca))
                    async with aiohttp.ClientSession() as session:
                        with pytest.raises((aiohttp.ClientError, OSError)):
                            await session.post(f"https://127.0.0.1:{port}/admit/pods", data=b"{}", ssl=context)

    asyncio.run(story())


def test_an_api_server_without_the_certificate_is_refused(certified, tmp_path):
    """
    Also where it is trusted with everything else: pods with shares are denied then, as always without our answer.
    """
    plane, port, _ = certified
    stranger = plane._authority.certificate

    async def story():
        async with connected(plane) as client:
            with replica(plane, tmp_path, "one") as ours:
                ours.start(*door(plane, port))
                await ours.answers("/readyz")
                async with hooked(plane, client, port):
                    ours.end()
                    ours.start(*door(plane, port), f"--admission-client-ca={stranger}")
                    await ours.answers("/readyz")
                    said = await tried(client, share_pod("even", units=8, cards=2))
                    ours.end()
                    ours.start(*door(plane, port))
                    await ours.answers("/readyz")
                    return said

    assert "failed calling webhook" in asyncio.run(story())
