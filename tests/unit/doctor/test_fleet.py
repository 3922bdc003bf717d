# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of a cluster, from what was found there."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doctor_facts import CARDS, NOW, WEBHOOK, certificate, facts, has, node, record, share

from isolation.contract.codec import encode_allocation
from isolation.contract.model import Ask, Placement, Request, Slice, Taint
from isolation.contract.names import DRAIN
from isolation.contract.quantity import GIB
from isolation.doctor.checks.cluster.facts import ClusterFacts, Probe, Secret, Unavailable, Workload
from isolation.doctor.checks.cluster.findings import check_cluster
from isolation.doctor.checks.cluster.nodes import check_nodes
from isolation.doctor.checks.cluster.parse import asks_for_shares, node_facts, workload
from isolation.doctor.checks.finding import FindingState
from isolation.host.core.certificate import ends


def found(**changed):
    """States by check."""
    return {one.check: one.state for one in check_cluster(facts(**changed), NOW)}


QUOTA = 'pods "gpushare-doctor" is forbidden: exceeded quota: few'
MAY_NOT = 'pods is forbidden: User "a" cannot create resource "pods" in API group ""'
AWAY = 'Internal error occurred: failed calling webhook "pods.gpushare.dev": failed to call webhook: Post "https://x"'
OTHERS_AWAY = 'Internal error occurred: failed calling webhook "all.others.io": failed to call webhook: EOF'
OTHERS = 'admission webhook "all.others.io" denied the request: no image of ours'
OURS = 'admission webhook "pods.gpushare.dev" denied the request: 3 do not split'
POLICY = (
    """pods "gpushare-doctor" is forbidden: ValidatingAdmissionPolicy 'gpushare-pods' with binding 'gpushare-pods' """
    "denied request: 3 do not split"
)


CLASSIC = "registry.cn-hangzhou.aliyuncs.com/acs/k8s-gpushare-schd-extender:1.11-d170d8a"
SPEAKS_HAMI = {
    **WEBHOOK,
    "webhooks": [{**WEBHOOK["webhooks"][0], "matchConditions": [{"expression": "'nvidia.com/gpumem' in c.x"}]}],
}


def test_nodes_that_the_autoscaler_empties_are_named():
    """It is no fault, and their cards get no new pods all the same."""
    known = node()
    draining = replace(known, node=replace(known.node, taints=(Taint(DRAIN),)))
    [finding] = [one for one in check_cluster(facts(nodes=(draining,)), NOW) if one.check == "cluster.cards"]

    assert (FindingState.OK, True) == (
        finding.state,
        finding.evidence.startswith(f"the autoscaler empties {known.name}"),
    )


@pytest.mark.parametrize(
    ("words", "state", "fix"),
    [
        pytest.param(QUOTA, FindingState.UNKNOWN, "namespace default", id="quota"),
        pytest.param(MAY_NOT, FindingState.UNKNOWN, "administrator credentials", id="no right"),
        pytest.param(AWAY, FindingState.UNKNOWN, "see cluster.admission", id="our webhook is away"),
        pytest.param(OTHERS_AWAY, FindingState.UNKNOWN, "namespace default", id="another webhook is away"),
        pytest.param(OTHERS, FindingState.UNKNOWN, "namespace default", id="another webhook"),
        pytest.param(OURS, FindingState.OK, "", id="our webhook"),
        pytest.param(POLICY, FindingState.OK, "", id="our policy"),
    ],
)
def test_who_refused_the_senseless_pod_decides_what_to_do(words, state, fix):
    """
    Only our own refusal shows that requests are checked; the advice fits whoever else it was.
    """
    findings = next(
        one for one in check_cluster(facts(bad=Probe(words)), NOW) if one.check == "cluster.admission_denies"
    )

    assert state == findings.state
    assert fix in findings.fix
    assert bool(fix) == bool(findings.fix)


def test_a_cluster_in_which_all_is_well_is_told_so():
    """
    No warning without a cause.
    """
    findings = check_cluster(facts(), NOW)

    assert [] == [one for one in findings if one.state is not FindingState.OK]
    assert len({one.check for one in findings}) == len(findings)


