# SPDX-License-Identifier: Apache-2.0
"""What the committed manifests give our own pods, and what they do not."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
import yaml

from isolation.contract.model import Mode
from isolation.contract.names import (
    ACK,
    CDI_DIR,
    KUBE_SCHEDULER,
    LEADER,
    MARKS_DIR,
    NODE_AGENT,
    ROLE,
    RUN_DIR,
    SCHEDULER,
    SYSTEM_NAMESPACE,
)
from isolation.contract.nri_api import SOCKET
from isolation.doctor.checks.cluster.certificates import WEBHOOK
from isolation.node.app import ADMIT_SECONDS, LEAVE_SECONDS
from isolation.node.cli import node
from isolation.node.device_plugin.cli import device_plugin
from isolation.node.paths import KUBELET_DIR
from isolation.scheduler.cli import scheduler
from isolation.scheduler.core.kube_scheduler_config import SIDECAR_LEASE
from isolation.scheduler.settings import SIDECAR

BASE = Path(__file__).resolve().parents[3] / "manifests" / "base"


def thing(path, kind, name=None):
    """One object of one file."""
    found = [one for one in yaml.safe_load_all((BASE / path).read_text()) if one["kind"] == kind]
    [one] = [one for one in found if name is None or one["metadata"]["name"] == name]
    return one


def container(workload, name):
    """One of its containers."""
    spec = workload["spec"]["template"]["spec"]
    [one] = [one for one in [*spec.get("initContainers", []), *spec["containers"]] if one["name"] == name]
    return one


DEPLOYMENT = thing("scheduler/deployment.yaml", "Deployment")
DAEMONSET = thing("node/daemonset.yaml", "DaemonSet")


def test_the_extender_is_reachable_over_loopback_alone():
    """
    It has no authentication: no port, no Service and no probe leads to it, and kube-scheduler finds it there.
    """
    ours = container(DEPLOYMENT, "gpushare")
    ports = {port["containerPort"] for port in ours["ports"]}
    configured = yaml.safe_load(thing("scheduler/configuration.yaml", "ConfigMap")["data"]["config.yaml"])

    assert f"--extender-listen={SIDECAR}" in ours["args"]
    assert SIDECAR.startswith("127.0.0.1:")
    assert int(SIDECAR.rpartition(":")[2]) not in ports
    assert [True] == [one["urlPrefix"].startswith(f"http://{SIDECAR}/") for one in configured["extenders"]]


def test_the_pair_in_one_pod_fails_over_together():
    """
    Ours campaigns only while the kube-scheduler beside it holds the Lease that its configuration names.
    """
    configured = yaml.safe_load(thing("scheduler/configuration.yaml", "ConfigMap")["data"]["config.yaml"])

    assert f"--kube-scheduler-lease={SIDECAR_LEASE}" in container(DEPLOYMENT, "gpushare")["args"]
    assert (SIDECAR_LEASE, SYSTEM_NAMESPACE) == tuple(
        configured["leaderElection"][key] for key in ("resourceName", "resourceNamespace")
    )


@pytest.mark.parametrize(
    ("command", "made"),
    [
        (scheduler, container(DEPLOYMENT, "gpushare")),
        (node, container(DAEMONSET, "agent")),
        (device_plugin, container(DAEMONSET, "device-plugin")),
    ],
    ids=["scheduler", "node", "device-plugin"],
)
def test_our_commands_understand_what_the_manifests_tell_them(command, made):
    """
    The first word is the sub-command, every other one an option that it has.
    """
    first, *rest = made["args"]

    assert command.name == first
    assert command.make_context(first, list(rest)).args == []


def test_services_find_all_replicas_and_the_leader():
    """
    Admission by every one, an existing scheduler's extender calls by the one that binds.
    """
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    every = thing("scheduler/service.yaml", "Service", SCHEDULER)["spec"]["selector"]
    leader = thing("../overlays/existing-scheduler/service.yaml", "Service", f"{SCHEDULER}-leader")["spec"]["selector"]

    assert every.items() <= labels.items()
    assert every | {ROLE: LEADER} == leader


def test_admission_has_no_gap_in_an_update_or_a_drain():
    """
    Two replicas, a new one before an old one ends, one always stays.
    """
    assert 2 == DEPLOYMENT["spec"]["replicas"]
    assert {"maxSurge": 1, "maxUnavailable": 0} == DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]
    assert 1 == thing("scheduler/disruption.yaml", "PodDisruptionBudget")["spec"]["minAvailable"]


def test_the_certificate_is_where_the_doctor_looks():
    """
    One name for the Secret.
    """
    volumes = {volume["name"]: volume for volume in DEPLOYMENT["spec"]["template"]["spec"]["volumes"]}

    assert WEBHOOK == volumes["tls"]["secret"]["secretName"]


def test_the_agent_sees_these_folders_of_its_node_and_no_others():
    """
    At the same paths as on the host, since it tells the runtime about them; read-only where it only reads.
    """
    spec = DAEMONSET["spec"]["template"]["spec"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    mounts, small = (
        {
            one["mountPath"]: one.get("readOnly", False)
            for one in container(DAEMONSET, name)["volumeMounts"]
            if one["name"] in paths
        }
        for name in ("agent", "device-plugin")
    )
    expected = {
        f"{KUBELET_DIR}/device-plugins": True,
        str(PurePosixPath(SOCKET).parent): False,
        RUN_DIR: False,
        str(PurePosixPath(MARKS_DIR).parent): False,
        CDI_DIR: False,
        "/etc/cdi": True,
        "/sys": True,
        "/sys/fs/cgroup": False,
    }

    assert expected == mounts
    assert set(mounts) == set(paths.values())
    assert dict.fromkeys(set(mounts) - {"/etc/cdi", "/sys", "/sys/fs/cgroup"}, False) == small
    assert "hostNetwork" not in spec


def test_the_device_plugin_outlives_the_agent_and_has_less():
    """
    A sidecar (it starts before and ends after), without a token, a card, a capability or a port.
    """
    pod = DAEMONSET["spec"]["template"]["spec"]
    ours, agent = container(DAEMONSET, "device-plugin"), container(DAEMONSET, "agent")
    place = "/var/run/secrets/kubernetes.io/serviceaccount"

    assert [("device-plugin", "Always")] == [(one["name"], one["restartPolicy"]) for one in pod["initContainers"]]
    assert pod["automountServiceAccountToken"] is False
    assert ([False], [True]) == tuple(
        [place in {mount["mountPath"] for mount in one["volumeMounts"]}] for one in (ours, agent)
    )
    assert ["ALL"] == ours["securityContext"]["capabilities"]["drop"]
    assert "privileged" not in ours["securityContext"]
    assert not {"env", "ports"} & set(ours)
    assert pod["terminationGracePeriodSeconds"] > LEAVE_SECONDS + ADMIT_SECONDS + 5


def test_the_agents_token_is_what_the_kubelet_would_mount():
    [token] = [
        v["projected"]["sources"] for v in DAEMONSET["spec"]["template"]["spec"]["volumes"] if v["name"] == "token"
    ]

    assert ["serviceAccountToken", "configMap", "downwardAPI"] == [key for source in token for key in source]


def test_agents_run_where_shares_are_served_and_never_twice():
    """
    Every mode that is shared; a surge would be a second agent on a node, which refuses to start.
    """
    spec = DAEMONSET["spec"]["template"]["spec"]
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

    assert [
        {"key": ACK.mode_label, "operator": "In", "values": [Mode.SHARE, Mode.CGPU, Mode.CORE_MEM, Mode.MPS]}
    ] == term["matchExpressions"]
    assert {"maxUnavailable": 1, "maxSurge": 0} == DAEMONSET["spec"]["updateStrategy"]["rollingUpdate"]
    assert NODE_AGENT == spec["serviceAccountName"]


def test_each_container_of_the_scheduler_has_a_token_of_its_own():
    """
    Ours the pod's; the kube-scheduler beside it another account's, mounted where the pod's would be and nowhere else.
    """
    pod = DEPLOYMENT["spec"]["template"]["spec"]
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    token = thing("scheduler/rbac.yaml", "Secret")
    mounted = {
        one["name"]: [m["name"] for m in one["volumeMounts"] if m["mountPath"].startswith(place)]
        for one in pod["containers"]
    }
    volumes = {one["name"]: one.get("secret", {}).get("secretName") for one in pod["volumes"]}

    assert SCHEDULER == pod["serviceAccountName"]
    assert {"gpushare": [], "kube-scheduler": ["kube-token"]} == mounted
    assert token["metadata"]["name"] == volumes["kube-token"]
    assert KUBE_SCHEDULER == token["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert [] == [m for m in container(DEPLOYMENT, "gpushare")["volumeMounts"] if m["name"] == "kube-token"]
