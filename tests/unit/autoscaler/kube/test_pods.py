# SPDX-License-Identifier: Apache-2.0
"""Who may be moved, who is find_guarded, and what of a waiting pod's constraints is honoured."""

from __future__ import annotations

import msgspec
import pytest

from autoscaler.core.pools import Pool
from autoscaler.kube.annotations import Notes, PodNote, Spread
from autoscaler.kube.observe.pods import MAX_KINDS, find_guarded, movable, waiting
from autoscaler.kube.watches import Expression, PodBudget, _budget
from isolation.contract.model import NAME_FIELD, Card, Mode, Node, Placement, Pod, Request, Requirement
from isolation.contract.quantity import GIB

ZONE = "topology.kubernetes.io/zone"
OURS = PodNote(scheduler="ours")
SHARE = Request(cards=1, card_bytes=GIB, owner="ReplicaSet/default/web")


def pod(uid="p", request=SHARE, **more):
    """A pod of a ReplicaSet."""
    return Pod(uid, uid, request=request, **({"owner_uid": "rs", "labels": {"app": "web"}} | more))


def node(name, zone=""):
    """A node of one shared card."""
    labels = {"kubernetes.io/hostname": name} | ({ZONE: zone} if zone else {})
    return Node(
        name, (Card(f"GPU-{name}", 0, 8 * GIB),), Mode.CGPU, cpu_milli=8000, memory_bytes=1 << 40, labels=labels
    )


@pytest.mark.parametrize(
    ("one", "note", "expected"),
    [
        pytest.param(pod(), OURS, True, id="a replica"),
        pytest.param(pod(), PodNote(scheduler="default-scheduler"), False, id="another scheduler"),
        pytest.param(pod(evictable=False), OURS, False, id="says no"),
        pytest.param(pod(owner_uid=""), OURS, False, id="nobody makes it again"),
        pytest.param(pod(static=True), OURS, False, id="static"),
        pytest.param(pod(namespace="kube-system"), OURS, False, id="a system pod"),
        pytest.param(pod(namespace="gpushare-system"), OURS, False, id="one of ours"),
        pytest.param(pod(request=Request(cards=1, whole=True, owner=SHARE.owner)), OURS, False, id="whole card"),
        pytest.param(pod(request=Request(owner=SHARE.owner)), OURS, False, id="no card: no home can be reserved"),
        pytest.param(pod(namespace="kube-system"), OURS, False, id="the system's"),
        pytest.param(pod(namespace="gpushare-system"), OURS, False, id="our own"),
        pytest.param(pod(), PodNote(scheduler="ours", beyond=("pod affinity",)), False, id="not understood"),
    ],
)
def test_only_who_has_a_reserved_home_and_a_successor_is_moved(one, note, expected):
    """
    Everything else stays where it is.
    """
    assert expected is movable(one, note, {"ours"})


def test_budgets_guard_by_what_they_have_left_and_two_of_them_guard_for_good():
    """
    One with something left guards nobody; the API server evicts nobody who is under two.
    """
    web, tier = (("app", "web"),), (Expression("tier", "Exists", frozenset()),)
    budgets = [
        PodBudget("default", "left", 1, web),
        PodBudget("other", "none", 0, web),
        PodBudget("default", "tier", 3, expressions=tier),
    ]
    pods = [pod("free"), pod("two", labels={"app": "web", "tier": "x"}), pod("none", namespace="other")]

    found = find_guarded(pods, budgets)

    assert {"two", "none"} == found.keys()
    assert "PodDisruptionBudget none allows no disruption now" == found["none"]


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        pytest.param({"disruptionsAllowed": 2, "observedGeneration": 3}, 2, id="counted"),
        pytest.param({"disruptionsAllowed": 2, "observedGeneration": 2}, 0, id="changed since"),
        pytest.param({}, 0, id="not counted yet"),
        pytest.param({"disruptionsAllowed": "many", "observedGeneration": 3}, 0, id="cannot be read"),
    ],
)
def test_a_budget_that_was_not_counted_allows_nothing(status, allowed):
    """
    Its own status is believed only for the generation that it has counted.
    """
    thing = {
        "metadata": {"name": "b", "namespace": "default", "generation": 3},
        "spec": {"selector": {}},
        "status": status,
    }

    assert allowed == _budget(msgspec.Raw(msgspec.json.encode(thing)), "b").allowed


def waits(pods, notes, nodes=(), pools=(), everyone=None):
    """As the observation is made."""
    return waiting(pods, everyone or pods, notes, nodes, pools)


def test_who_is_not_understood_is_named_and_not_bought_for():
    """
    A volume, an affinity to other pods: the reason stands beside the pod.
    """
    volume = pod("volume", Request(1, GIB, unmodelled=('volume "data" (persistentVolumeClaim)',)))
    soft = pod("soft", Request(1, GIB, unmodelled=("preferred node affinity",)))

    found = waits([volume, pod("near"), soft], {"near": PodNote(beyond=("pod affinity",))})

    assert ["soft"] == [one.uid for one in found.pods]
    assert {"volume", "near"} == found.unanswered.keys()
    assert "pod affinity" in found.unanswered["near"]


