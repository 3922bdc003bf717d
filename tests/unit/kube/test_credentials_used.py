# SPDX-License-Identifier: Apache-2.0
"""Credentials in use: what is said of broken ones, what a header cannot carry, certificates on the wire."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from e2e.certificates import Authority
from support.credentials_read import coded, written

from isolation.kube.access import Access
from isolation.kube.core.errors import CredentialsError
from isolation.kube.kubeconfig import identity_in


def complaint(file, context=None):
    """Why it cannot be used."""

    async def story():
        async with Access(file, context):
            pass

    with pytest.raises(CredentialsError) as caught:
        asyncio.run(story())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_broken_kubeconfig_is_said_in_one_line_that_helps(tmp_path):
    """
    Which file, what about it, and what to do.
    """
    missing = tmp_path / "none"
    assert f"kubeconfig {missing} does not exist: select another with --kubeconfig or $KUBECONFIG" == complaint(missing)
    good = written(tmp_path)
    assert f"kubeconfig {good} has no context 'y'; it has 'x'" == complaint(good, "y")
    (tmp_path / "yaml").write_text("a: [\n")
    assert "is not valid YAML: line 2" in complaint(tmp_path / "yaml")
    (tmp_path / "empty").write_text("")
    assert "is empty" in complaint(tmp_path / "empty")
    (tmp_path / "deep").write_text("[" * 100_000)
    assert "has more than 64 levels" in complaint(tmp_path / "deep")
    assert "is a directory" in complaint(tmp_path)
    unset = written(tmp_path, name="unset", **{"current-context": ""})
    assert f"kubeconfig {unset} has no current-context: select one with --context" == complaint(unset)
    gone = written(tmp_path, name="gone", cluster={"certificate-authority": "gone.crt"})
    assert f"{tmp_path}/gone.crt of kubeconfig {gone} does not exist" in complaint(gone)
    assert f"none of the kubeconfig files {missing}:{missing} exists" in complaint(Path(f"{missing}:{missing}"))
    junk = written(tmp_path, name="junk", cluster={"certificate-authority-data": coded("no certificate")})
    assert "cannot use the certificates in the kubeconfig" in complaint(junk)


def test_a_token_that_no_header_can_carry_is_refused(tmp_path):
    """
    A line's end at its end is cut off; within it, it would be another header.
    """
    fine = identity_in(str(written(tmp_path, user={"token": "abc\r\n"})), None)
    assert "Bearer abc" == asyncio.run(fine.headers())["Authorization"]
    bad = identity_in(str(written(tmp_path, user={"token": "abc\r\nX-Other: 1"})), None)
    with pytest.raises(CredentialsError):
        asyncio.run(bad.headers())


@pytest.mark.parametrize("inline", [True, False], ids=["data", "files"])
def test_certificates_reach_the_server(tmp_path, inline):
    """
    A server that wants a client's certificate gets it, by another name than its address; nothing is left in the
    temporary folder.
    """
    authority = Authority(tmp_path, "authority")
    server, client = authority.issue("inside", hosts=("inside",)), authority.issue("me")
    cluster = {"tls-server-name": "inside", "certificate-authority": str(authority.certificate)}
    user = {"client-certificate": str(client.certificate), "client-key": str(client.key)}
    if inline:
        cluster = {"tls-server-name": "inside", "certificate-authority-data": coded(authority.certificate.read_text())}
        user = {
            "client-certificate-data": coded(client.certificate.read_text()),
            "client-key-data": coded(client.key.read_text()),
        }
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.load_cert_chain(server.certificate, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    subjects = []

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        subjects.append(dict(part[0] for part in writer.get_extra_info("peercert")["subject"])["commonName"])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def story():
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            async with Access(written(tmp_path, url, user=user, cluster=cluster)) as access:
                return await access.send("GET", "/x")
        finally:
            listening.close()

    assert b"{}" == asyncio.run(story())
    assert ["me"] == subjects
