# SPDX-License-Identifier: Apache-2.0
"""`manifests/certificate.sh`: a certificate that the API server believes, also while it is renewed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import ssl
import subprocess

import pytest
from e2e.accounts import granted
from e2e.admission_harness import until_tried
from e2e.apiclient import connected
from e2e.kubelets import share_pod
from e2e.manifest_build import operator
from e2e.manifest_files import BASE, Cluster, documents
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE
from isolation.host.core.certificate import ends

SCRIPT = BASE.parent / "certificate.sh"
SECRET = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{SCHEDULER}-tls"
pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


def made(plane, *which):
    """Run it."""
    env = operator(KUBECONFIG=plane.kubeconfig)
    done = subprocess.run(
        ["sh", str(SCRIPT), *which], env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
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


async def meeting(server, client, host):
    """Whom each of the two sees, over mutual TLS: the server the client's name, the client its own server."""
    shows = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=server / "ca.crt")
    shows.verify_mode = ssl.CERT_REQUIRED
    shows.load_cert_chain(server / "tls.crt", server / "tls.key")
    asks = ssl.create_default_context(cafile=client / "ca.crt")
    asks.load_cert_chain(client / "tls.crt", client / "tls.key")
    seen = asyncio.get_running_loop().create_future()

    async def served(_, writer):
        names = dict(part[0] for part in writer.get_extra_info("peercert")["subject"])
        seen.set_result(names["commonName"])
        writer.close()

    listening = await asyncio.start_server(served, "127.0.0.1", 0, ssl=shows)
    port = listening.sockets[0].getsockname()[1]
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asks, server_hostname=host)
        async with asyncio.timeout(PATIENCE_SECONDS):
            name = await seen
        writer.close()
    finally:
        listening.close()
    return name


GRPC_HOST = f"gpushare-autoscaler.{SYSTEM_NAMESPACE}.svc"
AUTHORITY = "gpushare-grpc-authority"
GRPC_SECRETS = ("gpushare-autoscaler-grpc-tls", "gpushare-cluster-autoscaler", "gpushare-keda")


@contextlib.asynccontextmanager
async def grpc_secrets(plane):
    """Runs `certificate.sh grpc` and takes what it made: a folder for each Secret; nothing of it stays."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
    async with connected(plane) as client:
        await granted(client)

        async def taken(into, *lost):
            for name in lost:
                await client.delete(f"{path}/{name}")
            await asyncio.to_thread(made, plane, "grpc")
            for name in GRPC_SECRETS:
                (into / name).mkdir(parents=True)
                for file, value in (await client.get(f"{path}/{name}"))["data"].items():
                    (into / name / file).write_bytes(base64.b64decode(value))
            return [into / name for name in GRPC_SECRETS]

        try:
            yield taken
        finally:
            for name in (*GRPC_SECRETS, AUTHORITY):
                await client.delete(f"{path}/{name}")


def test_a_caller_of_grpc_that_still_has_its_old_certificate_is_heard_after_a_renewal(plane, tmp_path):
    """
    cluster-autoscaler reads its own once: after a second run the old and the new meet the new server; also where the
    authority is a new one, the old is heard. With the server's Secret deleted as well nothing old is.
    """

    async def story():
        async with grpc_secrets(plane) as taken:
            _, old, _ = await taken(tmp_path / "old")
            server, new, _ = await taken(tmp_path / "new")
            names = [await meeting(server, one, GRPC_HOST) for one in (old, new)]
            other, newest, _ = await taken(tmp_path / "other", AUTHORITY)
            trusting = tmp_path / "trusting"
            shutil.copytree(old, trusting)
            shutil.copy(newest / "ca.crt", trusting / "ca.crt")
            names += [await meeting(other, one, GRPC_HOST) for one in (trusting, newest)]
            last, _, _ = await taken(tmp_path / "last", AUTHORITY, GRPC_SECRETS[0])
            return names, len(ends((last / "ca.crt").read_bytes()))

    assert (["cluster-autoscaler"] * 4, 1) == asyncio.run(story())


def test_callers_of_grpc_get_certificates_with_their_names(plane, tmp_path):
    """
    cluster-autoscaler and KEDA each by a certificate of its own, which the autoscaler's authority vouches for; made for
    one another they are no servers.
    """

    async def story():
        async with grpc_secrets(plane) as taken:
            server, *callers = await taken(tmp_path / "once")
        names = [await meeting(server, caller, GRPC_HOST) for caller in callers]
        with pytest.raises(ssl.SSLError):
            await meeting(callers[0], callers[1], GRPC_HOST)
        return names

    assert ["cluster-autoscaler", "keda-operator"] == asyncio.run(story())


@pytest.mark.parametrize("words", [["what"], ["extender"], ["admission"]])
def test_what_makes_no_sense_changes_nothing_and_says_what_to_write(words, tmp_path):
    """
    Before anything is asked of a cluster: there is none here.
    """
    env = {"PATH": operator()["PATH"], "KUBECONFIG": str(tmp_path / "none")}
    done = subprocess.run(
        ["sh", str(SCRIPT), *words], env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )

    assert (2, "") == (done.returncode, done.stdout)
    assert any(word in done.stderr for word in ("name scheduler, admission, extender", "OUT=folder"))
