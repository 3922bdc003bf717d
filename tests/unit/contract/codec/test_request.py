# SPDX-License-Identifier: Apache-2.0
"""
What a pod's own words amount to on cards and on the machine, or why they amount to nothing.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.codec import CodecError, request_of
from isolation.contract.model import Ask, Compute, Refusal, Request, Why
from isolation.contract.names import CORE_LIMIT, ONLINE, TRUST_GROUP, WEIGHT
from isolation.contract.quantity import GIB, MIB

MEM, CORE, WHOLE, COUNT = (
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-core.percentage",
    "nvidia.com/gpu",
    "aliyun.com/gpu-count",
)


def container(name="c", *, requests=None, restart=None, **limits):
    """A container; keyword names are short for the resources' names."""
    long = {"mem": MEM, "core": CORE, "whole": WHOLE}
    entry = {"name": name, "resources": {"limits": {long.get(k, k): v for k, v in limits.items()}}}
    if requests is not None:
        entry["resources"]["requests"] = {long.get(k, k): v for k, v in requests.items()}
    if restart:
        entry["restartPolicy"] = restart
    return entry


def ask(*containers, init=(), count=None, **spec):
    """The request of a pod with these containers."""
    labels = {} if count is None else {COUNT: count}
    return request_of({"labels": labels}, {"containers": list(containers), "initContainers": list(init), **spec})


def sidecar(name="s", **limits):
    """A native sidecar."""
    return container(name, restart="Always", **limits)


def reason(outcome):
    """The reason of a refusal that must be INVALID."""
    assert isinstance(outcome, Refusal), outcome
    assert Why.INVALID == outcome.why
    return outcome.reason


def test_memory_is_spread_evenly_over_the_labelled_number_of_cards():
    """8 units over 4 cards take 2 GiB of each."""
    expected = (4, 2 * GIB, (Ask("c", 8 * GIB),))
    request = ask(container(mem=8), count="4")
    assert expected == (request.cards, request.card_bytes, request.asks)


def test_the_unit_is_the_clusters_choice():
    """The same 8 are 2 GiB where one unit is 256 MiB."""
    request = request_of({}, {"containers": [container(mem=8)]}, unit_bytes=256 * MIB)
    assert 2 * GIB == request.card_bytes


def test_containers_of_one_pod_share_its_cards_and_add_up():
    """Two containers of 4 and 2 over 2 cards take 3 GiB and 30 % of each."""
    request = ask(container("a", mem=4, core=40), container("b", mem=2, core=20), count="2")
    assert (2, 3 * GIB, 30) == (request.cards, request.card_bytes, request.card_core)


def test_whole_cards_are_counted_not_measured():
    """Whole cards of several containers add up, with no amount on them."""
    request = ask(container("a", whole=2), container("b", whole=1))
    assert (3, True, 0, 0) == (request.cards, request.whole, request.card_bytes, request.card_core)


def test_a_zero_of_whole_cards_is_a_pod_without_cards():
    """Charts write `nvidia.com/gpu: 0`, and Kubernetes allows it."""
    assert 0 == ask(container(whole=0)).cards


@pytest.mark.parametrize(
    ("init", "apps", "expected"),
    [
        ([container("i", mem=8)], [container("a", mem=3)], 8),
        ([container("i", mem=2)], [container("a", mem=3), container("b", mem=4)], 7),
        ([sidecar(mem=2)], [container("a", mem=3)], 5),
        ([sidecar(mem=2), container("i", mem=8)], [container("a", mem=3)], 10),
        ([container("i", mem=8), sidecar(mem=2)], [container("a", mem=3)], 8),
        (
            [container("i", mem=4), sidecar(mem=2), container("j", mem=9), sidecar("t", mem=1)],
            [container("a", mem=3)],
            11,
        ),
    ],
)
def test_init_containers_and_sidecars_count_as_kubernetes_counts_them(init, apps, expected):
    """The larger of the running sum and each init container with the sidecars before it."""
    assert expected * GIB == ask(*apps, init=init).card_bytes


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=6),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_the_effective_request_is_the_highest_moment_of_the_pods_life(inits, apps):
    """Played forward step by step, no moment needs more, and one needs exactly that much."""
    running, moments = 0, []
    for is_sidecar, amount in inits:
        moments.append(running + amount)
        running += amount if is_sidecar else 0
    moments.append(running + sum(apps))
    started = [(sidecar if s else container)(f"i{n}", mem=m, cpu=m) for n, (s, m) in enumerate(inits)]

    request = ask(*(container(f"a{n}", mem=m, cpu=m) for n, m in enumerate(apps)), init=started)

    assert (max(moments) * GIB, max(moments) * 1000) == (request.card_bytes, request.cpu_milli)


