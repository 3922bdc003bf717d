# SPDX-License-Identifier: Apache-2.0
"""Whatever strangers send to the admission port: pods are bound, reviews and probes answered, nothing starts again."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from e2e.apiclient import connected
from e2e.kubelets import Kubelets
from e2e.legitimate_clients import LegitimateClients
from e2e.sharing import card_node, clear, prepare, replica
from e2e.test_scheduler_admission import door
from support import strangers
from support.ports import free_port

from isolation.scheduler.admission.core.webhook_configuration import TIMEOUT_SECONDS

PODS = 40
ATTACK_SECONDS = 8
"""Before the first pod: the attack has filled what it can fill."""
NODE = "besieged"
MAX_RESIDENT_BYTES = 512 << 20
"""Of all processes of our container, whose limit is 1 GiB."""


def family(pid: int) -> dict[int, int]:
    """Peak of resident memory in bytes, by process: this one and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = {}
    for one in (pid, *map(int, children)):
        lines = Path(f"/proc/{one}/status").read_text().splitlines()
        found[one] = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    return found


@pytest.mark.parametrize("attack", ["half-sent", "lists-of-16MiB", "lists-of-6MiB", "large", "silent"])
def test_attackers_keep_nobody_waiting(attack, plane, tmp_path):
    """
    Answers come before the API server or the kubelet would give up, from the same processes, which stay small. One in
    twenty may be late: this machine ran nobody.
    """
    port = free_port()

    async def story():
        async with connected(plane) as client:
            await prepare(client)
            async with Kubelets(client, [card_node(NODE, 8, 80)]).alive():
                with replica(plane, tmp_path, "one") as ours:
                    ours.start(*door(plane, port))
                    try:
                        await ours.leads()
                        await ours.answers("/readyz")
                        before = set(family(ours.pid))
                        clients = LegitimateClients(ours, port, ssl.create_default_context(cafile=str(plane.ca)))
                        with strangers.attacking(attack, port):
                            await asyncio.sleep(ATTACK_SECONDS)
                            await clients.ask(client, attack.lower(), PODS, NODE)
                        return clients.seconds, before, family(ours.pid)
                    finally:
                        await clear(client)

    seconds, before, after = asyncio.run(story())
    assert {"filter": PODS, "bind": PODS, "review": PODS, "probe": PODS} == {k: len(v) for k, v in seconds.items()}
    late = {who: [each for each in took if each >= TIMEOUT_SECONDS] for who, took in seconds.items()}
    assert all(len(each) <= PODS // 20 for each in late.values()), late
    assert before == set(after)
    assert sum(after.values()) < MAX_RESIDENT_BYTES
