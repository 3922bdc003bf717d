# SPDX-License-Identifier: Apache-2.0
"""
Whole pages of nodes that exist: eight A100, eight H100, two T4, an A100 in MIG slices; written down to the byte.

The hardware is described by the figures of the real cards (`isolation.simgpu.models`), the tenants by a story
each. `GPUSHARE_UPDATE_GOLDEN=1` writes the pages again, to be read before they are kept.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import golden_files, promtool
from support.node_facts import GIB, MIB, Node, hold, outcome, region

from exporter.compat.ack import ack_families
from exporter.http import text_format
from exporter.pipeline.allocations import list_allocations
from exporter.pipeline.attribution import NodeLabels, attribute
from exporter.pipeline.breach_detector import DetectorState, detect_breaches
from exporter.pipeline.families import card_families, container_families
from exporter.pipeline.snapshot import CardProcess, CardSample, MachineSample
from isolation.contract.model import Slice
from isolation.contract.names import ACK
from isolation.simgpu.models import MODELS

TURNS = 4


def ident(index, prefix="GPU"):
    """A UUID that is the same every time."""
    return f"{prefix}-{UUID(int=(0xC0FFEE << 64) + index)}"


def described(model, index, processes=(), busy=None, **more):
    """A card as its data sheet has it, with these processes at work on it."""
    sheet = MODELS[model]
    reserved = sheet.reserved_mib * MIB
    total = sheet.memory_mib * MIB
    load = min(1.0, sum((busy or {}).values()))
    fields = {
        "uuid": ident(index),
        "index": index,
        "model": sheet.name,
        "total_bytes": total,
        "reserved_bytes": reserved,
        "free_bytes": total - reserved - sum(one.bytes for one in processes),
        "processes": tuple(processes),
        "busy": busy or {},
        "utilisation_ratio": load,
        "memory_utilisation_ratio": load / 2,
        "power_watts": sheet.idle_watts + (sheet.limit_watts - sheet.idle_watts) * load,
        "power_limit_watts": float(sheet.limit_watts),
        "temperature_celsius": 33.0 + 30 * load,
        "sm_clock_hertz": sheet.sm_mhz * 1e6,
        "memory_clock_hertz": sheet.memory_mhz * 1e6,
        "busy_seconds": 600 * load,
        "throttled_seconds": {"power_cap": 40.0 if load >= 1 else 0.0, "thermal": 0.0},
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "pcie_replays": 0,
        "minor": index,
    }
    return CardSample(**(fields | more))


def running(node, model, count, **more):
    """The node's processes on cards of a model; every turn each card has drawn its power for two seconds."""

    def turn(number):
        cards = []
        for index in range(count):
            processes = tuple(node.cards.get(index, ()))
            busy = {one.pid: 0.25 for one in processes if one.pid % 2}
            made = described(model, index, processes, busy, **more)
            cards.append(replace(made, energy_joules=1e6 + number * 2 * made.power_watts))
        return node.snapshot(machine=outcome(MachineSample(tuple(cards), "580.65.06")), at=100.0 + 2 * number)

    return turn


def a100x8():
    """A shared node with enforcement: two pods per card; one over its promise, one idle, one without the library."""
    node = Node(8, agent=True)
    for index in range(8):
        for part, (gib, core) in enumerate(((20, 30), (40, 0))):
            pod = f"infer-{index}-{part}"
            slots = [] if (index, part) == (7, 1) else [10 * index + part + 1]
            book = region(card_index=index, slots=slots, denied=index, used=GIB, uuid_text=ident(index))
            policy = "burst" if core else "fixed"
            node.pod_hold(pod, reading=book, slices=slices(index, gib, core), policy=policy)
            if (index, part) != (3, 1):
                node.process(10 * index + part + 1, 24 if (index, part) == (2, 0) else 10, index=index, pod=pod)
    return running(node, "a100-80g", 8, nvlink_errors=0)


def slices(index, gib, core=0):
    """One part of one card."""
    return (Slice(ident(index), index, gib * GIB, core),)


def h100x8():
    """Whole cards by the vendor's plugin: one job on four, one on two, one that has not started; two are free."""
    node = Node(8)
    for pod, ids in {"train": range(4), "tune": (4, 5), "queued": (6,)}.items():
        node.container(pod, "worker", namespace="research").grant(
            pod, [ident(i) for i in ids], container="worker", namespace="research"
        )
        if pod != "queued":
            for index in ids:
                node.process(101 + 2 * index, 60.5, index=index, pod=pod, container="worker", name="torchrun")
    node.container("dcgm", "probe", namespace="monitoring").process(
        300, 0.25, index=7, pod="dcgm", container="probe", name="nv-hostengine"
    )
    return running(node, "h100-80g", 8, nvlink_errors=2, xids={79: 1})


def t4x2():
    """A machine of one's own: two runs share a card, the other belongs to a program that nobody promised anything."""
    node = Node(2, kubernetes=False)
    for name, core, gib in (("train", 30, 5), ("serve", 0, 8)):
        made = hold(name, ident=f"run-{name}", slices=slices(0, gib, core))
        node.hold(made, region(uuid_text=ident(0), slots=[core + 1]))
        node.process(core + 1, 3, run=f"run-{name}")
    node.process(7, 2, index=1, name="python3")
    return running(node, "t4", 2)