def test_cpu_and_memory_come_from_requests_else_limits():
    """A limit stands in only where the request says nothing."""
    request = ask(container("a", cpu="2", memory="1Gi", requests={"cpu": "500m"}), container("b", cpu="0.1"))
    assert (600, GIB) == (request.cpu_milli, request.memory_bytes)


def test_fractions_of_a_millicore_are_rounded_once_at_the_end():
    """Three times 0.4 millicores are 2, not 3: the scheduler rounds the pod, not its containers."""
    request = ask(*(container(name, requests={"cpu": "400u"}) for name in "abc"))
    assert 2 == request.cpu_milli


def test_overhead_comes_on_top():
    """The sandbox's own need is part of the pod's."""
    request = ask(container(cpu="1", memory="1Gi"), overhead={"cpu": "250m", "memory": "512Mi"})
    assert (1250, GIB + 512 * MIB) == (request.cpu_milli, request.memory_bytes)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"requests": {"cpu": "4"}}, 4000),
        ({"limits": {"cpu": "4"}}, 1000),
        ({"limits": {"memory": "4Gi"}}, 1000),
        ({"requests": {"cpu": "100m"}, "limits": {"cpu": "4"}}, 100),
    ],
)
def test_pod_level_requests_replace_the_containers_sum(pod, expected):
    """A pod-level limit alone gives way to what containers ask."""
    assert expected == ask(container(cpu="1"), resources=pod).cpu_milli


