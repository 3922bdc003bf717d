# SPDX-License-Identifier: Apache-2.0
"""Other ways to share a card: no host PIDs, sandboxes, MPS, time slices, MIG; and compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.attributed import look, residual, used, values
from support.node_facts import GIB, MIB, RESERVED, Node, card, outcome, region, uuid

from exporter.pipeline.families import card_families
from exporter.pipeline.snapshot import MachineSample
from isolation.contract.quantity import show_bytes


def test_compute_of_a_container():
    """The sum over its processes; whoever did nothing has 0, a card that cannot tell has none."""
    node = Node(agent=True).pod_hold("a").pod_hold("b").process(1, 1, pod="a").process(2, 1, pod="a")
    node.card(busy={1: 0.25, 2: 0.5, 77: 0.1})
    mig = Node(agent=True).pod_hold("a").process(1, 1, pod="a").card(busy=None)

    assert [(0.75, "nvml"), (0.0, "nvml")] == [
        (c.used_core_ratio, c.core_source) for c in look(node).reading.containers
    ]
    assert [(None, "")] == [(c.used_core_ratio, c.core_source) for c in look(mig).reading.containers]


def test_compute_is_never_more_than_the_card():
    """Samples of processes that took turns may add up to more; a container is not busier than its card."""
    node = Node(agent=True).pod_hold("a").process(1, 1, pod="a").process(2, 1, pod="a").card(busy={1: 0.7, 2: 0.4})

    assert [1.0] == [c.used_core_ratio for c in look(node).reading.containers]


def test_no_host_pids():
    """NVML's pids mean nothing: the library's word where there is one, the card's where one container has it all."""
    shared = Node(agent=True, host_pids=False).pod_hold("a", reading=region(used=3 * GIB)).pod_hold("b")
    shared.card(free_bytes=10 * GIB)
    whole = Node(host_pids=False).container("c").grant("c", [uuid()]).card(free_bytes=10 * GIB, utilisation_ratio=0.8)

    found = look(shared)

    assert {"a/main": (3 * GIB, "library"), "b/main": (None, "")} == used(found)
    assert (None, False, False) == (
        found.reading.cards[0].unattributed_bytes,
        found.reading.cards[0].attributable,
        found.reading.host_pids,
    )
    assert {"c/main": (6 * GIB - RESERVED, "allocation")} == used(look(whole))
    assert [(0.8, "allocation")] == [(c.used_core_ratio, c.core_source) for c in look(whole).reading.containers]


def test_a_sandbox_with_a_kernel_of_its_own():
    """One container has the whole card, it is used, and no process is seen: the card's figure, and it says so."""
    kata = Node().container("a").grant("a", [uuid()]).card(free_bytes=10 * GIB)
    idle = Node().container("a").grant("a", [uuid()]).card(free_bytes=16 * GIB - RESERVED - 8 * MIB)

    assert {"a/main": (6 * GIB - RESERVED, "allocation")} == used(look(kata))
    assert (False, 0, 0) == (
        look(kata).reading.cards[0].attributable,
        look(kata).reading.cards[0].unattributed_bytes,
        residual(look(kata)),
    )
    assert ({"a/main": (0, "nvml")}, 8 * MIB) == (used(look(idle)), residual(look(idle)))


def test_two_on_a_card_are_not_a_sandbox():
    """What nobody is seen to use is given to nobody where two could have it."""
    node = Node().container("a").container("b").grant("a", [f"{uuid()}::0"]).grant("b", [f"{uuid()}::1"])

    found = look(node.card(free_bytes=10 * GIB))

    assert {"a/main": (0, "nvml"), "b/main": (0, "nvml")} == used(found)
    assert 6 * GIB - RESERVED == residual(found)


def test_mps_clients_behind_their_server():
    """All memory stands under the server: clients are not guessed, and the card says so."""
    node = Node(agent=True, mps=True).pod_hold("a").pod_hold("b", reading=region(used=GIB))
    node.process(1, 5, name="nvidia-cuda-mps")

    found = look(node)

    assert {"a/main": (None, ""), "b/main": (GIB, "library")} == used(found)
    shown = found.reading.cards[0]
    assert (False, None, True) == (shown.attributable, shown.unattributed_bytes, found.reading.mps)


