# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of an installation: which parts belong there, whether they run, and what runs out."""

from __future__ import annotations

import json
from itertools import product

import pytest
from click.testing import CliRunner
from e2e.manifest_build import OVERLAYS, objects
from hypothesis import given
from hypothesis import strategies as st
from support.doctor_facts import NOW, WHOLE, certificate, facts, node

from isolation.contract.names import AUTOSCALER, SCHEDULER
from isolation.contract.rbac import MOVING, PERMISSIONS, sentence
from isolation.doctor.checks.cluster.autoscaler import check_autoscaler as look_at_autoscaler
from isolation.doctor.checks.cluster.facts import (
    AutoscalerFacts,
    ClusterFacts,
    Monitoring,
    Secret,
    Unavailable,
    Workload,
)
from isolation.doctor.checks.cluster.findings import check_cluster
from isolation.doctor.checks.cluster.installation import find_installation
from isolation.doctor.checks.cluster.parse import secret, workload
from isolation.doctor.checks.finding import FindingState
from isolation.doctor.cli import doctor

ours = "gpushare-system/{}".format
HELD = {"spec": {"holderIdentity": "as-1_ab12", "renewTime": "2027-01-15T08:00:00.5Z"}}
PAGE = """# TYPE gpushare_autoscaler_config_last_reload_successful gauge
gpushare_autoscaler_config_last_reload_successful 1.0
gpushare_autoscaler_inhibited{reason="metrics"} 0.0
gpushare_autoscaler_provider_up{pool="gpu-a",provider="scale"} 1.0
"""
SCALER = Workload("Deployment", ours(AUTOSCALER), ("gpushare-controller:1.2.3",), 2, 2)
EXPORTER = Workload("DaemonSet", ours("gpushare-exporter"), ("gpushare-exporter:1.2.3",), 1, 1)
WATCHING = {"workloads": (EXPORTER, SCALER), "webhooks": (), "policies": (), "definition": None, "lease": None}


def installed(overlay, *components):
    """The workloads of an overlay, all of them ready, and its webhooks."""
    things = objects(overlay, components)
    found = []
    for one in things:
        if one["kind"] in {"Deployment", "DaemonSet"}:
            wanted = one["spec"].get("replicas", 1)
            status = {"desiredNumberScheduled": wanted, "numberReady": wanted, "readyReplicas": wanted}
            found.append(workload(one["kind"], one | {"status": status}))
    hooks = tuple(one for one in things if one["kind"].endswith("WebhookConfiguration"))
    return {"workloads": tuple(found), "webhooks": hooks}


def found(**changed):
    """Findings by check."""
    return {one.check: one for one in check_cluster(facts(**changed), NOW)}


@pytest.mark.processes
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_known_by_what_it_leaves_in_the_cluster(overlay):
    """
    What to apply again is what was applied.
    """
    nodes = (node(**({"ack.aliyun.com": "c1"} if overlay == "ack" else {})),)

    shape = find_installation(ClusterFacts("v1.36.2", nodes=nodes, **installed(overlay)))

    assert (overlay, overlay == "ack") == (shape.overlay, shape.watches)


def test_the_overlay_for_ack_lacks_nothing():
    """
    Nothing of admission, no agents, and none of the rights that nobody needs where no pod is moved.
    """
    rules = [rule for one in objects("ack") if one["kind"].endswith("Role") for rule in one["rules"]]
    granted = {(r, v) for rule in rules for r, v in product(rule["resources"], rule["verbs"])}
    rights = {
        sentence(AUTOSCALER, verb, permission.resource): (permission.resource, verb) in granted
        for permission in PERMISSIONS[AUTOSCALER]
        for verb in permission.verbs
    }
    changed = WATCHING | installed("ack") | {"secrets": {"gpushare-scheduler-tls": None}, "items": []}

    findings = check_cluster(facts(nodes=(node(agent="", **{"ack.aliyun.com": "c1"}),), rights=rights, **changed), NOW)

    assert [] == [one for one in findings if one.state is not FindingState.OK]
    assert (
        MOVING
        == {pair for permission in PERMISSIONS[AUTOSCALER] for pair in product([permission.resource], permission.verbs)}
        - granted
    )


