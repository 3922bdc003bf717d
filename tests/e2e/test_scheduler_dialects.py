# SPDX-License-Identifier: Apache-2.0
"""Pods of other systems in front of two replicas, killed with requests in their hands: none gets in as it came."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import random
import signal
from pathlib import Path

from e2e.admission_harness import Stand, _installed, policed, until_tried
from e2e.apiclient import RefusedError, connected
from e2e.sharing import PODS, card_node, clear, prepare, replica
from e2e.test_scheduler_admission import door
from support.dialect_pods import CASES, hami
from support.ports import free_port

from isolation.contract.codec import request_of
from isolation.contract.dialects import SYSTEMS
from isolation.contract.model import Request
from isolation.contract.names import CORE_STEPS, SCHEDULER, SHARED
from isolation.contract.quantity import GIB
from isolation.scheduler.admission.core.serving import parse_serving
from isolation.scheduler.admission.objects import build_objects

EVERY = parse_serving(",".join(CORE_STEPS))
FOREIGN = {name for one in SYSTEMS.values() for name in (*one.resources, *one.annotations)}
KILLS = 3
AT_ONCE = 6
PER_KILL = 40
TIMEOUT_SECONDS = 5
"""Of the webhook: a request that lies with a frozen replica is refused after this."""


class Front:
    """One address for both replicas, each of which gets every other connection, as long as it takes one."""

    def __init__(self, ports):
        self.ports, self.turn = ports, 0

    async def forward(self, reader, writer):
        """A connection to the next replica that is there."""
        self.turn += 1
        for port in (self.ports[self.turn % 2], self.ports[(self.turn + 1) % 2]):
            try:
                there, back = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            await asyncio.gather(self.pump(reader, back), self.pump(there, writer), return_exceptions=True)
            break
        writer.close()

    async def pump(self, source, sink):
        """Until one end closes."""
        try:
            while chunk := await source.read(1 << 16):
                sink.write(chunk)
                await sink.drain()
        finally:
            sink.close()


NODES = (
    card_node("d-share", mode="share", **{"gpushare.dev/time-slices": "4"}),
    card_node("d-core", mode="core_mem", **{"gpushare.dev/compute-policy": "priority"}),
)


def mixture(draw):
    """Two pods in one: amounts of both in one container, annotations and scheduler of both."""
    made, other = (copy.deepcopy(CASES[draw.choice(sorted(CASES))][0]) for _ in range(2))
    mine, theirs = (pod["spec"]["containers"][0].setdefault("resources", {}) for pod in (made, other))
    if draw.random() < 0.3:
        theirs = {part: {"aliyun.com/gpu-mem": "1"} for part in ("limits", "requests")}
    if draw.random() < 0.3:
        extra = {"name": "extra", "image": "none", "resources": theirs}
        made["spec"].setdefault(draw.choice(["containers", "initContainers"]), []).append(extra)
    else:
        for part in ("limits", "requests"):
            mine.setdefault(part, {}).update(theirs.get(part, {}))
    if notes := other["metadata"].get("annotations"):
        made["metadata"].setdefault("annotations", {}).update(notes)
    return made


def wrong_in(pod):
    """What a stored pod has that it should not have; empty: nothing."""
    boxes = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    names = {name for box in boxes for part in box.get("resources", {}).values() for name in part}
    wrong = FOREIGN & (names | pod["metadata"].get("annotations", {}).keys())
    asked = request_of(pod["metadata"], pod["spec"])
    if not isinstance(asked, Request) or (asked.shared and pod["metadata"]["labels"].get(SHARED) != "true"):
        wrong.add(f"asks {asked}")
    if isinstance(asked, Request) and asked.shared and pod["spec"]["schedulerName"] != SCHEDULER:
        wrong.add(pod["spec"]["schedulerName"])
    return wrong


def read(pod):
    """What it asks of its cards."""
    asked = request_of(pod["metadata"], pod["spec"])
    return asked.cards, asked.card_bytes // GIB, asked.card_core, asked.whole


def freeze(pid):
    """A replica, with the process that answers reviews: its PID."""
    [admission] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    for one in (pid, admission):
        os.kill(one, signal.SIGSTOP)
    return admission


class Crowd:
    """Pods that are created for good, several at once; what became of each."""

    def __init__(self, client, draw):
        self.client, self.draw, self.gate = client, draw, asyncio.Semaphore(AT_ONCE)
        self.expected, self.stored, self.refused = {}, set(), {}

    async def come(self, kill):
        """Three of four as their systems mean them, one of four a mixture of two."""
        await asyncio.gather(*(self._make(f"p-{kill}-{i}", mixed=i % 4 == 3) for i in range(PER_KILL)))

    def cut(self):
        """Requests that a replica had in its hands when it was killed."""
        return [text for text in self.refused.values() if "failed calling webhook" in text]

    async def _make(self, name, *, mixed):
        async with self.gate:
            form = self.draw.choice(sorted(CASES))
            made = mixture(self.draw) if mixed else copy.deepcopy(CASES[form][0])
            made["metadata"]["name"] = name
            if not mixed:
                self.expected[name] = CASES[form][1]
            try:
                await self.client.call("POST", PODS, made)
            except RefusedError as exc:
                self.refused[name] = str(exc)
            else:
                self.stored.add(name)


@contextlib.asynccontextmanager
async def two_replicas(plane, folder, client):
    """Behind one address, with all dialects on, webhook and policies; yields a function that starts and both."""
    front = Front([free_port(), free_port()])
    balancer = await asyncio.start_server(front.forward, "127.0.0.1", 0)
    stand = Stand(plane)
    stand.port, stand.timeout_seconds = balancer.sockets[0].getsockname()[1], TIMEOUT_SECONDS
    with replica(plane, folder, "one") as one, replica(plane, folder, "two") as two:
        both = (one, two)

        async def start(number):
            both[number].start(*door(plane, front.ports[number]), f"--dialects={','.join(CORE_STEPS)}")
            await both[number].answers("/readyz")

        await start(0)
        await start(1)
        hooks = [stand.reached_here(one) for one in build_objects("webhooks.yaml", systems=EVERY)]
        async with policed(client, EVERY), _installed(client, hooks):
            await until_tried(client, hami(), "")
            try:
                yield both, start
            finally:
                await clear(client)
                balancer.close()


def test_two_replicas_that_are_killed_in_turn_let_no_foreign_pod_in(plane, tmp_path):
    """
    Frozen with requests in its hands, then killed, and started again: whatever is stored asks in our words alone, as
    its own system means it, and mixtures of systems are refused; nearly all others get in.
    """
    draw = random.Random(22)  # noqa: S311 (no secret)

    async def story():
        async with connected(plane) as client:
            await prepare(client)
            for node in NODES:
                await client.create(node)
            crowd = Crowd(client, draw)
            async with two_replicas(plane, tmp_path, client) as (both, start):
                for kill in range(KILLS):
                    coming = asyncio.create_task(crowd.come(kill))
                    await asyncio.sleep(draw.uniform(0.0, 0.2))
                    admission = freeze(both[kill % 2].pid)
                    await asyncio.sleep(0.5)
                    os.kill(admission, signal.SIGKILL)
                    both[kill % 2].end(signal.SIGKILL)
                    await start(kill % 2)
                    await coming
                pods = (await client.get(PODS))["items"]
            for node in NODES:
                await client.delete(f"/api/v1/nodes/{node['metadata']['name']}")
            return crowd, {pod["metadata"]["name"]: pod for pod in pods}

    crowd, pods = asyncio.run(story())
    assert {} == {name: wrong for name, pod in pods.items() if (wrong := wrong_in(pod))}
    assert {} == {
        name: read(pods[name]) for name, asked in crowd.expected.items() if name in pods and asked != read(pods[name])
    }
    assert pods.keys() == crowd.stored
    assert len(crowd.stored) > 0.8 * len(crowd.expected)
    assert crowd.cut(), "no request was in a replica's hands when it was killed"
