# SPDX-License-Identifier: Apache-2.0
"""
Who was promised what: one allocation per container and card, from holds first, then from the kubelet's assignments.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.node_facts import GIB, RESERVED, Node, card, hold, outcome, region, uuid

from exporter.pipeline.allocations import list_allocations
from exporter.pipeline.owners import bound_label
from exporter.pipeline.snapshot import KubeletSample, MachineSample
from isolation.contract.model import Slice
from isolation.contract.names import ACK

MEMORY = ACK.memory
WHOLE = 16 * GIB - RESERVED


def brief(found):
    """(pod, container, card, bytes, exclusive, who says so) of every allocation."""
    return [(c.pod, c.container, c.index, c.bytes, c.exclusive, c.allocation_source) for c in found.all]


def units(count, index=0):
    """IDs of so many units of memory of a card."""
    return [f"{uuid(index)}-_-{n}" for n in range(count)]


def test_a_run_is_a_pod_of_one_container():
    """A command of `gpushare run` stands under its name, with the promise id as container; two of a name stay two."""
    node = Node(kubernetes=False).hold(hold("train", ident="run-1", core=30)).hold(hold("train", ident="run-2", gib=2))

    found = list_allocations(node.snapshot())

    assert [("train", "run-1", 0, 5 * GIB, False, "run"), ("train", "run-2", 0, 2 * GIB, False, "run")] == brief(found)
    assert [(0.3, "fixed", "", "run-1"), (None, "fixed", "", "run-2")] == [
        (c.core_ratio, c.policy, c.namespace, c.promise) for c in found.all
    ]
    assert {uuid(): 7 * GIB} == found.allocated


def test_a_hold_over_two_cards_is_two_claims():
    """Each card has its own part, under the index that NVML gives it now."""
    made = hold("wide", slices=(Slice(uuid(0), 7, GIB), Slice(uuid(1), 8, 2 * GIB)))

    found = list_allocations(Node(2, kubernetes=False).hold(made).snapshot())

    assert [(0, GIB), (1, 2 * GIB)] == [(c.index, c.bytes) for c in found.all]


def test_a_hold_stays_known_without_nvml():
    """A hold says its amounts and its card's index itself; a whole card's size only NVML knows."""
    node = Node(machine_ok=False).pod_hold("a").container("b").grant("b", [uuid()])

    assert [("a", "main", 0, 5 * GIB, False, "agent")] == brief(list_allocations(node.snapshot()))


@pytest.mark.parametrize(
    ("ids", "exclusive", "amount"),
    [
        ([uuid()], True, WHOLE),
        ([f"{uuid()}::0", f"{uuid()}::7"], False, None),
        (["nvidia0"], True, WHOLE),
        (["nvidia0/vgpu3"], False, None),
    ],
)
def test_forms_of_a_whole_card(ids, exclusive, amount):
    """A UUID or a minor number is the whole card, a replica of it a slice of its time without memory."""
    found = list_allocations(Node().container("a").grant("a", ids).snapshot())

    assert [("a", "main", 0, amount, exclusive, "kubelet")] == brief(found)
    assert [1.0 if exclusive else None] == [c.core_ratio for c in found.all]
    assert {uuid(): amount or 0} == found.allocated


@pytest.mark.parametrize("ident", ["MIG-0", "MIG-0::1", "nvidia0/gi7", "nvidia0/gi7/vgpu0", "MIG-{parent}/7/0"])
def test_forms_of_a_mig_instance(ident):
    """An instance is named by its UUID, by minor number and GPU instance, or by the old spelling of both."""
    parent = f"GPU-{'a' * 8}-aaaa-aaaa-aaaa-{'a' * 12}"
    instance = card(0, uuid="MIG-0", parent=parent, gpu_instance=7, minor=None, profile="1g.5gb", total_bytes=5 * GIB)
    other = card(0, uuid="MIG-1", parent=parent, gpu_instance=8, minor=None)
    machine = MachineSample((instance, other), divided=(card(0, uuid=parent),))
    node = Node().container("a").grant("a", [ident.format(parent=parent)], resource=f"{ACK.whole[:-3]}mig-1g.5gb")

    found = list_allocations(node.snapshot(machine=outcome(machine)))

    assert ["MIG-0"] == [c.uuid for c in found.all]
    assert ["::" not in ident and "vgpu" not in ident] == [c.exclusive for c in found.all]


def test_one_claim_however_many_ids():
    """48 IDs of one card are one allocation, not 48 (NVIDIA/dcgm-exporter issue 725)."""
    node = Node(2, agent=True).pod_hold("b", index=1).container("a").grant("a", units(48), resource=MEMORY)

    assert ("a", "main", 0, 48 * GIB, False, "kubelet") == brief(list_allocations(node.snapshot()))[0]


def test_a_whole_card_under_two_names_is_promised_once():
    """An init container has it by its UUID, the main one by UUID and minor number: one card, in either order."""
    for first, second in (("side", "main"), ("main", "side")):
        ids = {"side": [uuid()], "main": [uuid(), "nvidia0"]}
        node = Node().container("b", container="side").container("b", container="main")
        for one in (first, second):
            node.grant("b", ids[one], container=one)
        assert {uuid(): WHOLE} == list_allocations(node.snapshot()).allocated


def test_a_card_and_a_slice_of_it_are_one_claim():
    """Whoever has the whole card has its slices too."""
    found = list_allocations(Node().container("a").grant("a", [uuid(), f"{uuid()}::1"]).snapshot())

    assert [("a", "main", 0, WHOLE, True, "kubelet")] == brief(found)


def test_a_promise_that_was_written_twice_is_one_claim():
    """Two records of one promise are not twice the memory."""
    found = list_allocations(Node(kubernetes=False).hold(hold("train")).hold(hold("train")).snapshot())

    assert (1, {uuid(): 5 * GIB}) == (len(found.all), found.allocated)


def test_a_pod_of_which_the_kubelet_has_not_reported():
    """What is promised is not known then, unless a hold says it."""
    silent = Node(unanswered={("team", "b")}).container("a").grant("a", [uuid()])
    spoken = Node(agent=True, unanswered={("team", "b")}).pod_hold("b")

    assert (False, None, {("team", "b")}) == (
        (found := list_allocations(silent.snapshot())).complete,
        found.allocated,
        found.unanswered,
    )
    assert (True, frozenset()) == ((found := list_allocations(spoken.snapshot())).complete, found.unanswered)


def test_the_kubelets_own_list_of_pods_names_uids():
    """A pod without a container that runs has its UID from there, and a pod that is over is known as such."""
    node = Node(pods={"fresh": ("team", "a")}).grant("a", [uuid()]).lives("fresh")

    assert ["fresh"] == [c.pod_uid for c in list_allocations(node.snapshot()).all]
    node.live = {"other"}
    node.pods["other"] = ("team", "x")
    assert [] == brief(list_allocations(node.snapshot()))


def test_a_hold_speaks_before_the_kubelet():
    """Where our agent wrote the promise down, the device IDs behind it add nothing."""
    node = Node(agent=True).pod_hold("a", core=20).grant("a", units(5), resource=MEMORY)

    assert [("a", "main", 0, 5 * GIB, False, "agent")] == brief(list_allocations(node.snapshot()))


@pytest.mark.parametrize("cards", [1, 2])
def test_units_of_our_agent_are_nothing_before_it_has_written_a_promise(cards):
    """They name no card: a container whose image is being fetched has none yet, and the node's totals stay known."""
    found = list_allocations(Node(cards).container("a").grant("a", ["1GiB-0", "256MiB-17"], resource=MEMORY).snapshot())

    assert ([], frozenset(), True) == (brief(found), found.unplaced, found.counted)


