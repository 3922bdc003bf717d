# SPDX-License-Identifier: Apache-2.0
"""Writes on a real API server: once, by UID, in time, and what was said about them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from e2e.apiclient import connected
from e2e.kubelets import Kubelets, share_pod, shared_node
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import ALLOCATION
from isolation.kube.access import Access, Deadlines
from isolation.kube.core.errors import UnreachableError
from isolation.kube.writes import Outcome, PodRef, Writer

PODS = "/api/v1/namespaces/default/pods"


@contextlib.asynccontextmanager
async def writing(plane, deadlines=None):
    """A client to look with and a writer to write with."""
    async with connected(plane) as client, Access(plane.kubeconfig, deadlines=deadlines) as access:
        yield client, Writer(access, "test")


def target_of(pod, uid=None):
    """What names this pod."""
    meta = pod["metadata"]
    return PodRef(meta["namespace"], meta["name"], uid or meta["uid"])


@contextlib.asynccontextmanager
async def waiting_pod(client, name):
    """A pod that no scheduler takes."""
    pod = await client.create(share_pod(name, schedulerName="nobody"))
    try:
        yield pod
    finally:
        await client.delete(f"{PODS}/{name}", force=True)


def test_a_binding_carries_node_and_records_in_one_write(plane):
    """
    The pod is bound and annotated; a second binding is refused, and so is one for a pod of the same name.
    """

    async def story():
        async with writing(plane) as (client, writer), waiting_pod(client, "bound") as pod:
            other = await writer.bind(target_of(pod, "another-uid"), "n1", {ALLOCATION: "x"})
            before = await writer.placed(target_of(pod))
            first = await writer.bind(target_of(pod), "n1", {ALLOCATION: "{}"})
            again = await writer.bind(target_of(pod), "n2", {ALLOCATION: "no"})
            after = await writer.placed(target_of(pod))
            nobody = await writer.bind(PodRef("default", "no-such", "u"), "n1", {})
            stranger = await writer.placed(target_of(pod, "another-uid"))
            return [a.outcome for a in (other, first, again, nobody)], before.node, after, stranger

    outcomes, before, after, stranger = asyncio.run(story())
    assert [Outcome.REFUSED, Outcome.DONE, Outcome.REFUSED, Outcome.GONE] == outcomes
    assert ("", "n1", "{}", None) == (before, after.node, after.annotations[ALLOCATION], stranger)


def test_resources_stated_in_a_nodes_status_are_counted_by_the_scheduler(plane):
    """
    A pod that asks for a plain resource waits until some node states it, capacity and allocatable alike.
    """

    async def story():
        node = shared_node("states", cards=0)
        async with writing(plane) as (client, writer), Kubelets(client, [node]).alive():
            pod = share_pod("plain", 0)
            pod["spec"]["containers"][0]["resources"] = {"limits": {"test.dev/plain": "3"}}
            await client.create(pod)
            answer = await writer.state_resources("states", {"test.dev/plain": 4})
            await client.until(lambda p: p["status"].get("phase") == "Running", f"{PODS}/plain")
            labelled = await writer.label_node("states", {"colour": "red", "kubernetes.io/hostname": None}, {"a": "b"})
            stated = await client.get("/api/v1/nodes/states")
            nobody = await writer.state_resources("no-such-node", {"test.dev/plain": 4})
            await client.delete(f"{PODS}/plain", force=True)
            return answer.outcome, labelled.outcome, nobody.outcome, stated

    answer, labelled, nobody, stated = asyncio.run(story())
    assert (Outcome.DONE, Outcome.DONE, Outcome.GONE) == (answer, labelled, nobody)
    assert "4" == stated["status"]["capacity"]["test.dev/plain"] == stated["status"]["allocatable"]["test.dev/plain"]
    assert {"colour": "red"} == stated["metadata"]["labels"] | {"colour": "red"}
    assert "kubernetes.io/hostname" not in stated["metadata"]["labels"]


def test_an_eviction_keeps_disruption_budgets(plane):
    """
    Blocked while the budget allows none, done when it does; only ever the pod of that UID.
    """

    async def story():
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "kept"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "kept"}}},
        }
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/kept"
        async with writing(plane) as (client, writer), Kubelets(client, [shared_node("evicts")]).alive():
            await client.create(budget)
            pod = share_pod("kept", nodeName="evicts")
            pod["metadata"]["labels"] = {"app": "kept"}
            made = await client.create(pod)
            await client.until(lambda p: p["status"].get("phase") == "Running", f"{PODS}/kept")
            await client.until(lambda b: b.get("status", {}).get("observedGeneration"), path)
            blocked = await writer.evict(target_of(made))
            await client.delete(path)
            other = await writer.evict(target_of(made, "another-uid"))
            stays = "deletionTimestamp" not in (await client.get(f"{PODS}/kept"))["metadata"]
            done = await writer.evict(target_of(made))
            await client.until(lambda pods: not pods["items"], PODS, labelSelector="app=kept")
            gone = await writer.evict(target_of(made))
            return [a.outcome for a in (blocked, done, gone)], other.outcome, stays, blocked.said

    outcomes, other, stays, said = asyncio.run(story())
    assert [Outcome.BLOCKED, Outcome.DONE, Outcome.GONE] == outcomes
    assert (Outcome.REFUSED, True) == (other, stays)
    assert "budget" in said


def test_an_event_is_found_at_its_pod(plane):
    """
    With reason and note, the note cut to what the API takes.
    """

    async def story():
        async with writing(plane) as (client, writer), waiting_pod(client, "told") as pod:
            answer = await writer.event(target_of(pod), "CardChosen", "é" * 5000, warning=True)
            uid = pod["metadata"]["uid"]
            path = "/api/v1/namespaces/default/events"
            found = await client.until(lambda e: e["items"], path, fieldSelector=f"involvedObject.uid={uid}")
            return answer.outcome, found["items"][0]

    outcome, event = asyncio.run(story())
    assert (Outcome.DONE, "CardChosen", "Warning") == (outcome, event["reason"], event["type"])
    assert 500 == len(event["message"])


def test_a_delete_names_its_uid(plane):
    """
    The successor of a pod with the same name is left alone.
    """

    async def story():
        async with writing(plane) as (client, writer), waiting_pod(client, "ended") as pod:
            return [(await writer.delete(target_of(pod, uid))).outcome for uid in ("another-uid", None, None)]

    assert [Outcome.REFUSED, Outcome.DONE, Outcome.GONE] == asyncio.run(story())


def test_no_write_outlives_its_deadline(plane):
    """
    A frozen server: the caller knows after its own time that the outcome is unknown, and can ask when it is back.
    """

    async def story():
        async with writing(plane, Deadlines(write=1.0)) as (client, writer), waiting_pod(client, "late") as pod:
            plane.freeze("kube-apiserver")
            try:  # the server answers nobody until it is thawed: without a deadline these would not come back
                for seconds in (None, 0.3, 0.0):
                    with pytest.raises(UnreachableError):
                        await writer.bind(target_of(pod), "n1", {}, seconds)
                async with writing(plane, Deadlines(write=3600.0)) as (_, patient):
                    with pytest.raises(UnreachableError):
                        await patient.bind(target_of(pod), "n1", {}, 0.3)
            finally:
                plane.thaw("kube-apiserver")
            async with writing(plane, Deadlines(write=PATIENCE_SECONDS)) as (_, patient):
                while True:  # what the server had received before it was frozen may be done between two reads
                    before = await client.get(f"{PODS}/late")
                    placed = await patient.placed(target_of(pod))
                    after = await client.get(f"{PODS}/late")
                    if before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]:
                        return after["spec"].get("nodeName", ""), placed.node

    found, placed = asyncio.run(story())
    assert found == placed
