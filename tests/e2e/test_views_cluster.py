# SPDX-License-Identifier: Apache-2.0
"""The terminal views on a real control plane: what they say is what is there, and what they advise works."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request

import yaml
from e2e.kubelets import Kubelets
from e2e.manifest_installation import ADDRESS, address, need_free
from e2e.sharing import PODS, bound, card_node, our_pod, sharing, taken, untainted, why_pending, workload
from support.views_harness import ROOT, exporter, page_of, piped, serving, tenant, usage
from support.views_harness import node as fleet_node
from support.views_harness import pod as fleet_pod
from support.waiting import PATIENCE_SECONDS

from dashboards.terminal.read.fleet import Fleet
from isolation.contract.model import Placement, Slice
from isolation.contract.names import SYSTEM_NAMESPACE
from isolation.contract.quantity import GIB
from isolation.contract.reservation import Reservation, manifest_of

INSPECT = "/gpushare-scheduler/inspect"
EXPORTER_PORT = 9445


async def view(plane, *words, kubeconfig=None):
    """The very command; its answer."""
    return await asyncio.to_thread(piped, *words, "--kubeconfig", kubeconfig or plane.kubeconfig)


async def document(plane, *words):
    """The command's JSON."""
    done = await view(plane, *words, "-o", "json")
    assert (0, "") == (done.returncode, done.stderr)
    return json.loads(done.stdout)


async def settled(client, placed, pending):
    """These pods are bound, and those know that no card has room; kube-scheduler may first see an older node."""
    for name in placed:
        await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/{name}")
    for name in pending:
        await client.until(lambda pod: "card" in why_pending(pod), f"{PODS}/{name}")


def in_order(answer):
    """An inspect answer with each card's pods by name: their order is nobody's promise."""
    for node in answer["nodes"]:
        for card in node["devs"]:
            card["pods"].sort(key=lambda pod: (pod["namespace"], pod["name"]))
    return answer


def asked(port, path):
    """What the scheduler itself answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS) as answer:
        return json.loads(answer.read())


def until_reported(port, word):
    """Wait until the scheduler's own answer names this."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while word not in json.dumps(asked(port, INSPECT)):
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_inspect_says_what_the_scheduler_says(plane, tmp_path):
    """
    The same JSON as /gpushare-scheduler/inspect, for all nodes, one node and an unknown one, reservations included.
    """
    nodes = [card_node("quad"), card_node("pair", cards=2), card_node("core", cards=2, mode="core_mem")]

    async def story():
        async with sharing(plane, tmp_path) as (client, ours), Kubelets(client, nodes).alive():
            await untainted(client)
            for name, units, cards in (("a", 3, 1), ("b", 8, 4), ("c", 9, 1), ("d", 40, 1)):
                await client.create(our_pod(name, units, cards))
            await settled(client, "abc", "d")
            place = Placement("core", (Slice("GPU-core-1", 1, 5 * GIB),))
            kept = manifest_of(Reservation("kept", "nobody", place, time.time() + 600))
            await client.call("POST", "/apis/gpushare.dev/v1alpha1/reservations", kept)
            await asyncio.to_thread(until_reported, ours.sidecar, "kept")
            pairs = []
            for only in ("", "pair", "none"):
                path = f"{INSPECT}{f'/{only}' if only else ''}"
                theirs = await asyncio.to_thread(asked, ours.sidecar, path)
                done = await view(plane, "inspect", *([only] if only else []), "-o", "json")
                pairs.append((in_order(theirs), in_order(json.loads(done.stdout)), done.returncode))
            return pairs, (await view(plane, "inspect")).stdout, (await view(plane, "inspect", "-d", "quad")).stdout

    pairs, table, details = asyncio.run(story())
    for theirs, ours, _ in pairs:
        assert theirs == ours
    assert [0, 0, 4] == [status for _, _, status in pairs]
    assert "kept" in json.dumps(pairs[0][1])
    assert "25/120 (20%)" in table
    assert "b " in details
    assert "Allocated :" in details