def test_foreign_units_go_where_the_processes_are():
    """Open gpushare's IDs name another card than it took: the container's processes tell the right one."""
    node = Node(2).container("a").grant("a", units(3, index=0), resource=MEMORY).process(7, 1, index=1, pod="a")

    assert [("a", "main", 1, 3 * GIB, False, "ids")] == brief(list_allocations(node.snapshot()))


def test_foreign_units_without_a_process_are_not_guessed():
    """On a node of two cards nobody knows which; with one card there is no question."""
    two = Node(2).container("a").grant("a", units(3), resource=MEMORY)
    one = Node(1).container("a").grant("a", units(3), resource=MEMORY)

    assert ([], {("team", "a", "main")}) == (
        brief(list_allocations(two.snapshot())),
        list_allocations(two.snapshot()).unplaced,
    )
    assert [3 * GIB] == [c.bytes for c in list_allocations(one.snapshot()).all]


def test_units_of_mib():
    """More GiB than the card has can only be MiB, which open gpushare also counts in."""
    found = list_allocations(Node().container("a").grant("a", units(2000), resource=MEMORY).snapshot())

    assert [2000 << 20] == [c.bytes for c in found.all]


def test_a_device_that_nobody_sees_is_no_claim():
    """A card handed through to a virtual machine is not on the host: noted, not invented."""
    found = list_allocations(Node().container("a").grant("a", ["GPU-elsewhere"]).snapshot())

    assert ([], {("team", "a", "main")}) == (brief(found), found.unplaced)


