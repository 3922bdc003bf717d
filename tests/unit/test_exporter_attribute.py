"""
Who uses what: figures that add up to the card, say where they come from, and are absent rather than wrong.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_facts import GIB, MIB, RESERVED, Node, card, hold, outcome, region, uuid

from exporter.attribute import Place, attribute
from exporter.claims import claimed
from exporter.facts import MachineFacts
from exporter.families import card_families, container_families
from isolation.contract.quantity import show_bytes

PLACE = Place("n-0")


def look(node, **more):
    """The attribution of a node."""
    snapshot = node.snapshot(**more)
    return attribute(snapshot, claimed(snapshot), PLACE)


def used(found):
    """{pod/container: (used, source)}."""
    return {f"{c.pod}/{c.container}": (c.used_bytes, c.source) for c in found.reading.containers}


def values(found):
    """{metric without prefix: {labels: value}} of everything that is exposed."""
    families = [*card_families([found.reading]), *container_families([found.reading])]
    return {f.spec.name.removeprefix("gpushare_"): dict(f.samples) for f in families}


def residual(found, at=0):
    """Used less containers, unattributed and reserved; None where that cannot be told."""
    return values(found)["card_memory_remainder_bytes"].get(("n-0", uuid(at), str(at)))


def test_shared_card_adds_up():
    """Two pods, one with two processes, and a stranger: every byte stands once, and nothing is left over."""
    node = Node(agent=True).pod_hold("a").pod_hold("b")
    node.process(1, 2, pod="a").process(2, 1.5, pod="a").process(3, 4, pod="b").process(9, 0.5, pod="x")

    found = look(node.container("x"))

    assert {"a/main": (3.5 * GIB, "nvml"), "b/main": (4 * GIB, "nvml")} == used(found)
    shown = found.reading.cards[0]
    assert (0.5 * GIB, 8 * GIB + RESERVED, True) == (shown.unattributed_bytes, shown.used_bytes, shown.attributable)
    assert 0 == residual(found)


def test_what_nobody_explains_is_the_remainder():
    """Memory that no process has is neither a container's nor unattributed."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a").card(free_bytes=16 * GIB - RESERVED - 3 * GIB)

    found = look(node)

    assert (0, GIB) == (found.reading.cards[0].unattributed_bytes, residual(found))


def test_a_negative_remainder_is_shown():
    """Processes that say more than the card does are not clamped to look right."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a").card(free_bytes=16 * GIB - RESERVED - GIB)

    assert -GIB == residual(look(node))


def test_zero_from_allocation_on():
    """A container that never initialised CUDA uses 0, measured; it is not missing."""
    found = look(Node(agent=True).pod_hold("a"))

    assert ({"a/main": (0, "nvml")}, [0.0]) == (used(found), [c.used_core_ratio for c in found.reading.containers])


def test_an_exclusive_pod_is_measured_too():
    """A whole card's owner uses what its processes have, not the card's figure."""
    node = Node().container("a").grant("a", [uuid()]).process(1, 6, pod="a").process(2, 1)

    found = look(node)

    assert {"a/main": (6 * GIB, "nvml")} == used(found)
    assert (GIB, True, 0) == (
        found.reading.cards[0].unattributed_bytes,
        found.reading.cards[0].exclusive,
        found.reading.cards[0].largest_free_bytes,
    )


def test_containers_of_one_pod_stay_apart():
    """Each container has its own processes' memory (Project-HAMi/HAMi issue 863)."""
    node = Node(agent=True).pod_hold("a").pod_hold("a", container="side", gib=2)
    node.process(1, 3, pod="a").process(2, 1, pod="a", container="side")

    assert {"a/main": (3 * GIB, "nvml"), "a/side": (GIB, "nvml")} == used(look(node))


def test_a_restarted_container_that_no_record_names_yet():
    """With one claim in the pod it is that container's; with two nobody can say, so both are absent."""
    one = Node(agent=True).pod_hold("a").process(1, 3, pod="a", container_id="fresh")
    two = Node(agent=True).pod_hold("a").pod_hold("a", container="side").process(1, 3, pod="a", container_id="fresh")

    assert {"a/main": (3 * GIB, "nvml")} == used(look(one))
    assert {"a/main": (None, ""), "a/side": (None, "")} == used(look(two))
    assert (0, None) == (look(two).reading.cards[0].unattributed_bytes, residual(look(two)))


