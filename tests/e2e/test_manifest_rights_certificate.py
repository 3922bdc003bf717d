"""`manifests/certificate.sh`: a certificate that the API server believes, also while it is renewed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import ssl
import subprocess

import pytest
from e2e.accounts import granted
from e2e.admission_stand import until_tried
from e2e.apiclient import connected
from e2e.kubelets import share_pod
from e2e.manifest_files import BASE, Cluster, documents

from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE
from isolation.doctor.certificate import ends

SCRIPT = BASE.parent / "certificate.sh"
SECRET = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{SCHEDULER}-tls"
pytestmark = pytest.mark.skipif(
    not shutil.which("kubectl") or not shutil.which("openssl"), reason="kubectl and openssl are needed"
)


def made(plane):
    """Run it."""
    env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    done = subprocess.run(["sh", str(SCRIPT)], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr


async def shown(client, folder):
    """The certificate and key as a TLS server has them, and what the API server believes."""
    data = (await client.get(SECRET))["data"]
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes(base64.b64decode(data[name]))
    bundles = []
    for one in documents():
        if one["kind"] == "MutatingWebhookConfiguration":
            stored = await client.get(await Cluster(client).path(one, one=True))
            bundles += [hook["clientConfig"]["caBundle"] for hook in stored["webhooks"]]
    return bundles


async def handshake(folder, bundle, host):
    """Whether a client that believes this bundle accepts what a server shows for a name."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=server)
    port = listening.sockets[0].getsockname()[1]
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=host)
        writer.close()
    finally:
        listening.close()


def test_what_it_makes_is_believed_and_stays_so_while_it_is_renewed(plane, tmp_path):
    """
    Every webhook gets the authority; after a second run the certificate of the first is believed as well.
    """
    old, new = tmp_path / "old", tmp_path / "new"
    host = f"{SCHEDULER}.{SYSTEM_NAMESPACE}.svc"

    async def story():
        async with connected(plane) as client, contextlib.AsyncExitStack() as stack:
            await granted(client)
            cluster = Cluster(client)
            stack.push_async_callback(
                until_tried, client, share_pod("probe"), ""
            )  # last of all: nobody is asked any more
            for one in documents():
                if one["kind"] == "MutatingWebhookConfiguration":
                    await cluster.create(one)
                    stack.push_async_callback(cluster.remove, one)
            stack.push_async_callback(client.delete, SECRET)
            bundles = []
            for folder in (old, new):
                folder.mkdir()
                await asyncio.to_thread(made, plane)
                bundles.append(await shown(client, folder))
            return bundles

    first, second = asyncio.run(story())
    assert len(second) > 1
    for folder in (old, new):
        for bundle in set(second):
            asyncio.run(handshake(folder, bundle, host))
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(handshake(new, first[0], host))
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(handshake(new, second[0], "elsewhere.svc"))
    assert [2] == sorted({len(ends(base64.b64decode(bundle))) for bundle in second})