def webhook_serves(pem):
    """The webhook's Secret holds this."""
    return {"secrets": {"gpushare-scheduler-tls": Secret(pem)}}


@pytest.mark.parametrize(
    ("changed", "check", "expected"),
    [
        ({"version": "v1.33.9"}, "cluster.server_version", FindingState.PROBLEM),
        ({"version": "v1.34.0"}, "cluster.server_version", FindingState.OK),
        ({"provisioning": None}, "cluster.provisioning_requests", FindingState.OK),
        ({"provisioning": Unavailable("403")}, "cluster.provisioning_requests", FindingState.UNKNOWN),
        (
            {
                "provisioning": {
                    "spec": {"versions": [{"name": "v1beta1", "served": True}, {"name": "v1", "served": False}]}
                }
            },
            "cluster.provisioning_requests",
            FindingState.WARNING,
        ),
        (
            {"provisioning": {"spec": {"versions": [{"name": "v1", "served": True}]}}},
            "cluster.provisioning_requests",
            FindingState.OK,
        ),
        ({"version": "v1.40.0"}, "cluster.server_version", FindingState.OK),
        ({"version": "weird"}, "cluster.server_version", FindingState.UNKNOWN),
        ({"version": Unavailable("refused")}, "cluster.server_version", FindingState.UNKNOWN),
        ({"definition": None}, "cluster.reservations", FindingState.PROBLEM),
        (
            {"definition": {"spec": {"versions": [{"name": "v2", "served": True}]}}},
            "cluster.reservations",
            FindingState.PROBLEM,
        ),
        ({"definition": Unavailable("403")}, "cluster.reservations", FindingState.UNKNOWN),
        ({"webhooks": ()}, "cluster.webhook", FindingState.PROBLEM),
        (
            {"webhooks": ({"metadata": {"name": "gpushare-a"}, "webhooks": [{"failurePolicy": "Ignore"}]},)},
            "cluster.webhook",
            FindingState.PROBLEM,
        ),
        (
            {"webhooks": ({"metadata": {"name": "gpushare-a"}, "webhooks": [{"failurePolicy": "Fail"}]},)},
            "cluster.webhook",
            FindingState.PROBLEM,
        ),
        (
            {"webhooks": (WEBHOOK, {"metadata": {"name": "hami"}, "webhooks": [{"x": "aliyun.com/gpu-mem"}]})},
            "cluster.other_webhooks",
            FindingState.PROBLEM,
        ),
        ({"webhooks": (SPEAKS_HAMI,)}, "cluster.dialects", FindingState.OK),
        (
            {"webhooks": (SPEAKS_HAMI, {"metadata": {"name": "h"}, "webhooks": [{"name": "vgpu.hami.io"}]})},
            "cluster.dialects",
            FindingState.WARNING,
        ),
        ({"webhooks": Unavailable("403")}, "cluster.dialects", FindingState.UNKNOWN),
        (
            {"workloads": (*facts().workloads, Workload("Deployment", "kube-system/x", (CLASSIC,), 1, 1))},
            "cluster.classic_scheduler",
            FindingState.WARNING,
        ),
        ({"workloads": Unavailable("403")}, "cluster.classic_scheduler", FindingState.UNKNOWN),
        (
            {"pods": tuple(replace(one, dialect="hami", asks=True, done=False) for one in facts().pods)},
            "cluster.memory_unit",
            FindingState.WARNING,
        ),
        (
            {"pods": tuple(replace(one, dialect="qgpu", asks=True, done=False) for one in facts().pods)},
            "cluster.memory_unit",
            FindingState.OK,
        ),
        ({"pods": Unavailable("403")}, "cluster.memory_unit", FindingState.UNKNOWN),
        ({"good": Probe()}, "cluster.admission", FindingState.PROBLEM),
        (
            {"good": Probe('failed calling webhook "pods.gpushare.dev": x509: certificate has expired')},
            "cluster.admission",
            FindingState.PROBLEM,
        ),
        ({"good": Probe("pods is forbidden: User cannot create")}, "cluster.admission", FindingState.UNKNOWN),
        ({"good": Probe(shared=True, scheduler="volcano")}, "cluster.admission", FindingState.WARNING),
        ({"bad": Probe()}, "cluster.admission_denies", FindingState.PROBLEM),
        ({"bad": Probe("exceeded quota")}, "cluster.admission_denies", FindingState.UNKNOWN),
        ({"bad": Unavailable("away")}, "cluster.admission_denies", FindingState.UNKNOWN),
        (webhook_serves(certificate(-1)), "cluster.webhook_certificate", FindingState.PROBLEM),
        (webhook_serves(certificate(3)), "cluster.webhook_certificate", FindingState.WARNING),
        (webhook_serves(b"nonsense"), "cluster.webhook_certificate", FindingState.PROBLEM),
        ({"secrets": {}}, "cluster.webhook_certificate", FindingState.UNKNOWN),
        ({"policies": ()}, "cluster.policies", FindingState.PROBLEM),
        ({"bindings": ()}, "cluster.policies", FindingState.PROBLEM),
        (
            {"bindings": ({"spec": {"policyName": "gpushare-x", "validationActions": ["Audit"]}},)},
            "cluster.policies",
            FindingState.PROBLEM,
        ),
        ({"exempt": ("tenant",)}, "cluster.exempt_namespaces", FindingState.WARNING),
        ({"unisolated": ("tenant",)}, "cluster.unisolated_namespaces", FindingState.WARNING),
        ({"exempt": ("default",), "good": Probe()}, "cluster.admission", FindingState.UNKNOWN),
        ({"lease": None}, "cluster.scheduler_leader", FindingState.PROBLEM),
        ({"lease": {"spec": {}}}, "cluster.scheduler_leader", FindingState.PROBLEM),
        (
            {"lease": {"spec": {"holderIdentity": "p", "renewTime": "2027-01-15T07:00:00Z"}}},
            "cluster.scheduler_leader",
            FindingState.PROBLEM,
        ),
        (
            {"lease": {"spec": {"holderIdentity": "p", "renewTime": "noon"}}},
            "cluster.scheduler_leader",
            FindingState.UNKNOWN,
        ),
        ({"rights": {}}, "cluster.rights", FindingState.PROBLEM),
        ({"rights": Unavailable("403")}, "cluster.rights", FindingState.UNKNOWN),
        ({"rights": {"x may list pods": False}}, "cluster.rights", FindingState.PROBLEM),
        ({"rights": {"x may list pods": None}}, "cluster.rights", FindingState.UNKNOWN),
        ({"workloads": ()}, "cluster.components", FindingState.PROBLEM),
        (
            {"workloads": (Workload("DaemonSet", "kube-system/gpushare", ("a/k8s-gpushare-schd-extender:1",), 1, 1),)},
            "cluster.other_plugins",
            FindingState.PROBLEM,
        ),
        ({"nodes": (node(**{"ack.aliyun.com": "c1"}),)}, "cluster.ack", FindingState.PROBLEM),
        ({"nodes": (node(**{"ack.aliyun.com": "c1"}),), "workloads": ()}, "cluster.ack", FindingState.PROBLEM),
        (
            {"nodes": (node(**{"ack.aliyun.com": "c1"}),), "workloads": (), "webhooks": ()},
            "cluster.ack",
            FindingState.OK,
        ),
        (
            {"nodes": (node(**{"ack.aliyun.com": "c1"}),), "workloads": Unavailable("403")},
            "cluster.ack",
            FindingState.UNKNOWN,
        ),
        ({"nodes": (node(mode="cgqu"),)}, "cluster.modes", FindingState.PROBLEM),
        ({"nodes": (node(mode="mig"),)}, "cluster.modes", FindingState.OK),
        ({"nodes": (node(mode="mps"),)}, "cluster.modes", FindingState.OK),
        ({"nodes": (node(**{"gpushare.dev/compute-policy": "burst"}),)}, "cluster.compute_policies", FindingState.OK),
        (
            {"nodes": (node(**{"gpushare.dev/compute-policy": "fair"}),)},
            "cluster.compute_policies",
            FindingState.PROBLEM,
        ),
        (
            {"nodes": (node(**{"tke.cloud.tencent.com/qgpu-schedule-policy": "x"}),)},
            "cluster.compute_policies",
            FindingState.PROBLEM,
        ),
        ({"nodes": ()}, "cluster.nodes", FindingState.WARNING),
        ({"nodes": (node(agent="stopping"),)}, "cluster.agents", FindingState.PROBLEM),
        (
            {"nodes": (replace(node(), unhealthy="GPU-a: the MIG instances were changed"),)},
            "cluster.cards",
            FindingState.WARNING,
        ),
        ({"nodes": (node(),)}, "cluster.cards", FindingState.OK),
        ({"nodes": (node(units=29),)}, "cluster.units", FindingState.WARNING),
        ({"nodes": (node(**{"gpushare.dev/card-units": "80"}),)}, "cluster.units", FindingState.WARNING),
        ({"nodes": (node(kubelet="v1.28.1"),)}, "cluster.kubelet_versions", FindingState.PROBLEM),
        ({"nodes": (node(kubelet="v1.33.1"),)}, "cluster.kubelet_versions", FindingState.WARNING),
        ({"nodes": (node(kubelet="v1.37.0"),)}, "cluster.kubelet_versions", FindingState.WARNING),
        ({"nodes": (node(kubelet=""),)}, "cluster.kubelet_versions", FindingState.UNKNOWN),
        ({"items": [share("a", labelled=False)]}, "cluster.not_admitted", FindingState.PROBLEM),
        ({"items": [share("a", labelled=False)], "exempt": ("ml",)}, "cluster.not_admitted", FindingState.OK),
        ({"items": [share("a", annotation="")]}, "cluster.allocations", FindingState.PROBLEM),
        ({"items": [share("a", annotation="{}")]}, "cluster.allocations", FindingState.PROBLEM),
        ({"items": [share("a", 8), share("b", 8)]}, "cluster.overcommit", FindingState.PROBLEM),
        ({"items": [share("a", 8), share("b", 7)]}, "cluster.overcommit", FindingState.OK),
        ({"items": [share("a", 8), share("b", 8, phase="Failed")]}, "cluster.overcommit", FindingState.OK),
        ({"items": [share("a", annotation=record("a", 2, "GPU-gone"))]}, "cluster.overcommit", FindingState.WARNING),
        ({"items": [share("a", on="", scheduler="volcano")]}, "cluster.pending", FindingState.PROBLEM),
        ({"items": [share("a", on="")]}, "cluster.pending", FindingState.WARNING),
        ({"pods": Unavailable("403")}, "cluster.pods", FindingState.UNKNOWN),
        ({"items": [has(share("a"), "1GiB-0", "1GiB-1")]}, "cluster.devices", FindingState.OK),
        ({"items": [has(share("a"), "1GiB-0", "GPU-b-_-1")]}, "cluster.devices", FindingState.PROBLEM),
        ({"items": [has(share(name), "1GiB-0") for name in "ab"]}, "cluster.devices", FindingState.WARNING),
        (
            {"items": [has(share("a"), "1GiB-0"), has(share("b", phase="Failed"), "1GiB-0")]},
            "cluster.devices",
            FindingState.OK,
        ),
    ],
)
def test_each_fault_is_reported_as_what_it_is(changed, check, expected):
    """
    One thing is changed, and the finding about it says so.
    """
    assert expected == found(**changed)[check]