def test_a_pod_level_limit_stands_in_where_no_container_says_anything():
    """KEP-2837's defaulting."""
    assert 4000 == ask(container(memory="1Gi"), resources={"limits": {"cpu": "4"}}).cpu_milli


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (ask(container(mem=8), count="3"), "request 6 or 9"),
        (ask(container(mem=2), count="3"), "request 3,"),
        (ask(container(mem=0)), "is 0; request 1 or more"),
        (ask(container(mem=-1)), "negative"),
        (ask(container(mem="1.5")), "whole number"),
        (ask(container(mem=2.5)), "whole number"),
        (ask(container(mem="500m")), "whole number"),
        (ask(container(mem="lots")), "is not an amount"),
        (ask(container(mem=True)), "is not an amount"),
        (ask(container(mem=10**30)), "more than any machine has"),
        (ask(container(mem=1 << 33)), "more than any machine has"),
        (ask(container(mem="2Gi")), "the unit is 1 GiB, so write 2 for 2 GiB"),
        (ask(container("a", mem=1 << 19), container("b", mem=1 << 19)), "together"),
        (ask(container(mem=8, requests={"mem": 4})), "make them equal"),
        (ask(container(requests={"mem": 4})), "under limits too"),
        (ask(container(mem=8), count="0"), "whole number from 1"),
        (ask(container(mem=8), count="-2"), "whole number from 1"),
        (ask(container(mem=8), count="two"), "whole number from 1"),
        (ask(container(mem=8), count="1e1"), "whole number from 1"),
        (ask(container(mem=8), count="100000"), "whole number from 1"),
        (ask(container(cpu=1), count="2"), "remove the label"),
        (ask(container(core=50)), "request both"),
        (ask(container("a", core=50), container("b", mem=2)), "request both"),
        (ask(container(mem=8, core=33)), "multiple of 5"),
        (ask(container(mem=8, core=0)), "is 0"),
        (ask(container(mem=8, core=30), count="4"), "multiple of 20"),
        (ask(container(mem=8, core=105)), "at most 100"),
        (ask(container("a", mem=1, core=60), container("b", mem=1, core=60)), "120 of each card"),
        (ask(container(mem=8, whole=1)), "cannot request both"),
        (ask(container("a", mem=8), container("b", whole=1)), "cannot request both"),
        (ask(container(whole=2), count="2"), "remove it"),
        (ask(container(whole=1 << 20)), "at most 64"),
        (ask(container("a", mem=1), container("a", mem=1)), "its own name"),
        (ask(container(cpu="-1")), "negative"),
        (ask(container(cpu="2", requests={"cpu": "3"})), "lower requests"),
        (ask(container(cpu="1"), resources={"limits": {MEM: 4}}), "move it to a container"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused_with_what_to_change(pod, says):
    """Every refusal is INVALID and tells its reader what to write instead."""
    assert says in reason(pod)


def test_equal_requests_and_limits_may_be_spelled_differently():
    """8 and "8000m" are the same amount."""
    assert 8 * GIB == ask(container(mem=8, requests={"mem": "8000m"})).card_bytes


@pytest.mark.parametrize(
    ("init", "apps", "admitted"),
    [
        ([container("i", mem=8)], [container("a", mem=8)], True),
        ([container("i", mem=8), container("j", mem=8)], [container("a", mem=8), container("b", cpu=1)], True),
        ([container("i", mem=8)], [container("a", mem=4)], False),
        ([container("i", mem=8)], [container("a", mem=8), container("b", mem=8)], False),
        ([container("i", mem=8), sidecar(mem=8)], [container("a", mem=8)], False),
        ([container("i", mem=8)], [container("a", cpu=1)], False),
        ([container("i", mem=8, core=40)], [container("a", mem=8)], False),
        ([sidecar(mem=4)], [container("a", mem=8)], True),
        ([container("i", cpu=1)], [container("a", mem=8), container("b", mem=4)], True),
    ],
)
def test_on_several_cards_an_init_container_must_ask_what_its_one_successor_asks(init, apps, admitted):
    """The kubelet hands devices on in no order: only equal amounts keep a pod on its own card set."""
    outcome = ask(*apps, init=init, count="4")
    assert admitted == isinstance(outcome, Request), outcome


def test_on_one_card_an_init_container_may_ask_anything():
    """With one card there is nothing to mix."""
    assert 8 * GIB == ask(container("a", mem=4), container("b", mem=2), init=[container("i", mem=8)]).card_bytes


def test_resources_that_placement_does_not_weigh_are_named():
    """Never dropped in silence."""
    request = ask(container(mem=1, **{"hugepages-2Mi": "4Mi", "rdma/hca": 1, "ephemeral-storage": "1Gi"}))
    assert ('resource "ephemeral-storage"', 'resource "hugepages-2Mi"', 'resource "rdma/hca"') == request.unmodelled


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, "spec.containers"),
        ({"containers": []}, "spec.containers"),
        ({"containers": {}}, "spec.containers"),
        ({"containers": [{"resources": {}}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "C!"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "c", "resources": {"limits": [1]}}]}, "spec.containers[0].resources.limits"),
        (
            {"containers": [{"name": "c", "resources": {"limits": {MEM: [1]}}}]},
            f'spec.containers[0].resources.limits["{MEM}"]',
        ),
        ([], "spec"),
    ],
)
def test_a_wrong_shape_is_an_error_that_says_where(spec, path):
    """The message starts with the path, so that a reader of files can name the line."""
    with pytest.raises(CodecError) as caught:
        request_of({}, spec)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_label_written_as_a_number_is_told_to_be_quoted():
    """Kubernetes refuses it too; the fix is quotes."""
    with pytest.raises(CodecError, match='quote it: "4"'):
        ask(container(mem=8), count=4)


def test_the_owner_is_the_controller_reference():
    """Other owners do not make replicas."""
    references = [{"kind": "Foo", "name": "x"}, {"kind": "ReplicaSet", "name": "web-1", "controller": True}]
    request = request_of({"namespace": "ns", "ownerReferences": references}, {"containers": [container(mem=1)]})
    assert "ReplicaSet/ns/web-1" == request.owner