def test_same_name_one_after_the_other():
    """The old pod's process is not the new pod's, although both carry one name."""
    node = Node(agent=True).pod_hold("db-0", pod_uid="old").pod_hold("db-0", pod_uid="new", gib=3)
    node.process(1, 4, pod="db-0", pod_uid="old").process(2, 1, pod="db-0", pod_uid="new")

    found = look(node)

    assert {"old": 4 * GIB, "new": GIB} == {c.pod_uid: c.used_bytes for c in found.reading.containers}


def test_a_successor_is_not_its_predecessor():
    """Only the old pod's promise is known; the new pod's process is not its."""
    node = Node(agent=True).pod_hold("db-0", pod_uid="old").container("db-0", pod_uid="new")

    found = look(node.process(1, 2, pod="db-0", pod_uid="new"))

    assert ({"db-0/main": (0, "nvml")}, 2 * GIB) == (used(found), found.reading.cards[0].unattributed_bytes)


def test_two_assignments_under_one_name():
    """Of one the kubelet's record tells the UID, of the other nobody: each process goes to its own."""
    node = Node().container("a", pod_uid="one").container("a", pod_uid="two")
    node.grant("a", [f"{uuid()}::0"], pod_uid="one").grant("a", [f"{uuid()}::1"])
    node.process(1, 1, pod="a", pod_uid="one").process(2, 2, pod="a", pod_uid="two")

    assert {"one": GIB, "": 2 * GIB} == {c.pod_uid: c.used_bytes for c in look(node).reading.containers}


def test_a_reused_pid_is_its_new_owners():
    """The same pid in another control group counts for whoever runs now."""
    before = Node(agent=True).pod_hold("a").pod_hold("b").process(5, 2, pod="a")
    after = Node(agent=True).pod_hold("a").pod_hold("b").process(5, 2, pod="b", start_ticks=999)

    assert (2 * GIB, 0) == (used(look(before))["a/main"][0], used(look(before))["b/main"][0])
    assert (0, 2 * GIB) == (used(look(after))["a/main"][0], used(look(after))["b/main"][0])


def test_a_dead_pid_is_nobodys_and_worth_another_look():
    """A process that is gone when we look is counted as unattributed, and the sample is marked."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a", seen=False)

    found = look(node)

    assert (True, {"a/main": (0, "nvml")}, 2 * GIB) == (
        found.churned,
        used(found),
        found.reading.cards[0].unattributed_bytes,
    )
    assert not look(Node(agent=True).pod_hold("a").process(1, 2, pod="a")).churned


def test_a_run_is_known_by_its_promise():
    """Descendants of a `gpushare run` command are its; a process in a pod cannot claim to be one."""
    node = Node(kubernetes=False).hold(hold("train", ident="run-1")).process(1, 2, run="run-1")
    liar = Node().hold(hold("train", ident="run-1")).container("x").process(1, 2, pod="x", run="run-1")

    assert {"train/run-1": (2 * GIB, "nvml")} == used(look(node))
    assert {"train/run-1": (0, "nvml")} == used(look(liar))


def test_a_record_of_another_pod_is_not_believed():
    """A container ID under a control group of another pod than the record says names nobody."""
    node = Node().container("a", pod_uid="one").container("a", pod_uid="two").grant("a", [uuid()])

    found = look(node.container("x").process(1, 2, pod="x", container_id="one/main"))

    assert {"a/main": (None, "")} == used(found)
    assert None is found.reading.cards[0].unattributed_bytes


def test_a_pod_of_which_the_kubelet_has_not_told_is_no_stranger():
    """Its process may be promised its memory: unattributed is unknown; another pod's process is a stranger."""
    silent = Node(unanswered={("team", "a")}).container("a").process(1, 2, pod="a")
    other = Node(unanswered={("team", "b")}).container("a").process(1, 2, pod="a")
    nameless = Node(unanswered={("team", "b")}).process(1, 2, pod="a")

    assert None is look(silent).reading.cards[0].unattributed_bytes
    assert None is look(nameless).reading.cards[0].unattributed_bytes
    assert 2 * GIB == look(other).reading.cards[0].unattributed_bytes


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


