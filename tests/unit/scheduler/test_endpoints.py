# SPDX-License-Identifier: Apache-2.0
"""The doors of the scheduler: who may ask what, how much, and with which certificate we answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import time
from types import SimpleNamespace

import aiohttp
import pytest
from cryptography import x509
from e2e.certificates import Authority
from support.old_sessions import resumed
from support.scheduler_endpoints import Server, args, extending, node, pod
from support.waiting import PATIENCE_SECONDS

from isolation.host.core.certificate import first_end
from isolation.host.reloading_tls import CertificateFiles, ReloadingTls, TlsError, server_context
from isolation.kube.options import Address
from isolation.scheduler import extender
from isolation.scheduler import metrics as metrics_module
from isolation.scheduler.core import extender_api
from isolation.scheduler.endpoints import EXTENDER_LIMITS, Endpoints, serve
from isolation.scheduler.metrics import Metrics

HERE = Address("127.0.0.1", 0)
NODES = {"/api/v1/nodes": [node("a")]}


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch):
    """A busy machine is no server that does not answer."""
    for name in ("PATIENCE_SECONDS", "LIVE_READ_SECONDS"):
        monkeypatch.setattr(extender, name, PATIENCE_SECONDS)


@pytest.fixture
def authority(tmp_path):
    """Signs for servers and clients."""
    return Authority(tmp_path, "ca")


def reloading(certificate, key, client_ca=None):
    """What the listener is given."""
    return ReloadingTls(CertificateFiles(certificate, key, client_ca), server_context, "extender")


@contextlib.asynccontextmanager
async def doors(certificates=None, *, metrics=None):
    """The TLS listener, or the loopback one where there are no certificates; a session and the address."""
    async with extending(Server(dict(NODES))) as (verbs, world):
        inspect = lambda name: str(name).encode()  # noqa: E731 (a stand-in)
        made = Endpoints(verbs, metrics or Metrics(), inspect=inspect, health=dict, release="1.2.3")
        app = made.extender_app()
        async with serve(app, HERE, EXTENDER_LIMITS, certificates) as port, aiohttp.ClientSession() as session:
            yield session, f"{'https' if certificates else 'http'}://127.0.0.1:{port}", world


def client(authority, pair=None):
    """What a caller brings along."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if pair:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_over_tls_the_extender_wants_a_certificate(authority):
    """
    Filter, bind, the classic paths and probes are for the authority's clients; there is no admission.
    """
    server = authority.issue("server", hosts=("127.0.0.1",))
    friend = authority.issue("friend")

    async def story():
        certificates = reloading(server.certificate, server.key, authority.certificate)
        async with doors(certificates) as (session, url, _):
            context, found = client(authority, friend), {}
            for path, body in (("/extender/filter", args(pod("u"), "a")), ("/admit/pods", b"question")):
                async with session.post(url + path, data=body, ssl=context) as answer:
                    found[path] = answer.status, await answer.text()
            for path in ("/gpushare-scheduler/inspect/a", "/readyz"):
                async with session.get(url + path, ssl=context) as answer:
                    found[path] = answer.status, await answer.text()
            with pytest.raises((aiohttp.ClientError, OSError)):
                async with session.get(f"{url}/readyz", ssl=client(authority)) as answer:
                    await answer.read()
            return found

    found = asyncio.run(story())
    assert ["a"] == json.loads(found["/extender/filter"][1])["NodeNames"]
    assert 404 == found["/admit/pods"][0]
    assert (200, "a") == found["/gpushare-scheduler/inspect/a"]
    assert (200, "ok\n") == found["/readyz"]


def test_no_session_outlives_its_connection(authority):
    """
    A resumed session would not be checked against the authority that is in force now.
    """
    server = authority.issue("server", hosts=("127.0.0.1",))
    context = client(authority, authority.issue("friend"))

    async def story():
        async with doors(reloading(server.certificate, server.key, authority.certificate)) as (_, url, _):
            port = int(url.rpartition(":")[2])
            said = await asyncio.to_thread(resumed, port, context)
            context.maximum_version = ssl.TLSVersion.TLSv1_2  # which would resume sessions without tickets
            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(resumed, port, context)
            return said

    assert not asyncio.run(story())


