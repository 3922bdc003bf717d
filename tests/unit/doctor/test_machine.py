# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of a machine, from what was found there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from isolation.contract.model import Card
from isolation.contract.quantity import GIB
from isolation.doctor.bounded_files import Folder, Missing, Unreadable
from isolation.doctor.checks.finding import FindingState, exit_status, ok, problem, unknown, warning
from isolation.doctor.checks.machine import cards as machine_cards
from isolation.doctor.checks.machine import kubelet as machine_kubelet
from isolation.doctor.checks.machine import runtime as machine_runtime
from isolation.doctor.checks.machine import system
from isolation.doctor.checks.machine.facts import CardFacts, Disk, Kubelet, MachineFacts, Runtime
from isolation.doctor.checks.machine.findings import check_machine
from isolation.lib.native import Check
from isolation.node.nri import session

T4 = Card("GPU-1", 0, 15 * GIB, model="Tesla T4")
GOOD = Check("abi", ok=True, detail="1.0")


def state(found, check):
    """The state of one finding, and its words."""
    [one] = [finding for finding in found if finding.check == check]
    return one.state, one.evidence


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], 3),
        (["ok"], 0),
        (["ok", "warning"], 0),
        (["ok", "unknown"], 3),
        (["unknown", "problem"], 1),
    ],
)
def test_the_status_says_problem_before_unknown_before_well(states, expected):
    """
    A report without findings is no good news.
    """
    made = {"ok": ok("c", "e"), "warning": warning("c", "e", "f"), "problem": problem("c", "e", "f")}
    made["unknown"] = unknown("c", "e", "f")

    assert expected == exit_status([made[name] for name in states])


def test_what_others_wrote_is_cut_to_one_printable_line():
    """
    Escape sequences of a hostile file name do not reach the terminal.
    """
    found = problem("c", "a\x1b[31m\nb\u202e" + "x" * 5000, "f")

    assert found.evidence.isprintable()
    assert len(found.evidence) <= 600


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (CardFacts((T4,), "580.65.06"), FindingState.OK),
        (CardFacts((T4,), "615.71.05"), FindingState.OK),
        (CardFacts((T4,), "390.157"), FindingState.PROBLEM),
        (CardFacts((T4,), None), FindingState.UNKNOWN),
        (CardFacts((T4,), "?"), FindingState.UNKNOWN),
    ],
)
def test_the_driver_must_be_new_enough_for_the_library(cards, expected):
    """
    A version that cannot be read is unknown.
    """
    assert expected == state(machine_cards.check_cards(MachineFacts(cards, library=(GOOD,))), "machine.driver")[0]


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (CardFacts(why="NVML does not start"), FindingState.PROBLEM),
        (CardFacts((), "580.1"), FindingState.PROBLEM),
        (CardFacts((Card("GPU-1", 3, 0, healthy=False),), "580.1"), FindingState.PROBLEM),
        (CardFacts((Card("GPU-1", 0, GIB // 2),), "580.1"), FindingState.WARNING),
        (CardFacts((T4, T4), "580.1"), FindingState.OK),
    ],
)
def test_cards_that_are_missing_unhealthy_or_too_small_are_said(cards, expected):
    """
    Units are counted as they would be offered.
    """
    assert expected == state(machine_cards.check_cards(MachineFacts(cards, library=(GOOD,))), "machine.cards")[0]


def test_a_library_that_is_not_built_or_does_not_fit_is_a_problem():
    """
    Both the missing file and a failed self-check.
    """
    cards = CardFacts((T4,), "580.1")
    bad = Check("abi", ok=False, detail="[2, 0]")

    for library in ("libgpushare.so is missing", (GOOD, bad)):
        found = machine_cards.check_cards(MachineFacts(cards, library=library))
        assert FindingState.PROBLEM == state(found, "machine.library")[0]


CRI2 = '[plugins."io.containerd.grpc.v1.cri"]\n'
CRI3 = '[plugins."io.containerd.cri.v1.runtime"]\n'
SOCKET = frozenset({"/run/containerd/containerd.sock"})


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        ("containerd v1.6.20", "", FindingState.PROBLEM),
        ("containerd v1.7.2", "", FindingState.PROBLEM),
        ("containerd v1.7.2", CRI2 + "enable_cdi = true", FindingState.PROBLEM),
        ("containerd v2.0.7", "", FindingState.PROBLEM),
        ("containerd containerd.io 2.1.9 abc", Missing(), FindingState.OK),
        ("containerd v2.1.0", CRI3 + "enable_cdi = false", FindingState.PROBLEM),
        ("containerd v2.1.0", CRI3 + 'cdi_spec_dirs = ["/etc/cdi"]', FindingState.PROBLEM),
        ("containerd v2.1.0", CRI3 + 'cdi_spec_dirs = ["/etc/cdi", "/run/cdi/"]', FindingState.OK),
        ("containerd v2.1.0", "plugins = 3", FindingState.OK),
        ("containerd v2.1.0", "this is no toml", FindingState.UNKNOWN),
        ("containerd v2.1.0", Unreadable("Permission denied"), FindingState.UNKNOWN),
        (None, "", FindingState.UNKNOWN),
        (None, CRI2 + "enable_cdi = true", FindingState.OK),
    ],
)
def test_cdi_is_on_by_version_or_by_setting(version, text, expected):
    """
    Without CDI no container gets its card: that is a problem, not a warning.
    """
    runtime = Runtime(containerd=text, containerd_version=version, sockets=SOCKET)

    assert expected == state(machine_runtime.check_runtime(runtime), "machine.runtime")[0]