def test_whatever_is_not_well_has_something_to_do():
    """
    A cluster that tells nothing.
    """
    away = Unavailable("403 Forbidden")
    names = (
        "definition",
        "provisioning",
        "webhooks",
        "policies",
        "bindings",
        "services",
        "nodes",
        "pods",
        "exempt",
        "unisolated",
        "workloads",
    )
    blank = dict.fromkeys((*names, "lease", "good", "bad", "rights", "monitoring"), away)
    blank["secrets"] = {"gpushare-scheduler-tls": away}

    findings = check_cluster(ClusterFacts("v1.36.2", **blank), NOW)

    assert {FindingState.OK, FindingState.UNKNOWN} == {one.state for one in findings}
    assert ["cluster.server_version"] == [one.check for one in findings if one.state is FindingState.OK]
    assert [] == [one.check for one in findings if one.state is not FindingState.OK and not one.fix]


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ({"aliyun.com/gpu-mem": "30", "nvidia.com/gpu": "2"}, "n offers shares and whole cards: a card can be"),
        (
            {"aliyun.com/gpu-mem": "0", "nvidia.com/gpu": "2"},
            "n: another device plugin offers whole cards, so the node",
        ),
        ({"nvidia.com/mig-1g.5gb": "7"}, "n: another device plugin offers whole cards, so the node"),
    ],
)
def test_both_kinds_of_cards_on_one_node_are_a_problem(left, words):
    """
    The same card could be given twice, unless the agent has withdrawn its units already.
    """
    labels = {"ack.node.gpu.schedule": "cgpu"}
    both = node_facts({"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": left}})

    [finding] = [one for one in check_nodes((both,), "v1.36.2") if one.check == "cluster.mixed_resources"]

    assert FindingState.PROBLEM is finding.state
    assert words in finding.evidence


