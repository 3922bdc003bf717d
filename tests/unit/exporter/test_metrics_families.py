# SPDX-License-Identifier: Apache-2.0
"""
Readings as families: sums that reconcile, absence instead of zero, no pod on a card's series.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frames import card, frame, node, small_fleet, use

from autoscaler.core.metric_families import event_families, pending_families, pool_families
from exporter.pipeline.families import card_families, collected_families, container_families
from isolation.contract.metrics import CATALOGUE, Group
from isolation.contract.metrics import card as metrics_card
from isolation.contract.model import Why
from isolation.contract.quantity import GIB
from isolation.contract.reading import PendingReading, PoolReading


def values(families):
    """{metric name without prefix: {labels: value}}."""
    return {f.spec.name.removeprefix("gpushare_"): dict(f.samples) for f in families}


def test_card_figures():
    """Every figure of a card stands once, under its node, UUID and index."""
    uses = [use("a", gib=4, used=3)]

    found = values(card_families([node(cards=[card(uses=uses, unattributed=0.25)], uses=uses)]))

    key = ("n-0", "GPU-n-0-0", "0")
    assert {key: 16 * GIB} == found["card_memory_total_bytes"]
    assert {key: 3.75 * GIB} == found["card_memory_used_bytes"]
    assert {key: 0.5 * GIB} == found["card_memory_reserved_bytes"]
    assert {key: 4 * GIB} == found["card_memory_allocated_bytes"]
    assert {key: 15 * GIB} == found["card_memory_allocatable_bytes"]
    assert {key: 0.25 * GIB} == found["card_memory_unattributed_bytes"]
    assert {key: 0.0} == found["card_memory_unaccounted_bytes"]
    assert {key: 0.5} == found["card_utilisation_ratio"]
    assert {key: 1.0} == found["card_healthy"]
    assert {(*key, "T4", "shared", "cgpu", "library", "", ""): 1.0} == found["card_info"]


def test_families_are_the_catalogue():
    """Every metric of nodes, cards, containers and isolation is produced, and nothing besides."""
    fleet = small_fleet()
    families = (card_families(fleet.nodes), container_families(fleet.nodes))
    further = collected_families(fleet.nodes, metrics_card.COLLECTED)
    produced = {f.spec.name for found in (*families, further) for f in found}
    groups = (Group.NODE, Group.CARD, Group.CONTAINER, Group.ISOLATION)

    catalogue = {**CATALOGUE, **metrics_card.CATALOGUE}
    assert {spec.name for spec in catalogue.values() if spec.group in groups} == produced


def test_pool_families_are_the_catalogue():
    """Every metric of pools and autoscaler is produced, and nothing besides."""
    fleet = small_fleet()
    produced = {f.spec.name for run in (pool_families, pending_families, event_families) for f in run(fleet)}

    assert {spec.name for spec in CATALOGUE.values() if spec.group is Group.POOL} == produced


def test_figures_of_a_nodes_own_exporter():
    """What only NVML and the node tell, with its parts by label."""
    fleet = small_fleet()
    cards, uses = values(card_families(fleet.nodes)), values(container_families(fleet.nodes))

    key, who = (
        ("shared-1", "GPU-shared-1-0", "0"),
        ("team", "bert-0", "main", "shared-1", "GPU-shared-1-0", "0", "shared"),
    )
    assert {(*key, "sm"): 1.59e9, (*key, "memory"): 5.001e9} == cards["card_clock_hertz"]
    assert {(*key, "corrected"): 3.0, (*key, "uncorrected"): 0.0} == cards["card_ecc_errors_total"]
    assert {(*key, "31"): 2.0} == cards["card_xid_errors_total"]
    assert {(*key, "power_cap"): 12.5, (*key, "thermal"): 0.0} == cards["card_throttled_seconds_total"]
    assert ({key: 90.5}, {who: 30.25}) == (cards["card_busy_seconds_total"], uses["container_compute_seconds_total"])
    assert ({key: 3.0}, {key: 0.0}) == (cards["card_processes"], cards["card_recovery_action"])
    assert {key: 5.0 * GIB} == cards["card_memory_largest_free_bytes"]
    assert {("shared-1", "580.65"): 1.0} == cards["node_info"]
    assert {("shared-1", "denied"): 1.0, ("shared-1", "over_limit"): 2.0} == cards["isolation_breaches_total"]
    assert {(*key, "over_limit"): 1.0, (*key, "unallocated"): 0.0} == cards["isolation_breaches_open"]
    assert {(*who, "library"): 7.0} == uses["isolation_denied_allocations_total"]
    assert 120.5 == uses["container_energy_joules_total"][who]
    assert 2.5 == uses["container_compute_overrun_seconds_total"][who]
    assert (*who, "uid-bert-0", "agent", "fixed", "simulation", "simulation", "accounting") in uses["container_info"]


def test_a_frame_is_plain():
    """Values alone: a frame can be written as JSON, compared and hashed."""
    fleet = small_fleet()

    assert len(fleet.nodes) == len(json.loads(json.dumps(asdict(fleet)))["nodes"])
    assert 1 == len({fleet, small_fleet()})


def test_only_chosen_groups_are_collected():
    """A group that nobody asked for has no family at all; of one that was, what the card tells."""
    fleet = small_fleet()
    key = ("shared-1", "GPU-shared-1-0", "0")

    assert [] == list(collected_families(fleet.nodes, ()))
    assert {(*key, "fatal"): 1.0} == values(collected_families(fleet.nodes, {"pcie"}))["card_pcie_errors_total"]
    every = [family.spec for family in collected_families(fleet.nodes, metrics_card.COLLECTED)]
    assert {spec for specs in metrics_card.COLLECTED.values() for spec in specs} == set(every)


def test_an_unhealthy_card_says_why():
    """A healthy one has no reason; an ill one has one."""
    ill = card(healthy=False, unhealthy="xid")

    assert {("n-0", "GPU-n-0-0", "0", "xid"): 1.0} == values(card_families([node(cards=[ill])]))["card_unhealthy_info"]
    assert {} == values(card_families([node(cards=[card()])]))["card_unhealthy_info"]


@pytest.mark.parametrize(
    ("field", "metric"),
    [
        ("total_bytes", "card_memory_total_bytes"),
        ("reserved_bytes", "card_memory_reserved_bytes"),
        ("allocated_bytes", "card_memory_allocated_bytes"),
        ("allocatable_bytes", "card_memory_allocatable_bytes"),
    ],
)
def test_a_placeholder_is_not_shown(field, metric):
    """A figure that is listed as unknown has no series, and with reserved the remainder goes too."""
    found = values(card_families([node(cards=[card(unknown=(field,))])]))

    assert {} == found[metric]
    assert (field == "reserved_bytes") == ({} == found["card_memory_unaccounted_bytes"])


def test_no_promise_of_memory_is_no_series():
    """A container that was promised no memory has no allocated series; what it uses is reported."""
    found = values(container_families([node(uses=[use("a", gib=0, unknown=("allocated_bytes",))])]))

    assert {} == found["container_memory_allocated_bytes"]
    assert 1 == len(found["container_memory_used_bytes"])


@pytest.mark.parametrize(
    ("field", "metric"),
    [
        ("used_bytes", "card_memory_used_bytes"),
        ("unattributed_bytes", "card_memory_unattributed_bytes"),
        ("utilisation_ratio", "card_utilisation_ratio"),
        ("power_watts", "card_power_watts"),
        ("temperature_celsius", "card_temperature_celsius"),
    ],
)
def test_what_a_card_cannot_tell_is_absent(field, metric):
    """An unknown figure has no series; the others stay."""
    found = values(card_families([node(cards=[card(**{field: None})])]))

    assert {} == found[metric]
    assert 1 == len(found["card_memory_total_bytes"])


def test_container_without_compute_promise():
    """No compute promised: no allocated ratio, while the used one stays."""
    found = values(container_families([node(uses=[use("a")])]))

    assert {} == found["container_compute_allocated_ratio"]
    assert [0.25] == list(found["container_compute_used_ratio"].values())


def test_zero_from_allocation_on():
    """A container that has not touched its card yet is at 0, not absent."""
    found = values(container_families([node(uses=[use("a", used=0)])]))

    assert [0.0] == list(found["container_memory_used_bytes"].values())


def test_mode_is_per_container():
    """Whole cards are marked exclusive and shares shared, on allocated and used alike."""
    uses = [use("a"), use("b", index=1, exclusive=True)]
    found = values(container_families([node(uses=uses)]))

    for metric in ("container_memory_allocated_bytes", "container_memory_used_bytes"):
        assert {("a", "shared"), ("b", "exclusive")} == {(key[1], key[-1]) for key in found[metric]}


def test_remainder_shows_what_nobody_explains():
    """A card that uses more than its parts say shows the difference instead of spreading it."""
    uses = [use("a", used=2)]
    found = values(card_families([node(cards=[card(uses=uses, used_bytes=4 * GIB)], uses=uses)]))

    assert [1.5 * GIB] == list(found["card_memory_unaccounted_bytes"].values())


def test_remainder_of_unknown_parts_is_absent():
    """With a container that cannot be read, or an unknown unattributed part, there is no remainder to tell."""
    uses = [use("a", used=None), use("b", index=1)]
    cards = [card(0, uses=uses, used_bytes=GIB), card(1, uses=uses, unattributed_bytes=None)]

    assert {} == values(card_families([node(cards=cards, uses=uses)]))["card_memory_unaccounted_bytes"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 9), st.booleans()), max_size=12),
    st.floats(0, 2),
)
def test_sums_reconcile_on_every_card(tenants, unattributed):
    """Containers + unattributed + reserved + remainder is what the card uses, whoever is on it."""
    uses = [use(f"p{i}", index=i % 4 if same else index, used=used) for i, (index, used, same) in enumerate(tenants)]
    reading = node(cards=[card(i, uses=uses, unattributed=unattributed) for i in range(4)], uses=uses)

    cards, containers = values(card_families([reading])), values(container_families([reading]))

    for key, used in cards["card_memory_used_bytes"].items():
        tenants_use = sum(v for k, v in containers["container_memory_used_bytes"].items() if k[3:6] == key)
        parts = cards["card_memory_unattributed_bytes"][key] + cards["card_memory_reserved_bytes"][key]
        assert used == tenants_use + parts + cards["card_memory_unaccounted_bytes"][key]


def test_pools_by_state():
    """Nodes are counted by state; ready and booting are told even when there are none."""
    nodes = [node("a"), node("b", state="draining"), node("c", pool="other")]
    pools = [PoolReading("shared", 4, 2, 1, 8), PoolReading("empty", 0, 0, 0, 3)]

    found = values(pool_families(frame(nodes, pools=pools)))

    assert {
        ("shared", "ready"): 1,
        ("shared", "draining"): 1,
        ("shared", "booting"): 2,
        ("other", "ready"): 1,
        ("empty", "ready"): 0,
        ("empty", "booting"): 0,
    } == found["pool_nodes"]
    assert {("shared",): 1, ("empty",): 0} == found["pool_min_nodes"]
    assert {("shared",): 8, ("empty",): 3} == found["pool_max_nodes"]


def test_pending_by_reason():
    """Every reason has a series, 0 included; one outside the closed set counts as other."""
    waiting = [
        PendingReading("a", 5, "fragmented", ""),
        PendingReading("b", 9, "fragmented", ""),
        PendingReading("c", 1, "?!", ""),
    ]

    found = values(pending_families(frame(waiting=waiting)))

    known = [*(why.value for why in Why), "scheduling"]
    assert {(why,): 2 * (why == "fragmented") for why in known} | {("other",): 1} == found["pending_pods"]
    assert {(): 9.0} == found["pending_max_age_seconds"]


def test_events_and_clock():
    """Counts become one counter by kind, fit to be a label."""
    found = values(event_families(frame(at=12.5, counts=[("pods placed", 7), ("nodes-added", 2)])))

    assert {("pods_placed",): 7, ("nodes_added",): 2} == found["autoscaler_events_total"]
    assert {(): 12.5} == found["simulated_clock_seconds"]
