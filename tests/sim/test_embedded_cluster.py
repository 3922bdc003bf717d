"""The embedded cluster and its autoscaler: nobody forgotten, nobody homeless, no card over its room."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from builders import ask, node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pools_builder import arrival, fleet, nodes_by_hand, pool

from autoscaler.limits import Limits
from autoscaler.observation import Reservation
from autoscaler.plan import Drain, Keep
from autoscaler.sim.fleet import Embedded, SupplyError, demo_fleet, demo_limits, demo_workload, fleet_of
from autoscaler.sim.workload import whole
from autoscaler.sim.world import SCHEDULE_SECONDS
from exporter.families import card_families
from isolation.contract import metrics
from isolation.contract.model import CardChoice, Mode, Placement, Request, Slice
from isolation.contract.quantity import gib

QUICK = Limits(fewest_replicas=1, fresh_seconds=0).scaled(0.1)
"""The demonstration's tempo: unneeded after 60 s, drained 60 s after the last purchase."""
PLENTY = replace(QUICK, moves_per_hour_always=600, min_pod_age_seconds=20.0, immune_seconds=60.0)
a_few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check_room(embedded: Embedded) -> None:
    """Every card and node by plain sums over the pods on it, against what it has and what the engine says."""
    book = embedded.world.book
    for name, pods in book.on.items():
        machine = book.engine.nodes[name]
        kept = [home for home in book.reserved.values() if home.placement.node == name]
        held = [(p.request, p.placement) for p in pods.values()] + [(h.request, h.placement) for h in kept]
        for card, (free, core) in zip(machine.cards, book.engine.room(name), strict=True):
            parts = [(r, part) for r, placed in held for part in placed.slices if part.uuid == card.uuid]
            assert card.offered_bytes - free == sum(part.bytes for _, part in parts)
            assert free >= 0
            assert sum(part.core for _, part in parts) <= 100
            assert core == 100 - sum(part.core for _, part in parts)
            assert len(parts) == 1 or not any(r.whole for r, _ in parts)
        assert sum(r.cpu_milli for r, _ in held) <= machine.cpu_milli
        assert sum(r.memory_bytes for r, _ in held) <= machine.memory_bytes
        assert len(held) <= machine.pods


def check_frame(embedded: Embedded) -> None:
    """Used = containers + unattributed + reserved, on every card of every frame."""
    for reading in embedded.frame().nodes:
        for card in reading.cards:
            mine = [c for c in reading.containers if c.uuid == card.uuid]
            assert card.used_bytes == sum(c.used_bytes for c in mine) + card.unattributed_bytes + card.reserved_bytes
            assert card.used_bytes <= card.total_bytes
            assert card.allocated_bytes >= sum(c.allocated_bytes for c in mine)
            assert 0 <= card.utilisation_ratio <= 1.0000001
            assert card.largest_free_bytes == card.offered_bytes - card.allocated_bytes
            assert card.holders == len(mine)
            assert card.exclusive == any(c.exclusive for c in mine)
            over = sum(c.used_bytes > c.allocated_bytes for c in mine)
            assert card.breaches == ((("over_limit", over),) if over else ())


def check_homes(embedded: Embedded) -> None:
    """A pod made again after an eviction never waits longer than the scheduler's next step."""
    moves = {(h.at, h.subject) for h in embedded.world.ledger.latest if h.kind == "move"}
    for waiting in embedded.world.scheduler.pending:
        if (waiting.created, waiting.key) in moves:
            assert embedded.now - waiting.created <= SCHEDULE_SECONDS


def check_served(embedded: Embedded) -> None:
    """Whoever waits knows what is coming, or why nothing is."""
    assert 0 == embedded.summary()["unserved_pods"]


def live(embedded: Embedded, seconds: float, *checks, step: float = 1.0) -> None:
    """Let time pass and look at every step."""
    for _ in range(int(seconds / step)):
        embedded.advance(step)
        for check in checks:
            check(embedded)


def counts(embedded: Embedded) -> dict[str, int]:
    return dict(embedded.frame().counts)


