# SPDX-License-Identifier: Apache-2.0
"""Credentials that are none, and servers that are none: one kind of error, soon."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.waiting import PATIENCE_SECONDS

from isolation.kube.access import Access, Deadlines
from isolation.kube.core.errors import CredentialsError, MalformedError, RefusedError, UnreachableError


def kubeconfig(path, server, **user):
    """A kubeconfig for a server without TLS."""
    named = {"clusters": {"server": server}, "users": user, "contexts": {"cluster": "x", "user": "x"}}
    config = {kind: [{"name": "x", kind[:-1]: value}] for kind, value in named.items()}
    path.write_text(json.dumps(config | {"current-context": "x"}))
    return path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "current-context: x",
        "{current-context: x, contexts: [], clusters: [], users: []}",
        "{current-context: x, contexts: [{name: x, context: {cluster: y, user: z}}], clusters: 3}",
        "\x00",
    ],
)
def test_a_kubeconfig_that_is_none_is_said_to_be_none(tmp_path, text):
    """
    Whatever stands in the file.
    """
    path = tmp_path / "config"
    path.write_text(text)

    async def story():
        async with Access(path):
            pass

    with pytest.raises(CredentialsError):
        asyncio.run(story())


def test_a_missing_kubeconfig_is_said_to_be_missing(tmp_path):
    """
    And nothing is asked of anybody.
    """

    async def story():
        async with Access(tmp_path / "none"):
            pass

    with pytest.raises(CredentialsError):
        asyncio.run(story())


def against(tmp_path, answer, ask, seconds=PATIENCE_SECONDS):
    """What becomes of a question to a server that answers with these bytes, then hangs for good."""
    over = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        await over.wait()
        writer.close()

    async def story():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        deadlines = Deadlines(page=seconds, write=seconds)
        try:
            async with Access(kubeconfig(tmp_path / "config", url), deadlines=deadlines) as access:
                return await ask(access)
        finally:
            over.set()
            server.close()

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("answer", "error", "seconds"),
    [
        (b"", UnreachableError, 0.5),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", UnreachableError, 0.5),
        (b"SSH-2.0-OpenSSH\r\n\r\n", UnreachableError, 0.5),
        (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\nRetry-After: 3\r\n\r\n{}", RefusedError, PATIENCE_SECONDS),
        (b"HTTP/1.1 301 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", (RefusedError, UnreachableError), 0.5),
    ],
)
@pytest.mark.parametrize(
    "ask", [lambda a: a.page("/x", {}), lambda a: a.send("GET", "/x"), lambda a: a.send("PATCH", "/x", {})]
)
def test_every_question_ends_by_its_deadline(tmp_path, answer, error, seconds, ask):
    """
    Silence, half an answer, something else than HTTP, a refusal, a way round in circles; the server hangs for good.
    """
    with pytest.raises(error):
        against(tmp_path, answer, ask, seconds)


def test_the_server_learns_until_when_an_answer_is_awaited(tmp_path):
    """
    What nobody waits for any more is dropped there, not carried out later: the caller's own deadline, if sooner.
    """
    heard = []

    async def serve(reader, writer):
        heard.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode())
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def story():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        deadlines = Deadlines(write=PATIENCE_SECONDS)
        async with Access(kubeconfig(tmp_path / "config", url), deadlines=deadlines) as access:
            await access.send("POST", "/x", {})
            await access.send("POST", "/x", {}, seconds=4.25)
        server.close()

    asyncio.run(story())
    assert [f"/x?timeout={int(PATIENCE_SECONDS * 1000)}ms", "/x?timeout=4250ms"] == heard


def test_an_answer_without_end_is_cut_off(tmp_path, monkeypatch):
    """
    Beyond the bound nothing is read.
    """
    monkeypatch.setattr("isolation.kube.access.MAX_PAGE_BYTES", 1000)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000

    with pytest.raises(MalformedError):
        against(tmp_path, answer, lambda a: a.page("/x", {}))