def test_the_last_imported_file_wins():
    """
    As in containerd: what /etc/containerd/conf.d says comes after the main file.
    """
    runtime = Runtime(CRI3 + "enable_cdi = false", (CRI3 + "enable_cdi = true",), "containerd 2.1.0", sockets=SOCKET)

    assert FindingState.OK == state(machine_runtime.check_runtime(runtime), "machine.runtime")[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (Missing(), FindingState.OK),
        ("", FindingState.PROBLEM),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = true", FindingState.PROBLEM),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false", FindingState.OK),
        ('accept-nvidia-visible-devices-envvar-when-unprivileged = "false"', FindingState.PROBLEM),
        ("[[", FindingState.UNKNOWN),
    ],
)
def test_an_image_must_not_be_able_to_ask_for_every_card(text, expected):
    """
    NVIDIA's runtime obeys the variable unless told not to.
    """
    found = machine_runtime.check_runtime(Runtime(containerd_version="containerd 2.1.0", nvidia=text))

    assert expected == state(found, "machine.visible_devices")[0]


NRI = '[plugins."io.containerd.nri.v1.nri"]\n'
TWO = "containerd containerd.io 2.1.9 abc"


@pytest.mark.parametrize(
    ("given", "expected", "words"),
    [
        (Runtime(containerd_version=TWO, nri_socket=True), FindingState.OK, "2.1"),
        (
            Runtime(NRI + "disable = true", containerd_version=TWO, nri_socket=True),
            FindingState.PROBLEM,
            "disable = false",
        ),
        (Runtime(containerd_version=TWO, nri_socket=False), FindingState.PROBLEM, "--nri-socket"),
        (Runtime(containerd_version=TWO), FindingState.UNKNOWN, "root"),
        (Runtime(containerd_version="containerd v1.7.27", nri_socket=False), FindingState.PROBLEM, "disable = false"),
        (
            Runtime(NRI + "disable = false", containerd_version="containerd v1.7.27", nri_socket=True),
            FindingState.OK,
            "1.7 with NRI",
        ),
        (Runtime(crio_version="crio version 1.34.0", nri_socket=True), FindingState.OK, "CRI-O"),
        (
            Runtime(crio=("[crio.nri]\nenable_nri = false",), crio_version="crio version 1.34.0", nri_socket=False),
            FindingState.PROBLEM,
            "enable_nri = true",
        ),
    ],
)
def test_the_runtime_must_let_the_agent_in_and_is_told_how(given, expected, words):
    """
    By its configuration and by the socket that is there.
    """
    [found] = [one for one in machine_runtime.check_runtime(given) if one.check == "machine.nri"]

    assert expected == found.state
    assert words in f"{found.evidence} {found.fix}"


def test_that_a_runtime_is_too_old_is_said_once():
    given = Runtime(NRI + "disable = false", containerd_version="containerd v1.7.27", nri_socket=True)
    wrong = [
        one for one in machine_runtime.check_runtime(given) if one.state in {FindingState.PROBLEM, FindingState.WARNING}
    ]
    assert [("machine.runtime", "containerd 1.7 is too old")] == [(one.check, one.evidence) for one in wrong]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (Missing(), FindingState.OK),
        (Unreadable("Permission denied"), FindingState.UNKNOWN),
        (Folder(("10-device-injector", "README"), writable=True), FindingState.OK),
        (Folder(("99-last",), writable=True), FindingState.WARNING),
    ],
)
def test_a_plugin_that_has_the_last_word_is_reported(folder, expected):
    """
    The agent's index is 90; what is no plugin by its name does not count.
    """
    found = machine_runtime.check_runtime(Runtime(containerd_version=TWO, nri_plugins=folder))

    assert expected == state(found, "machine.nri_plugins")[0]