def test_mps_clients_that_nvml_lists():
    """A driver that lists clients hides nothing; the server's own memory is unattributed."""
    node = Node(agent=True, mps=True).pod_hold("a").process(1, 0.5, name="nvidia-cuda-mps")
    node.process(2, 3, pod="a", kind="mps")

    found = look(node)

    assert {"a/main": (3 * GIB, "nvml")} == used(found)
    assert (True, GIB // 2) == (found.reading.cards[0].attributable, found.reading.cards[0].unattributed_bytes)


def test_a_tenant_cannot_blind_a_card():
    """A process in a pod that calls itself an MPS server is a process in a pod."""
    node = Node(agent=True).pod_hold("a").pod_hold("b").process(1, 5, pod="a", name="nvidia-cuda-mps")
    node.process(2, 1, pod="b").container("x").process(3, 2, pod="x", name="nvidia-cuda-mps")

    found = look(node)

    assert {"a/main": (5 * GIB, "nvml"), "b/main": (GIB, "nvml")} == used(found)
    assert (True, 2 * GIB) == (found.reading.cards[0].attributable, found.reading.cards[0].unattributed_bytes)


def test_peaks_between_samples():
    """The driver's account shows what a process had between two samples, and says so."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a").process(2, 1, pod="a")
    spiked = Node(agent=True).pod_hold("a").process(1, 2, pod="a").card(peaks={1: 4 * GIB, 9: 9 * GIB})

    assert [(3 * GIB, "nvml")] == [(c.peak_bytes, c.peak_source) for c in look(node).reading.containers]
    assert [(4 * GIB, "accounting")] == [(c.peak_bytes, c.peak_source) for c in look(spiked).reading.containers]


@pytest.mark.parametrize(
    ("held", "expected"),
    [((), 15), ((5,), 10), ((5, 10), 0), ((5, 5, 9), 0)],
)
def test_largest_promise_that_still_fits(held, expected):
    """Whole units of what is offered less what is promised; a card that was over-promised has none."""
    node = Node(agent=True)
    for number, gib in enumerate(held):
        node.pod_hold(f"p{number}", gib=gib)

    shown = look(node).reading.cards[0]

    assert (show_bytes(expected * GIB), 15 * GIB, False, len(held)) == (
        show_bytes(shown.largest_free_bytes),
        shown.allocatable_bytes,
        shown.exclusive,
        shown.holders,
    )


def test_no_largest_slice_where_none_can_be_promised():
    """On an unhealthy card nothing fits; beside slices of time, which promise no memory, nobody can say."""
    unhealthy = Node(agent=True).card(unhealthy="xid")
    sliced = Node().container("a").grant("a", [f"{uuid()}::0"])

    assert (0, None) == (
        look(unhealthy).reading.cards[0].largest_free_bytes,
        look(sliced).reading.cards[0].largest_free_bytes,
    )


def test_time_slices_promise_no_memory():
    """Used is measured, allocated has no series: a ratio of nothing is no alert."""
    node = Node().container("a").grant("a", [f"{uuid()}::0"]).process(1, 2, pod="a")

    shown = values(look(node))

    assert {} == shown["container_memory_allocated_bytes"]
    assert [2 * GIB] == list(shown["container_memory_used_bytes"].values())


def test_mig_instances_are_cards():
    """Instances have memory and tenants, the divided card has power and temperature: no sum counts twice."""
    whole = card(0, uuid="GPU-x", processes=None)
    parts = tuple(
        replace(card(0, uuid=f"MIG-{i}", parent="GPU-x", profile="1g.5gb"), power_watts=None, busy=None) for i in "ab"
    )
    node = Node().container("t").grant("t", ["MIG-a"])

    shown = values(look(node, machine=outcome(MachineSample(parts, divided=(whole,)))))

    assert {"MIG-a", "MIG-b"} == {labels[1] for labels in shown["card_memory_total_bytes"]}
    assert {"GPU-x"} == {labels[1] for labels in shown["card_power_watts"]}
    assert {("GPU-x", "1g.5gb"), ("", "")} == {labels[-2:] for labels in shown["card_info"]}


def test_a_cards_series_do_not_change_with_its_tenants():
    """Pods come and go, and every label of every card's series stays (NVIDIA/dcgm-exporter issue 237)."""
    empty, full = Node(agent=True), Node(agent=True).pod_hold("a").process(1, 1, pod="a")

    def series(node):
        return {(f.spec.name, labels) for f in card_families([look(node).reading]) for labels, _ in f.samples}

    assert series(empty) == series(full)


def test_ipc_memory_is_its_exporters():
    """Memory that another container maps stands once, where NVML puts it."""
    node = Node(agent=True).pod_hold("a", reading=region(used=4 * GIB)).pod_hold("b", reading=region(used=4 * GIB))
    node.process(1, 4, pod="a").process(2, 0.25, pod="b")

    found = look(node)

    assert ({"a/main": (4 * GIB, "nvml"), "b/main": (GIB // 4, "nvml")}, 0) == (used(found), residual(found))