def test_a_right_that_is_missing_on_ack_is_reported_with_its_overlay():
    """
    Only those that move pods may be missing there.
    """
    rights = {sentence(AUTOSCALER, "create", "pods/eviction"): False, sentence(AUTOSCALER, "list", "pods"): False}

    findings = found(nodes=(node(**{"ack.aliyun.com": "c1"}),), rights=rights, **WATCHING)["cluster.rights"]

    assert (FindingState.PROBLEM, "not allowed: gpushare-autoscaler may list pods") == (
        findings.state,
        findings.evidence,
    )
    assert "manifests/overlays/ack" in findings.fix


@pytest.mark.parametrize(
    ("changed", "check", "expected"),
    [
        (WATCHING, "cluster.components", FindingState.WARNING),
        (WATCHING | {"workloads": (SCALER,)}, "cluster.components", FindingState.WARNING),
        ({"workloads": WHOLE[:1]}, "cluster.components", FindingState.PROBLEM),
        ({"workloads": WHOLE[:2]}, "cluster.components", FindingState.WARNING),
        (
            {"workloads": (*WHOLE, Workload("Deployment", ours("x"), (), 2, 1))},
            "cluster.components",
            FindingState.WARNING,
        ),
        ({"workloads": Unavailable("403")}, "cluster.components", FindingState.UNKNOWN),
        ({"workloads": WHOLE}, "cluster.versions", FindingState.OK),
        (
            {"workloads": (*WHOLE, Workload("Deployment", ours("x"), ("r:5000/a/gpushare-node:0.2.0",), 1, 1))},
            "cluster.versions",
            FindingState.WARNING,
        ),
        (
            {"workloads": (*WHOLE, Workload("Deployment", ours("x"), ("kube-scheduler:v1.36.2@sha256:0",), 1, 1))},
            "cluster.versions",
            FindingState.OK,
        ),
        ({"monitoring": Monitoring(operator=True)}, "cluster.monitoring", FindingState.OK),
        ({"monitoring": Monitoring(operator=True, scrapes=4, rules=1)}, "cluster.monitoring", FindingState.OK),
        ({"monitoring": Unavailable("403")}, "cluster.monitoring", FindingState.UNKNOWN),
    ],
)
def test_each_fault_of_an_installation_is_reported_as_what_it_is(changed, check, expected):
    """
    One thing is changed, and the finding about it says so.
    """
    assert expected == found(**changed)[check].state


def test_images_by_their_digests_do_not_tell_a_version():
    """
    No finding, rather than a good one.
    """
    digests = tuple(Workload(one.kind, one.key, ("r/gpushare-node@sha256:0",), 2, 2) for one in WHOLE)

    assert "cluster.versions" not in found(workloads=digests)


@pytest.mark.parametrize(
    ("server", "tag", "expected"),
    [
        ("v1.36.2", "v1.36.2@sha256:0", FindingState.OK),
        ("v1.36.2-eks-1", "v1.35.9", FindingState.OK),
        ("v1.35.2", "v1.36.0", FindingState.WARNING),
        ("v1.36.2", "v1.34.9", FindingState.WARNING),
        ("v1.36.2", "latest", None),
        (Unavailable("no route"), "v1.36.2", None),
    ],
)
def test_the_kube_scheduler_is_of_the_servers_minor_version_or_the_one_before(server, tag, expected):
    """
    By its tag, where it tells; Kubernetes supports no other.
    """
    pair = ("r/gpushare-controller:0.1.0", f"registry.example:5000/kube-scheduler:{tag}")
    others = tuple(one for one in WHOLE if one.key != ours(SCHEDULER))
    finding = found(version=server, workloads=(*others, Workload("Deployment", ours(SCHEDULER), pair, 2, 2)))

    assert expected == (finding["cluster.kube_scheduler"].state if "cluster.kube_scheduler" in finding else None)