@pytest.mark.parametrize(
    ("failed", "stays"),
    [("machine_ok", None), ("kernel_ok", "allocated"), ("promises_ok", None), ("kubelet_ok", "used")],
)
def test_failure_is_absence(failed, stays):
    """A failed source takes away what it would have told, and puts no 0 and no other source in its place."""
    node = Node(agent=True, **{failed: False}).pod_hold("a", reading=region(used=GIB)).process(1, 2, pod="a")

    found = values(look(node))

    allocated, shown = found["container_memory_allocated_bytes"], found["container_memory_used_bytes"]
    assert (stays is not None or failed == "machine_ok") == bool(allocated)
    assert (stays == "used") == bool(shown)
    assert {} == (found["card_memory_unattributed_bytes"] if failed in {"machine_ok", "kernel_ok"} else {})
    if failed in {"promises_ok", "kubelet_ok"}:
        assert {} == found["card_memory_allocated_bytes"] == found["card_memory_largest_free_bytes"]
        assert 1 == len(found["card_memory_used_bytes"])


@pytest.mark.parametrize("kubernetes", [True, False])
def test_without_the_book_of_promises_nobody_is_a_stranger(kubernetes):
    """A process may be of a promise that we could not read: unattributed is unknown."""
    node = Node(promises_ok=False, kubernetes=kubernetes).process(1, 2)

    assert None is look(node).reading.cards[0].unattributed_bytes


def test_who_has_a_card_is_unknown_without_every_source():
    """Nobody known to have it does not mean that it is free."""
    shown = values(look(Node(kubelet_ok=False)))

    assert {} == shown["card_exclusive"] == shown["card_containers"]
    assert [0.0] == list(values(look(Node()))["card_exclusive"].values())


def test_a_process_whose_owner_cannot_be_told_is_not_a_stranger():
    """Without the kubelet's assignments, a pod's process may be promised its memory: unattributed is unknown."""
    node = Node(kubelet_ok=False).container("a").process(1, 2, pod="a")

    assert None is look(node).reading.cards[0].unattributed_bytes
    assert 2 * GIB == look(Node().container("a").process(1, 2, pod="a")).reading.cards[0].unattributed_bytes


def test_without_the_kubelets_records_a_claim_without_uid_cannot_be_measured():
    """Nobody can say whether the process is the container's: absent, not 0."""
    node = Node(identities_ok=False).container("a").grant("a", [uuid()]).process(1, 2, pod="a").process(2, 1, pod="b")

    found = look(node)

    assert ({"a/main": (None, "")}, None) == (used(found), found.reading.cards[0].unattributed_bytes)


def test_process_lists_that_cannot_be_read():
    """The card's own figures stay; containers' are absent."""
    node = Node(agent=True).pod_hold("a").card(processes=None)

    found = look(node)

    assert ({"a/main": (None, "")}, RESERVED, False) == (
        used(found),
        found.reading.cards[0].used_bytes,
        found.reading.cards[0].attributable,
    )


def test_a_process_without_a_figure():
    """NVML names it and cannot tell its memory: its container's is unknown, the neighbour's is not."""
    node = Node(agent=True).pod_hold("a").pod_hold("b").process(1, None, pod="a").process(2, 1, pod="b")

    assert {"a/main": (None, ""), "b/main": (GIB, "nvml")} == used(look(node))


def test_an_exclusive_process_without_a_figure():
    """Its container has the whole card: the card's figure stands for it, unless a stranger is there too."""
    alone = Node().container("a").grant("a", [uuid()]).process(1, None, pod="a").card(free_bytes=10 * GIB)
    beside = Node().container("a").grant("a", [uuid()]).process(1, None, pod="a").process(2, 1)

    assert {"a/main": (6 * GIB - RESERVED, "allocation")} == used(look(alone))
    assert {"a/main": (None, "")} == used(look(beside))


