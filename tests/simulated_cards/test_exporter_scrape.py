# SPDX-License-Identifier: Apache-2.0
"""
The server as scrapers and less friendly clients meet it: over real sockets.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import time

import pytest
from support.frames import small_fleet
from support.waiting import PATIENCE_SECONDS, until

from exporter.http.pages import Exposition, MetricsPage
from exporter.http.router import MetricsRouter
from exporter.http.server import MetricsServer
from exporter.pipeline.families import card_families
from isolation.host.bounded_connections import ConnectionLimits


@pytest.fixture
def pages():
    """A fleet's cards."""
    made = Exposition({"cards": lambda f: card_families(f.nodes)}, clock=time.monotonic, release="1")
    made.publish(small_fleet(), 1.0, ready=True)
    return made


class Big:
    """A page that does not fit into any socket's buffers."""

    whole = MetricsPage(b"x" * (64 << 20), "text/plain")

    def page(self, _form=None):
        """64 MiB."""
        return self.whole

    made = page


def talk(port, raw):
    """Send, and read until the server hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(raw)
        return receive(sock)


def receive(sock):
    """Everything until the end."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def ask(client, path, method="GET", **headers):
    """One request on a kept connection."""
    client.request(method, path, headers=headers)
    answer = client.getresponse()
    return answer, answer.read()


def test_a_scrape_with_everything_that_prometheus_asks_for(pages):
    """OpenMetrics, compressed, over one connection for many scrapes."""
    headers = {
        "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
        "Accept-Encoding": "gzip",
        "X-Prometheus-Scrape-Timeout-Seconds": "10",
    }
    with MetricsServer(pages, 0) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_SECONDS)
        for _ in range(3):
            answer, body = ask(client, "/metrics", **headers)
            assert 200 == answer.status
            assert "application/openmetrics-text; version=1.0.0; charset=utf-8" == answer.headers["Content-Type"]
            assert ("gzip", "Accept, Accept-Encoding") == (answer.headers["Content-Encoding"], answer.headers["Vary"])
            assert gzip.decompress(body).endswith(b"# EOF\n")
        assert 1 == served.connections
        client.close()
        assert until(lambda: served.connections == 0)


def test_head_says_what_get_would(pages):
    """The same fields, no body, and the connection goes on."""
    with MetricsServer(pages, 0) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_SECONDS)
        got, body = ask(client, "/metrics")
        head, nothing = ask(client, "/metrics", "HEAD")

        assert b"" == nothing
        assert (200, str(len(body))) == (head.status, head.headers["Content-Length"])
        assert got.headers["Content-Type"] == head.headers["Content-Type"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods(pages, method):
    """405, with what is understood."""
    with MetricsServer(pages, 0) as served:
        answer, _ = ask(
            http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_SECONDS), "/metrics", method
        )

        assert (405, "GET, HEAD") == (answer.status, answer.headers["Allow"])


def test_a_scraper_that_forbids_every_encoding(pages):
    """406, and not something it said it cannot read."""
    with MetricsServer(pages, 0) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_SECONDS)

        assert 406 == ask(client, "/metrics", **{"Accept-Encoding": "identity;q=0"})[0].status


def test_documents_and_readiness(pages):
    """JSON where it belongs; not ready has a reason and 503; the index names every path."""
    reason = ["the last reading is 60 s old"]
    router = MetricsRouter(pages, lambda: reason[0], {"/breaches": lambda: b"[]"})
    with MetricsServer(router, 0) as served:
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_SECONDS)
        answer, body = ask(client, "/breaches")
        assert (200, "application/json", []) == (answer.status, answer.headers["Content-Type"], json.loads(body))
        assert (503, b"the last reading is 60 s old\n") == (ask(client, "/readyz")[0].status, ask(client, "/readyz")[1])
        reason[0] = ""
        assert 200 == ask(client, "/readyz")[0].status
        assert b"gpushare: see /metrics, /healthz, /readyz and /breaches\n" == ask(client, "/")[1]


def test_requests_in_one_piece(pages):
    """Pipelined requests are answered in their order; the last one closes."""
    one = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with MetricsServer(pages, 0) as served:
        answers = talk(served.port, one * 20 + last)

    assert (20, 1) == (answers.count(b"200 OK"), answers.count(b"404 Not Found"))
    assert answers.rindex(b"200 OK") < answers.index(b"404")


def test_a_body_is_refused_and_the_answer_arrives(pages):
    """A client that goes on sending after it was refused can read why, instead of a connection that is reset."""
    with (
        MetricsServer(pages, 0) as served,
        socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_SECONDS) as sock,
    ):
        sock.sendall(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(4):
            sock.sendall(b"GET / HTTP/1.1\r\n" * 100)
            time.sleep(0.1)
        answers = sock.recv(65536)

    assert answers.startswith(b"HTTP/1.1 413 ")
    assert 1 == answers.count(b"HTTP/1.1")


def test_a_client_that_trickles_is_cut(pages):
    """A byte now and then does not extend the deadline of the request."""
    with (
        MetricsServer(pages, limits=ConnectionLimits(request_seconds=0.5)) as served,
        socket.create_connection(("127.0.0.1", served.port)) as sock,
    ):
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        with pytest.raises(OSError, match=r"reset|pipe"):
            until(lambda: sock.sendall(b"a"), every=0.05)
        assert until(lambda: served.connections == 0)


def test_a_client_that_reads_nothing_is_cut_and_disturbs_nobody():
    """A page that nobody takes costs until its deadline; others are served meanwhile."""
    with MetricsServer(Big(), answer_seconds=1.0) as served:
        sockets = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(5)]
        for sock in sockets:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.1)
        client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_SECONDS)
        assert b"ok\n" == ask(client, "/healthz")[1]
        assert until(lambda: served.connections == 1)
        for sock in sockets:
            sock.close()


def test_a_slow_reader_gets_the_whole_page():
    """64 MiB through small bites."""
    with MetricsServer(Big(), 0) as served:
        answer = talk(served.port, b"GET /metrics HTTP/1.0\r\n\r\n")

    assert (64 << 20) == len(answer.partition(b"\r\n\r\n")[2])


def test_noise_does_not_end_the_server(pages):
    """TLS on a plain port, binary, half requests, connections that vanish: the next scrape is served."""
    with MetricsServer(pages, 0) as served:
        for raw in (b"\x16\x03\x01\x00\xa5\x01", b"\0" * 70000, b"GET", b"", b"\r\n" * 9000, b"GET / HTTP/1.1\r\n"):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", served.port)) as sock:
                sock.sendall(raw)
        assert talk(served.port, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")


def test_leaving_ends_everything_at_once(pages):
    """Open connections do not keep the server; its thread has gone."""
    with MetricsServer(pages, 0) as served:
        sock = socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_SECONDS)
        sock.sendall(b"GET /me")
    served._thread.join(PATIENCE_SECONDS)
    assert not served._thread.is_alive()
    assert b"" == receive(sock)
    sock.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::", "localhost"])  # noqa: S104 (that is the case)
def test_addresses(pages, host):
    """IPv4, IPv6, all of them, and names."""
    if ":" in host:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
    with MetricsServer(pages, 0, host) as served:
        at = "::1" if host == "::1" else "127.0.0.1"
        answer, _ = ask(http.client.HTTPConnection(at, served.port, timeout=PATIENCE_SECONDS), "/healthz")
        assert 200 == answer.status
