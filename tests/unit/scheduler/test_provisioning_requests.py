# SPDX-License-Identifier: Apache-2.0
"""How ProvisioningRequests are answered when things go wrong: writes that fail, leaders that end, hostile input."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
from dataclasses import replace

import pytest
from support import builders
from support.scheduler_cache_builders import build_cache
from support.scheduler_endpoints import Server, args, extending, node, pod
from support.scheduler_harness import pod as model_pod

from isolation.contract.codec import CodecError
from isolation.contract.codec.pod import time_of
from isolation.contract.model import Refusal, Request, Requirement, Rules
from isolation.contract.names import ALLOCATION, PROVISIONING_CLASS
from isolation.contract.provisioning_request import (
    PROVISIONING_PATH,
    PodSet,
    ProvisioningCondition,
    ProvisioningRequest,
    provisioning_request_of,
    request_of_template,
    with_conditions,
)
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube.core.errors import RefusedError, UnreachableError
from isolation.scheduler.core.gang_placement import BOOKED_SECONDS, refuse_early
from isolation.scheduler.provisioning_requests import (
    LOST_SECONDS,
    MAX_TEMPLATES,
    RETRY_SECONDS,
    TEMPLATE_SECONDS,
    ProvisioningRequests,
)
from isolation.scheduler.writes import ObjectWriter

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
HOME = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
NOW = 1_800_000_000.0


class Clock:
    """Time as the test says."""

    now = NOW

    def __call__(self):
        """Seconds since the epoch."""
        return self.now


class Api:
    """Requests, templates and reservations behind the writes; what it stores is shown by the watch."""

    def __init__(self, server):
        self.server, self.objects, self.made, self.deleted = server, {}, [], []
        self.old = False
        """Whether the kind Reservation is that of an older version."""
        self.fails = {}
        """By method, errors for the next calls; None: that one is well."""
        self.before = {}
        """By method, what happens before the call is answered."""

    async def send(self, method, path, body=None, kind="json", seconds=None):
        """As `Access.send`."""
        del kind, seconds
        if method in self.before:
            self.before.pop(method)()
        error = self.fails[method].pop(0) if self.fails.get(method) else None
        if error is not None:
            raise error
        if method == "POST":
            return await self._create(path, body)
        if method == "DELETE":
            return await self._delete(path)
        if path.removesuffix("/status") not in self.objects:
            raise RefusedError(404, "NotFound")
        thing = self.objects[path.removesuffix("/status")]
        if method == "PATCH":
            if body["metadata"]["resourceVersion"] != thing["metadata"]["resourceVersion"]:
                raise RefusedError(409, "Conflict")
            await self.store(path.removesuffix("/status"), thing | {"status": body["status"]})
            thing = self.objects[path.removesuffix("/status")]
        return json.dumps(thing).encode()

    async def _create(self, path, body):
        name = body["metadata"]["name"]
        if any(one["metadata"]["name"] == name for one in self.made):
            raise RefusedError(409, "AlreadyExists")
        stored = body | {"metadata": body["metadata"] | {"uid": f"uid-{name}"}}
        if self.old:
            del stored["spec"]["provisioningRequest"]
        self.made.append(stored)
        await self.server.tell(path, "ADDED", stored)
        return json.dumps(stored).encode()

    async def _delete(self, path):
        name = path.rsplit("/", 1)[1]
        self.deleted.append(name)
        found = [one for one in self.made if one["metadata"]["name"] == name]
        if not found:
            raise RefusedError(404, "NotFound")
        self.made.remove(found[0])
        await self.server.tell(RESERVATIONS_PATH, "DELETED", found[0])
        return b"{}"

    async def store(self, path, thing):
        """An object, and its event."""
        version = str(int(thing["metadata"].get("resourceVersion", "100")) + 1)
        thing = thing | {"metadata": thing["metadata"] | {"resourceVersion": version}}
        self.objects[path] = thing
        await self.server.tell(PROVISIONING_PATH, "MODIFIED", thing)

    async def ask(self, name, *sets, wait=""):
        """A request of so many pods of so many GiB, with its templates."""
        pods = [{"podTemplateRef": {"name": f"{name}-{at}"}, "count": count} for at, (count, _) in enumerate(sets)]
        for at, (_, units) in enumerate(sets):
            self.objects[f"{TEMPLATES}/{name}-{at}"] = {"template": pod("x", units)}
        meta = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": time_of(NOW)}
        spec = {"provisioningClassName": PROVISIONING_CLASS, "podSets": pods}
        spec |= {"parameters": {"ValidUntilSeconds": wait}} if wait else {}
        await self.store(f"{HOME}/{name}", {"metadata": meta, "spec": spec})

    def said(self, name):
        """Conditions that are true, with their messages."""
        found = self.objects[f"{HOME}/{name}"].get("status", {}).get("conditions", ())
        return {one["type"]: one["message"] for one in found if one["status"] == "True"}


@contextlib.asynccontextmanager
async def serving(*pods, nodes=("a",)):
    """Two cards of 15 GiB on each node; time is what the test says."""
    server = Server({NODES: [node(name) for name in nodes], PODS: list(pods), RESERVATIONS_PATH: []})
    async with extending(server, clock=Clock()) as (verbs, world):
        api = Api(server)
        gangs = ProvisioningRequests(world, ObjectWriter(api), set())

        async def cycle(seconds=RETRY_SECONDS + 1):
            world.clock.now += seconds
            await gangs.run_cycle(world.leadership.fence())

        yield api, verbs, world, cycle


async def fits(verbs, units):
    """Where a pod of so many GiB fits now."""
    return json.loads((await verbs.filter(args(pod("probe", units), "a"))).body)["NodeNames"]


def test_a_reservation_that_cannot_be_stored_leaves_none_and_the_next_attempt_stores_all():
    """
    The second of two is refused, and later its outcome is unknown: the cards are free again, and nothing is said.
    """

    async def story():
        async with serving() as (api, verbs, _, cycle):
            await api.ask("g", (2, 9))
            seen = []
            for error in (RefusedError(403, "Forbidden"), UnreachableError("no answer")):
                api.fails["POST"] = [None, error]
                await cycle()
                await cycle(0.1)
                seen.append((api.said("g"), await fits(verbs, 15)))
                await cycle()
                await cycle()
            return seen, api.said("g"), len(api.made)

    seen, said, made = asyncio.run(story())
    assert ({}, ["a"]) == seen[0]
    assert "Provisioned" in said
    assert 2 == made


def test_a_definition_that_drops_the_name_of_the_request_is_logged_and_nothing_is_promised(caplog):
    """
    An update without the new CustomResourceDefinition: no pod could use such reservations, so none stays.
    """

    async def story():
        async with serving() as (api, _, __, cycle):
            api.old = True
            await api.ask("g", (2, 9))
            await cycle()
            return api.said("g"), api.made

    assert ({}, []) == asyncio.run(story())
    assert "apply its CustomResourceDefinition again" in caplog.text


def test_a_status_that_was_changed_meanwhile_is_written_again_over_the_same_reservations():
    """
    The first write is refused with a conflict: no reservation is made again or lost.
    """

    async def story():
        async with serving() as (api, _, __, cycle):
            await api.ask("g", (2, 9))
            api.fails["PATCH"] = [RefusedError(409, "Conflict")]
            await cycle()
            before = [one["metadata"]["name"] for one in api.made], api.said("g")
            await cycle()
            return before, [one["metadata"]["name"] for one in api.made], api.said("g"), api.deleted

    (before, first), after, said, deleted = asyncio.run(story())
    assert (before, {}, []) == (after, first, deleted)
    assert "Provisioned" in said


def test_a_new_leader_deletes_what_is_left_of_half_a_gang_and_confirms_a_whole_one():
    """
    One reservation of two: no pod was started for it. All of them: they are as good as new ones.
    """

    async def story(count):
        async with serving() as (api, _, world, cycle):
            await api.ask("g", (2, 9))
            asked = world.informers.provisioning.known["g"]
            members = [("t", model_pod("x", 9).request)] * 2
            left = world.cache.reserve_gang(asked, members, world.clock())
            for one in left:
                world.cache.remove_reservation(one.name)
            for one in left[:count]:
                await ObjectWriter(api).create_reservation(one)
            await cycle(0)
            first = api.said("g"), list(api.deleted)
            await cycle()
            return first, api.said("g"), sorted(one["metadata"]["name"] for one in api.made)

    first, said, made = asyncio.run(story(1))
    assert ({}, ["gang-g-0"]) == first
    assert ("Provisioned" in said, made) == (True, ["gang-g-0", "gang-g-1"])
    first, said, made = asyncio.run(story(2))
    assert ("Provisioned" in first[0], first[1], made) == (True, [], ["gang-g-0", "gang-g-1"])


def test_a_gang_that_a_leader_before_reserved_on_cards_that_are_gone_is_reserved_again():
    """
    All reservations are there and one of the nodes is not any more: they are deleted, and the other node takes both.
    """

    async def story():
        async with serving(nodes=("a", "b")) as (api, _, world, cycle):
            await api.ask("g", (2, 9))
            asked = world.informers.provisioning.known["g"]
            made = world.cache.reserve_gang(asked, [("t", model_pod("x", 9).request)] * 2, world.clock())
            for one in made:
                world.cache.remove_reservation(one.name)
                await ObjectWriter(api).create_reservation(one)
            gone = made[0].placement.node
            await api.server.tell(NODES, "MODIFIED", node(gone) | {"spec": {"unschedulable": True}})
            await cycle(0)
            first = api.said("g")
            await cycle()
            return first, api.said("g"), gone, {one["spec"]["node"] for one in api.made}

    first, said, gone, nodes = asyncio.run(story())
    assert ({}, True) == (first, "Provisioned" in said)
    assert {"a", "b"} - {gone} == nodes


def test_a_leader_that_loses_its_lease_midway_says_nothing():
    """
    The Lease is gone after the first reservation: no second one, no status. The next leader tidies up.
    """

    async def story():
        async with serving() as (api, _, world, cycle):
            await api.ask("g", (2, 9))
            api.before["POST"] = lambda: setattr(world.leadership._gate, "open", False)
            await cycle()
            return len(api.made), api.said("g"), api.deleted

    assert (1, {}, []) == asyncio.run(story())


def test_cards_that_the_leader_before_gave_away_are_not_promised_again():
    """
    Its last binding is not shown by the watch yet: the nodes are listed once more before anything is stored.
    """

    async def story():
        async with serving() as (api, _, world, cycle):
            await api.ask("g", (2, 9))
            late = pod("late", 9, nodeName="a")
            card = {"uuid": "GPU-a-0", "index": 0, "bytes": 9 << 30, "core": 0}
            record = {"version": 1, "promise": "late", "cards": [card], "containers": []}
            late["metadata"]["annotations"] = {ALLOCATION: json.dumps(record)}
            world.informers.live.pods._version = None  # the watch is a dead connection: it shows nothing
            api.server.objects[PODS].append(late)
            await cycle()
            first = api.said("g"), len(api.made)
            await cycle()
            return first, api.said("g")

    first, said = asyncio.run(story())
    assert ({}, 0) == first
    assert "1 of 2 pods fit" in said["Failed"]


def test_a_booking_ends_after_ten_minutes_and_its_cards_are_free():
    """
    Nobody started: the request says so, the reservations go.
    """

    async def story():
        async with serving() as (api, verbs, _, cycle):
            await api.ask("g", (2, 9))
            await cycle()
            await cycle(BOOKED_SECONDS - 2)
            before = api.said("g"), await fits(verbs, 9)
            await cycle(4)
            await cycle(1)
            return before, api.said("g"), len(api.made), await fits(verbs, 15)

    (before, full), after, made, free = asyncio.run(story())
    assert ("BookingExpired" in before, full) == (False, [])
    assert "2 unused reservations are released" in after["BookingExpired"]
    assert (0, ["a"]) == (made, free)


def test_cards_that_go_for_a_moment_revoke_nothing():
    """
    The node is cordoned for less than the time that an agent takes to restart; then for longer.
    """

    async def story():
        async with serving() as (api, _, world, cycle):
            await api.ask("g", (2, 9))
            await cycle()
            cordoned = node("a") | {"spec": {"unschedulable": True}}
            await api.server.tell(NODES, "MODIFIED", cordoned)
            await cycle(1)
            await cycle(LOST_SECONDS - 1)
            await api.server.tell(NODES, "MODIFIED", node("a"))
            await cycle(5)
            short = api.said("g")
            await api.server.tell(NODES, "MODIFIED", cordoned)
            await cycle(1)
            await cycle(LOST_SECONDS)
            await cycle(1)
            return short, api.said("g"), len(api.made), world.informers.reservations.known

    short, long, made, known = asyncio.run(story())
    assert "CapacityRevoked" not in short
    assert "2 reserved places are gone (node a)" in long["CapacityRevoked"]
    assert (0, {}) == (made, known)


def test_a_request_with_very_many_templates_is_refused_before_any_is_read():
    """
    The definition allows pod sets of no pods in any number: each template would be a question to the API server.
    """

    async def story():
        async with serving() as (api, _, __, cycle):
            await api.ask("g", (1, 9), *[(0, 9)] * MAX_TEMPLATES)
            await cycle()
            return api.said("g")

    assert (
        f"{MAX_TEMPLATES + 1} pod templates: at most {MAX_TEMPLATES} in one request" in asyncio.run(story())["Failed"]
    )


def test_templates_that_never_come_fail_the_request_after_a_while():
    """
    Kueue makes them after the request: for a minute they may be missing.
    """

    async def story():
        async with serving() as (api, _, __, cycle):
            await api.ask("g", (2, 9))
            template = api.objects.pop(f"{TEMPLATES}/g-0")
            await api.ask("h", (1, 9))
            await cycle()
            early = api.said("g")
            await cycle(TEMPLATE_SECONDS)
            await api.ask("late", (1, 4))
            api.objects[f"{TEMPLATES}/late-0"] = template
            return early, api.said("g"), api.said("h")

    early, late, other = asyncio.run(story())
    assert {} == early
    assert "PodTemplate g-0 does not exist" == late["Failed"]
    assert "Provisioned" in other


def test_one_namespace_with_many_requests_does_not_keep_another_one_waiting():
    """
    Forty requests that never fit are older than the one of another namespace: it is among the first eight.
    """

    async def story():
        async with serving() as (api, _, world, _cycle):
            for at in range(40):
                await api.ask(f"many{at}", (1, 99), wait="3600")
            known = world.informers.provisioning
            other = replace(known.known["many0"], namespace="other", uid="other", created=NOW + 60)
            known.update(other)
            gangs = ProvisioningRequests(world, ObjectWriter(api), set())
            return [one.uid for one in gangs._choose_pending(NOW)]

    assert "other" in asyncio.run(story())[:2]


def test_a_quota_of_the_namespace_counts_for_the_whole_gang():
    """
    Ten units of the card model, three pods of four: the third is over.
    """
    cache = build_cache(builders.node("n", cards=4, size=15, model="T4"))
    cache.set_quota("ml", {"T4": 10})
    asked = ProvisioningRequest("ml", "g", "g", 1.0, (PodSet("t", 3),))
    found = cache.reserve_gang(asked, [("t", model_pod("x", 4).request)] * 3, 10.0)
    assert isinstance(found, Refusal)
    assert found.reason.startswith("2 of 3 pods fit; a pod of template t does not: exceeds the quota of namespace ml")
    assert not cache.gang_reservations("g", 10.0)


def test_nodes_that_the_pods_may_not_use_are_not_reserved_and_the_reason_says_so():
    """
    There is room on the one node, which the pods' selector excludes.
    """
    cache = build_cache(builders.node("n", cards=4, size=15))
    picky = replace(model_pod("x", 4).request, rules=Rules(terms=((Requirement("zone", "In", ("b",)),),)))
    found = cache.reserve_gang(ProvisioningRequest("ml", "g", "g", 1.0, (PodSet("t", 1),)), [("t", picky)], 10.0)
    assert isinstance(found, Refusal)
    assert "node n has room, but the pod cannot use it: labels do not match" in found.reason


def test_pods_that_cannot_be_matched_are_refused():
    """
    Equal shares for different nodes: a pod of one set could take what only the other may use.
    """
    plain = model_pod("x", 4).request
    picky = replace(plain, rules=Rules(terms=((Requirement("zone", "In", ("b",)),),)))
    assert "equal shares on different nodes" in refuse_early([("a", plain), ("b", picky)]).reason
    assert refuse_early([("a", plain), ("b", replace(plain, card_bytes=2 * plain.card_bytes))]) is None
    shapes = [("a", replace(plain, card_bytes=at * plain.card_bytes)) for at in range(1, 10)]
    assert "at most 8" in refuse_early(shapes).reason


GARBAGE = (None, 1, "x", [], {}, [None], {"a": None}, -1, 1 << 70, True, "\ud800", "x" * 10_000)


@pytest.mark.parametrize(
    "place", ["template", "metadata", "spec", "containers", "limits", "affinity", "ports", "spread"]
)
@pytest.mark.parametrize("junk", GARBAGE, ids=lambda junk: str(junk)[:8].encode("ascii", "replace").decode())
def test_whatever_stands_in_a_template_is_an_answer_and_no_error(place, junk):
    """
    The API server checks pods, but a PodTemplate's writer may be anybody, and the server of another version.
    """
    thing = pod("x", 4)
    if place == "limits":
        thing["spec"]["containers"][0]["resources"] = junk
    elif place == "ports":
        thing["spec"]["containers"][0]["ports"] = junk
    elif place in ("containers", "affinity"):
        thing["spec"][place] = junk
    elif place == "spread":
        thing["spec"]["topologySpreadConstraints"] = junk
    elif place in ("metadata", "spec"):
        thing[place] = junk
    whole = junk if place == "template" else thing
    assert isinstance(request_of_template({"template": whole}, "ml"), Request | Refusal | None)


@pytest.mark.parametrize("field", ["podSets", "provisioningClassName", "parameters"])
@pytest.mark.parametrize("junk", GARBAGE, ids=lambda junk: str(junk)[:8].encode("ascii", "replace").decode())
def test_whatever_stands_in_a_request_is_read_or_refused(field, junk):
    """
    The definition in a cluster need not validate anything.
    """
    meta = {"name": "g", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-11-27T00:00:00Z"}
    spec = {"provisioningClassName": PROVISIONING_CLASS, "podSets": []} | {field: junk}
    try:
        found = provisioning_request_of({"metadata": meta, "spec": spec})
    except CodecError:
        return
    assert found is None or found.pods == 0


def test_a_time_is_rounded_up_so_that_no_booking_is_shorter_than_it_says():
    """
    Kubernetes keeps whole seconds.
    """
    asked = ProvisioningRequest("ml", "g", "g", 1.0, ())
    (made,) = with_conditions(asked, [(ProvisioningCondition.PROVISIONED, True, "R", "m")], 1000.25)
    assert dt.datetime.fromtimestamp(1001, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ") == made["lastTransitionTime"]
    assert 1001.0 == replace(asked, conditions=(made,)).since(ProvisioningCondition.PROVISIONED)


def test_what_a_quota_counts_of_a_pod_with_several_cards_is_what_is_reserved_for_it():
    """
    The pod's total of aliyun.com/gpu-mem, over all its cards: a queue needs no multiplication.
    """
    thing = pod("x", 16)
    thing["metadata"]["labels"]["aliyun.com/gpu-count"] = "2"
    request = request_of_template({"template": thing}, "ml")
    cache = build_cache(builders.node("n", cards=4, size=15))
    asked = ProvisioningRequest("ml", "g", "g", 1.0, (PodSet("t", 2),))
    made = cache.reserve_gang(asked, [("t", request)] * 2, 10.0)
    assert [[8, 8], [8, 8]] == [[part.bytes >> 30 for part in one.placement.slices] for one in made]