def test_a_new_certificate_is_served_without_a_restart(authority):
    """
    New connections get the new one, an open one goes on; half a pair keeps the old one in force.
    """
    pair = authority.issue("server", hosts=("127.0.0.1",))

    async def serial(port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(authority))
        found = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return found

    async def story():
        certificates = reloading(pair.certificate, pair.key)
        async with doors(certificates) as (session, url, _):
            port = int(url.rpartition(":")[2])
            seen = [await serial(port)]
            async with session.get(f"{url}/readyz", ssl=client(authority)):
                pass
            old = pair.certificate.read_bytes(), pair.key.read_bytes()
            authority.issue("server", hosts=("127.0.0.1",))
            new = pair.certificate.read_bytes(), pair.key.read_bytes()
            write(pair, new[0], old[1])
            certificates.refresh()
            seen.append(await serial(port))
            write(pair, new[0][: len(new[0]) // 2], new[1])
            certificates.refresh()
            seen.append(await serial(port))
            pair.key.unlink()
            certificates.refresh()
            seen.append(await serial(port))
            write(pair, *new)
            certificates.refresh()
            seen.append(await serial(port))
            async with session.get(f"{url}/readyz", ssl=client(authority)) as answer:
                return seen, answer.status

    seen, status = asyncio.run(story())
    assert 1 == len(set(seen[:4]))
    assert seen[0] != seen[4]
    assert 200 == status


def write(pair, certificate, key):
    """Both files, with a time that differs."""
    for path, text in ((pair.certificate, certificate), (pair.key, key)):
        path.write_bytes(text)
        os.utime(path, ns=(time.time_ns(), time.time_ns()))


def test_no_usable_certificate_at_the_start_is_said(authority, tmp_path):
    """
    Missing, or of two pairs: one line with the names of the files.
    """
    one, two = authority.issue("one", hosts=("a",)), authority.issue("two", hosts=("b",))
    for certificate, key in ((one.certificate, two.key), (tmp_path / "none.crt", one.key)):
        with pytest.raises(TlsError, match=certificate.name):
            reloading(certificate, key)


def test_bodies_are_bounded_and_three_megabytes_are_not_too_many():
    """
    3 MB of names are answered; more than the bound is 413, announced or not.
    """

    async def story():
        async with doors() as (session, url, _):
            names = [f"node-{i:06d}.some.rather.long.domain.example" for i in range(49_000)]
            large = args(pod("u"), *names) + b" " * 1_000_000
            async with session.post(f"{url}/extender/filter", data=large) as answer:
                first = answer.status, len(large), json.loads(await answer.text())
            async with session.post(f"{url}/extender/filter", data=b"x" * (extender_api.MAX_BYTES + 1)) as answer:
                second = answer.status

            async def chunks():
                for _ in range(9):
                    yield b"x" * (1 << 20)

            async with session.post(f"{url}/extender/filter", data=chunks()) as answer:
                return first, second, answer.status

    first, second, third = asyncio.run(story())
    assert 200 == first[0]
    assert 3_000_000 < first[1]
    assert 49_000 == len(first[2]["FailedNodes"]) + len(first[2]["FailedAndUnresolvableNodes"])
    assert (413, 413) == (second, third)


@pytest.mark.parametrize("verb", ["filter", "shortlist", "bind", "prioritize", "preempt"])
def test_garbage_over_http_is_never_a_500(verb):
    """
    An answer of the protocol where it has room for an error, else 400.
    """

    async def story():
        async with doors() as (session, url, _), session.post(f"{url}/extender/{verb}", data=b"\xff{") as answer:
            return answer.status, await answer.read()

    status, body = asyncio.run(story())
    assert status == (200 if verb in ("filter", "shortlist", "bind") else 400)
    assert b"cannot decode extender request" in body


def test_the_sidecar_has_no_admission_and_the_classic_paths_are_there():
    """
    Admission is the API server's business, over TLS; filter, bind, inspect and version answer as before.
    """

    async def story():
        metrics = Metrics()
        async with doors(metrics=metrics) as (session, url, _):
            found = []
            async with session.post(f"{url}/admit/pods", data=b"x") as answer:
                found.append(answer.status)
            async with session.post(f"{url}/gpushare-scheduler/filter", data=args(pod("u"), "a")) as answer:
                found.append(json.loads(await answer.text())["NodeNames"])
            async with session.get(f"{url}/gpushare-scheduler/inspect") as answer:
                found.append(await answer.text())
            async with session.get(f"{url}/gpushare-scheduler/version") as answer:
                found.append(json.loads(await answer.text()))
            return found, metrics.page().decode()

    found, page = asyncio.run(story())
    assert [404, ["a"], "None", {"version": "1.2.3"}] == found
    assert 'gpushare_scheduler_requests_total{outcome="fit",verb="filter"} 1.0' in page


def test_until_when_the_certificate_in_use_is_valid(authority):
    """
    Of the pair that is in force, whatever half a pair lies on the disk; of a chain the first to end; else not told.
    """
    pair = authority.issue("server", hosts=("127.0.0.1",))
    certificates = reloading(pair.certificate, pair.key)
    old = pair.certificate.read_bytes(), pair.key.read_bytes()
    first = x509.load_pem_x509_certificate(old[0]).not_valid_after_utc.timestamp()
    root = x509.load_pem_x509_certificate(authority.certificate.read_bytes()).not_valid_after_utc.timestamp()
    assert first == certificates.end

    write(pair, b"nothing", old[1])
    certificates.refresh()
    assert first == certificates.end

    write(pair, old[0] + authority.certificate.read_bytes(), old[1])
    certificates.refresh()
    assert min(first, root) == certificates.end
    assert None is first_end(b"")
    assert None is first_end(old[0] + b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def test_pages_take_a_tenth_of_the_time(monkeypatch):
    """
    Whoever scrapes without end gets the same page for ten times as long as it took.
    """
    now, read = [100.0], []
    monkeypatch.setattr(metrics_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    metrics = Metrics()

    def gauges():
        read.append(now[0])
        now[0] += 1.0
        return {}

    metrics.add_gauges(gauges)
    for now[0] in (100.0, 101.0, 110.9, 111.1, 120.0, 123.0):
        metrics.page()

    assert [100.0, 111.1, 123.0] == read