def entry(group, owner="gpushare-system/gpushare-autoscaler-metrics", available="True"):
    """An APIService."""
    namespace, _, name = owner.partition("/")
    condition = {"type": "Available", "status": available, "message": "no endpoints"}
    return {
        "metadata": {"name": f"v1beta1.{group}"},
        "spec": {"group": group, "service": {"namespace": namespace, "name": name}},
        "status": {"conditions": [condition] if available else []},
    }


CUSTOM = "custom.metrics.k8s.io"
KEDA = "keda/keda-operator-metrics-apiserver"
SERVING = Workload("Deployment", ours(AUTOSCALER), (), 2, 2, ("autoscaler", "--metrics-api=custom"))
APART = Workload("Deployment", ours(AUTOSCALER), (), 2, 2, ("autoscaler", "--metrics-api", "custom"))


@pytest.mark.parametrize(
    ("services", "scaler", "expected"),
    [
        ([], SCALER, FindingState.OK),
        ([], SERVING, FindingState.WARNING),
        ([entry(CUSTOM)], SERVING, FindingState.OK),
        ([entry(CUSTOM)], APART, FindingState.OK),
        ([entry(CUSTOM)], SCALER, FindingState.PROBLEM),
        ([entry(CUSTOM, available="False")], SERVING, FindingState.PROBLEM),
        ([entry(CUSTOM, available="")], SERVING, FindingState.UNKNOWN),
        ([entry(CUSTOM, KEDA)], SCALER, FindingState.OK),
        ([entry(CUSTOM, KEDA)], SERVING, FindingState.PROBLEM),
        ([entry(CUSTOM, KEDA, "False")], SCALER, FindingState.WARNING),
        ([entry("metrics.k8s.io", "kube-system/metrics-server", "False")], SCALER, FindingState.OK),
    ],
)
def test_a_metrics_api_has_one_server_that_answers(services, scaler, expected):
    """
    Ours where it is told to, theirs otherwise; one that is away is reported, whoever it belongs to.
    """
    findings = found(services=tuple(services), workloads=(*WHOLE, scaler))["cluster.metrics_apis"]

    assert expected is findings.state
    assert (expected is FindingState.OK) == (findings.fix == "")


@pytest.mark.parametrize(
    ("changed", "check", "expected"),
    [
        ({}, "cluster.autoscaler", FindingState.OK),
        ({"lease": None}, "cluster.autoscaler", FindingState.WARNING),
        ({"lease": Unavailable("403")}, "cluster.autoscaler", FindingState.UNKNOWN),
        ({"lease": {"spec": HELD["spec"] | {"holderIdentity": ""}}}, "cluster.autoscaler", FindingState.WARNING),
        (
            {"lease": {"spec": HELD["spec"] | {"renewTime": "2027-01-15T07:00:00Z"}}},
            "cluster.autoscaler",
            FindingState.WARNING,
        ),
        ({"switch": {"enabled": "true", "dryRun": "true"}}, "cluster.autoscaler_config", FindingState.OK),
        ({"switch": {"enabled": "yes"}}, "cluster.autoscaler_config", FindingState.WARNING),
        ({"switch": {"dryrun": "true"}}, "cluster.autoscaler_config", FindingState.WARNING),
        ({"switch": Unavailable("403")}, "cluster.autoscaler_config", FindingState.UNKNOWN),
        (
            {"metrics": PAGE.replace("successful 1", "successful 0")},
            "cluster.autoscaler_inhibited",
            FindingState.WARNING,
        ),
        ({"metrics": PAGE.replace('"} 0', '"} 2')}, "cluster.autoscaler_inhibited", FindingState.WARNING),
        ({"metrics": PAGE.replace('scale"} 1', 'scale"} 0')}, "cluster.autoscaler_inhibited", FindingState.WARNING),
        ({"metrics": "<html>"}, "cluster.autoscaler_inhibited", FindingState.UNKNOWN),
        ({"metrics": Unavailable("503")}, "cluster.autoscaler_inhibited", FindingState.UNKNOWN),
    ],
)
def test_how_the_autoscaler_stands_is_never_a_problem(changed, check, expected):
    """
    While it stands still no promise is broken; where it is unknown, it is not called well.
    """
    well = {"lease": HELD, "switch": {"enabled": "true", "dryRun": "false"}, "metrics": PAGE}

    findings = {one.check: one for one in look_at_autoscaler(AutoscalerFacts(**(well | changed)), NOW)}

    assert expected is findings[check].state
    assert {FindingState.OK} == {one.state for name, one in findings.items() if name != check}