def test_other_resources_are_none_of_ours():
    """Network cards and the like are no cards."""
    found = list_allocations(Node().container("a").grant("a", ["eth0"], resource="example.com/nic").snapshot())

    assert ([], frozenset()) == (brief(found), found.unplaced)


def test_dra_claims():
    """A device of a DRA claim is a whole card for one container; a claim that serves two is shared."""
    ident = "gpu.nvidia.com/pool-a/gpu-0"
    one = Node().container("a").grant("a", [ident], resource="claim:team/one")
    two = Node().container("a").container("b")
    for pod in "ab":
        two.grant(pod, [ident], resource="claim:team/one")

    assert [("a", True)] == [(c.pod, c.exclusive) for c in list_allocations(one.snapshot()).all]
    assert [("a", False), ("b", False)] == [(c.pod, c.exclusive) for c in list_allocations(two.snapshot()).all]


def test_an_init_container_hands_its_card_on():
    """Both containers have the card in turn: two allocations, promised once."""
    node = Node().container("a", "setup").container("a")
    node.grant("a", [uuid()], container="setup").grant("a", [uuid()])

    found = list_allocations(node.snapshot())

    assert [("setup", WHOLE), ("main", WHOLE)] == sorted(((c.container, c.bytes) for c in found.all), reverse=True)
    assert {uuid(): WHOLE} == found.allocated


def test_a_terminated_pod_that_an_old_kubelet_still_lists():
    """Its UID is known and has no control group: gone. Without a view of control groups it is unknown."""
    node = Node().container("a").grant("a", [uuid()])
    node.live = {"uid-other"}
    node.container("other")

    assert [] == brief(list_allocations(node.snapshot()))
    blind = replace(node.snapshot().kernel.value, live_pods=None)
    assert 1 == len(list_allocations(node.snapshot(kernel=outcome(blind))).all)


def test_an_assignment_with_a_uid_ends_with_its_pod():
    """Where the UID is reported, a control group decides."""
    node = Node().grant("a", [uuid()], pod_uid="old").grant("b", [uuid()], pod_uid="new").lives("new")

    assert ["b"] == [c.pod for c in list_allocations(node.snapshot()).all]


def test_a_successor_that_nobody_has_named_yet_keeps_the_claim():
    """The old pod has gone, a control group that no record names is there: it may be the new pod of that name."""
    node = Node().container("a").grant("a", [uuid()])
    node.live = {"uid-fresh"}

    assert [""] == [c.pod_uid for c in list_allocations(node.snapshot()).all]


def test_a_hold_ends_with_its_pod():
    """A hold whose pod has no control group any more is not shown, also while its folder is still there."""
    node = Node(agent=True).pod_hold("a").pod_hold("b", index=0)
    node.live = {"uid-b"}

    assert ["b"] == [c.pod for c in list_allocations(node.snapshot()).all]


def test_pods_of_one_name_stay_apart():
    """A force-deleted pod that still lives and its successor: two allocations, distinguished by UID."""
    node = Node(agent=True).pod_hold("db-0", pod_uid="old").pod_hold("db-0", pod_uid="new", gib=3)

    found = list_allocations(node.snapshot())

    assert {("old", 5 * GIB), ("new", 3 * GIB)} == {(c.pod_uid, c.bytes) for c in found.all}
    assert 2 == len({c.key for c in found.all})


def test_a_grant_to_the_successor_of_a_hold():
    """The old pod's hold does not hide what the kubelet gave to the new one."""
    node = Node(agent=True).pod_hold("db-0", pod_uid="old").lives("new")
    node.grant("db-0", units(2), resource=MEMORY, pod_uid="new")

    assert [("old", 5 * GIB), ("new", 2 * GIB)] == [
        (c.pod_uid, c.bytes) for c in list_allocations(node.snapshot()).all
    ][::-1]


