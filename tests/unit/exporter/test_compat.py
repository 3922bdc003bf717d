# SPDX-License-Identifier: Apache-2.0
"""
ACK's names: those that dashboards and HPA rules ask for, with their labels and units, and nothing invented.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.budget import examples
from support.node_facts import GIB, MIB, RESERVED, Node, card, hold, outcome, uuid

from exporter.compat.ack import SPECS, ack_families
from exporter.compat.averages import Averages
from exporter.http import text_format
from exporter.pipeline.allocations import list_allocations
from exporter.pipeline.attribution import NodeLabels, attribute
from exporter.pipeline.breach_detector import DetectorState, detect_breaches
from exporter.pipeline.snapshot import MachineSample

REFERENCE = Path(__file__).resolve().parents[3].parent / "shared" / "reference" / "exporter.md"
DEVICE = {"Hostname", "NodeName", "NodePoolId", "PodSource", "UUID", "device", "gpu", "modelName"}
CUSTOM = {"DriverVersion", "SupportDCGM", *DEVICE} - {"Hostname"}
PROCESS = {
    *("AllocateMode", "ContainerName", "NamespaceName", "NodeName", "NodePoolId", "PodName", "PodSource"),
    *("ProcessId", "ProcessName", "ProcessType", "UUID", "device", "gpu", "modelName"),
}
LEGACY = {
    *("allocate_mode", "container_name", "minor_number", "name", "namespace_name", "node_name", "pod_name", "uuid"),
}


def families(node, **more):
    """ACK's families of a node."""
    snapshot = node.snapshot(**more)
    found = attribute(snapshot, list_allocations(snapshot), NodeLabels("n-0", pool="np-1"))
    return list(ack_families(found, snapshot.machine.value))


def values(node, **more):
    """{metric: [(labels, value)]}."""
    return {
        f.spec.name: [(dict(zip(f.spec.labels, labels, strict=True)), value) for labels, value in f.samples]
        for f in families(node, **more)
    }


def shared():
    """A card that two pods share, with a stranger on it; the second pod has started nothing."""
    node = Node(agent=True).pod_hold("a", gib=5, core=30).pod_hold("b", gib=4).container("x")
    node.process(11, 2, pod="a").process(12, 1, pod="a").process(13, 0.5, pod="x", name="miner").process(14, 0.25)
    return node.card(busy={11: 0.25, 13: 0.5}, copy_busy={11: 0.1}, encoder_busy=None, decoder_busy={})


def test_names_and_labels_are_acks():
    """Every family has the labels of ACK's own scrapes."""
    labels = {spec.name: set(spec.labels) for spec in SPECS}

    engines = ("SM_UTIL", "MEM_COPY_UTIL", "ENCODE_UTIL", "DECODE_UTIL", "MEM_USED")
    expected = {
        "DCGM_CUSTOM_ALLOCATE_MODE": set(),
        "DCGM_FI_DEV_COUNT": set(),
        "DCGM_CUSTOM_DEV_FB_TOTAL": CUSTOM,
        "DCGM_CUSTOM_DEV_FB_ALLOCATED": CUSTOM,
        "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED": PROCESS - {"ProcessId", "ProcessName", "ProcessType"},
        "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED": PROCESS - {"ProcessId", "ProcessName", "ProcessType"},
        **{f"DCGM_CUSTOM_{kind}_{one}": PROCESS for kind in ("PROCESS", "ILLEGAL_PROCESS") for one in engines},
        **{
            name: DEVICE
            for name in labels
            if name.startswith(("DCGM_FI_DEV_", "DCGM_FI_PROF_")) and name != "DCGM_FI_DEV_COUNT"
        },
        "nvidia_gpu_num_devices": {"node_name"},
        **{
            f"nvidia_gpu_{name}": LEGACY
            for name in (
                *("duty_cycle", "memory_total_bytes", "memory_used_bytes"),
                *("power_usage_milliwatts", "temperature_celsius"),
            )
        },
    }
    assert expected == labels


