# SPDX-License-Identifier: Apache-2.0
"""
`gpushare node` on a real control plane: what the node says of itself, and what the process costs.

The kubelet is the stand-in with a device manager; pods are bound by hand with records, as our scheduler does.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from e2e.kubelets import share_pod
from e2e.managed_node import MODE
from e2e.node_harness import CORE, COUNT, MEMORY, right, stage

from isolation.contract.metrics.node import CATALOGUE
from isolation.contract.names import AGENT, CARD_COUNT, CARD_UNITS, CARDS
from isolation.contract.quantity import GIB


def test_the_node_says_what_it_has(plane, tmp_path):
    """
    Cards, plain resources and labels; written again when they vanish; leaving is said before the kubelet hears it.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-says", mode="core_mem") as at:
            node = await at.ready()
            said = {name: node["status"]["allocatable"].get(name) for name in (MEMORY, COUNT, CORE)}
            labels = {name: node["metadata"]["labels"].get(name) for name in (CARD_UNITS, CARD_COUNT)}
            units = at.cards[0].allocatable_bytes // GIB
            await at.client.merge(
                f"{at.node.path}/status", {"status": {"capacity": {CORE: None}, "allocatable": {CORE: None}}}
            )
            await at.client.merge(at.node.path, {"metadata": {"annotations": {CARDS: None}}})
            healed = await at.client.until(
                lambda n: n["status"]["capacity"].get(CORE) == "200" and CARDS in n["metadata"]["annotations"],
                at.node.path,
            )
            status = await asyncio.to_thread(at.agent.stop)
            last = await at.client.get(at.node.path)
            status += await asyncio.to_thread(at.agent.end_device_plugin)
            left = await at.client.until(lambda n: n["status"]["allocatable"][MEMORY] == "0", at.node.path)
            assert ("stopping", str(2 * units)) == (
                last["metadata"]["annotations"][AGENT],
                last["status"]["allocatable"][MEMORY],
            )
            return (
                said,
                labels,
                units,
                healed["status"]["allocatable"][CORE],
                status,
                left["status"]["capacity"][MEMORY],
            )

    said, labels, units, healed, status, left = asyncio.run(story())
    assert {MEMORY: str(2 * units), COUNT: "2", CORE: "200"} == said
    assert {CARD_UNITS: str(units), CARD_COUNT: "2"} == labels
    assert ("200", 0, str(2 * units)) == (healed, status, left)
    assert units > 10


def test_a_second_agent_on_the_node_refuses(plane, tmp_path):
    """
    It says who works there.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-twice") as at:
            again = at.agent.again(tmp_path / "second.log")
            return await asyncio.to_thread(again.wait, 20), (tmp_path / "second.log").read_text(), at.agent.process.pid

    status, said, pid = asyncio.run(story())
    assert (1, True) == (status, f"another node agent (PID {pid})" in said)


def test_a_node_that_changes_its_mode_takes_nothing_from_those_who_run(plane, tmp_path):
    """
    Shares are offered no more, running pods go on with what they have; with the label back all is as before.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-mode") as at:
            pod = await at.running(await at.bind(share_pod("stays", 3), 0))
            await at.client.merge(at.node.path, {"metadata": {"labels": {MODE: "default"}}})
            await at.client.until(lambda n: n["status"]["allocatable"][MEMORY] == "3", at.node.path)
            changed = await at.client.until(lambda n: CARD_UNITS not in n["metadata"]["labels"], at.node.path)
            at.kubelet.crash(pod, "main")
            await at.until(lambda: pod.boxes["main"].starts == 2)
            right(at, pod, "main", (0,), 3)
            await at.client.merge(at.node.path, {"metadata": {"labels": {MODE: "cgpu"}}})
            await at.client.until(lambda n: int(n["status"]["allocatable"][MEMORY]) > 3, at.node.path)
            late = await at.running(await at.bind(share_pod("late", 3), 0))
            right(at, late, "main", (0,), 3)
            return changed["status"]["allocatable"][COUNT]

    assert "0" == asyncio.run(story())


def test_a_recreated_node_gets_everything_again(plane, tmp_path):
    """
    A deleted Node object comes back empty: cards, resources and labels are written again.
    """

    async def story():
        async with stage(plane, tmp_path, "agent-anew", mode="core_mem") as at:
            node = await at.client.get(at.node.path)
            await at.client.delete(at.node.path)
            fresh = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": at.node.name}}
            fresh["metadata"]["labels"] = {MODE: "core_mem"}
            await at.client.create(fresh)
            healed = await at.client.until(lambda n: n["status"].get("capacity", {}).get(CORE) == "200", at.node.path)
            healed = await at.client.until(lambda n: CARDS in n["metadata"].get("annotations", {}), at.node.path)
            return [one["metadata"]["annotations"][CARDS] for one in (node, healed)], healed["metadata"]["labels"]

    (before, after), labels = asyncio.run(story())
    assert (before, "2") == (after, labels[CARD_COUNT])


def test_an_agent_that_rests_costs_next_to_nothing(plane, tmp_path):
    """
    Ten looks a second at the kubelet's socket and a turn each second: below a twentieth of a processor.
    """

    def used(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def story():
        async with stage(plane, tmp_path, "agent-rests") as at:
            await at.running(await at.bind(share_pod("quiet", 2), 0))
            await asyncio.sleep(2)
            before, began = used(at.agent.process.pid), time.monotonic()
            await asyncio.sleep(5)
            share = (used(at.agent.process.pid) - before - 0.1) / (time.monotonic() - began)
            page = await asyncio.to_thread(at.agent.page)
            health = [await asyncio.to_thread(at.agent.page, path) for path in ("healthz", "readyz")]
            return share, page, health

    share, page, health = asyncio.run(story())
    assert share < 0.05
    assert ["ok\n", "ok\n"] == health
    assert {"gpushare_node_agent_ready 1.0", "gpushare_node_agent_allocations 1.0"} <= set(page.splitlines())
    assert all(spec.name in page for spec in CATALOGUE.values())