def mig():
    """An A100 in slices: one is a pod's, one is shared in time by two, one has a stranger; the card draws the power."""
    node, sheet = Node(1), MODELS["a100-80g-mig"]
    whole = described("a100-80g", 0, energy_joules=5e5, busy={1: 0.5}, processes=())
    story = {0: ("solo",), 1: ("left", "right"), 2: ("stranger",)}
    parts = []
    for place, lies in enumerate(sheet.layout):
        pods = story.get(place, ())
        processes = []
        for at, pod in enumerate(pods):
            pid = 10 * place + at + 1
            mine = ident(place, "MIG") if len(pods) == 1 else f"{ident(place, 'MIG')}::{at}"
            node.container(pod).process(pid, 2, pod=pod)
            processes.append(CardProcess(pid, 2 * GIB))
            if pod != "stranger":
                node.grant(pod, [mine], resource=f"{ACK.whole.split('/')[0]}/mig-1g.10gb")
        total = lies.profile.mib * MIB
        parts.append(
            CardSample(
                uuid=ident(place, "MIG"),
                index=0,
                model=sheet.name,
                total_bytes=total,
                reserved_bytes=0,
                free_bytes=total - len(processes) * 2 * GIB,
                processes=tuple(processes),
                busy=None,
                parent=whole.uuid,
                profile=lies.profile.name,
                gpu_instance=lies.gpu_instance,
            )
        )
    machine = MachineSample(tuple(parts), "580.65.06", divided=(replace(whole, processes=None),))
    return lambda number: node.snapshot(machine=outcome(machine), at=100.0 + 2 * number)


STORIES = {"a100x8": a100x8, "h100x8": h100x8, "t4x2": t4x2, "mig": mig}
PLACES = {
    "a100x8": NodeLabels("a100x8", pool="shared", mode="cgpu", isolation="library"),
    "h100x8": NodeLabels("h100x8", pool="whole", mode="default", isolation="none"),
    "t4x2": NodeLabels("t4x2", isolation="library"),
    "mig": NodeLabels("mig", pool="slices", isolation="none"),
}


def page(name, *, ack=False):
    """What is served of a node after a few turns."""
    turn, state = STORIES[name](), DetectorState()
    for number in range(TURNS):
        snapshot = turn(number)
        found = attribute(snapshot, list_allocations(snapshot), PLACES[name])
        judged = detect_breaches(found, state, now=snapshot.at, epoch=snapshot.epoch)
        state = judged.state
    made = [*card_families([judged.reading]), *container_families([judged.reading])]
    if ack:
        made += ack_families(replace(found, reading=judged.reading), snapshot.machine.value)
    return text_format.Renderer().page(made)


def samples(body):
    """{(metric, labels): value}."""
    return {
        (s.name.removeprefix("gpushare_"), frozenset(s.labels.items())): s.value
        for f in text_string_to_metric_families(body.decode())
        for s in f.samples
    }


@pytest.mark.parametrize("name", sorted(STORIES))
def test_the_page_is_golden(name):
    """The page of a node, to the byte."""
    golden_files.check(f"exporter/{name}.txt", page(name).decode())


@pytest.mark.parametrize("name", ["a100x8", "t4x2"])
def test_the_page_with_acks_names_is_golden(name):
    """Likewise with `--compat-metrics ack`, of a cluster's node and of a machine of one's own."""
    golden_files.check(f"exporter/{name}-ack.txt", page(name, ack=True).decode())


@pytest.mark.processes
@pytest.mark.parametrize("name", sorted(STORIES))
def test_promtool_is_content_with_every_page(name):
    """Prometheus' linter has nothing to say."""
    promtool.check(page(name))


@pytest.mark.parametrize("name", sorted(STORIES))
def test_every_page_adds_up(name):
    """Containers + unattributed + reserved + remainder is what each card uses, and the remainder is 0."""
    found = samples(page(name))
    cards = [labels for metric, labels in found if metric == "card_memory_used_bytes"]

    assert cards
    for labels in cards:
        tenants = sum(
            value for (metric, of), value in found.items() if metric == "container_memory_used_bytes" and labels <= of
        )
        parts = [found[f"card_memory_{part}_bytes", labels] for part in ("unattributed", "reserved", "unaccounted")]
        assert found["card_memory_used_bytes", labels] == tenants + sum(parts)
        assert 0 == parts[-1]


@pytest.mark.parametrize(
    ("name", "cards", "uses"), [("a100x8", 8, 16), ("h100x8", 8, 7), ("t4x2", 2, 2), ("mig", 8, 3)]
)
def test_pages_are_small(name, cards, uses):
    """At most 12 samples per container and card, 60 per card and 60 besides."""
    found = samples(page(name))

    per_use = [metric for metric, labels in found if "pod" in dict(labels)]
    per_card = [metric for metric, labels in found if "card" in dict(labels) and "pod" not in dict(labels)]
    assert len(per_use) <= 12 * uses
    assert len(per_card) <= 60 * cards
    assert len(found) - len(per_use) - len(per_card) <= 60
    assert uses == per_use.count("container_info")