QUARTERS = tuple(replace(card, unit_bytes=GIB // 4) for card in CARDS)


def quarter(name, units):
    """A pod of so many quarters of a GiB, with its record."""
    request = Request(cards=1, card_bytes=units * GIB // 4, asks=(Ask("main", units * GIB // 4),))
    made = encode_allocation(name, request, Placement("n1", (Slice("GPU-a", 0, units * GIB // 4),)))
    return share(name, units, annotation=made)


def test_units_are_those_that_the_agents_count_in():
    """
    Sixty quarters fill a card of 15 GiB, one more is too many; GiB beside them is a problem of its own.
    """
    fine = node(units=120, cards=QUARTERS, **{"gpushare.dev/card-units": "60"})
    other = node("n2")

    full = found(nodes=(fine,), items=[quarter("a", 60)])
    over = found(nodes=(fine,), items=[quarter("a", 60), quarter("b", 1)])

    assert (FindingState.OK, FindingState.OK) == (full["cluster.overcommit"], full["cluster.units"])
    assert FindingState.PROBLEM == over["cluster.overcommit"]
    assert FindingState.PROBLEM == found(nodes=(fine, other))["cluster.units"]


def test_where_kubelets_do_not_tell_nothing_is_said_of_devices():
    """
    Before Kubernetes 1.36: no finding, rather than a good one or one that is unknown for ever.
    """
    assert "cluster.devices" not in found()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    ("metadata",),
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("metadata", "name"),
    ("metadata", "creationTimestamp"),
    ("spec",),
    ("spec", "containers"),
    ("spec", "nodeName"),
    ("spec", "template"),
    ("status",),
    ("status", "allocatable"),
    ("status", "nodeInfo"),
    ("status", "containerStatuses"),
]


@given(st.sampled_from(PLACES), JSON)
def test_no_object_of_whatever_shape_stops_the_doctor(place, value):
    """
    Old versions, other people's controllers: an object that makes no sense is reported, or left out.
    """
    thing = json.loads(json.dumps(share("a")))
    inner = thing
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value

    asks_for_shares(thing)
    workload("Deployment", thing)
    findings = check_cluster(facts(nodes=(node_facts(thing), node()), items=[thing]), NOW)

    assert all(one.evidence.isprintable() for one in findings)


def test_the_end_of_a_certificate_is_read_as_others_read_it():
    """
    Both spellings of a time: two-digit years until 2049, four digits after.
    """
    for days in (1, 400, 365 * 40):
        assert [NOW + days * 86_400] == ends(certificate(days))
    assert 2 == len(ends(certificate(1) + certificate(2)))


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_bytes_that_are_no_certificate_are_none(noise, at, byte):
    """
    Noise, and a certificate with one byte changed: an answer, never an exception.
    """
    der = bytearray(base64.b64decode(b"".join(GOOD.split(b"-----")[2].split())))
    der[at % len(der)] = byte
    for body in (noise, bytes(der), bytes(der)[:at]):
        pem = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(body) + b"\n-----END CERTIFICATE-----\n"
        assert all(end is None or isinstance(end, float) for end in ends(pem))


GOOD = certificate(1)