@pytest.mark.parametrize("choice", [CardChoice.POLICY, CardChoice.BINPACK, CardChoice.SPREAD])
def test_a_times_n_plus_one_pods_bring_n_plus_one_nodes_and_their_end_brings_it_back(choice):
    """
    From zero to four nodes for 19 equal pods at six a node, and back to zero.
    """
    pods = [arrival(0, f"p{i}", ask(5), lifetime=200) for i in range(19)]
    embedded = Embedded(fleet(pool(cards=2, size=15, choice=choice)), pods, seed=1, limits=QUICK)

    live(embedded, 120, check_room)
    grown = (len(embedded.world.book.on), counts(embedded)["nodes_bought"], len(embedded.world.scheduler.pending))
    live(embedded, 400, check_room)

    assert (4, 4, 0) == grown
    assert (0, 4) == (len(embedded.world.provider.machines), counts(embedded)["nodes_returned"])


def test_boot_delay_is_seen_and_bridged_without_buying_twice():
    """
    While the machine boots the frame says so, the pod's reason names it, and nothing more is bought.
    """
    embedded = Embedded(fleet(pool(), boot=100), [arrival(0, "p", ask(5))], seed=1, limits=QUICK)

    embedded.advance(60)
    booting = embedded.frame()
    embedded.advance(60)
    ready = embedded.frame()

    assert [(1, 1)] == [(each.nodes, each.booting) for each in booting.pools]
    assert ["booting"] == [each.state for each in booting.nodes]
    assert "node p-1 is coming for it" in booting.waiting[0].reason
    assert ([(1, 0)], ()) == ([(each.nodes, each.booting) for each in ready.pools], ready.waiting)
    assert 1 == counts(embedded)["nodes_bought"]


def test_phantom_pod_is_rescued():
    """
    A pod that fits by sums over a node but by no card is counted while it waits, and gets a node of its own.
    """
    pods = [arrival(0, f"p{i}", ask(9)) for i in range(4)] + [arrival(40, "phantom", ask(8))]
    embedded = Embedded(fleet(pool(cards=4), standing=1), pods, seed=1, limits=QUICK)

    embedded.advance(70)
    meanwhile = embedded.frame()
    embedded.advance(50)

    summary = embedded.summary()
    assert (1, "phantom") == (meanwhile.phantoms, meanwhile.waiting[0].pod.removeprefix("default/"))
    assert 0 == embedded.frame().phantoms
    assert (1, 1, 0, 0, 0) == tuple(
        summary[name] for name in ("nodes_bought", "phantoms_rescued", "phantom_pods", "unserved_pods", "pods_waiting")
    )


def test_pod_that_nobody_can_host_is_refused_once_with_its_reason():
    """
    And nothing is bought for it.
    """
    embedded = Embedded(fleet(pool(size=15)), [arrival(0, "huge", ask(20))], seed=1, limits=QUICK)

    embedded.advance(300)
    frame = embedded.frame()

    assert [("refuse", "default/huge")] == [(h.kind, h.subject) for h in frame.happenings]
    assert "card_too_small" == frame.waiting[0].why
    assert {"pods_refused": 1, "nodes_bought": 0}.items() <= counts(embedded).items()


def test_provider_without_stock_is_left_alone_and_another_pool_serves():
    """
    The cheap pool has one machine; the second pod gets a node of the dear one.
    """
    cheap, dear = pool("cheap", price=1), pool("dear", price=5)
    supplies = fleet(cheap, dear)
    scarce = replace(supplies, supplies=(replace(supplies.supplies[0], stock=1), supplies.supplies[1]))
    embedded = Embedded(scarce, [arrival(0, f"p{i}", ask(10)) for i in range(2)], seed=1, limits=QUICK)

    live(embedded, 200, check_served, step=0.5)

    assert {"cheap-1", "dear-1"} == set(embedded.world.book.on)
    assert 0 == len(embedded.world.scheduler.pending)
    assert 1 == counts(embedded)["nodes_failed"]
    assert any(h.kind == "stock-out" for h in embedded.frame().happenings)


def test_machine_that_boots_for_ever_is_discarded():
    """
    After the time it may take; the pod's reason says that the pool could not deliver.
    """
    embedded = Embedded(fleet(pool(), boot=10_000), [arrival(0, "p", ask(5))], seed=1, limits=QUICK)

    live(embedded, 130, check_served, step=0.5)

    assert 1 == counts(embedded)["nodes_failed"]
    assert "could not deliver lately" in embedded.frame().waiting[0].reason


