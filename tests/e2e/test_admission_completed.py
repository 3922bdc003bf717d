# SPDX-License-Identifier: Apache-2.0
"""What our admission webhook admits, in a real API server: completed, told of, or left alone."""

from __future__ import annotations

import asyncio
import dataclasses

from e2e.admission_harness import PODS, Stand, policed, tried, until_tried, webhooked
from e2e.apiclient import connected
from e2e.webhook_stories import answer, asking, path_of
from support.admission_cases import GOOD
from support.admission_pods import (
    COUNT,
    MEM,
    SHARED,
    TEMPLATED,
    amount,
    annotated,
    good,
    labelled,
    plain,
    pod,
    spec,
    template_of,
    workload,
)
from support.builders import node

from isolation.scheduler.admission.core.node_sizes import measure_nodes


def test_good_pods_are_admitted_and_completed(plane):
    """
    Scheduler, label and affinity are there, and a second pass over the result adds nothing.
    """

    async def story(client, _stand):
        found = {}
        for name, change in GOOD:
            made = await client.call("POST", PODS, good(change), dryRun="All")
            again = {key: made[key] for key in ("apiVersion", "kind", "spec")}
            again["metadata"] = {key: made["metadata"][key] for key in ("name", "labels")}
            found[name] = made, await client.call("POST", PODS, again, dryRun="All")
        return found

    for made, again in asking(plane, story).values():
        assert ("gpushare-scheduler", "true") == (made["spec"]["schedulerName"], made["metadata"]["labels"][SHARED])
        required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert "gpushare.dev/card-units" == required["nodeSelectorTerms"][0]["matchExpressions"][0]["key"]
        assert (made["spec"]["affinity"], made["metadata"]["labels"]) == (
            again["spec"]["affinity"],
            again["metadata"]["labels"],
        )


def test_webhook_and_policies_agree_on_what_is_good(plane):
    """
    With both in force, whatever the webhook completes passes the policies.
    """

    async def story(client, _stand):
        async with policed(client):
            pods = {name: await tried(client, good(change)) for name, change in GOOD}
            kinds = {
                kind: await tried(client, workload(kind, pod("8"), labels={COUNT: "4"}), path_of(kind))
                for kind in TEMPLATED
            }
            return pods | kinds

    assert {} == {name: text for name, text in asking(plane, story).items() if text}


def test_a_count_on_the_workload_reaches_its_pods(plane):
    """
    The stored template has it, and so has the pod that its controller makes.
    """

    async def story(client, _stand):
        made = workload("StatefulSet", pod("8"), "seed", labels={COUNT: "4"})
        made["spec"] |= {"replicas": 1, "serviceName": "seed"}
        kept = await client.call("POST", path_of("StatefulSet"), made)
        try:
            found = await client.until(lambda one: one["spec"].get("schedulerName"), f"{PODS}/seed-0")
        finally:
            await client.delete(f"{path_of('StatefulSet')}/seed")
            await client.delete(f"{PODS}/seed-0", force=True)
        return template_of(kept)["metadata"]["labels"][COUNT], found

    count, found = asking(plane, story)
    required = found["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    needs = {need["key"]: need["values"] for need in required["nodeSelectorTerms"][0]["matchExpressions"]}
    assert ("4", "4") == (count, found["metadata"]["labels"][COUNT])
    assert {"gpushare.dev/card-units": ["1"], "gpushare.dev/card-count": ["3"]} == needs


def test_what_no_node_can_hold_is_reported_at_once(plane):
    """
    Refused where the fleet is what it is, a warning header where it may grow.
    """

    async def story(client, stand):
        fleet = measure_nodes([node(cards=4, size=15)])
        stand.world = dataclasses.replace(stand.world, fleet=fleet)
        large = good(amount(MEM, "20"))
        many = good(labelled(COUNT, "5", amount(MEM, "5")))
        refused = [await tried(client, made) for made in (large, many)]
        stand.world = dataclasses.replace(stand.world, fleet=dataclasses.replace(fleet, may_grow=True))
        async with client._session.post(PODS, json=large, params={"dryRun": "All"}) as got:
            return refused, got.status, got.headers.getall("Warning", [])

    refused, status, warnings = asking(plane, story)
    assert "but the largest card offers 15" in refused[0]
    assert "the largest node has 4" in refused[1]
    assert (201, True) == (status, any("the pod remains pending for now" in text for text in warnings))


def test_what_is_no_pod_at_all_is_refused_in_the_api_servers_own_words(plane):
    """
    Webhooks and policies are asked about objects without containers too, and stay out of it.
    """

    async def story(client, _stand):
        async with policed(client):
            empty = {kind: workload(kind, pod()) for kind in TEMPLATED}
            for made in empty.values():
                template_of(made)["spec"].pop("containers")
            said = {kind: await tried(client, made, path_of(kind)) for kind, made in empty.items()}
            made = pod()
            made["spec"]["containers"] = None
            return said | {"Pod": await tried(client, made)}

    said = asking(plane, story)
    assert {} == {kind: text for kind, text in said.items() if "containers: Required value" not in text}


def test_a_template_from_before_us_can_still_be_scaled_and_deleted(plane):
    """
    Only a changed template is judged again.
    """

    async def story():
        async with connected(plane) as client:
            path = f"{path_of('Deployment')}/old"
            await client.call("POST", path_of("Deployment"), workload("Deployment", good(spec(hostPID=True)), "old"))
            async with webhooked(client, Stand(plane)):
                said = [
                    await answer(client.merge(path, {"spec": {"paused": True}})),
                    await answer(client.merge(path, {"metadata": {"annotations": {"a": "b"}}})),
                    await answer(client.merge(path, {"spec": {"template": {"spec": {"hostIPC": True}}}})),
                    await answer(client.merge(path, {"spec": {"template": {"spec": {"hostPID": False}}}})),
                ]
            await client.delete(path)
            await until_tried(client, plain(annotated("a")), "")
            return said

    said = asyncio.run(story())
    assert ["", "", True, ""] == [said[0], said[1], "hostPID exposes" in said[2], said[3]]
