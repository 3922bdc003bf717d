# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent to a port: a short answer, and a log that no caller can fill or write into."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl

import pytest
from aiohttp.http_exceptions import BadStatusLine
from e2e.certificates import Authority
from support.scheduler_endpoints import Server, extending
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.metrics.core.answer import Clocks
from autoscaler.apis.metrics.core.readings import LatestSnapshot, MetricsSnapshot
from autoscaler.apis.metrics.core.responses import CUSTOM
from autoscaler.apis.metrics.server import MetricsApiServer as MetricsApi
from autoscaler.apis.metrics.server import serve as serve_metrics_api
from autoscaler.apis.metrics.tls import MetricsTls
from exporter.http.server import MetricsServer
from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, server_context
from isolation.kube.malformed_requests import EVERY_SECONDS, RequestErrorFilter, request_error_logger
from isolation.kube.options import Address
from isolation.scheduler.endpoints import EXTENDER_LIMITS, Endpoints, serve
from isolation.scheduler.metrics import Metrics

WORLD = ("isolation.scheduler.informers", "isolation.kube.election", "isolation.kube.optional_kind")
EVIL = b"\x1b[31mgranted\n2026-01-01 INFO bound pod"
HOST = b" HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /extender/filter" + HOST
CASES = {
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\n\r" + EVIL + b"\r\n\r\n",
    "a header that is none": b"GET /healthz" + HOST + b"no header " + EVIL + b"\r\n\r\n",
    "a long line": b"GET /" + b"a" * 20_000 + HOST + b"\r\n",
    "many headers": b"GET /healthz" + HOST + b"x: a\r\n" * 2_000 + b"\r\n",
    "a chunk that is none": POST + b"Transfer-Encoding: chunked\r\n\r\nzz" + EVIL + b"\r\n0\r\n\r\n",
    "compression that is none": POST + b"Content-Encoding: gzip\r\nContent-Length: 10\r\n\r\n0123456789",
    "less than nothing": POST + b"Content-Length: -5\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "a body that breaks off": POST + b"Content-Length: 50\r\n\r\nabc",
    "a strange expectation": POST + b"Expect: " + EVIL[:12] + b"\r\nContent-Length: 0\r\n\r\n",
    "an address that is none": b"GET http://[::1/" + EVIL[:12] + HOST + b"\r\n",
    "a second one after a good one": b"GET /healthz" + HOST + b"\r\n\x1b[31mBAD\x00\r\n\r\n",
}
"""By name: what is sent."""


@pytest.fixture(autouse=True)
def anew():
    """Each test has its first line."""
    for name in ("isolation.scheduler.endpoints", "autoscaler.apis.metrics.server"):
        logging.getLogger(name).getChild("http").filters.clear()


@contextlib.asynccontextmanager
async def doors(certificates=None):
    """The extender over TLS, or on loopback where there are no certificates; the port."""
    async with extending(Server()) as (verbs, _):
        app = Endpoints(verbs, Metrics(), inspect=lambda _: b"", health=dict, release="1.2.3").extender_app()
        async with serve(app, Address("127.0.0.1", 0), EXTENDER_LIMITS, certificates) as port:
            yield port


async def send(port, text, context=None, seconds=PATIENCE_SECONDS):
    """The beginning of what is answered; the connection is ended afterwards."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(text)
    if b"Content-Length: 50" in text:
        await asyncio.sleep(0.05)
        writer.write_eof() if writer.can_write_eof() else writer.close()
    try:
        return await asyncio.wait_for(reader.read(12), seconds)
    except (TimeoutError, OSError):
        return b""
    finally:
        writer.close()
        await asyncio.sleep(0.02)


def lines(caplog):
    """What stands in the log, as a terminal would get it; not what the scheduler says of its own world."""
    formatter = logging.Formatter("%(levelname)s %(name)s %(message)s")
    return "\n".join(formatter.format(record) for record in caplog.records if record.name not in WORLD).splitlines()


def is_clean(found):
    """Nothing that a caller sent, no trace, no control characters."""
    text = "\n".join(found)
    return not any(word in text for word in ("\x1b", "granted", "Traceback", "aaaa")) and all(
        len(line) < 200 for line in found
    )


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_a_request_that_is_none_leaves_one_line_at_most(text, caplog):
    """It is answered with the caller's fault or not at all, never with 500, and the door goes on."""

    async def story():
        async with doors() as port:
            return await send(port, text), await send(port, b"GET /healthz" + HOST + b"\r\n")

    with caplog.at_level(logging.INFO):
        said, after = asyncio.run(story())
    found = lines(caplog)
    assert said in (b"", b"HTTP/1.0 400", b"HTTP/1.1 400", b"HTTP/1.1 415", b"HTTP/1.1 200")
    assert b"HTTP/1.1 200" == after
    assert len(found) <= 1, found
    assert is_clean(found), found