def test_drained_pod_moves_to_its_reserved_home_and_keeps_its_work():
    """
    The successor has a new identity, runs within a scheduling step and ends when the first would have.
    """
    pods = [
        arrival(0, "stays", ask(10), lifetime=2000),
        arrival(0, "ends", ask(12), lifetime=150),
        arrival(0, "moves", ask(3), lifetime=1000, namespace="team"),
    ]
    embedded = Embedded(fleet(pool(cards=1, size=15), standing=2), pods, seed=1, limits=PLENTY)
    embedded.advance(10)
    before = {p.name: (p.uid, p.placement.node) for p in embedded.world.book.pods.values()}

    live(embedded, 500, check_room, check_frame, check_homes)

    after = {p.name: (p.uid, p.placement.node) for p in embedded.world.book.pods.values()}
    assert before["moves"][1] == before["ends"][1] != before["stays"][1]
    assert (before["stays"], before["stays"][1]) == (after["stays"], after["moves"][1])
    assert before["moves"][0] != after["moves"][0]
    assert {"pods_moved": 1, "nodes_returned": 1}.items() <= counts(embedded).items()
    embedded.advance(1000 - embedded.now + SCHEDULE_SECONDS + 1)
    assert {"stays"} == {p.name for p in embedded.world.book.pods.values()}


def test_pod_whose_end_falls_into_its_move_finishes_once():
    """
    The old pod is being ended, the successor has the last second of the work.
    """
    ends = 12.0
    pods = [arrival(0, "stays", ask(10)), arrival(0, "ends", ask(12), ends), arrival(0, "moves", ask(3), 400)]
    embedded = Embedded(fleet(pool(size=15), standing=2), pods, seed=1, limits=PLENTY)
    while not counts(embedded)["pods_moved"]:
        embedded.advance(1)
    moved = next(h.at for h in embedded.frame().happenings if h.kind == "move")
    again = [*pods[:2], replace(pods[2], lifetime=moved)]
    late = Embedded(fleet(pool(size=15), standing=2), again, seed=1, limits=PLENTY)

    late.advance(moved + 60)

    assert {"pods_moved": 1, "pods_finished": 2}.items() <= counts(late).items()


def test_bare_pod_is_never_moved():
    """
    Nobody would make it again: its node stays however empty it is.
    """
    bare = replace(arrival(0, "bare", ask(1)), request=replace(ask(1), owner=""))
    pods = [arrival(0, "big", ask(12)), bare]
    embedded = Embedded(fleet(pool(size=12), standing=2), pods, seed=1, limits=PLENTY)

    embedded.advance(600)

    assert (2, 0) == (len(embedded.world.book.on), counts(embedded)["pods_moved"])


batch = st.lists(st.tuples(st.integers(1, 15), st.sampled_from([1, 1, 1, 2, 4])), min_size=1, max_size=40)


@a_few
@given(batch, st.integers(0, 99))
def test_a_batch_gets_no_node_more_than_first_fit_decreasing_needs(sizes, seed):
    """
    End to end: bought, booted, placed as planned, everybody runs.
    """
    pods = [arrival(0, f"p{i}", ask(each, wanted)) for i, (each, wanted) in enumerate(sizes)]
    embedded = Embedded(fleet(pool(cards=4)), pods, seed=seed, limits=QUICK)

    live(embedded, 100, check_room, step=5)

    assert 0 == len(embedded.world.scheduler.pending)
    assert nodes_by_hand(sizes, 4, 15) == counts(embedded)["nodes_bought"]


requests = st.one_of(
    st.builds(ask, st.integers(1, 15), st.sampled_from([1, 1, 2])),
    st.builds(lambda size, core: ask(size, core=core), st.integers(1, 12), st.sampled_from([5, 20, 50, 100])),
    st.builds(lambda cards: ask(cards=cards, whole=True), st.integers(1, 2)),
    st.just(Request(cpu_milli=2000, memory_bytes=gib(2))),
)
churn = st.lists(st.tuples(st.floats(0, 200), requests, st.floats(20, 400)), min_size=1, max_size=50)