def test_the_agents_index_is_the_one_that_others_are_compared_with():
    """
    Doctor and agent do not import each other.
    """
    assert machine_runtime._INDEX == session.AGENT.index


def given_away(*ids, resource="aliyun.com/gpu-mem"):
    """A kubelet's checkpoint."""
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": resource, "DeviceIDs": {"-1": list(ids)}}
    return json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 1})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (Missing(), FindingState.OK),
        (given_away("1GiB-0", "256MiB-17"), FindingState.OK),
        (given_away("GPU-1-_-0"), FindingState.PROBLEM),
        (given_away("GPU-1", resource="nvidia.com/gpu"), FindingState.OK),
        ('{"Data": {"PodDeviceEntries": null}}', FindingState.OK),
        ("{", FindingState.UNKNOWN),
        ('{"Data": {"PodDeviceEntries": [7]}}', FindingState.UNKNOWN),
        (Unreadable("Permission denied"), FindingState.UNKNOWN),
    ],
)
def test_devices_of_an_earlier_version_keep_the_agent_from_registering(text, expected):
    """
    They name a card; the kubelet keeps them in its own file.
    """
    found = machine_kubelet.check_kubelet(replace(kubelet(), checkpoint=text))

    assert expected == state(found, "machine.device_ids")[0]


def kubelet(config="", names=("kubelet.sock",), running=("kubelet",), *, pod_resources=True):
    """A kubelet that runs."""
    return Kubelet(running, config, Folder(tuple(names), writable=True), pod_resources)


@pytest.mark.parametrize(
    ("given", "check", "expected"),
    [
        (kubelet(), "machine.feature_gates", FindingState.OK),
        (kubelet("featureGates: {DevicePluginCDIDevices: false}"), "machine.feature_gates", FindingState.PROBLEM),
        (kubelet("featureGates: {KubeletPodResourcesGet: false}"), "machine.feature_gates", FindingState.WARNING),
        (
            kubelet(running=("kubelet", "--feature-gates=A=true,DevicePluginCDIDevices=false")),
            "machine.feature_gates",
            FindingState.PROBLEM,
        ),
        (kubelet("featureGates: nonsense"), "machine.feature_gates", FindingState.OK),
        (kubelet("topologyManagerPolicy: single-numa-node"), "machine.topology_manager", FindingState.WARNING),
        (
            kubelet(running=("kubelet", "--topology-manager-policy", "restricted")),
            "machine.topology_manager",
            FindingState.WARNING,
        ),
        (kubelet("cpuManagerPolicy: static"), "machine.topology_manager", FindingState.OK),
        (kubelet("cgroupDriver: systemd"), "machine.cgroup_driver", FindingState.OK),
        (kubelet("cgroupDriver: [x]"), "machine.cgroup_driver", FindingState.UNKNOWN),
        (kubelet("- no table"), "machine.kubelet", FindingState.UNKNOWN),
        (kubelet("a: [&b [1], *b]"), "machine.kubelet", FindingState.UNKNOWN),
        (kubelet("a: [" * 3000), "machine.kubelet", FindingState.UNKNOWN),
        (kubelet(Unreadable("Permission denied")), "machine.kubelet", FindingState.UNKNOWN),
        (kubelet(names=()), "machine.kubelet_sockets", FindingState.PROBLEM),
        (kubelet(pod_resources=False), "machine.kubelet_sockets", FindingState.PROBLEM),
        (Kubelet(("kubelet",), ""), "machine.other_plugins", FindingState.UNKNOWN),
        (kubelet(names=("kubelet.sock", "nvidia-gpu.sock")), "machine.other_plugins", FindingState.WARNING),
        (kubelet(names=("kubelet.sock", "aliyungpushare.sock")), "machine.other_plugins", FindingState.PROBLEM),
        (kubelet(names=("kubelet.sock", "gpushare-mem.sock")), "machine.other_plugins", FindingState.OK),
    ],
)
def test_the_kubelet_is_judged_by_file_and_command_line(given, check, expected):
    """
    Flags win over the file; text that is no configuration is unknown.
    """
    assert expected == state(machine_kubelet.check_kubelet(given), check)[0]