def test_the_uid_comes_from_the_kubelets_records():
    """Pod-resources tells no UID; one living pod of that name is it, two leave it open."""
    node = Node().container("a").grant("a", [uuid()])
    twice = Node().container("a", pod_uid="one").container("a", pod_uid="two").grant("a", [uuid()])

    assert ["uid-a"] == [c.pod_uid for c in list_allocations(node.snapshot()).all]
    assert [""] == [c.pod_uid for c in list_allocations(twice.snapshot()).all]


@pytest.mark.parametrize("failed", ["promises_ok", "kubelet_ok"])
def test_incomplete_without_a_source(failed):
    """A source of promises that failed leaves what is promised unknown, not smaller."""
    found = list_allocations(Node(**{failed: False}).pod_hold("a").snapshot())

    assert (False, None) == (found.complete, found.allocated)


def test_a_lost_card_has_no_size():
    """What a whole card that fell off the bus amounts to is not known."""
    node = Node().container("a").grant("a", [uuid()]).card(lost=True, total_bytes=0, free_bytes=None)

    assert [None] == [c.bytes for c in list_allocations(node.snapshot()).all]


def test_the_region_travels_with_the_claim():
    """What a tenant wrote is read beside its own allocation only."""
    node = Node(agent=True).pod_hold("a", reading=region(used=7)).pod_hold("b")

    assert {"a": 7, "b": None} == {
        c.pod: c.region and c.region.reading.cards[0].used_bytes for c in list_allocations(node.snapshot()).all
    }


@settings(max_examples=examples(60), deadline=None)
@given(st.text(min_size=200, max_size=600), st.text(max_size=600))
def test_names_are_bounded(one, other):
    """However long a name is, a label is not; long names that differ stay different."""
    assert len(bound_label(one)) <= 253
    if one != other and one.encode("utf-8", "replace") != other.encode("utf-8", "replace"):
        assert bound_label(one) != bound_label(other)


def test_long_names_stay_apart():
    """Two names that differ only behind the longest label are two labels."""
    same = "x" * 300

    assert bound_label(f"{same}a") != bound_label(f"{same}b")
    assert bound_label("x" * 253) == "x" * 253


IDS = st.lists(
    st.one_of(
        st.sampled_from([uuid(0), uuid(1), f"{uuid(0)}::1", "nvidia1", "nvidia0/vgpu2", *units(3), *units(2, 1)]),
        st.text(max_size=30),
    ),
    max_size=6,
)
GRANTS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(["main", "side"]), st.sampled_from([ACK.whole, MEMORY, "x"]), IDS
    ),
    max_size=6,
)


@settings(max_examples=examples(60), deadline=None)
@given(GRANTS, st.booleans(), st.randoms())
def test_one_claim_per_container_and_card_in_any_order(grants, agent, random):
    """Whatever IDs a kubelet lists, in whatever order: one allocation per container and card, always the same ones."""
    node = Node(2, agent=agent)
    for pod, container, resource, ids in grants:
        node.container(pod, container).grant(pod, ids, container=container, resource=resource)
    snapshot = node.snapshot()
    shuffled = list(node.grants)
    random.shuffle(shuffled)

    found = list_allocations(snapshot)
    again = list_allocations(replace(snapshot, kubelet=outcome(KubeletSample(tuple(shuffled)))))

    places = [(*c.names, c.uuid) for c in found.all]
    assert len(set(places)) == len(places)
    assert found == again


@pytest.mark.parametrize(
    ("policy", "core", "ceiling", "expected"),
    [
        ("fixed", 30, 0, 0.3),
        ("fixed", 0, 0, None),
        ("fixed", 0, 60, 0.6),
        ("burst", 30, 0, 1.0),
        ("weight", 0, 80, 0.8),
        ("priority", 0, 0, 1.0),
        ("none", 30, 50, None),
    ],
)
def test_the_most_that_a_container_may_compute_follows_from_its_policy(policy, core, ceiling, expected):
    """Absent where nothing limits it."""
    held = replace(hold("train", ident="run-1", core=core, policy=policy), ceiling=ceiling)

    found = list_allocations(Node(kubernetes=False).hold(held).snapshot())

    assert [(expected, core / 100 or None)] == [(c.limit_core_ratio, c.core_ratio) for c in found.all]
