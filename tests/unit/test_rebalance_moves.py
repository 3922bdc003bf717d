"""
Single moves: rescue, fragments, heat, and who is never moved.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import ask, node
from hypothesis import given
from hypothesis import strategies as st
from pools_builder import on_card, pod, pool, seen

from autoscaler.budget import Budget
from autoscaler.decide import decide
from autoscaler.drain import leaving, superfluous
from autoscaler.lifecycle import Machine, State
from autoscaler.limits import Limits, LimitsError
from autoscaler.memory import Backoff, Memory
from autoscaler.observation import Reservation
from autoscaler.plan import Buy, Delete, Drain, Evict, Move, Plan
from autoscaler.rebalance_fragments import ratio_of
from autoscaler.rebalance_heat import hot_since
from autoscaler.rebalance_worth import Weights, disruption
from isolation.contract.model import Placement
from isolation.contract.quantity import gib

NOW = 10_000.0
LIMITS = Limits(fewest_replicas=1, restart_seconds=30)
FULL = pool(largest=0)


def two_nodes(*, small=4, free=4):
    """One card with `small` + 8 taken of 15, another with `free` left."""
    left, right = node("left", 1, 15, pool="p"), node("right", 1, 15, pool="p")
    mover = pod(ask(small, owner="R/mover"), "mover", on=on_card(left, 0, small))
    rest = [
        pod(ask(8, owner="R/stays"), on=on_card(left, 0, 8), evictable=False),
        pod(ask(15 - free, owner="R/other"), on=on_card(right, 0, 15 - free), evictable=False),
    ]
    return (left, right), mover, rest


def steps_of(observation, limits=LIMITS, memory=None):
    """What is decided."""
    return decide(observation, limits, memory or Memory())[0].steps


def waiting_for_six(**rest):
    """A pod of 6 GiB that fits if the mover, of 4, goes to the other node."""
    nodes, mover, others = two_nodes()
    mover = replace(mover, **rest)
    return seen([FULL], [mover, *others, pod(ask(6), "waits", created=NOW)], list(nodes), at=NOW), mover


def test_one_move_makes_room_for_a_pod_that_no_pool_may_grow_for():
    """
    The home is reserved elsewhere, and the reason names who is served.
    """
    observation, mover = waiting_for_six()

    (move,) = steps_of(observation)

    assert (mover.uid, "left", "right", "rescue") == (move.pod, move.node, move.home.placement.node, move.kind)
    assert "waits" in move.reason
    assert (move,) == Plan(NOW, (move,)).still_valid(observation).steps


def test_a_node_is_not_bought_where_a_move_will_do_and_is_where_none_may():
    """
    The same pods, with a pool that may grow.
    """
    observation, _ = waiting_for_six()
    growing = replace(observation, pools={"p": pool()})

    assert [Move] == [type(step) for step in steps_of(growing)]
    assert [Buy] == [type(step) for step in steps_of(growing, replace(LIMITS, moves_per_rescue=0))]


def protected(case):
    """An observation, limits and a memory under which the mover must stay."""
    observation, mover = waiting_for_six()
    limits, memory = LIMITS, Memory()
    match case:
        case "bare or opted out":
            observation, _ = waiting_for_six(evictable=False)
        case "young":
            observation, _ = waiting_for_six(created=NOW - 599)
        case "single replica":
            limits = replace(LIMITS, fewest_replicas=2)
        case "disruption budget":
            observation = replace(observation, guarded={mover.uid: "a budget allows none"})
        case "eviction refused lately":
            memory = Memory(refused={"R/mover": Backoff(NOW + 1, 300)})
        case "moved lately":
            observation, _ = waiting_for_six(created=NOW - 2000)
            memory = Memory(moved={"R/mover": NOW - 2001})
        case "no moves left this hour":
            memory = Memory(moves=(NOW - 10,) * LIMITS.moves_per_hour_always)
        case "not worth it":
            limits = replace(LIMITS, worth=1e-6)
        case "on its way already":
            home = Reservation("gone", mover.request, Placement("right"))
            observation = replace(observation, reserved={"gone": home})
    return observation, limits, memory


CASES = (
    "bare or opted out",
    "young",
    "single replica",
    "disruption budget",
    "eviction refused lately",
    "moved lately",
    "no moves left this hour",
    "not worth it",
    "on its way already",
)


@pytest.mark.parametrize("case", CASES)
def test_who_may_not_move_is_not_moved_for_anybody(case):
    """
    Each protection by itself is enough.
    """
    assert () == steps_of(*protected(case))


def test_nobody_moves_where_it_would_help_nobody():
    """
    The pod would still not fit; and a home that is none is not used.
    """
    nodes, mover, others = two_nodes()
    too_large = seen([FULL], [mover, *others, pod(ask(8), created=NOW)], list(nodes), at=NOW)
    nodes, mover, others = two_nodes(free=3)
    homeless = seen([FULL], [mover, *others, pod(ask(6), created=NOW)], list(nodes), at=NOW)

    assert ((), ()) == (steps_of(too_large), steps_of(homeless))


def test_while_the_mover_ends_nothing_is_bought_for_whom_it_makes_room():
    """
    The room it leaves is counted, and its successor has its own.
    """
    observation, mover = waiting_for_six()
    growing = replace(observation, pools={"p": pool()})
    (move,) = steps_of(growing)
    ending = replace(mover, deleting=True)
    on = {"left": {**growing.on["left"], mover.uid: ending}, "right": growing.on["right"]}
    engine = growing.engine.fork()
    engine.hold(move.home.hold, mover.request, move.home.placement)
    successor = pod(mover.request, "successor", created=NOW)
    after = replace(
        growing,
        pods={**growing.pods, mover.uid: ending, successor.uid: successor},
        on=on,
        engine=engine,
        pending=(*growing.pending, successor),
        reserved={mover.uid: move.home},
    )

    assert () == steps_of(after)


def test_a_move_cut_off_before_its_eviction_goes_on():
    """
    A home reserved for a pod that still runs on a node that stays: whoever made it ended too early.
    """
    observation, mover = waiting_for_six()
    (move,) = steps_of(observation)
    engine = observation.engine.fork()
    engine.hold(move.home.hold, mover.request, move.home.placement)
    after = replace(observation, reserved={mover.uid: move.home}, engine=engine)

    (evict,) = (step for step in steps_of(after) if isinstance(step, Evict))

    assert (mover.uid, "left") == (evict.pod, evict.node)
    assert (evict,) == Plan(NOW, (evict,)).still_valid(after).steps


def test_a_move_does_not_outlive_its_reason():
    """
    Neither when the pod has its place, nor when the home is taken, nor when its node is gone.
    """
    observation, mover = waiting_for_six()
    (move,) = plan = steps_of(observation)
    taken = observation.engine.fork()
    taken.hold("other", ask(4), move.home.placement)
    machines = {**observation.machines, "right": Machine("right", "p", State.DRAINING)}
    others = (
        replace(observation, pending=()),
        replace(observation, engine=taken),
        replace(observation, machines=machines),
        replace(observation, on={**observation.on, "left": {}}),
        replace(observation, reserved={mover.uid: move.home}),
    )

    assert [()] * 5 == [Plan(NOW, plan).still_valid(fresh).steps for fresh in others]


def hot(heat, busy, *, seconds=700.0, quiet=0.1):
    """Two pods on a card of one node, another node beside it."""
    one, two = node("one", 1, 15, pool="p"), node("two", 1, 15, pool="p")
    pods = [pod(ask(2, owner=f"R/{i}"), f"pod-{i}", on=on_card(one, 0, 2)) for i in range(2)]
    pods.append(pod(ask(12, owner="R/wall"), on=on_card(two, 0, 12)))
    observation = seen([pool(smallest=2)], pods, [one, two], at=NOW)
    cards = {"GPU-one-0": heat} | ({} if quiet is None else {"GPU-two-0": quiet})
    measured = {pods[at].uid: used for at, used in enumerate(busy) if used is not None}
    observation = replace(observation, heat=cards, busy=measured)
    return observation, Memory(hot={"GPU-one-0": NOW - seconds})


def test_a_pod_leaves_a_card_that_has_been_hot_for_long():
    """
    For a quieter one, with the load in the reason.
    """
    observation, memory = hot(0.97, (0.5, 0.4))

    (move,) = steps_of(observation, memory=memory)

    assert ("relieve", "two") == (move.kind, move.home.placement.node)
    assert "97%" in move.reason


def test_a_relieved_card_must_be_hot_anew_before_another_pod_leaves_it():
    """
    Its figures are still those of before the move; a relief that the cluster would not have changes nothing.
    """
    observation, before = hot(0.97, (0.5, 0.4))
    plan, memory = decide(observation, LIMITS, before)

    moved, refused = memory.acted(plan, LIMITS), memory.acted(plan, LIMITS, plan.steps)

    assert "GPU-one-0" == plan.steps[0].card
    assert {} == moved.hot
    assert before.hot == refused.hot


@pytest.mark.parametrize(
    ("heat", "busy", "rest"),
    [
        pytest.param(0.97, (0.5, 0.4), {"seconds": 300.0}, id="not for long enough"),
        pytest.param(0.85, (0.5, 0.4), {}, id="not hot"),
        pytest.param(0.97, (None, None), {}, id="nobody's use is known"),
        pytest.param(0.97, (0.97, 0.0), {}, id="alone"),
        pytest.param(0.97, (0.5, 0.4), {"quiet": 0.4}, id="nowhere quiet"),
        pytest.param(0.97, (0.5, 0.4), {"quiet": None}, id="nowhere known to be quiet"),
        pytest.param(0.97, (0.02, 0.03), {}, id="its leaving would not cool the card"),
    ],
)
def test_heat_moves_nobody_without_need_and_knowledge(heat, busy, rest):
    """
    What cannot be told is neither hot nor quiet.
    """
    observation, memory = hot(heat, busy, **rest)

    assert () == steps_of(observation, memory=memory)


def test_a_card_that_was_not_measured_is_hot_from_anew():
    """
    A gap in the measurements ends the spell.
    """
    observation, memory = hot(0.97, (0.5, 0.4))

    assert memory.hot == hot_since(observation, LIMITS, memory.hot)
    assert {} == hot_since(replace(observation, heat={}), LIMITS, memory.hot)
    assert {"GPU-one-0": NOW} == hot_since(observation, LIMITS, {})


def fragments():
    """Two nodes with 5 and 10 of 15 GiB taken, and a workload of whole-card pods."""
    nodes = [node(f"n{i}", 1, 15, pool="p") for i in range(3)]
    pods = [pod(ask(5, owner=f"R/{i}"), on=on_card(nodes[i], 0, 5), created=i) for i in range(2)]
    pods += [pod(ask(15, owner=f"W/{i}"), on=on_card(nodes[2], 0, 15), created=2) for i in range(1)]
    observation = seen([pool(smallest=3)], pods, nodes, at=NOW)
    observation.engine.teach([ask(15)] * 200)
    return observation


def test_above_the_high_mark_moves_make_idle_cards_useful_until_the_low_one():
    """
    One pod joins the other, and a whole card is free; between the marks only what has begun goes on.
    """
    observation = fragments()
    idle, lost = observation.engine.fragments()
    calm = replace(LIMITS, fragments_high_ratio=1.0, fragments_low_ratio=0.1)

    moves = steps_of(observation)

    assert ratio_of(idle, lost) > LIMITS.fragments_high_ratio
    assert ["defragment"] == [move.kind for move in moves]
    assert {"n0", "n1"} == {moves[0].node, moves[0].home.placement.node}
    assert () == steps_of(observation, calm)
    assert 1 == len(steps_of(observation, calm, Memory(defragmenting=True)))


def test_nothing_is_defragmented_while_a_node_waits_to_go():
    """
    A node that goes saves more than fewer fragments.
    """
    observation = replace(fragments(), pools={"p": pool()})

    plan, memory = decide(observation, LIMITS, Memory())

    assert ((), True) == (plan.steps, memory.defragmenting)


def test_disruption_grows_with_what_must_be_loaded_with_priority_and_deletion_cost():
    """
    A large pod is away for longer; who asked to go last is dear; all within bounds.
    """
    light, heavy = pod(ask(1)), pod(ask(40))
    dear = replace(light, priority=10**9)

    assert 30 + 2 == pytest.approx(disruption(light, LIMITS))
    assert disruption(light, LIMITS) < disruption(heavy, LIMITS)
    assert 320 == pytest.approx(disruption(dear, LIMITS))
    assert 3.2 == pytest.approx(disruption(light, LIMITS, -(2**31) + 1))
    assert 64 == pytest.approx(disruption(light, LIMITS, 2**27))


def test_daemons_neither_keep_a_node_nor_move():
    """
    They go with their node: it drains without them, and goes when only they are left.
    """
    busy, light = node("busy", 1, 15, pool="p"), node("light", 1, 15, pool="p")
    daemon = pod(ask(0, 0, owner="DaemonSet/kube-system/proxy"), on=Placement("light"), evictable=False)
    mover = pod(ask(2, owner="R/a"), on=on_card(light, 0, 2))
    pods = [pod(ask(8, owner="R/b"), on=on_card(busy, 0, 8)), mover, daemon]
    observation = seen([pool(smallest=1)], pods, [busy, light], at=NOW)
    patient = Memory(unneeded={"light": 0.0})

    (drain,) = steps_of(observation, memory=patient)
    machines = {**observation.machines, "light": Machine("light", "p", State.DRAINING, NOW)}
    left = replace(observation, machines=machines, on={**observation.on, "light": {daemon.uid: daemon}})

    assert ("light", (mover.uid,)) == (drain.node, tuple(home.pod for home in drain.homes))
    assert (drain,) == Plan(NOW, (drain,)).still_valid(observation).steps
    assert (Delete("light", "empty"),) == Plan(NOW, steps_of(left)).still_valid(left).steps


def test_a_node_goes_only_if_those_who_came_lately_could_come_again():
    """
    Giving back the room they would need tomorrow morning is a flap.
    """
    empty, busy = node("empty", 1, 15, pool="p"), node("busy", 1, 15, pool="p")
    old = [pod(ask(12, owner="R/a"), on=on_card(busy, 0, 12))]
    late = [pod(ask(12, owner="R/a"), on=on_card(busy, 0, 12), created=NOW - 60)]
    patient = Memory(unneeded={"empty": 0.0})

    def kinds(pods):
        return [type(step) for step in steps_of(seen([pool()], pods, [empty, busy], at=NOW), memory=patient)]

    assert ([Drain], []) == (kinds(old), kinds(late))


def test_a_node_just_bought_is_left_alone():
    """
    Whatever its load.
    """
    empty = node("empty", 1, 15, pool="p")
    fresh = seen([pool()], [], [empty], machines=[Machine("empty", "p", State.READY, NOW - 3599)], at=NOW)

    assert frozenset() == superfluous(fresh, LIMITS)
    assert {"empty"} == superfluous(replace(fresh, at=NOW + 1), LIMITS)


def test_moves_promised_are_not_promised_again():
    """
    What is reserved and not yet evicted counts against the hour.
    """
    budget = Budget(LIMITS, NOW, pods=100, promised=8)

    assert (10, 2) == (budget.left, budget.free)
    assert 160 == Budget(LIMITS, NOW, pods=8000).left


def test_what_the_cluster_refused_is_remembered_as_a_rest_and_not_as_a_move():
    """
    Longer each time, for the owner.
    """
    observation, _ = waiting_for_six()
    plan = Plan(NOW, steps_of(observation))

    once = Memory().acted(plan, LIMITS, plan.steps)
    again = once.acted(replace(plan, at=NOW + 400), LIMITS, plan.steps)

    assert ((), {}) == (once.moves, dict(once.moved))
    assert [300, 600] == [memory.refused["R/mover"].seconds for memory in (once, again)]
    assert 1 == len(Memory().acted(plan, LIMITS).moves)


def test_limits_that_contradict_each_other_are_refused():
    """
    All at once.
    """
    with pytest.raises(LimitsError, match=r"fragments_low_ratio.*quiet_ratio"):
        Limits(fragments_low_ratio=0.5, fragments_high_ratio=0.1, quiet_ratio=0.95, hot_ratio=0.9)


spots = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 9)), max_size=12)


@given(spots, st.lists(st.integers(2, 15), min_size=1, max_size=4))
def test_whatever_moves_has_a_true_home_and_whom_it_serves_has_room(placed, sizes):
    """
    Counted by hand: homes fit beside everything that stands; when the movers have left, the served fit as well.
    """
    nodes = [node(f"n{i}", 2, 15, pool="p") for i in range(4)]
    free = {card.uuid: gib(15) for each in nodes for card in each.cards}
    pods = []
    for at, index, size in placed:
        card = nodes[at].cards[index]
        if free[card.uuid] >= gib(size):
            free[card.uuid] -= gib(size)
            pods.append(pod(ask(size, owner=f"R/{len(pods)}"), on=on_card(nodes[at], index, size)))
    waiting = [pod(ask(size), created=NOW) for size in sizes]
    observation = seen([FULL], [*pods, *waiting], nodes, at=NOW)

    moves = [step for step in steps_of(observation) if isinstance(step, Move)]
    by = {each.uid: each for each in pods}
    for move in moves:
        for part in move.home.placement.slices:
            free[part.uuid] -= part.bytes
    assert all(room >= 0 for room in free.values())
    for move in moves:
        for part in by[move.pod].placement.slices:
            free[part.uuid] += part.bytes
    served = {uid for move in moves for uid in move.serves}
    for each in sorted((each for each in waiting if each.uid in served), key=lambda each: -each.request.card_bytes):
        card = min((uuid for uuid in free if free[uuid] >= each.request.card_bytes), key=lambda uuid: free[uuid])
        free[card] -= each.request.card_bytes
    assert all(len({move.owner for move in moves if uid in move.serves}) <= 2 for uid in served)


def test_drains_go_by_cards_freed_for_each_move():
    """
    Eight cards for one pod before one card for one pod, though the latter is emptier.
    """
    wide, slim, home = node("wide", 8, 15, pool="p"), node("slim", 1, 15, pool="p"), node("zhome", 2, 15, pool="p")
    pods = [
        pod(ask(4, owner="R/a"), on=on_card(wide, 0, 4)),
        pod(ask(4, owner="R/b"), on=on_card(slim, 0, 4)),
        pod(ask(10, owner="R/c"), on=on_card(home, 0, 10)),
        pod(ask(10, owner="R/d"), on=on_card(home, 1, 10)),
    ]
    observation = seen([pool()], pods, [wide, slim, home], at=NOW)
    unneeded = dict.fromkeys(("slim", "wide"), 0.0)
    one = Budget(LIMITS, NOW, pods=4, moves=(NOW,) * (LIMITS.moves_per_hour_always - 1))

    assert ["wide"] == [each.node for each in leaving(observation, LIMITS, unneeded, one)]
    assert Weights.of(observation, LIMITS).worth(1.0, pods)
