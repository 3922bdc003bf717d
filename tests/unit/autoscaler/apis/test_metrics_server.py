# SPDX-License-Identifier: Apache-2.0
"""The door of the metrics APIs on real TLS connections: authorities that change, certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl

import aiohttp
import pytest
from e2e.certificates import Authority
from support.waiting import PATIENCE_SECONDS, soon

from autoscaler.apis.metrics import server as serving
from autoscaler.apis.metrics.core.answer import Clocks
from autoscaler.apis.metrics.core.readings import LatestSnapshot, MetricsSnapshot
from autoscaler.apis.metrics.core.responses import CUSTOM
from autoscaler.apis.metrics.front_proxy import FrontProxyTrust
from autoscaler.apis.metrics.server import MetricsApiServer, serve
from autoscaler.apis.metrics.tls import MetricsTls
from isolation.host.reloading_tls import CertificateFiles, TlsError
from isolation.kube.core.errors import UnreachableError

PODS = f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/%2A/gpu_mem_used_bytes"
EVE = [("X-Remote-User", "eve")]


class Says:
    """Rights as the test has them."""

    def __init__(self, said=None):
        self.said, self.asked = said, []

    async def refusal(self, user, wish):
        """What was set."""
        self.asked.append((user, wish))
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


class Stand:
    """A server with certificates of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.web, self.old, self.new = (Authority(folder, name) for name in ("web", "old", "new"))
        self.pair = self.web.issue("server", hosts=("127.0.0.1",))
        self.tls = MetricsTls(CertificateFiles(self.pair.certificate, self.pair.key))
        self.rights, self.unready, self.port = Says(), "", 0

    @contextlib.asynccontextmanager
    async def open(self):
        """Serve."""
        moment = Clocks(1000.0, 1_800_000_000.0, 45.0)
        board = LatestSnapshot(MetricsSnapshot(1000.0))
        server = MetricsApiServer(
            self.tls, self.rights, board, (CUSTOM,), now=lambda: moment, unready=lambda: self.unready
        )
        async with serve(server, self.tls, "127.0.0.1", 0) as self.port:
            yield self

    def trust(self, authority):
        """Whom the cluster names from now on."""
        self.tls.set_trust(FrontProxyTrust(authority.certificate.read_text(), frozenset(("proxy",))))

    def session(self, authority=None, name="proxy"):
        """A client, with a certificate of that authority."""
        tls = ssl.create_default_context(cafile=str(self.web.certificate))
        if authority is not None:
            pair = authority.issue(name)
            tls.load_cert_chain(pair.certificate, pair.key)
        return aiohttp.ClientSession(f"https://127.0.0.1:{self.port}", connector=aiohttp.TCPConnector(ssl=tls))


async def status(session, path=PODS, headers=EVE, method="GET"):
    """Of one request; 0 where the connection ends."""
    try:
        async with session.request(method, path, headers=headers) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


@pytest.fixture
def stand(tmp_path):
    """One that nobody is trusted by yet."""
    return Stand(tmp_path)


def test_a_replaced_authority_ends_what_the_old_one_vouched_for(stand):
    """
    Open connections too: they were checked under an authority that counts no more.
    """

    async def story():
        async with stand.open():
            before = stand.session(stand.old)
            said = [await status(before)]
            stand.trust(stand.old)
            said += [await status(before), await status(before)]
            stand.trust(stand.new)
            async with before, stand.session(stand.new) as after, stand.session(stand.old) as late:
                said += [await status(before), await status(after), await status(late)]
        return said

    assert [0, 200, 200, 0, 200, 0] == asyncio.run(story())


def test_probes_need_nobody_and_figures_need_a_user(stand):
    """
    Before the cluster's authority is known, too.
    """

    async def story():
        async with stand.open(), stand.session() as anybody:
            early = [await status(anybody, "/healthz"), await status(anybody)]
            stand.trust(stand.old)
            stand.unready = "not yet"
            late = [await status(anybody, path) for path in ("/healthz", "/livez", "/readyz", "/openapi/v3")]
        return early, late

    assert ([200, 401], [200, 200, 503, 401]) == asyncio.run(story())