@pytest.mark.skipif(not REFERENCE.is_file(), reason="the reference on exporters is not beside this checkout")
def test_every_name_of_the_reference_is_there():
    """What the reference lists for ACK is emitted, whole families in braces included."""
    chapter = REFERENCE.read_text().split("## 2. Alibaba ACK exporter")[1].split("## 3.")[0]
    names = set()
    for match in re.finditer(r"`((?:DCGM_CUSTOM|DCGM_FI_DEV_COUNT|nvidia_gpu)[A-Za-z_{},]*)`", chapter):
        whole = re.sub(r"\{(?!.*_UTIL)[^}]*\}$", "", match[1])
        braces = re.search(r"\{([^}]*)\}", whole)
        options = braces[1].split(",") if braces else [""]
        names |= {whole.replace(braces[0], one) if braces else whole for one in options}

    assert len(names) >= 15
    assert set() == names - {spec.name for spec in SPECS}


def test_shared_card():
    """MiB, percent and shares; per process with its pod, and nothing for one that has none."""
    found = values(shared())

    assert [({}, 2.0)] == found["DCGM_CUSTOM_ALLOCATE_MODE"]
    assert [({}, 1.0)] == found["DCGM_FI_DEV_COUNT"]
    (total,) = found["DCGM_CUSTOM_DEV_FB_TOTAL"]
    assert (
        {
            "DriverVersion": "580.65",
            "NodeName": "n-0",
            "NodePoolId": "np-1",
            "PodSource": "ecs",
            "SupportDCGM": "No",
            "UUID": uuid(),
            "device": "nvidia0",
            "gpu": "0",
            "modelName": "Tesla T4",
        },
        16384.0,
    ) == total
    assert [9 / 16] == [value for _, value in found["DCGM_CUSTOM_DEV_FB_ALLOCATED"]]
    mine = {
        (labels["ProcessId"], labels["PodName"], labels["AllocateMode"], value)
        for labels, value in found["DCGM_CUSTOM_PROCESS_MEM_USED"]
    }
    assert {("11", "a", "share", 2048.0), ("12", "a", "share", 1024.0)} == mine
    assert {"11": 25.0, "12": 0.0} == by_pid(found["DCGM_CUSTOM_PROCESS_SM_UTIL"])
    assert {"11": 10.0, "12": 0.0} == by_pid(found["DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL"])
    assert {"11": 0.0, "12": 0.0} == by_pid(found["DCGM_CUSTOM_PROCESS_DECODE_UTIL"])
    assert [] == found["DCGM_CUSTOM_PROCESS_ENCODE_UTIL"]
    assert {"a": 5120.0, "b": 4096.0} == by_pod(found["DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"])
    assert {"a": 0.3, "b": 0.0} == by_pod(found["DCGM_CUSTOM_CONTAINER_CP_ALLOCATED"])


def by_pid(rows):
    """{process id: value}."""
    return {labels["ProcessId"]: value for labels, value in rows}


def by_pod(rows, label="PodName"):
    """{pod: value}; each pod once."""
    assert len({labels[label] for labels, _ in rows}) == len(rows)
    return {labels[label]: value for labels, value in rows}


def test_illegal_processes():
    """A container's process on a card that it was not promised, with its name; a host's process is none of it."""
    found = values(shared())

    (row,) = found["DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED"]
    assert ("x", "miner", "none", "C", 512.0) == (*(row[0][k] for k in keys()), row[1])
    assert {"13": 50.0} == by_pid(found["DCGM_CUSTOM_ILLEGAL_PROCESS_SM_UTIL"])


def keys():
    """Labels that tell an illegal process."""
    return ("PodName", "ProcessName", "AllocateMode", "ProcessType")


def test_the_rules_that_hpas_use():
    """ACK's adapter averages SM per pod, adds memory per pod and divides it by what the container was allocated."""
    found = values(shared())
    used = sum(v for labels, v in found["DCGM_CUSTOM_PROCESS_MEM_USED"] if labels["PodName"] == "a")
    allocated = sum(v for labels, v in found["DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"] if labels["PodName"] == "a")

    assert 3 / 5 == used / allocated
    for rows in (found["DCGM_CUSTOM_PROCESS_MEM_USED"], found["DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"]):
        assert all(
            {"NamespaceName", "NodeName", "PodName"} <= {k for k, v in labels.items() if v} for labels, _ in rows
        )