@a_few
@given(churn, st.integers(0, 99), st.sampled_from(list(CardChoice)))
def test_churn_never_leaves_a_pod_homeless_a_card_over_or_a_pod_forgotten(life, seed, choice):
    """
    Random fleets, pods and ends: every invariant at every step, and everything is given back at last.
    """
    room = {"cpu_milli": 16_000, "memory_bytes": gib(64), "pods": 20, "choice": choice}
    pools = [
        pool("mem", 2, 15, mode=Mode.CGPU, **room),
        pool("core", 2, 12, mode=Mode.CORE_MEM, price=2, **room),
        pool("whole", 2, 40, mode=Mode.EXCLUSIVE, price=4, **room),
    ]
    pods = [arrival(at, f"p{i}", request, lifetime) for i, (at, request, lifetime) in enumerate(sorted(life, key=str))]
    pods.sort(key=lambda each: each.at)
    embedded = Embedded(fleet(*pools, standing=1), pods, seed=seed, limits=PLENTY)

    live(embedded, 500, check_room, check_homes, check_served)
    live(embedded, 900, check_room, check_frame, check_homes, step=10)

    summary = embedded.summary()
    hopeless = sum(1 for each in pods if each.request.card_core and each.request.card_bytes > gib(12))
    assert (0, 0) == (summary["phantom_pods"], summary["unserved_pods"])
    assert (len(pods) - hopeless, hopeless) == (summary["pods_finished"], summary["pods_waiting"])
    assert len(embedded.world.book.on) == 0
    assert not embedded.world.book.reserved


def story(embedded: Embedded, seconds: float, step: float) -> list:
    """Everything that happened, collected along the way."""
    found = []
    while embedded.now < seconds:
        before = embedded.world.ledger.happened
        embedded.advance(min(step, seconds - embedded.now))
        new = embedded.world.ledger.happened - before
        found += embedded.frame().happenings[-new:] if new else ()
    return found


def demo(seed: int = 42) -> Embedded:
    return Embedded(demo_fleet(), demo_workload(seed), seed=seed, limits=demo_limits())


def test_same_seed_same_story_however_time_is_cut():
    """
    Two runs of the demonstration, advanced in different steps, tell the same to the last word.
    """
    first, second, other = story(demo(), 900, 10), story(demo(), 900, 3.7), story(demo(7), 900, 10)

    assert first == second
    assert first != other


def test_same_seed_same_story_in_another_process():
    """
    Nothing hangs on the order of a set of strings.
    """
    code = (
        "from autoscaler.sim.fleet import *\n"
        "e = Embedded(demo_fleet(), demo_workload(3), seed=3, limits=demo_limits())\n"
        "for _ in range(40): e.advance(20); print(e.frame())\n"
        "print(e.summary())"
    )

    def told(hash_seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=env)
        return hashlib.sha256(ran.stdout).hexdigest()

    assert told("1") == told("2")


def test_demonstration_shows_the_main_job():
    """
    Twenty minutes of the fleet: growth, shrinkage by draining and moving, breaches, a refusal, no phantom.
    """
    embedded = demo()

    live(embedded, 1200, check_room, check_frame, check_homes, step=5)

    told = counts(embedded)
    assert all(told[name] > 0 for name in ("nodes_bought", "nodes_returned", "pods_moved", "breaches", "pods_finished"))
    assert 1 == told["pods_refused"]
    assert 0 == embedded.summary()["unserved_pods"]
    assert 0 < embedded.summary()["used_gib_hours"] < embedded.summary()["promised_gib_hours"]


def test_breach_is_seen_on_the_card_and_in_the_story():
    """
    More used than promised, for so many seconds, and said once.
    """
    greedy = replace(arrival(0, "greedy", ask(4)), excess=0.25)
    embedded = Embedded(fleet(pool(), standing=1), [greedy], seed=1, limits=QUICK)

    embedded.advance(100)
    (container,) = embedded.frame().nodes[0].containers

    assert gib(5) == container.used_bytes
    assert gib(4) == container.allocated_bytes
    assert container.over_limit_seconds > 0
    assert 1 == container.over_limit_episodes
    (reading,) = embedded.frame().nodes
    assert [("over_limit", 1)] == [kind for card in reading.cards for kind in card.breaches]
    assert (("over_limit", 1),) == reading.breach_counts
    assert ["breach"] == [h.kind for h in embedded.frame().happenings if h.subject == "default/greedy"][1:]


