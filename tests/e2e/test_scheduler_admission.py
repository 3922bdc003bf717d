# SPDX-License-Identifier: Apache-2.0
"""Admission as our process serves it: pods as people write them, and no gap when the leader dies."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from e2e.admission_harness import Stand, _installed, tried, until_tried
from e2e.apiclient import connected
from e2e.kubelets import Kubelets, share_pod
from e2e.sharing import PODS, card_node, cards_of, clear, prepare, replica, scheduler_file, untainted, workload
from support.ports import free_port
from support.waiting import soon

from isolation.contract.names import SCHEDULER, SHARED
from isolation.scheduler.admission.core.webhook import SCHEDULER_ACCOUNT
from isolation.scheduler.admission.objects import build_objects


def door(plane, port):
    """Options of a replica that serves admission on this port."""
    pair = plane.serving_pair("webhook", ("127.0.0.1",))
    return f"--admission-listen=127.0.0.1:{port}", f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}"


@contextlib.asynccontextmanager
async def hooked(plane, client, port):
    """The webhook as it is installed, reached at this port, in force."""
    stand = Stand(plane)
    stand.port = port
    async with _installed(client, [stand.reached_here(thing) for thing in build_objects("webhooks.yaml")]):
        await until_tried(client, share_pod("probe", hostPID=True), "hostPID")
        yield
    await until_tried(client, share_pod("probe", units=3, cards=2), "")


def test_pods_as_people_write_them_are_admitted_placed_and_run(plane, tmp_path):
    """
    No schedulerName, no label of ours: admission adds them, our kube-scheduler binds; what makes no sense is refused
    with a sentence, and a pod without shares is the stock scheduler's.
    """
    port = free_port()

    async def story():
        async with connected(plane) as client, Kubelets(client, [card_node("admits")]).alive():
            await prepare(client)
            await untainted(client)
            account = plane.kubeconfig_for(
                SCHEDULER_ACCOUNT, ("system:masters",)
            )  # records are written by our account alone
            with replica(plane, tmp_path, "one", account) as ours:
                ours.start(*door(plane, port))
                plane.add_scheduler("kube-scheduler-ours", scheduler_file(plane, tmp_path, ours.sidecar))
                try:
                    await ours.leads()
                    async with hooked(plane, client, port):
                        refused = await tried(client, share_pod("odd", units=7, cards=2))
                        # Nothing is refused for its size before the nodes are known
                        await until_tried(client, share_pod("large", units=16), "16")
                        await client.create(workload("Deployment", "plain", 1, share_pod("x", units=0)))
                        await client.create(
                            workload("StatefulSet", "seed", 1, share_pod("x", 8, 4), serviceName="seed")
                        )
                        pods = await client.until(
                            lambda p: [one["status"].get("phase") for one in p["items"]] == ["Running"] * 2, PODS
                        )
                        return refused, {p["metadata"]["labels"]["app"]: p for p in pods["items"]}
                finally:
                    plane.kill("kube-scheduler-ours")
                    await clear(client)

    refused, pods = asyncio.run(story())
    assert "7" in refused
    assert "2 cards" in refused
    assert (SCHEDULER, "true") == (pods["seed"]["spec"]["schedulerName"], pods["seed"]["metadata"]["labels"][SHARED])
    assert 4 == len(cards_of(pods["seed"]))
    assert "default-scheduler" == pods["plain"]["spec"]["schedulerName"]


def test_no_gap_in_admission_when_the_leader_is_killed(plane, tmp_path):
    """
    All replicas answer: behind one address, a pod with shares is admitted all the time.
    """
    ports, lines = [free_port(), free_port()], set()

    async def forward(reader, writer):
        """To the first replica that takes the connection, as a Service does with endpoints that are ready."""
        lines.add(writer)
        for port in ports:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)
                back.close()
                break
        lines.discard(writer)
        writer.close()

    async def pump(source, sink):
        while chunk := await source.read(1 << 16):
            sink.write(chunk)
            await sink.drain()
        sink.write_eof()  # and on to the answer: a line is gone once both sides have ended it

    async def story():
        balancer = await asyncio.start_server(forward, "127.0.0.1", 0)
        front = balancer.sockets[0].getsockname()[1]
        async with connected(plane) as client:
            await prepare(client)
            with replica(plane, tmp_path, "one") as one, replica(plane, tmp_path, "two") as two:
                one.start(*door(plane, ports[0]))
                await one.leads()
                two.start(*door(plane, ports[1]))
                await two.answers("/readyz")
                async with hooked(plane, client, front):
                    said = []
                    for i in range(60):
                        if i == 20:
                            one.end(signal.SIGKILL)
                            # its idle lines end: a question that the API server puts on one of them dies with it
                            await soon(lambda: not lines)
                        said.append(await tried(client, share_pod(f"gap-{i}", units=2)))
                    await two.leads()
            balancer.close()
            return said

    assert [""] * 60 == asyncio.run(story())