def test_device_fields():
    """DCGM's own units: percent, MiB without the driver's part, watts, millijoules, MHz."""
    node = Node().process(1, 2).card(sm_clock_hertz=1.59e9, memory_utilisation_ratio=0.25, energy_joules=2.5)

    found = {name.removeprefix("DCGM_FI_DEV_"): rows for name, rows in values(node).items()}

    assert [(50.0, 25.0, 2048.0, 14 * 1024 - 512.0, 50.0, 40.0, 2500.0, 1590.0)] == list(
        zip(
            *(
                [value for _, value in found[name]]
                for name in (
                    *("GPU_UTIL", "MEM_COPY_UTIL", "FB_USED", "FB_FREE", "GPU_TEMP", "POWER_USAGE"),
                    *("TOTAL_ENERGY_CONSUMPTION", "SM_CLOCK"),
                )
            ),
            strict=True,
        )
    )
    assert [] == found["MEM_CLOCK"]


def test_used_where_the_drivers_part_is_not_reported():
    """An old driver: what is used, its own part included."""
    found = values(Node().process(1, 2).card(reserved_bytes=None))

    assert [2048.0 + 512.0] == [value for _, value in found["DCGM_FI_DEV_FB_USED"]]


@pytest.mark.parametrize(
    ("build", "mode"),
    [
        (Node, 0.0),
        (lambda: Node().container("a").grant("a", [uuid()]), 1.0),
        (lambda: Node(2).container("a").grant("a", [uuid()]).hold(hold(index=1)), 2.0),
    ],
)
def test_mode_of_the_node(build, mode):
    """None, exclusive, shared; shared as soon as one card is."""
    assert [({}, mode)] == values(build())["DCGM_CUSTOM_ALLOCATE_MODE"]


def test_legacy_exclusive():
    """The card's figures stand under its container, with allocate_mode exclusive."""
    node = Node().container("a").grant("a", [uuid()]).process(1, 2, pod="a")
    found = values(node)

    labels = {
        "allocate_mode": "exclusive",
        "container_name": "main",
        "minor_number": "0",
        "name": "Tesla T4",
        "namespace_name": "team",
        "node_name": "n-0",
        "pod_name": "a",
        "uuid": uuid(),
    }
    assert [(labels, 50.0)] == found["nvidia_gpu_duty_cycle"]
    assert [(labels, 16.0 * GIB)] == found["nvidia_gpu_memory_total_bytes"]
    assert [(labels, 2.0 * GIB + RESERVED)] == found["nvidia_gpu_memory_used_bytes"]
    assert [(labels, 40_000.0)] == found["nvidia_gpu_power_usage_milliwatts"]
    assert [(labels, 50.0)] == found["nvidia_gpu_temperature_celsius"]
    assert [({"node_name": "n-0"}, 1.0)] == found["nvidia_gpu_num_devices"]


def test_legacy_shared():
    """Memory and compute per pod, the rest of the memory under no name: by card they add up to the card."""
    found = values(shared())

    assert {"a": 25.0, "b": 0.0} == by_pod(found["nvidia_gpu_duty_cycle"], "pod_name")
    used = by_pod(found["nvidia_gpu_memory_used_bytes"], "pod_name")
    assert {"a": 3 * GIB, "b": 0, "": 0.75 * GIB + RESERVED} == used
    assert 16 * GIB == sum(value for _, value in found["nvidia_gpu_memory_total_bytes"])
    assert {"share"} == {labels["allocate_mode"] for labels, _ in found["nvidia_gpu_memory_used_bytes"]}
    assert {"": 40_000.0} == by_pod(found["nvidia_gpu_power_usage_milliwatts"], "pod_name")


def test_legacy_rest_is_never_made_up():
    """Where a part is not known, or the parts are more than the card, nothing stands under no name."""
    unknown = Node(agent=True).pod_hold("a").pod_hold("b").process(1, None, pod="a")
    crowded = Node(agent=True).pod_hold("a", gib=10).pod_hold("b", gib=10)

    assert {"b": 0} == by_pod(values(unknown)["nvidia_gpu_memory_used_bytes"], "pod_name")
    assert {"a": 10 * GIB, "b": 10 * GIB} == by_pod(values(crowded)["nvidia_gpu_memory_total_bytes"], "pod_name")


def test_an_exclusive_container_has_no_compute_limit():
    """ACK says 0 where compute is not limited."""
    found = values(Node().container("a").grant("a", [uuid()]))

    assert {"a": 0.0} == by_pod(found["DCGM_CUSTOM_CONTAINER_CP_ALLOCATED"])


