# SPDX-License-Identifier: Apache-2.0
"""The admission process: judged apart from the scheduler, bounded against strangers, started again when it dies."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import ssl
import time
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest
from e2e.certificates import Authority
from support import strangers
from support.admission_pods import pod
from support.dialect_pods import hami
from support.old_sessions import resumed
from support.scheduler_endpoints import node
from support.scheduler_endpoints import pod as stored
from support.waiting import soon

from isolation.contract.metrics import scheduler as catalogue
from isolation.contract.quantity import GIB
from isolation.kube.options import Address
from isolation.kube.store import Store
from isolation.scheduler.admission.core.serving import parse_serving
from isolation.scheduler.admission.core.webhook_configuration import TIMEOUT_SECONDS
from isolation.scheduler.admission.supervise import SILENT_SECONDS, AdmissionProcess, ClusterFeed
from isolation.scheduler.http_server import open_listener
from isolation.scheduler.metrics import Metrics
from isolation.scheduler.settings import SchedulerSettings

HERE = Address("127.0.0.1", 0)
MAX_RESIDENT_BYTES = 300 << 20
COUNTED = 'gpushare_scheduler_requests_total{outcome="done",verb="admission"}'


@pytest.fixture
def authority(tmp_path):
    """Signs for servers and clients."""
    return Authority(tmp_path, "ca")


class Picture:
    """As far as admission looks at it."""

    def __init__(self):
        self.store, self.lacking = Store(unit_bytes=GIB), "nodes"
        self.pools = self.right_sizing = SimpleNamespace(text="")

    def missing(self):
        """As the test says."""
        return self.lacking


@contextlib.asynccontextmanager
async def admission(authority, **settings):
    """A process that serves; the supervisor, its port, what it knows the cluster by, and its metrics."""
    pair = authority.issue("server", hosts=("127.0.0.1",))
    informers, metrics = Picture(), Metrics()
    chosen = SchedulerSettings(certificate=pair.certificate, key=pair.key, **settings)
    sock = open_listener(HERE)
    feed = ClusterFeed(informers, may_grow=False, foreign=bool(chosen.systems.on))
    made = AdmissionProcess(chosen, feed, sock, metrics)
    running = asyncio.create_task(made.run())
    try:
        await soon(lambda: not made.problem())
        yield SimpleNamespace(it=made, feed=feed, port=sock.getsockname()[1], informers=informers, metrics=metrics)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def trusting(authority, pair=None):
    """What a caller brings along."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if pair:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def question(thing=None, **request):
    """A review."""
    body = {"uid": "u-1", "operation": "CREATE", "namespace": "default", "userInfo": {"username": "x"}}
    body |= {"resource": {"group": "", "version": "v1", "resource": "pods"}, "object": thing or pod()} | request
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body}).encode()


BINDING = question(
    {"metadata": {"name": "pod-u"}},
    name="pod-u",
    resource={"group": "", "version": "v1", "resource": "pods"},
    subResource="binding",
)
QUESTIONS = (BINDING, question(pod("99")), question())


async def ask(session, port, body, context):
    """The response of a review."""
    async with session.post(f"https://127.0.0.1:{port}/admit/pods", data=body, ssl=context) as answer:
        assert 200 == answer.status, await answer.text()
        return json.loads(await answer.read())["response"]


def raw(thing):
    """As the watch brings it."""
    return msgspec.Raw(json.dumps(thing).encode())


def test_it_translates_by_the_nodes_and_owners_that_the_scheduler_has_read(authority):
    """
    A percentage of a card once a node is known, and no pod of a dialect whose own system turns up.
    """
    percent = question(hami(**{"gpumem": None, "gpumem-percentage": "50", "gpucores": None}))

    async def story():
        said = []
        systems = parse_serving("ack,hami")
        async with admission(authority, systems=systems) as made, aiohttp.ClientSession() as session:

            async def until(allowed):
                async def is_so():
                    said[:] = [await ask(session, made.port, percent, trusting(authority))]
                    return said[0]["allowed"] == allowed

                await soon(is_so)
                return said[0]

            unknown = await until(allowed=False)
            made.informers.store.node_is(raw(node("a")))
            made.informers.lacking = ""
            made.feed.changed.set()
            patch = json.loads(base64.b64decode((await until(allowed=True))["patch"]))
            made.feed.set_owned({"hami": "vgpu.hami.io"})
            return unknown, patch, await until(allowed=False)

    unknown, patch, owned = asyncio.run(story())
    assert "not known yet" in unknown["status"]["message"]
    assert any(change["path"] == "/spec/containers/0/resources/limits/aliyun.com~1gpu-mem" for change in patch)
    assert "vgpu.hami.io" in owned["status"]["message"]


