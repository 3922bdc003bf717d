"""Our admission webhook, asked by a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest
from admission_cases import (
    COUNT,
    FORGED,
    GOOD,
    MEM,
    REFUSED,
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
from builders import node
from e2e.admission_stand import PODS, Stand, policed, tried, until_tried, webhooked
from e2e.apiclient import RefusedError, connected

from isolation.scheduler.admission.fleet import fleet_of

BINDER = "system:serviceaccount:gpushare-system:gpushare-scheduler"


def path_of(kind: str) -> str:
    """Where objects of this kind are made."""
    version, plural = TEMPLATED[kind]
    return f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/default/{plural}"


def asking(plane, story):
    """What a story with the webhook in place returns."""

    async def told():
        async with connected(plane) as client, webhooked(client, Stand(plane)) as stand:
            return await story(client, stand)

    return asyncio.run(told())


@contextlib.asynccontextmanager
async def stored(client, made):
    """A pod that exists for a while."""
    kept = await client.call("POST", PODS, made)
    try:
        yield kept
    finally:
        await client.delete(f"{PODS}/{kept['metadata']['name']}", force=True)


async def answer(call):
    """What was said; empty where it was done."""
    try:
        await call
    except RefusedError as exc:
        return str(exc)
    return ""


def test_each_bad_pod_is_refused_with_what_to_change(plane):
    """
    As pods, and as templates of every kind; by the webhook, in its own words.
    """

    async def story(client, _stand):
        pods = {case.name: await tried(client, case.made()) for case in REFUSED + FORGED}
        kinds = {kind: await tried(client, workload(kind, REFUSED[0].made()), path_of(kind)) for kind in TEMPLATED}
        deployments = {
            case.name: await tried(client, workload("Deployment", case.made()), path_of("Deployment"))
            for case in REFUSED
        }
        return pods, kinds, deployments

    pods, kinds, deployments = asking(plane, story)
    by_name = {case.name: case.told for case in REFUSED + FORGED}
    for said in (pods, deployments):
        wrong = {name: text for name, text in said.items() if unescaped(by_name[name]) not in unescaped(text)}
        assert {} == wrong
    assert all("denied the request" in text for text in pods.values())
    assert [] == [kind for kind, text in kinds.items() if "ask for 6 or 9" not in text]


def unescaped(text: str) -> str:
    """Without quotes, which JSON writes its own way."""
    return text.replace("\\", "").replace('"', "")


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


def test_what_no_node_can_hold_is_told_at_once(plane):
    """
    Refused where the fleet is what it is, a warning header where it may grow.
    """

    async def story(client, stand):
        fleet = fleet_of([node(cards=4, size=15)])
        stand.world = dataclasses.replace(stand.world, fleet=fleet)
        large = good(amount(MEM, "20"))
        many = good(labelled(COUNT, "5", amount(MEM, "5")))
        refused = [await tried(client, made) for made in (large, many)]
        stand.world = dataclasses.replace(stand.world, fleet=dataclasses.replace(fleet, may_grow=True))
        async with client._session.post(PODS, json=large, params={"dryRun": "All"}) as got:
            return refused, got.status, got.headers.getall("Warning", [])

    refused, status, warnings = asking(plane, story)
    assert "the largest here offers 15" in refused[0]
    assert "the largest here has 4" in refused[1]
    assert (201, True) == (status, any("for now this waits" in text for text in warnings))


def test_only_pods_with_shares_ever_wait_for_us(plane):
    """
    While we are away they are refused, also their templates; pods without shares never notice, nor do
    exempt namespaces, updates of what runs already, and bindings.
    """

    async def story(client, stand):
        async with stored(client, pod() | {"metadata": {"name": "runs"}}):
            quiet = [
                await tried(client, plain()),
                await tried(client, plain(amount("nvidia.com/gpu", "1"))),
                await tried(client, workload("Deployment", plain()), path_of("Deployment")),
            ]
            asked = list(stand.asked)
            await stand.stop()
            away = {
                "share": await tried(client, pod()),
                "template": await tried(client, workload("Deployment", pod()), path_of("Deployment")),
                "plain": await tried(client, plain()),
                "plain-template": await tried(client, workload("Deployment", plain()), path_of("Deployment")),
                "label": await answer(client.merge(f"{PODS}/runs", {"metadata": {"labels": {"mine": "1"}}})),
                "status": await answer(client.merge(f"{PODS}/runs/status", {"status": {"phase": "Pending"}})),
                "record": await answer(client.merge(f"{PODS}/runs", {"metadata": {"labels": {SHARED: None}}})),
            }
        for name, labels in (("adm-exempt", {"gpushare.dev/system": "true"}), ("adm-normal", {})):
            await client.create({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            await client.until(lambda _: True, account)
            made = pod() | {"metadata": {"name": "p"}}
            away[name] = await tried(client, made, f"/api/v1/namespaces/{name}/pods")
            await client.delete(f"/api/v1/namespaces/{name}")
        system = pod() | {"metadata": {"name": "p"}}
        away["kube-system"] = await tried(client, system, "/api/v1/namespaces/kube-system/pods")
        await stand.start()
        return quiet, asked, away

    quiet, asked, away = asking(plane, story)
    assert (["", "", ""], ["pods"]) == (quiet, asked)
    waits = {"share", "template", "record", "adm-normal"}
    assert waits == {name for name, text in away.items() if text}
    assert all("failed calling webhook" in away[name] for name in waits)


async def silence() -> bytes:
    """The connection stands, and nothing comes."""
    await asyncio.sleep(60)
    return b""


async def nonsense() -> bytes:
    """An answer that is none."""
    return b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {"allowed": true}}'


@pytest.mark.parametrize(("ill", "words"), [(silence, "deadline exceeded"), (nonsense, "response.uid")])
def test_a_webhook_that_answers_nothing_or_nonsense_lets_no_share_in(plane, ill, words):
    """
    Within its deadline; pods without shares never wait for it, and a binding of theirs goes on without it.
    """

    async def story(client, stand):
        async with stored(client, plain(spec(schedulerName="nobody"))):
            stand.ill = ill
            other = await tried(client, plain() | {"metadata": {"name": "q"}})
            bound = await answer(client.call("POST", f"{PODS}/p/binding", binding("p")))
            shares = await tried(client, pod() | {"metadata": {"name": "q"}})
            stand.ill = None
            return other, bound, shares, list(stand.asked)

    other, bound, shares, asked = asking(plane, story)
    assert ("", "") == (other, bound)
    assert words in shares
    assert ["bindings", "pods"] == asked


def test_records_and_labels_stay_as_they_were_made(plane):
    """
    By merge patch and through the status, for strangers; ours may.
    """
    plane.pair_for(BINDER)

    async def story(client, _stand):
        async with (
            stored(client, good(labelled(COUNT, "2"))),
            granted(client, BINDER, "pods", "pods/status"),
            connected(plane, BINDER) as ours,
        ):
            path = f"{PODS}/p"
            changes = {
                "shared": {"labels": {SHARED: None}},
                "count": {"labels": {COUNT: "1"}},
                "record": {"annotations": {"gpushare.dev/allocation": "{}"}},
                "other": {"annotations": {"mine": "1"}},
            }
            said = {}
            for name, change in changes.items():
                for where in (path, f"{path}/status"):
                    said[name, where] = await answer(client.merge(where, {"metadata": change}, dryRun="All"))
            said["ours", path] = await answer(ours.merge(path, {"metadata": changes["record"]}, dryRun="All"))
            return said

    said = asking(plane, story)
    assert {"shared", "count", "record"} == {name for (name, _), text in said.items() if "not changed after" in text}
    assert {"other", "ours"} == {name for (name, _), text in said.items() if not text}


@contextlib.asynccontextmanager
async def granted(client, user: str, *resources: str):
    """Every right to these, for a while."""
    version, name = "rbac.authorization.k8s.io/v1", user.replace(":", "-")
    rules = [{"apiGroups": [""], "resources": list(resources), "verbs": ["*"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    made = {"apiVersion": version, "metadata": {"name": name}}
    await client.create(made | {"kind": "ClusterRole", "rules": rules})
    await client.create(made | {"kind": "ClusterRoleBinding", "roleRef": role, "subjects": subjects})
    try:
        yield
    finally:
        for plural in ("clusterrolebindings", "clusterroles"):
            await client.delete(f"/apis/{version}/{plural}/{name}")


def test_a_debugging_container_keeps_the_rules(plane):
    """
    A privileged one beside shares is refused, a plain one is not, nor any beside none.
    """

    async def story(client, _stand):
        loose = {"name": "debug", "image": "none", "securityContext": {"privileged": True}}
        calm = {"name": "debug", "image": "none"}
        said = []
        async with stored(client, pod()), stored(client, plain() | {"metadata": {"name": "q"}}):
            for name, container in (("p", loose), ("p", calm), ("q", loose)):
                path = f"{PODS}/{name}/ephemeralcontainers"
                change = {"spec": {"ephemeralContainers": [container]}}
                said.append(await answer(client.merge(path, change, dryRun="All")))
        return said

    refused, *fine = asking(plane, story)
    assert "remove privileged" in refused
    assert ["", ""] == fine


def binding(name: str, **annotations: str) -> dict:
    """A Binding to a node that need not exist."""
    meta = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "n1"}}


@pytest.mark.parametrize("way", ["pods/{}/binding", "bindings"])
def test_pods_with_shares_are_bound_by_our_scheduler_alone(plane, way):
    """
    Whichever way it is asked: a stranger binds only what has no shares, and never with records.
    """
    plane.pair_for(BINDER)

    async def story(client, stand):
        names = ("ours", "other", "unknown")
        stand.shared |= {("default", "ours"): True, ("default", "unknown"): None}
        said = {}
        async with contextlib.AsyncExitStack() as stack:
            for name in names:
                made = pod() if name == "ours" else plain()
                made["metadata"]["name"] = name
                made["spec"]["schedulerName"] = "gpushare-scheduler" if name == "ours" else "nobody"
                await stack.enter_async_context(stored(client, made))
            binder = await stack.enter_async_context(connected(plane, BINDER))
            await stack.enter_async_context(granted(client, BINDER, "pods/binding", "bindings"))

            async def tell(who, name, **notes):
                path = f"/api/v1/namespaces/default/{way.format(name)}"
                return await answer(who.call("POST", path, binding(name, **notes)))

            record = {"gpushare.dev/allocation": "{}"}
            said["stranger"] = await tell(client, "ours")
            said["unknown"] = await tell(client, "unknown")
            said["forged"] = await tell(client, "other", **record)
            said["other"] = await tell(client, "other")
            said["ours"] = await tell(binder, "ours", **record)
            kept = await client.get(f"{PODS}/ours")
        return said, kept

    said, kept = asking(plane, story)
    assert "leave the binding to it" in said["stranger"]
    assert "try again" in said["unknown"]
    assert "bind without it" in said["forged"]
    assert ("", "") == (said["other"], said["ours"])
    assert ("n1", "{}") == (kept["spec"]["nodeName"], kept["metadata"]["annotations"]["gpushare.dev/allocation"])


def test_bindings_do_not_depend_on_us(plane):
    """
    While we are away other schedulers go on binding what is theirs.
    """

    async def story(client, stand):
        made = plain(spec(schedulerName="nobody"))
        async with stored(client, made):
            await stand.stop()
            said = await answer(client.call("POST", f"{PODS}/p/binding", binding("p")))
            await stand.start()
            return said

    assert "" == asking(plane, story)


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
    assert ["", "", True, ""] == [said[0], said[1], "hostPID shows" in said[2], said[3]]
