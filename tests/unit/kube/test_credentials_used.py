# SPDX-License-Identifier: Apache-2.0
"""Certificates of a kubeconfig on the wire."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from e2e.certificates import Authority
from support.credentials_read import coded, written

from isolation.kube.access import Access


@pytest.mark.parametrize("inline", [True, False], ids=["data", "files"])
def test_certificates_reach_the_server(tmp_path, inline):
    """
    A server that wants a client's certificate gets it, by another name than its address.
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