def test_it_judges_by_what_the_scheduler_has_read(authority):
    """
    Before the scheduler has read the cluster no pod is known to have no shares; then what the watch says decides, about
    pods and about nodes, and a process that was started again knows it all.
    """

    async def story():
        async with admission(authority) as made, aiohttp.ClientSession() as session:
            said, store = [], made.informers.store

            async def until(body, *, allowed):
                async def is_so():
                    said[1:] = [await ask(session, made.port, body, trusting(authority))]
                    return said[1]["allowed"] == allowed

                await soon(is_so)
                return said[1]

            said.append(await ask(session, made.port, BINDING, trusting(authority)))
            made.informers.lacking = ""
            await until(BINDING, allowed=True)
            await until(question(pod("99")), allowed=True)
            store.node_is(raw(node("a")))
            small = await until(question(pod("99")), allowed=False)
            store.pod_is(raw(stored("u")))
            mine = await until(BINDING, allowed=False)
            os.kill(made.it.pid, signal.SIGKILL)
            await soon(lambda: made.it.rows()[catalogue.ADMISSION_RESTARTS][()] and not made.it.problem())
            again = [(await ask(session, made.port, one, trusting(authority)))["allowed"] for one in QUESTIONS]
            store.pod_gone("u")
            await until(BINDING, allowed=True)
            return said[0], small, mine, again

    first, small, mine, again = asyncio.run(story())
    assert "not known yet" in first["status"]["message"]
    assert "the largest card offers 15" in small["status"]["message"]
    assert "only gpushare-scheduler may bind it" in mine["status"]["message"]
    assert [False, False, True] == again


def test_a_process_that_dies_or_hangs_is_started_again(authority, caplog):
    """
    Questions that come meanwhile wait and are answered; readiness, metrics and log tell.
    """

    async def story():
        async with admission(authority) as made, aiohttp.ClientSession() as session:
            seen = []
            for kind in (signal.SIGKILL, signal.SIGSTOP):
                before = made.it.pid
                os.kill(before, kind)
                await soon(made.it.problem)
                seen.append(made.it.rows()[catalogue.ADMISSION_UP][()])
                assert (await ask(session, made.port, question(), trusting(authority)))["allowed"]
                await soon(lambda: not made.it.problem())
                assert before != made.it.pid
            await soon(lambda: COUNTED in made.metrics.page().decode() and not made.it.problem())
            return seen, made.it.rows(), made.metrics.page().decode()

    with caplog.at_level("INFO"):
        seen, rows, page = asyncio.run(story())
    assert [0.0, 0.0] == seen
    assert (2.0, 1.0) == (rows[catalogue.ADMISSION_RESTARTS][()], rows[catalogue.ADMISSION_UP][()])
    assert "restarting admission process: it ended with status -9: delay_seconds=0.1" in caplog.text
    assert f"restarting admission process: it has not reported for {SILENT_SECONDS:.0f} s" in caplog.text
    assert COUNTED in page
    assert 'gpushare_scheduler_request_duration_seconds_bucket{le="+Inf",verb="admission"}' in page


def test_it_ends_with_the_scheduler(authority):
    """
    Told to stop it ends by itself; so it does when the scheduler is gone.
    """

    async def story():
        async with admission(authority) as made:
            return made.it.pid

    pid = asyncio.run(story())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_with_an_authority_only_its_clients_may_ask(authority, tmp_path):
    """
    The API server shows its certificate; without one, or with a stranger's, the handshake fails.
    """
    friend = authority.issue("friend")
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "other").issue("stranger")

    async def story():
        hardened = admission(authority, admission_client_ca=authority.certificate)
        async with hardened as made, aiohttp.ClientSession() as session:
            assert (await ask(session, made.port, question(), trusting(authority, friend)))["allowed"]
            for pair in (None, stranger):
                with pytest.raises((aiohttp.ClientError, OSError)):
                    await ask(session, made.port, question(), trusting(authority, pair))

    asyncio.run(story())


async def late_of(session, authority, port, number):
    """Of honest reviews, each on a connection of its own: those late, or ended while we ourselves stood still."""
    late, stood_still = 0, 0.0

    async def beat():
        nonlocal stood_still
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            stood_still = max(stood_still, time.monotonic() - began - 0.01)

    beating = asyncio.create_task(beat())
    for _ in range(number):
        began, stood_still = time.monotonic(), 0.0
        try:
            assert (await ask(session, port, question(), trusting(authority)))["allowed"]
        except aiohttp.ClientError:
            await asyncio.sleep(0.02)  # a pause that has just ended is seen
            assert stood_still >= 0.1, "refused, though this process was run"
            late += 1
        else:
            late += time.monotonic() - began >= TIMEOUT_SECONDS
        await asyncio.sleep(0.05)
    beating.cancel()
    return late


@pytest.mark.parametrize("attack", strangers.ATTACKS)
def test_regular_reviews_are_answered_whatever_attackers_send(attack, authority):
    """
    Before the API server gives up, by the same process, which stays small. One in twenty may be this machine's own.
    """

    async def story():
        fresh = aiohttp.TCPConnector(force_close=True)
        async with admission(authority) as made, aiohttp.ClientSession(connector=fresh) as session:
            before = made.it.pid
            with strangers.attacking(attack, made.port):
                await soon(lambda: made.it.rows().get(catalogue.ADMISSION_CONNECTIONS, {()})[()] >= 4)
                late = await late_of(session, authority, made.port, 60)
            assert before == made.it.pid
            return late, peak(before)

    late, memory = asyncio.run(story())
    assert late <= 3
    assert memory < MAX_RESIDENT_BYTES


def peak(pid):
    """Of its resident memory, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def test_no_session_is_resumed(authority):
    """
    A ticket would let a caller in whose authority is no longer trusted.
    """

    async def story():
        async with admission(authority) as made:
            return await asyncio.to_thread(resumed, made.port, trusting(authority))

    assert not asyncio.run(story())