def test_a_machine_without_kubelet_is_not_worse_for_it():
    """
    `gpushare run` needs neither kubelet nor container runtime: nothing is said of them.
    """
    facts = MachineFacts(CardFacts((T4,), "580.1"), library=(GOOD,), unified=True, mps=(), ptrace="1\n")

    found = check_machine(facts)

    assert {FindingState.OK} == {one.state for one in found}
    assert not {"machine.runtime", "machine.kubelet", "machine.cdi"} & {one.check for one in found}


@pytest.mark.parametrize(
    ("facts", "check", "expected"),
    [
        ({"kernel": "6.12.1-amd64\n"}, "machine.kernel", FindingState.OK),
        ({"kernel": "5.12.0"}, "machine.kernel", FindingState.OK),
        ({"kernel": "5.10.0-33-amd64"}, "machine.kernel", FindingState.PROBLEM),
        ({"kernel": "?"}, "machine.kernel", FindingState.UNKNOWN),
        ({"selinux": "1"}, "machine.selinux", FindingState.WARNING),
        ({"selinux": "0\n"}, "machine.selinux", FindingState.OK),
        ({"selinux": Missing()}, "machine.selinux", FindingState.OK),
        ({"selinux": "2"}, "machine.selinux", FindingState.UNKNOWN),
        ({"ptrace": "0"}, "machine.ptrace", FindingState.WARNING),
        ({"ptrace": Unreadable("no")}, "machine.ptrace", FindingState.UNKNOWN),
        ({"unified": None}, "machine.cgroups", FindingState.UNKNOWN),
        ({"cdi": {"/etc/cdi": Missing(), "/var/run/cdi": Folder((), writable=True)}}, "machine.cdi", FindingState.OK),
        ({"cdi": {"/etc/cdi": Folder((), writable=False)}}, "machine.cdi", FindingState.PROBLEM),
        ({"cdi": {"/etc/cdi": Missing()}}, "machine.cdi", FindingState.WARNING),
        ({"run_dir": Disk("/r", "ext4", 1 << 40, writable=True)}, "machine.state_dir", FindingState.OK),
        ({"run_dir": Disk("/r", "tmpfs", 1 << 40, writable=True)}, "machine.state_dir", FindingState.WARNING),
        ({"run_dir": Disk("/r", "ext4", 1 << 20, writable=True)}, "machine.state_dir", FindingState.PROBLEM),
        ({"run_dir": Disk("/r", "ext4", 1 << 40, writable=False)}, "machine.state_dir", FindingState.PROBLEM),
        ({"run_dir": Disk("/r", None, None, writable=False)}, "machine.state_dir", FindingState.UNKNOWN),
        (
            {"run_dir": Disk("/r", "ext4", 1 << 40, writable=True, runs_programs=False)},
            "machine.state_dir",
            FindingState.PROBLEM,
        ),
        (
            {"run_dir": Disk("/r", "ext4", 1 << 40, writable=True, shared=True)},
            "machine.mount_propagation",
            FindingState.OK,
        ),
        (
            {"run_dir": Disk("/r", "ext4", 1 << 40, writable=True, shared=False)},
            "machine.mount_propagation",
            FindingState.WARNING,
        ),
        ({"run_dir": Disk("/r", "ext4", 1 << 40, writable=True)}, "machine.mount_propagation", FindingState.UNKNOWN),
    ],
)
def test_the_system_under_it(facts, check, expected):
    """
    Folders, disks, SELinux, ptrace.
    """
    found = system.check_system(MachineFacts(CardFacts(), **facts), node=True)

    assert expected == state(found, check)[0]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"mps": None}, FindingState.UNKNOWN),
        ({"mps": ("nvidia-cuda-mps-control",)}, FindingState.WARNING),
        ({"mps": ()}, FindingState.OK),
    ],
)
def test_a_daemon_that_joins_programs_is_noticed(facts, expected):
    """
    MPS.
    """
    assert expected == state(machine_cards.check_cards(MachineFacts(CardFacts(), **facts)), "machine.mps")[0]


def test_whatever_is_not_well_has_something_to_do():
    """
    Over everything that can be said of a machine where nothing can be read.
    """
    lost = Unreadable("Permission denied")
    bad = MachineFacts(
        CardFacts(why="no driver"),
        Runtime(lost, (lost,), None, (lost,), None, SOCKET | {"/run/crio/crio.sock"}, lost, None, lost),
        Kubelet(None, lost, lost, None, lost),
        {"/etc/cdi": lost},
        Disk("/r", None, None, writable=False),
        "no library",
        None,
        lost,
        lost,
        lost,
    )

    found = check_machine(bad)

    assert {FindingState.PROBLEM, FindingState.UNKNOWN} == {one.state for one in found}
    assert [] == [one.check for one in found if not one.fix or not one.evidence]