def test_zones_are_filled_evenly():
    """
    One pod runs in a; the next three go to b, then either, as the constraint would have it.
    """
    spread = PodNote(spreads=(Spread(ZONE, 1, (("app", "web"),)),))
    nodes = [node("na", "a"), node("nb", "b")]
    there = pod("there", placement=Placement("na"))
    new = [pod(f"new{number}") for number in range(3)]

    found = waits(new, {one.uid: spread for one in new}, nodes, everyone=[there, *new])

    terms = [one.request.rules.terms for one in found.pods]
    assert [((Requirement(ZONE, "In", (zone,)),),) for zone in ("b", "a", "b")] == terms


def test_a_zone_that_only_a_pool_has_counts_as_empty():
    """
    The pool could bring a node there, so the constraint wants the pod there.
    """
    spread = PodNote(spreads=(Spread(ZONE, 1, (("app", "web"),)),))
    there = pod("there", placement=Placement("na"))

    found = waits([pod("new")], {"new": spread}, [node("na", "a")], [Pool("z", node("z", "z"))], [there, pod("new")])

    assert (((Requirement(ZONE, "In", ("z",)),),)) == found.pods[0].request.rules.terms


def test_hosts_that_have_their_part_are_left_out():
    """
    A spread over hosts with a skew of one, beside a pool that may grow: the host with one is full.
    """
    spread = PodNote(spreads=(Spread("kubernetes.io/hostname", 1, (("app", "web"),)),))
    there = pod("there", placement=Placement("na"))

    found = waits([pod("new")], {"new": spread}, [node("na")], [Pool("z", node("z"))], [there, pod("new")])

    assert (((Requirement(NAME_FIELD, "NotIn", ("na",)),),)) == found.pods[0].request.rules.terms


HARD, SOFT = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
DOMAINS = {"topologyKey": "z", "maxSkew": 1, "minDomains": 3}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, (), id="nothing"),
        pytest.param({"affinity": {"podAntiAffinity": {HARD: [{}]}}}, ("pod anti-affinity",), id="anti-affinity"),
        pytest.param({"affinity": {"podAffinity": {SOFT: [{}]}}}, (), id="soft"),
        pytest.param({"schedulingGates": [{"name": "x"}]}, ("scheduling gates",), id="gated"),
        pytest.param({"topologySpreadConstraints": [DOMAINS]}, ("a topology spread constraint",), id="more than known"),
        pytest.param(
            {"topologySpreadConstraints": [DOMAINS | {"whenUnsatisfiable": "ScheduleAnyway"}]}, (), id="soft spread"
        ),
        pytest.param({"affinity": "nonsense"}, ("unreadable constraints",), id="nonsense"),
    ],
)
def test_hard_constraints_are_read_and_soft_ones_are_not(spec, expected):
    """
    What a tenant writes is never trusted to have the right shape.
    """
    notes = Notes()
    thing = {"metadata": {"name": "p", "uid": "p", "namespace": "default"}, "spec": {"containers": [], **spec}}

    notes.pod_is(msgspec.Raw(msgspec.json.encode(thing)))

    assert expected == notes.of_pod["p"].beyond


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param(Expression("app", "In", frozenset({"web"})), True, id="in"),
        pytest.param(Expression("app", "NotIn", frozenset({"web"})), False, id="not in"),
        pytest.param(Expression("tier", "NotIn", frozenset({"web"})), True, id="not in, absent"),
        pytest.param(Expression("tier", "Exists", frozenset()), False, id="exists"),
        pytest.param(Expression("tier", "DoesNotExist", frozenset()), True, id="does not exist"),
        pytest.param(Expression("tier", "Later", frozenset()), True, id="an operator of tomorrow covers"),
    ],
)
def test_a_budgets_selector_is_kubernetes_own(expression, expected):
    """
    As label selectors are; in doubt the budget is about the pod.
    """
    assert expected is PodBudget("default", "b", 0, expressions=(expression,)).covers({"app": "web"})


def test_a_tenant_with_a_thousand_budgets_keeps_its_own_pods_from_moving_and_costs_nobody_time():
    """
    None of them is held against any pod.
    """
    budgets = [PodBudget("default", f"b{number}", 1, (("app", str(number)),)) for number in range(1000)]

    found = find_guarded([pod("mine"), pod("theirs", namespace="other")], budgets)

    assert {"mine"} == found.keys()


def test_a_tenant_whose_every_pod_spreads_otherwise_is_weighed_so_far_and_no_further():
    """
    The rest waits with its reason; the next tenant's kind that is known already is still served.
    """
    new = [pod(f"p{number}") for number in range(MAX_KINDS + 50)]
    notes = {one.uid: PodNote(spreads=(Spread(ZONE, number + 1, (("app", "web"),)),)) for number, one in enumerate(new)}

    found = waits(new, notes, [node("na", "a")])

    assert MAX_KINDS == len(found.pods)
    assert 50 == len(found.unanswered)