@given(st.integers(1, 64), st.integers(1, 400), st.integers(0, 130))
def test_every_admitted_request_splits_exactly(count, units, core):
    """What an admitted pod takes of its cards is exactly what it asked for; anything else is refused."""
    outcome = ask(container(mem=units, **({"core": core} if core else {})), count=str(count))
    splits = units % count == 0 and core % (5 * count) == 0 and core <= 100 * count
    assert splits == isinstance(outcome, Request)
    if isinstance(outcome, Request):
        assert (units * GIB, core) == (outcome.card_bytes * count, outcome.card_core * count)
        assert Fraction(outcome.card_core, 5).denominator == 1


@pytest.mark.parametrize(
    ("annotations", "core", "expected"),
    [
        ({}, 30, Compute()),
        ({ONLINE: "true"}, 30, Compute()),
        ({ONLINE: "false"}, 0, Compute(online=False)),
        ({WEIGHT: "3"}, 0, Compute(weight=3)),
        ({CORE_LIMIT: "30"}, 30, Compute(ceiling=30)),
        ({CORE_LIMIT: "80", WEIGHT: "100"}, 0, Compute(weight=100, ceiling=80)),
        ({ONLINE: "no"}, 0, 'set "true" or "false"'),
        ({ONLINE: "false"}, 30, "remove aliyun.com/gpu-core.percentage"),
        ({WEIGHT: "0"}, 0, "whole number from 1 to 100"),
        ({WEIGHT: "101"}, 0, "whole number from 1 to 100"),
        ({WEIGHT: ""}, 0, "whole number from 1 to 100"),
        ({CORE_LIMIT: "1.5"}, 0, "whole number from 1 to 100"),
        ({CORE_LIMIT: "25"}, 30, "less than the 30 percent"),
    ],
)
def test_annotations_say_how_compute_is_shared(annotations, core, expected):
    """The policy is the node's; what contradicts itself is refused with what to write."""
    limits = {"mem": 2} | ({"core": core} if core else {})
    found = request_of({"annotations": annotations}, {"containers": [container(**limits)]})
    if isinstance(expected, str):
        assert expected in reason(found)
    else:
        assert expected == found.compute


def test_a_pod_without_shares_may_say_anything_about_compute():
    """Its annotations are not ours to judge."""
    found = request_of({"annotations": {ONLINE: "?", WEIGHT: "-1"}}, {"containers": [container()]})
    assert Compute() == found.compute


def under(uid):
    """A security context."""
    return {} if uid is None else {"securityContext": {"runAsUser": uid}}


@pytest.mark.parametrize(
    ("pod", "main", "second", "uid"),
    [
        (1000, None, None, 1000),
        (None, 0, 0, 0),
        (1000, 0, None, None),
        (1000, 0, 0, 0),
        (None, 1000, None, None),
        (None, None, None, None),
    ],
)
def test_the_user_is_known_where_the_spec_says_it_of_every_container_with_a_share(pod, main, second, uid):
    """What an image says is not known; a container without a share may run as anybody."""
    containers = (
        container("a", mem=1) | under(main),
        container("b", mem=1) | under(second),
        container("c") | under(77),
    )
    assert uid == ask(*containers, **under(pod)).uid


@pytest.mark.parametrize(
    ("metadata", "group"),
    [
        ({"namespace": "ml"}, "ml"),
        ({}, "default"),
        ({"namespace": "ml", "annotations": {TRUST_GROUP: "research"}}, "group/research"),
        ({"namespace": "ml", "annotations": {TRUST_GROUP: ""}}, "ml"),
    ],
)
def test_the_group_is_the_namespace_or_what_admission_wrote(metadata, group):
    """No namespace is taken for a group: they have no slash in their names."""
    spec = {"containers": [container(mem=1)], **under(5)}
    assert group == request_of(metadata, spec).group
    assert "" == request_of(metadata, {"containers": [container()], **under(5)}).group


@pytest.mark.parametrize("uid", [-1, 1 << 31, True, "0", 1.5])
def test_a_user_that_is_none_is_wrong_json(uid):
    with pytest.raises(CodecError, match="runAsUser"):
        ask(container(mem=1), **under(uid))