def test_top_counts_what_the_records_say(plane, tmp_path):
    """
    Allocated by card is the sum of the pods' records; pods that wait are counted; a narrow account is told why not.
    """

    async def story():
        nodes = [card_node("quad"), card_node("pair", cards=2)]
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, nodes).alive():
            await untainted(client)
            for name, units, cards in (("a", 3, 1), ("b", 8, 4), ("c", 9, 1), ("d", 16, 1)):
                await client.create(our_pod(name, units, cards))
            await settled(client, "abc", "d")
            records = taken(bound(await client.get(PODS)))
            cards, pods = await document(plane, "top"), await document(plane, "top", "--by", "pod", "-n", "default")
            stranger = await view(plane, "top", kubeconfig=plane.kubeconfig_for("nobody-special"))
            return records, cards["items"], pods["items"], stranger

    records, cards, pods, stranger = asyncio.run(story())
    assert records == {card["uuid"]: card["allocated_bytes"] // GIB for card in cards if card["allocated_bytes"]}
    assert {"quad": 4, "pair": 2} == {node: sum(c["node"] == node for c in cards) for node in ("quad", "pair")}
    assert {"used_bytes": {None}} == {"used_bytes": {card["used_bytes"] for card in cards}}
    assert {"d"} == {pod["pod"] for pod in pods if pod["node"] is None}
    assert 3 == stranger.returncode
    assert "list nodes and pods" in stranger.stderr
    assert "Traceback" not in stranger.stderr


def test_what_explain_advises_works(plane, tmp_path):
    """
    Over several cards, and smaller: pods made as the advice says are bound, to the very cards. Moves are real pods.
    """

    async def story():
        nodes = [card_node("quad"), card_node("pair", cards=2)]
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, nodes).alive():
            await untainted(client)
            for app in ("x", "y"):
                await client.create(workload("Deployment", app, 3, our_pod(app, 9)))
            await client.until(lambda pods: len(bound(pods)) == 6, PODS)
            await client.create(our_pod("wide", 12))
            await settled(client, (), ["wide"])
            explained = await document(plane, "explain", "wide", "-n", "default")
            words = (await view(plane, "explain", "default/wide")).stdout
            helps = {one["kind"]: one["text"] for one in explained["pending"]["remedies"]}
            count = int(helps["split"].split("gpu-count: ")[1].split(")")[0])
            less = int(helps["smaller"].split("gpu-mem: ")[1].split(")")[0])
            await client.create(our_pod("split", 12, count))
            await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/split")
            await client.delete(f"{PODS}/split?gracePeriodSeconds=0", force=True)
            await client.until(lambda pods: all(p["metadata"]["name"] != "split" for p in pods["items"]), PODS)
            await client.create(our_pod("less", less))
            await client.until(lambda pod: pod["spec"].get("nodeName"), f"{PODS}/less")
            await client.create(our_pod("more", less + 1))
            await settled(client, (), ["more"])
            more = await client.get(f"{PODS}/more")
            placed = await document(plane, "explain", "less")
            record = taken([await client.get(f"{PODS}/less")])
            missing = await view(plane, "explain", "absent")
            return explained, words, more["spec"].get("nodeName"), placed, record, missing

    explained, words, more, placed, record, missing = asyncio.run(story())
    assert "fragmented" == explained["pending"]["why"]
    assert {"quad": 4, "pair": 2} == {node["node"]: len(node["cards"]) for node in explained["pending"]["nodes"]}
    assert "FailedScheduling" in words
    assert "What would help" in words
    assert None is more
    assert record == {card["uuid"]: card["bytes"] // GIB for card in placed["bound"]["cards"]}
    assert "gpushare.dev/allocation" == placed["bound"]["record"]
    assert 4 == missing.returncode


def test_use_and_breaches_come_through_the_api_server(plane, tmp_path):
    """
    The exporter of a node is asked by the API server's proxy: top shows what is used, breaches who is over promise.
    """
    one = fleet_pod("a", "solo", 4)
    fleet = Fleet((fleet_node("solo", 1, 15),), (one,))
    used = usage(fleet, [tenant(one, 6)])
    record = {"kind": "over_limit", "uuid": "GPU-solo-0", "card": 0, "namespace": "team", "pod": "a", "started": 5.0}
    record |= {
        "container": "main",
        "last_seen": 9.0,
        "open": True,
        "source": "nvml",
        "message": "uses 6 GiB",
        "count": 1,
    }
    answers = exporter(page_of(used), {"version": 1, "node": "solo", "totals": {}, "breaches": [record]})

    async def story():
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, [card_node("solo", cards=1)]).alive():
            before = await view(plane, "breaches")
            labels = {"app.kubernetes.io/name": "gpushare-exporter"}
            spec = {"containers": [{"name": "exporter", "image": "none"}], "nodeName": "solo"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "exp", "labels": labels}, "spec": spec}
            await client.create(pod, SYSTEM_NAMESPACE)
            path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/exp"
            await client.until(lambda pod: pod["status"].get("phase") == "Running", path)
            try:
                cards = await document(plane, "top")
                found = await document(plane, "breaches")
                strict = await view(plane, "breaches", "--exit-code")
            finally:
                await client.delete(f"{path}?gracePeriodSeconds=0", force=True)
            return before, cards, found, strict

    with address():
        need_free(ADDRESS, EXPORTER_PORT)
        with serving(answers, host=ADDRESS, port=EXPORTER_PORT):
            before, cards, found, strict = asyncio.run(story())
    assert 3 == before.returncode
    assert "breaches are unknown" in before.stdout
    assert ([int(6.25 * GIB)], []) == ([card["used_bytes"] for card in cards["items"]], cards["notes"])
    assert [("over_limit", "a", 5.0, True)] == [(b["kind"], b["pod"], b["started"], b["open"]) for b in found["items"]]
    assert 1 == strict.returncode
    assert "1 open breach" in strict.stdout