def test_legacy_free_card():
    """Nobody has it: mode none, and the card's figures."""
    found = values(Node())

    assert [("none", 50.0)] == [(labels["allocate_mode"], v) for labels, v in found["nvidia_gpu_duty_cycle"]]


@pytest.mark.parametrize("failed", ["machine_ok", "kernel_ok", "promises_ok"])
def test_failure_is_absence_here_too(failed):
    """No zero takes the place of what a failed source would have told."""
    node = shared()
    setattr(node, failed, False)
    found = values(node)

    if failed == "machine_ok":
        assert {} == found
    else:
        assert [] == found["DCGM_CUSTOM_PROCESS_MEM_USED"] == found["DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED"]
    if failed == "promises_ok":
        assert [] == found["DCGM_CUSTOM_ALLOCATE_MODE"] == found["DCGM_CUSTOM_DEV_FB_ALLOCATED"]


def test_mig():
    """Memory stands with the instances, power with the divided card; the card counts once as devices go."""
    parts = tuple(card(0, uuid=f"MIG-{i}", parent="GPU-x", power_watts=None, busy=None) for i in "ab")
    found = values(Node(), machine=outcome(MachineSample(parts, divided=(card(0, uuid="GPU-x", processes=None),))))

    assert {"MIG-a", "MIG-b"} == {labels["UUID"] for labels, _ in found["DCGM_CUSTOM_DEV_FB_TOTAL"]}
    assert {"GPU-x"} == {labels["uuid"] for labels, _ in found["nvidia_gpu_power_usage_milliwatts"]}
    assert [2.0] == [value for _, value in found["nvidia_gpu_num_devices"]]


@settings(max_examples=examples(60), deadline=None)
@given(st.text(max_size=20), st.lists(st.integers(0, 9000), max_size=6))
def test_any_node_is_a_page(name, sizes):
    """Every series once, whatever processes are called; the page parses."""
    node = Node(2, agent=True).pod_hold("a").pod_hold("a", container="side", index=1)
    for pid, mib in enumerate(sizes):
        node.process(pid + 1, mib * MIB / GIB, index=pid % 2, pod="a" if pid % 3 else "", name=name)
    found = families(node)

    for family in found:
        assert len({labels for labels, _ in family.samples}) == len(family.samples)
    page = text_format.Renderer().page(found).decode()
    assert sum(len(f.samples) for f in found) == sum(len(f.samples) for f in text_string_to_metric_families(page))


def test_bursts_are_in_the_averages_of_compute():
    """3 s of every 15: a gauge of the moment between the bursts is 0, ACK's names say 20 % of card, pod and process."""
    averages, state = Averages(), DetectorState()
    for at in range(0, 121, 15):
        seconds = at / 15 * 3
        node = Node(agent=True).pod_hold("a", gib=5).process(11, 2, pod="a")
        node.card(busy={}, utilisation_ratio=0.0, busy_seconds=seconds, compute_seconds={11: seconds})
        snapshot = node.snapshot()
        found = attribute(snapshot, list_allocations(snapshot), NodeLabels("n-0"))
        judged = detect_breaches(found, state, now=float(at), epoch=float(at))
        state, found = judged.state, replace(found, reading=judged.reading)
        averages.take(float(at), found)
    expected_labels = {
        f.spec.name: [value for _, value in f.samples] for f in ack_families(found, snapshot.machine.value, averages)
    }

    assert [pytest.approx(20)] == expected_labels["DCGM_FI_DEV_GPU_UTIL"]
    assert [pytest.approx(20)] == expected_labels["DCGM_CUSTOM_PROCESS_SM_UTIL"]
    assert [pytest.approx(20)] == expected_labels["nvidia_gpu_duty_cycle"]


def test_the_latest_xid_is_reported():
    """DCGM's field is the number of the last error."""
    ill = Node().card(xids={31: 2, 48: 1}, throttled_seconds={"power_cap": 1.5, "thermal": 0.0})

    assert [48.0] == [value for _, value in values(ill)["DCGM_FI_DEV_XID_ERRORS"]]
    assert [1.5e6] == [value for _, value in values(ill)["DCGM_FI_DEV_POWER_VIOLATION"]]
    assert [0.0] == [value for _, value in values(Node())["DCGM_FI_DEV_XID_ERRORS"]]