def test_a_stranger_without_a_figure():
    """What strangers have is unknown if one of them cannot be told, never less."""
    node = Node(agent=True).process(1, None).process(2, 1)

    assert None is look(node).reading.cards[0].unattributed_bytes


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


def test_a_lost_card_beside_a_good_one():
    """The lost card's figures are absent, its claims stay, the neighbour is untouched."""
    node = Node(2, agent=True).pod_hold("a").pod_hold("b", index=1).process(1, 2, index=1, pod="b")
    node.card(0, lost=True, total_bytes=0, reserved_bytes=None, free_bytes=None, processes=None)

    found = look(node)
    shown = values(found)

    assert {"a/main": (None, ""), "b/main": (2 * GIB, "nvml")} == used(found)
    for metric in ("total", "used", "reserved", "offered", "unattributed", "remainder", "largest_free"):
        assert ["1"] == [labels[2] for labels in shown[f"card_memory_{metric}_bytes"]]
    assert {"0": 0.0, "1": 1.0} == {labels[2]: value for labels, value in shown["card_healthy"].items()}
    assert {"1": 1.0} == {labels[2]: value for labels, value in shown["card_attributable"].items()}
    assert {"a": 5 * GIB, "b": 5 * GIB} == {k[1]: v for k, v in shown["container_memory_allocated_bytes"].items()}


def test_what_a_lost_card_was_promised_as_a_whole():
    """Nobody knows its size any more: allocated is absent, not 0."""
    node = Node(2).container("a").grant("a", [uuid(0)]).card(0, lost=True, total_bytes=0, free_bytes=None)

    assert ["1"] == [labels[2] for labels in values(look(node))["card_memory_allocated_bytes"]]


def test_memory_info_without_reserved():
    """An old driver does not tell what it keeps: reserved and remainder are absent, used is not."""
    node = Node(agent=True).pod_hold("a").process(1, 2, pod="a").card(reserved_bytes=None)

    shown = values(look(node))

    assert {} == shown["card_memory_reserved_bytes"] == shown["card_memory_remainder_bytes"]
    assert 1 == len(shown["card_memory_used_bytes"])


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
        shown.offered_bytes,
        shown.exclusive,
        shown.holders,
    )


def test_no_largest_slice_where_none_can_be_promised():
    """On an unhealthy card nothing fits; beside slices of time, which promise no memory, nobody can say."""
    sick = Node(agent=True).card(healthy=False)
    sliced = Node().container("a").grant("a", [f"{uuid()}::0"])

    assert (0, None) == (
        look(sick).reading.cards[0].largest_free_bytes,
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

    shown = values(look(node, machine=outcome(MachineFacts(parts, divided=(whole,)))))

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


# --- properties ---------------------------------------------------------------------------------------------------

TENANTS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "whole", "slice", "run", "stranger", "host", "gone"]),
        st.integers(0, 2),
        st.lists(st.one_of(st.integers(0, 4000), st.none()), max_size=3),
        st.sampled_from(["c", "c2"]),
    ),
    max_size=8,
)
SOURCES = st.fixed_dictionaries(
    {
        name: st.sampled_from([True, True, True, False])
        for name in ("kernel_ok", "promises_ok", "kubelet_ok", "identities_ok", "host_pids")
    }
)


def populated(tenants, **flags):
    """A node of three cards with all these people on them."""
    node = Node(3, agent=True, **flags)
    pid = 0
    for at, (kind, index, sizes, container) in enumerate(tenants):
        pod, run = f"p{at}", ""
        match kind:
            case "hold":
                node.pod_hold(pod, index=index, container=container, reading=region(card_index=index, used=at * MIB))
            case "whole":
                node.container(pod, container).grant(pod, [uuid(index)], container=container)
            case "slice":
                node.container(pod, container).grant(pod, [f"{uuid(index)}::{at}"], container=container)
            case "run":
                pod, run = "", f"run-{at}"
                node.hold(hold(f"r{at}", ident=run, index=index))
            case "stranger":
                node.container(pod, container)
            case _:
                pod = ""
        for size in sizes:
            pid += 1
            gib = None if size is None else size / 1024
            node.process(pid, gib, index=index, pod=pod, container=container, run=run, seen=kind != "gone")
    return node