def test_the_rights_in_the_documentation_are_enough(plane, tmp_path):
    """
    An account with those and no others sees everything; of exporters it may not ask, it says so.
    """
    text = (ROOT / "docs" / "views.md").read_text()
    role, local = yaml.safe_load_all(text.split("```yaml\n")[1].split("```")[0])
    subject = {"kind": "User", "name": "viewer", "apiGroup": "rbac.authorization.k8s.io"}
    group = "/apis/rbac.authorization.k8s.io/v1"
    inside = f"{group}/namespaces/{SYSTEM_NAMESPACE}"

    def binding(kind, to):
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": to, "name": "gpushare-views"}
        meta = {"name": "gpushare-views"}
        return {
            "apiVersion": f"{ref['apiGroup']}/v1",
            "kind": kind,
            "metadata": meta,
            "roleRef": ref,
            "subjects": [subject],
        }

    async def story():
        async with sharing(plane, tmp_path) as (client, _), Kubelets(client, [card_node("solo")]).alive():
            await untainted(client)
            await client.create(our_pod("a", 3))
            await client.create(our_pod("b", 30))
            await settled(client, "a", "b")
            made = (
                (f"{group}/clusterroles", role),
                (f"{inside}/roles", local),
                (f"{group}/clusterrolebindings", binding("ClusterRoleBinding", "ClusterRole")),
                (f"{inside}/rolebindings", binding("RoleBinding", "Role")),
            )
            for path, thing in made:
                await client.call("POST", path, thing)
            try:
                kubeconfig = plane.kubeconfig_for("viewer")
                words = (["top"], ["inspect"], ["explain", "a"], ["explain", "b"])
                return [await view(plane, *each, kubeconfig=kubeconfig) for each in words]
            finally:
                for path, _ in made:
                    await client.delete(f"{path}/gpushare-views")

    for done in asyncio.run(story()):
        assert (0, "") == (done.returncode, done.stderr)
        assert "cannot list" not in done.stdout
        assert "HTTP 403" not in done.stdout