def test_what_a_card_still_has_is_what_is_neither_promised_nor_kept_for_a_move():
    """
    Free room shrinks by what is promised and by homes that are kept; a kept home is nobody's container yet.
    """
    embedded = Embedded(fleet(pool(), standing=1), [arrival(0, "one", ask(4))], seed=1, limits=QUICK)
    embedded.advance(10)
    (card, *_) = sorted(embedded.frame().nodes[0].cards, key=lambda card: card.largest_free_bytes)
    assert (gib(4), 1, False, ()) == (card.allocated_bytes, card.holders, card.exclusive, card.breaches)
    assert card.offered_bytes - gib(4) == card.largest_free_bytes

    name = embedded.frame().nodes[0].node
    slot = Slice(card.uuid, card.index, gib(3), 0)
    kept = Reservation("coming", ask(3), Placement(name, (slot,)), embedded.now, embedded.now + 60)
    embedded.world.book.reserve(kept)
    embedded.world.book.changed.add(name)
    (after,) = [one for one in embedded.frame().nodes[0].cards if one.uuid == card.uuid]

    assert card.largest_free_bytes - gib(3) == after.largest_free_bytes
    assert 1 == after.holders


def test_a_whole_card_that_is_taken_has_nothing_left():
    """
    Taken whole: no room, one container, exclusive.
    """
    embedded = Embedded(demo_fleet(), [arrival(0, "train", whole())], seed=1, limits=QUICK)
    embedded.advance(200)
    cards = [card for reading in embedded.frame().nodes for card in reading.cards if card.exclusive]

    assert [(0, 1)] == [(card.largest_free_bytes, card.holders) for card in cards]


def test_readings_fill_what_dashboards_ask_of_every_card():
    """
    Room, containers, breaches and whole cards as an exporter tells them: a sample for each card, and zero is told.
    """
    embedded = Embedded(demo_fleet(), demo_workload(3), seed=3, limits=demo_limits())
    embedded.advance(400)
    nodes = embedded.frame().nodes
    cards = sum(len(reading.cards) for reading in nodes)
    families = {family.spec: len(tuple(family.samples)) for family in card_families(nodes)}

    told = (
        metrics.CARD_LARGEST_FREE,
        metrics.CARD_HOLDERS,
        metrics.CARD_EXCLUSIVE,
        metrics.CARD_ATTRIBUTABLE,
        metrics.BREACHED,
    )
    assert cards > 2
    assert dict.fromkeys((*told, metrics.BREACHED), cards) == {
        spec: families[spec] for spec in (*told, metrics.BREACHED)
    }
    assert sum(bool(reading.cards) for reading in nodes) == families[metrics.BREACHES]


def test_list_of_nodes_becomes_pools_of_their_kind_that_grow_from_nothing():
    """
    Equal nodes share a pool that may hold as many as there are; none stands until a pod needs it.
    """
    nodes = [node(f"a{i}", 2, 15, model="T4") for i in range(3)] + [node("b", 8, 40, model="A100")]
    made = fleet_of(nodes)
    embedded = Embedded(made, [arrival(0, "p", ask(20))], seed=1)

    before = len(embedded.world.book.on)
    embedded.advance(300)

    assert {"t4x2": 3, "a100x8": 1} == {supply.pool.name: supply.pool.largest for supply in made.supplies}
    assert (0, ["a100x8-1"]) == (before, list(embedded.world.book.on))


several = st.lists(st.tuples(st.integers(1, 14), st.sampled_from([1, 1, 1, 2, 4])), min_size=1, max_size=40)


