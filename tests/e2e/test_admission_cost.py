# SPDX-License-Identifier: Apache-2.0
"""What our rules cost the API server for pods that are none of our business, and where pods with shares are bounded."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest
from e2e.admission_harness import PODS, Stand, policed, tried, webhooked
from e2e.apiclient import RefusedError, connected
from e2e.webhook_stories import stored
from support.admission_pods import admitted, good, plain

from isolation.contract.cluster_autoscaler_annotations import HANDOVER
from isolation.scheduler.admission.core.pod_security import MAX_ANNOTATIONS
from isolation.scheduler.admission.objects import build_objects

AUTOSCALER = "system:serviceaccount:gpushare-system:gpushare-autoscaler"
HARMLESS = good(dict.keys)
KEYS = 60_000
"""Of up to four letters and without a value: 220 KB, near the 256 KiB that the API server allows."""


def many(count: int, first: int = 0) -> dict:
    """So many annotations, as a patch."""
    letters = itertools.islice(itertools.product("abcdefghijklmnop", repeat=4), first, first + count)
    return {"metadata": {"annotations": {"".join(word): "" for word in letters}}}


@pytest.mark.parametrize("leg", ["policies", "webhook"])
def test_any_number_of_annotations_on_a_pod_without_shares_is_let_pass(plane, leg):
    """
    Through its status, as any tenant can: walked over, they exceeded the budget of a rule, and such a pod could not
    even end. It is changed, and deleted, as if we were not there.
    """

    async def story():
        async with connected(plane) as client, in_force(client, leg, plane), stored(client, plain()) as made:
            path = f"{PODS}/{made['metadata']['name']}"
            await client.merge(f"{path}/status", many(KEYS))
            found = await client.get(path)
            await client.delete(path)
            return len(found["metadata"]["annotations"])

    assert KEYS == asyncio.run(story())


@pytest.mark.parametrize("leg", ["policies", "webhook"])
def test_a_pod_with_shares_has_a_bounded_number(plane, leg):
    """
    Made with more it is refused; an update may bring it to the bound and not beyond; one that is being deleted passes.
    """

    async def story():
        async with connected(plane) as client, in_force(client, leg, plane):
            made = await tried(
                client, admitted(good(lambda pod: pod["metadata"].update(many(MAX_ANNOTATIONS + 1)["metadata"])))
            )
            kept = good(lambda pod: pod["metadata"].update(finalizers=["test.dev/kept"]))
            async with stored(client, admitted(kept)) as there:
                path = f"{PODS}/{there['metadata']['name']}"
                has = len(there["metadata"].get("annotations", {}))
                await client.merge(f"{path}/status", many(MAX_ANNOTATIONS - has))
                with pytest.raises(RefusedError) as beyond:
                    await client.merge(f"{path}/status", many(1, first=MAX_ANNOTATIONS))
                await client.delete(path)
                await client.merge(f"{path}/status", many(KEYS, first=MAX_ANNOTATIONS))
                await client.merge(path, {"metadata": {"finalizers": None}})
            return made, str(beyond.value)

    for said in asyncio.run(story()):
        assert f"at most {MAX_ANNOTATIONS}" in said


@pytest.mark.parametrize("leg", ["policies", "webhook"])
def test_a_full_pod_with_our_annotations_is_still_looked_at(plane, leg):
    """
    The autoscaler's come on top of as many as an owner may have; the rule about runtimes is asked all the same.
    """
    kind = {"Content-Type": "application/merge-patch+json"}
    headers = kind | {"Impersonate-User": AUTOSCALER, "Impersonate-Group": "system:masters"}

    async def story():
        async with (
            connected(plane) as client,
            in_force(client, leg, plane),
            stored(client, admitted(HARMLESS)) as there,
        ):
            path = f"{PODS}/{there['metadata']['name']}"
            await client.merge(path, many(MAX_ANNOTATIONS - len(there["metadata"].get("annotations", {}))))
            ours = {"metadata": {"annotations": dict.fromkeys(HANDOVER, "x")}}
            async with client._session.patch(f"{path}/status", json=ours, headers=headers) as answer:
                full = len((await answer.json())["metadata"]["annotations"])
            gone = next(iter(many(1)["metadata"]["annotations"]))
            swapped = {"metadata": {"annotations": {gone: None, "cdi.k8s.io/gpu": "nvidia.com/gpu=all"}}}
            with pytest.raises(RefusedError) as refused:
                await client.merge(path, swapped)
            return full, str(refused.value)

    full, said = asyncio.run(story())
    assert MAX_ANNOTATIONS + len(HANDOVER) == full
    assert "cdi.k8s.io" in said or "runtime" in said


LOOKED = re.compile(r'(?m)^(apiserver_admission_match_condition_evaluation_seconds_count{.*name="([^"]+)".*}) (\d+)')
"""Whose conditions were asked and false, by the API server's own metric."""
ABOUT_UPDATES = {
    one.get("name") or one["metadata"]["name"]
    for one in [*build_objects("policies.yaml"), *build_objects("webhooks.yaml")[0]["webhooks"]]
    for rule in one.get("rules") or one["spec"].get("matchConstraints", {}).get("resourceRules", ())
    if "pods/status" in rule["resources"]
}
"""Events, Leases and nodes are written meanwhile."""


def test_updates_of_other_pods_are_looked_at_by_one_policy_alone(plane):
    """
    A label rules out every other policy and webhook of ours before anything is evaluated; the one left has to know
    the user.
    """

    async def looked(client, what):
        before = await asked(client)
        await what
        return {name for (_, name, _) in await asked(client) - before} & ABOUT_UPDATES

    async def asked(client):
        return set(LOOKED.findall(await client.get("/metrics")))

    async def story():
        stand = patient(Stand(plane))
        async with connected(plane) as client, webhooked(client, stand), policed(client):
            async with stored(client, admitted(good(lambda _: None))) as ours:
                shares = await looked(client, client.merge(f"{PODS}/{ours['metadata']['name']}/status", many(1)))
            async with stored(client, plain()) as made:
                others = await looked(client, client.merge(f"{PODS}/{made['metadata']['name']}/status", many(1)))
            return shares, others

    shares, others = asyncio.run(story())
    assert {"gpushare-scheduler-pods", "updates.gpushare.dev"} <= shares
    assert others <= {"gpushare-scheduler-pods"}


def in_force(client, leg, plane):
    """Policies alone, or the webhook."""
    return policed(client) if leg == "policies" else webhooked(client, patient(Stand(plane)))


def patient(stand):
    """A webhook that a busy machine does not make late."""
    stand.timeout_seconds = 30
    return stand