def test_a_user_of_hundreds_of_groups_is_asked_about_with_all_of_them(stand):
    """
    Each is a header of its own; servers commonly refuse more than about a hundred.
    """
    headers = [*EVE, *(("X-Remote-Group", f"group-{i}") for i in range(500))]

    async def story():
        stand.trust(stand.old)
        async with stand.open(), stand.session(stand.old) as proxy:
            return await status(proxy, headers=headers)

    assert 200 == asyncio.run(story())
    assert 501 == len(stand.rights.asked[0][0].groups)


@pytest.mark.parametrize(
    ("said", "path", "expected"),
    [
        ("no rule", PODS, (403, "Forbidden")),
        (UnreachableError("down"), PODS, (503, "ServiceUnavailable")),
        ("no rule", f"/apis/{CUSTOM}/v1beta2", (200, None)),
        (None, "/openapi/v2", (404, "NotFound")),
        (None, f"{PODS}?labelSelector=a+b", (400, "BadRequest")),
    ],
)
def test_every_refusal_is_a_status_that_kubernetes_clients_read(stand, said, path, expected):
    """
    Discovery is every user's; rights that is unknown are no rights.
    """
    stand.rights.said = said

    async def story():
        stand.trust(stand.old)
        async with stand.open(), stand.session(stand.old) as proxy, proxy.get(path, headers=EVE) as answer:
            return answer.status, json.loads(await answer.read()).get("reason")

    assert expected == asyncio.run(story())


def test_our_certificate_is_read_again_and_half_a_pair_is_not(stand):
    """
    Connections that are open go on.
    """

    def serial(session):
        (connection,) = (proto for conns in session.connector._conns.values() for proto, *_ in conns)
        return connection.transport.get_extra_info("peercert")["serialNumber"]

    async def story():
        stand.trust(stand.old)
        said, serials = [], []
        async with stand.open(), stand.session(stand.old) as first:
            said.append(await status(first))
            stand.pair.key.write_text("half")
            stand.tls.refresh()
            async with stand.session(stand.old) as meanwhile:
                said.append(await status(meanwhile))
                serials.append(serial(meanwhile))
            stand.web.issue("server", hosts=("127.0.0.1",))
            stand.tls.refresh()
            async with stand.session(stand.old) as after:
                said += [await status(after), await status(first)]
                serials += [serial(after), serial(first)]
        return said, serials

    said, (meanwhile, after, first) = asyncio.run(story())
    assert [200] * 4 == said
    assert meanwhile == first != after


def test_an_authority_that_is_none_leaves_the_one_before(stand):
    """
    Somebody's slip in a ConfigMap lets nobody in, and nobody out.
    """
    stand.trust(stand.old)
    with pytest.raises(TlsError):
        stand.tls.set_trust(FrontProxyTrust("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"))
    assert stand.tls.trust.authority == stand.old.certificate.read_text()


def test_files_that_make_no_certificate_are_said_at_the_start(tmp_path):
    """
    Named, with what is wrong.
    """
    with pytest.raises(TlsError, match=r"none\.crt"):
        MetricsTls(CertificateFiles(tmp_path / "none.crt", tmp_path / "none.key"))


def test_a_connection_that_asks_nothing_is_ended(stand, monkeypatch):
    """
    Whoever asks may stay; open files are few.
    """
    monkeypatch.setattr(serving, "_SILENT_SECONDS", 0.0)
    late, end = [], serving._end_silent
    monkeypatch.setattr(serving, "_end_silent", lambda *connection: late.append(connection))

    async def story():
        async with stand.open(), stand.session() as asks:
            tls = ssl.create_default_context(cafile=str(stand.web.certificate))
            reader, writer = await asyncio.open_connection("127.0.0.1", stand.port, ssl=tls)
            said = [await status(asks, "/healthz")]
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")  # and no end of it
            await soon(lambda: len(late) == 2)
            for connection in late:
                end(*connection)
            ended = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
            writer.close()
            (connection,) = (proto for conns in asks.connector._conns.values() for proto, *_ in conns)
            return said, ended, connection.transport is not None and not connection.transport.is_closing()

    assert ([200], b"", True) == asyncio.run(story())