def test_a_thousand_of_them_are_one_line(caplog):
    """The log cannot be filled."""

    async def story():
        async with doors() as port:
            for _ in range(50):
                await asyncio.gather(*(send(port, CASES["another protocol"]) for _ in range(20)))

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    (line,) = lines(caplog)
    assert (
        "WARNING isolation.scheduler.endpoints.http rejected 1 invalid or aborted requests, the last one from "
        "127.0.0.1: BadHttpMessage"
    ) == line.replace("BadStatusLine", "BadHttpMessage").replace("BadHttpMethod", "BadHttpMessage")


@pytest.mark.parametrize("name", ["another protocol", "a header that is none", "many headers", "a chunk that is none"])
def test_over_tls_too(name, tmp_path, caplog):
    """The scheduler's own port, and what is no TLS at all."""
    authority = Authority(tmp_path, "ca")
    pair = authority.issue("server", hosts=("127.0.0.1",))

    async def story():
        async with doors(ReloadingTls(CertificateFiles(pair.certificate, pair.key), server_context)) as port:
            await send(port, CASES[name], ssl.create_default_context(cafile=str(authority.certificate)))
            await send(port, CASES[name])

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    assert len(lines(caplog)) <= 1, lines(caplog)
    assert is_clean(lines(caplog)), lines(caplog)


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_the_metrics_apis_log_stays_short(text, tmp_path, caplog):
    """The same on the autoscaler's aggregated API."""
    authority = Authority(tmp_path, "ca")
    pair = authority.issue("server", hosts=("127.0.0.1",))
    tls = MetricsTls(CertificateFiles(pair.certificate, pair.key))
    moment = Clocks(1000.0, 1_800_000_000.0, 45.0)
    server = MetricsApi(tls, None, LatestSnapshot(MetricsSnapshot(1000.0)), (CUSTOM,), now=lambda: moment, unready=str)

    async def story():
        async with serve_metrics_api(server, tls, "127.0.0.1", 0) as port:
            return await send(port, text, ssl.create_default_context(cafile=str(authority.certificate)))

    with caplog.at_level(logging.INFO):
        said = asyncio.run(story())
    found = lines(caplog)
    assert b" 50" not in said
    assert len(found) <= 1, found
    assert is_clean(found), found


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_the_exporter_says_nothing_of_it(text, caplog):
    """What the caller did counts as the caller's."""
    with (
        caplog.at_level(logging.INFO),
        MetricsServer(lambda *_: b"", 0) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as sock,
        contextlib.suppress(OSError),
    ):
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        assert b" 500" not in sock.recv(12)
    assert [] == lines(caplog)


def record(error, *args):
    """As aiohttp makes one."""
    info = (type(error), error, None) if error else None
    return logging.LogRecord("x", logging.ERROR, "", 0, "Error handling request from %s", args, info)


def test_the_next_line_comes_later_and_counts_those_between():
    """One a minute."""
    now = [0.0]
    once = RequestErrorFilter(lambda: now[0])
    kept = []
    for now[0] in (0.0, 1.0, 30.0, EVERY_SECONDS - 1, EVERY_SECONDS + 1):
        one = record(BadStatusLine("evil\nline"), "10.0.0.7")
        if once.filter(one):
            kept.append(one.getMessage())

    assert [
        f"rejected {number} invalid or aborted requests, the last one from 10.0.0.7: BadStatusLine" for number in (1, 4)
    ] == kept


@pytest.mark.parametrize("error", [ValueError("a defect"), OSError("no such file"), None], ids=["defect", "os", "word"])
def test_defects_of_ours_keep_their_traces(error):
    """They are few, and somebody has to mend them."""
    one = record(error, "10.0.0.7")
    kept = [RequestErrorFilter().filter(one) for _ in range(3)]

    assert [True] * 3 == kept
    assert one.exc_info == ((type(error), error, None) if error else None)


def test_a_log_is_bounded_once():
    """Servers that come and go add nothing to it."""
    log = logging.getLogger("test_doors_garbage")

    assert request_error_logger(log) is request_error_logger(log)
    assert 1 == len(request_error_logger(log).filters)