@settings(max_examples=60, deadline=None)
@given(TENANTS, st.lists(st.integers(-500, 500), min_size=3, max_size=3))
def test_every_byte_stands_once(tenants, hidden):
    """Used = containers + unattributed + reserved + remainder, exactly, and the remainder is what no process has."""
    node = populated(tenants)
    for index, amount in enumerate(hidden):
        explained = sum(p.bytes or 0 for p in node.cards[index])
        node.card(index, free_bytes=16 * GIB - RESERVED - explained - amount * MIB)
    found = look(node)
    shown = values(found)

    for key, left in shown["card_memory_remainder_bytes"].items():
        parts = sum(v for k, v in shown["container_memory_used_bytes"].items() if k[3:6] == key)
        parts += shown["card_memory_unattributed_bytes"][key] + shown["card_memory_reserved_bytes"][key]
        assert shown["card_memory_used_bytes"][key] == parts + left
        if "allocation" not in {c.source for c in found.reading.containers if c.uuid == key[1]}:
            assert hidden[int(key[2])] * MIB == left


@settings(max_examples=60, deadline=None)
@given(TENANTS, SOURCES)
def test_one_series_per_container_and_card(tenants, flags):
    """Whatever works and whoever is there: each series stands once, and used has the labels of what was promised."""
    shown = values(look(populated(tenants, **flags)))

    infos = [labels[:7] for labels in shown["container_info"]]
    assert len(set(infos)) == len(infos)
    assert set(shown["container_memory_used_bytes"]) <= set(infos)
    assert set(shown["container_memory_allocated_bytes"]) <= set(infos)


@settings(max_examples=60, deadline=None)
@given(TENANTS)
def test_allocated_and_used_carry_the_same_labels(tenants):
    """With every source and every figure known, and memory promised, both families have the same series."""
    known = [(kind, at, [s for s in sizes if s is not None], c) for kind, at, sizes, c in tenants if kind != "slice"]

    shown = values(look(populated(known)))

    assert set(shown["container_memory_allocated_bytes"]) == set(shown["container_memory_used_bytes"])


@settings(max_examples=60, deadline=None)
@given(TENANTS, st.integers(0, 2**31 - 1), st.lists(st.integers(0, 99), max_size=5), st.integers(0, 2**64 - 1))
def test_nobodys_figure_depends_on_what_a_neighbour_writes(tenants, bytes_used, pids, denied):
    """A tenant that writes its region anew changes what its own library says, and no figure that NVML tells."""
    before, after = populated(tenants), populated(tenants)
    forged = {"reading": region(used=bytes_used, slots=pids, denied=denied)}
    quiet = {"reading": region()}
    for node, written in ((before, quiet), (after, forged)):
        node.pod_hold("mallory", **written).process(900, 1, pod="mallory")

    one, other = look(before).reading, look(after).reading

    assert one.cards == other.cards
    assert [replace(c, denied=None) for c in one.containers] == [replace(c, denied=None) for c in other.containers]
    assert [c for c in one.containers if c.pod != "mallory"] == [c for c in other.containers if c.pod != "mallory"]


@settings(max_examples=60, deadline=None)
@given(TENANTS, st.randoms())
def test_order_does_not_matter(tenants, random):
    """Processes, holds and assignments in any order give the same reading."""
    node, shuffled = populated(tenants), populated(tenants)
    for people in (*shuffled.cards.values(), shuffled.holds, shuffled.grants):
        random.shuffle(people)

    assert look(node).reading == look(shuffled).reading


@settings(max_examples=60, deadline=None)
@given(TENANTS, SOURCES)
def test_nothing_is_negative_and_nothing_unknown_is_zero(tenants, flags):
    """No container has less than nothing, and a figure without a source has no value."""
    for one in look(populated(tenants, **flags)).reading.containers:
        assert (one.used_bytes is None) == (one.source == "")
        assert (one.used_core_ratio is None) == (one.core_source == "")
        assert one.used_bytes is None or one.used_bytes >= 0