@a_few
@given(several, st.integers(0, 99))
def test_what_is_coming_is_kept_for_whom_it_was_bought_whatever_pool_it_is_of(sizes, seed):
    """
    Machines of several pools boot at different speeds: nothing is bought after the first turn that buys.
    """
    pools = [
        pool("b", 1, 14, price=1, largest=2),
        pool("a", 4, 15, price=3.2, largest=2),
        pool("c", 2, 15, price=1.9, largest=2),
        pool("d", 8, 20, price=6),
    ]
    supplies = [replace(each, boot_seconds=15.0 * at + 20) for at, each in enumerate(fleet(*pools).supplies)]
    pods = [arrival(0, f"p{i}", ask(each, wanted)) for i, (each, wanted) in enumerate(sizes)]
    embedded = Embedded(replace(fleet(*pools), supplies=tuple(supplies)), pods, seed=seed, limits=QUICK)

    embedded.advance(12)
    at_once = counts(embedded)["nodes_bought"]
    live(embedded, 150, check_room, step=5)

    assert 0 == len(embedded.world.scheduler.pending)
    assert at_once == counts(embedded)["nodes_bought"]


def test_workload_out_of_order_is_refused():
    """
    With the name of the pod that comes too late in the list.
    """
    pods = [arrival(5, "late", ask(1)), arrival(1, "early", ask(1))]
    embedded = Embedded(fleet(pool()), pods, seed=1, limits=QUICK)

    with pytest.raises(SupplyError, match="early"):
        embedded.advance(10)


@pytest.mark.parametrize("boot", [30, 37.0, 37.2, 37.5])
def test_pods_take_the_places_that_the_purchase_was_counted_on(boot):
    """
    9, 6, 4 and 10 GiB fill two cards of 15 only in one way: by age and policy alone a second node would be needed.

    Also if the autoscaler looks just after the node came and before the scheduler has.
    """
    pods = [arrival(0, f"p{i}", ask(size)) for i, size in enumerate((9, 6, 4, 10))]
    embedded = Embedded(fleet(pool(cards=2, size=15), boot=boot), pods, seed=1, limits=QUICK)

    embedded.advance(200)

    assert (1, 0) == (counts(embedded)["nodes_bought"], len(embedded.world.scheduler.pending))


def test_small_pod_is_not_pushed_from_machine_to_machine_by_larger_ones():
    """
    A machine once bought for a pod is waited for, though a larger pod comes in every turn.
    """
    small = arrival(0, "small", ask(1))
    large = [arrival(5 + 10 * turn, f"large-{turn}", ask(8 + turn % 7)) for turn in range(30)]
    embedded = Embedded(fleet(pool(cards=1, size=15), boot=60), [small, *large], seed=1, limits=QUICK)

    live(embedded, 400, check_room, check_served)

    assert 0 == len(embedded.world.scheduler.pending)
    # a turn, its settling, the boot, the devices, the scheduler's next pass
    assert embedded.summary()["longest_wait_seconds"] <= 10 + QUICK.settle_seconds + 60 + 2 + SCHEDULE_SECONDS


def test_reservation_of_a_drain_called_off_does_not_cut_the_next_one_short():
    """
    Each drain's homes lapse in their own time, although the pod is the same.
    """
    moves = arrival(0, "moves", ask(3))
    pods = [arrival(0, "stays", ask(10)), arrival(0, "ends", ask(12), lifetime=20), moves]
    embedded = Embedded(fleet(pool(size=15), standing=2), pods, seed=1, limits=replace(PLENTY, moves_per_hour=1))
    embedded.advance(30)
    world = embedded.world
    (pod,) = [each for each in world.book.pods.values() if each.name == "moves"]
    target = next(name for name in world.book.on if name != pod.placement.node)
    placed = replace(pod.placement, node=target, slices=(replace(pod.placement.slices[0], **card_of(world, target)),))

    def drain(until: float) -> None:
        drive(world.apply(Drain(pod.placement.node, (Reservation(pod.uid, pod.request, placed, 0, until),), "test")))

    drain(embedded.now + 5)
    drive(world.apply(Keep(pod.placement.node, "test")))
    drain(embedded.now + 60)
    world.agenda.run_until(embedded.now + 6)

    assert [pod.uid] == list(world.book.reserved)


def card_of(world, name: str) -> dict:
    card = world.book.engine.nodes[name].cards[0]
    return {"uuid": card.uuid, "index": card.index}


def drive(step) -> None:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        step.send(None)