def test_a_dry_run_is_said_with_what_ends_it():
    """
    It is the state after every first install, and no fault.
    """
    switch = {"enabled": "true", "dryRun": "true"}

    findings = {one.check: one.evidence for one in look_at_autoscaler(AutoscalerFacts(HELD, switch), NOW)}

    assert 'dryRun "false" in ConfigMap gpushare-system/gpushare-autoscaler' in findings["cluster.autoscaler_config"]
    assert "cluster.autoscaler_inhibited" not in findings


@given(st.text(max_size=300))
def test_no_page_of_metrics_stops_the_doctor(noise):
    """
    Whatever answers behind the API server's proxy.
    """
    for page in (noise, PAGE + noise, noise + PAGE):
        assert look_at_autoscaler(AutoscalerFacts(HELD, {}, page), NOW)


GRPC = "gpushare-autoscaler-grpc-tls"


@pytest.mark.parametrize(
    ("kept", "expected", "fix"),
    [
        (Secret(certificate(90), certificate(90)), FindingState.OK, ""),
        (Secret(certificate(90), certificate(-1) + certificate(90)), FindingState.OK, ""),
        (Secret(certificate(90), certificate(-1)), FindingState.PROBLEM, "certificate.sh grpc"),
        (Secret(certificate(5), certificate(90)), FindingState.WARNING, "certificate.sh grpc"),
        (Secret(certificate(5), b"", "gpushare-grpc"), FindingState.WARNING, "describe certificate gpushare-grpc"),
        (Secret(), FindingState.PROBLEM, "certificate.sh grpc"),
        (Secret(certificate(90), b"x"), FindingState.PROBLEM, "certificate.sh grpc"),
        (None, FindingState.PROBLEM, "certificate.sh grpc"),
        (Unavailable("403"), FindingState.UNKNOWN, "Secrets"),
    ],
)
def test_every_certificate_that_is_mounted_is_looked_at(kept, expected, fix):
    """
    Its own end, that of the youngest authority it believes, and who renews it.
    """
    scaler = Workload("Deployment", ours(AUTOSCALER), (), 2, 2, (), (GRPC,))
    secrets = {"gpushare-scheduler-tls": Secret(certificate(90)), GRPC: kept}

    findings = found(workloads=(*WHOLE, scaler), secrets=secrets)["cluster.certificates"]

    assert expected is findings.state
    assert fix in findings.fix


def test_a_secret_of_something_else_is_no_bad_certificate():
    """
    Passwords of the exporter, for instance.
    """
    secrets = {"gpushare-scheduler-tls": Secret(certificate(90)), "exporter-web": Secret()}

    assert FindingState.OK is found(secrets=secrets)["cluster.certificates"].state


def test_of_a_secret_only_certificates_are_kept():
    """
    Never its key, and nothing that is no base64.
    """
    read = secret({"data": {"tls.crt": "YQ==", "tls.key": "a2V5", "ca.crt": "####"}, "metadata": 7})

    assert Secret(b"a", b"") == read


def test_the_canary_pod_runs_an_image_of_the_manifests():
    """
    The one with the doctor in it, so that it is on the nodes already.
    """
    [agent] = [one for one in installed("self-signed")["workloads"] if one.key == ours("gpushare-node")]

    pod = json.loads(CliRunner().invoke(doctor, ["--canary-pod"]).output)

    assert set(agent.images) == {one["image"] for one in pod["spec"]["containers"]}
