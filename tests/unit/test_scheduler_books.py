"""The scheduler's books: what they answer, and that no event in any order makes them promise room twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import card, node
from scheduler_world import at, bound, pod, reserve

from isolation.contract.model import CardChoice, Mode, Node, Phase, Placement, Refusal, Why
from isolation.contract.quantity import gib
from isolation.scheduler.books import Books
from isolation.scheduler.reserved import HOLLOW_SECONDS, PREEMPTION
from isolation.scheduler.verdict import Assumed


def books(*nodes: Node) -> Books:
    """Books that know these nodes."""
    made = Books()
    for one in nodes:
        made.node_is(one)
    return made


def indices(found: Assumed | Refusal) -> tuple[int, ...]:
    """Card indices of what was assumed."""
    assert isinstance(found, Assumed), found
    return tuple(part.index for part in found.placement.slices)


def used(made: Books, name: str = "n") -> list[int]:
    """GiB promised of each card of a node."""
    (found,) = made.inspect(name)
    return [one.used for one in found.cards]


def test_every_node_asked_about_gets_exactly_one_answer():
    """Fits, full, in the wrong mode, too small, without cards, unknown, without its agent: each in its place."""
    full = node("full", 1, 8)
    made = books(
        node("fits", 1, 8),
        full,
        node("exclusive", 1, 8, mode=Mode.EXCLUSIVE),
        node("compute", 1, 8, mode=Mode.CORE_MEM),
        node("small", 1, 2),
        node("cpu", 0),
        replace(node("leaving", 1, 8), serving=False),
    )
    made.pod_is(bound(pod("a", 6), at("full", 0, size=6)))
    names = ["fits", "full", "exclusive", "compute", "small", "cpu", "leaving", "who?"]

    found = made.filter(pod("p", 4), names, 0.0)

    assert ["fits"] == found.fit
    assert {"full", "who?"} == set(found.failed)
    assert {"exclusive", "compute", "small", "cpu", "leaving"} == set(found.hopeless)
    assert "no room for 4 GiB on a card" == found.failed["full"]
    assert "no sound card of 4 GiB" == found.hopeless["small"]
    assert "agent" in found.hopeless["leaving"]


def test_room_in_sum_but_on_no_card_is_told_apart():
    """4 GiB on each of two cards do not take 6."""
    made = books(node("n", 2, 8))
    made.pod_is(bound(pod("a", 4), at("n", 0)))
    made.pod_is(bound(pod("b", 4), at("n", 1)))

    found = made.filter(pod("p", 6), ["n"], 0.0)

    assert {"n": "no room for 6 GiB on a card, though enough in sum"} == found.failed


def test_whether_a_pod_could_fit_anywhere_follows_every_change():
    """Asked again and again: a bind, an end, a node, a reservation and its end change the answer."""
    made, asked = books(node("n", 1, 8)), pod("p", 5)

    def could() -> bool:
        assert made.could_fit(asked, 0.0) == bool(made.filter(asked, ["n", "m"], 0.0).fit)
        return made.could_fit(asked, 0.0)

    assert could()
    made.assume(pod("a", 5), "n", 0.0)
    assert not could()
    made.undo("a")
    assert could()
    made.reservation_is(reserve("r", "p", at("n", 0, size=8)))
    assert could()
    assert not made.could_fit(pod("q", 5), 0.0)
    made.pod_is(bound(pod("b", 5), at("n", 0, size=5)))
    assert not could()
    made.node_is(node("m", 1, 8))
    assert could()
    made.node_gone("m")
    made.pod_gone("b")
    made.reservation_gone("r")
    assert could()


def test_the_stock_schedulers_business_is_left_to_it():
    """Taints, cordons, readiness and CPU of a node that reached us were weighed already."""
    made = books(node("n", 1, 8, cordoned=True, ready=False, cpu_milli=0, memory_bytes=0, pods=1))

    assert ["n"] == made.filter(pod("p", 4, cpu_milli=9000, memory_bytes=gib(9)), ["n"], 0.0).fit


def test_two_binds_for_the_last_card_get_it_once():
    """Trap 3: room is taken before anybody waits for anything."""
    made = books(node("n", 1, 8))

    assert isinstance(made.assume(pod("a", 5), "n", 0.0), Assumed)
    refused = made.assume(pod("b", 5), "n", 0.0)

    assert isinstance(refused, Refusal)
    assert Why.CARDS is refused.why
    assert [5] == used(made)


def test_the_same_bind_asked_twice_takes_room_once_and_gets_the_same_answer():
    """kube-scheduler tries again while the first try is still on its way."""
    made = books(node("n", 2, 8), node("m", 2, 8))
    first = made.assume(pod("a", 5), "n", 0.0)

    assert first == made.assume(pod("a", 5), "n", 1.0)
    assert isinstance(made.assume(pod("a", 5), "m", 1.0), Refusal)
    assert ["n"] == made.filter(pod("a", 5), ["n", "m"], 1.0).fit
    assert 5 == sum(used(made))


@pytest.mark.parametrize(
    "events",
    [
        ("confirm", "bound"),
        ("bound", "confirm"),
        ("pending", "confirm", "bound", "bound"),
        ("bound", "undo"),
        ("bound", "pending", "confirm"),
        ("confirm", "pending", "bound", "pending"),
    ],
)
def test_the_echo_of_a_bind_may_come_before_during_or_after_the_answer(events):
    """Trap 4: whatever the order, the pod holds its room once, and lets go of it once."""
    made = books(node("n", 1, 8))
    asked = pod("a", 5)
    placed = made.assume(asked, "n", 0.0)
    assert isinstance(placed, Assumed)
    for event in events:
        match event:
            case "confirm":
                made.confirm("a")
            case "undo":
                made.undo("a")
            case "pending":
                made.pod_is(asked)
            case _:
                made.pod_is(bound(asked, placed.placement))

    assert [5] == used(made)
    assert {} == made.assumed()
    made.pod_gone("a")
    made.pod_gone("a")
    assert [0] == used(made)


def test_a_pod_deleted_while_its_bind_is_under_way_leaves_nothing_behind():
    """Neither answer, late as it comes, may bring the hold back."""
    for answer in ("confirm", "undo"):
        made = books(node("n", 1, 8))
        made.pod_is(pod("a", 5))
        made.assume(pod("a", 5), "n", 0.0)
        made.pod_gone("a")
        getattr(made, answer)("a")

        assert [0] == used(made)
        assert {} == made.assumed()


def test_undo_gives_room_back_for_others():
    """A refused binding has taken nothing."""
    made = books(node("n", 1, 8))
    made.assume(pod("a", 5), "n", 0.0)
    made.undo("a")

    assert isinstance(made.assume(pod("b", 5), "n", 0.0), Assumed)


def test_a_name_used_again_is_another_pod():
    """Trap 7: holds go by UID; the end of the first does not touch the second."""
    made = books(node("n", 1, 8))
    old, new = pod("a", 4, name="web"), pod("b", 4, name="web")
    made.pod_is(bound(old, at("n", 0)))
    made.assume(new, "n", 0.0)
    made.pod_gone("a")

    assert [4] == used(made)
    assert isinstance(made.assume(pod("c", 5), "n", 0.0), Refusal)


def test_terminating_pods_hold_and_finished_ones_do_not():
    """Trap 7: a request to end frees nothing; an end does, once."""
    made = books(node("n", 1, 8))
    running = bound(pod("a", 5), at("n", 0, size=5))
    made.pod_is(running)
    made.pod_is(replace(running, deleting=True))
    assert [5] == used(made)

    made.pod_is(replace(running, phase=Phase.DONE))
    made.pod_is(replace(running, phase=Phase.DONE))
    made.pod_gone("a")
    assert [0] == used(made)


def test_a_pod_that_is_being_deleted_is_not_bound():
    """Nor is one that is bound already."""
    made = books(node("n", 1, 8))
    made.pod_is(replace(pod("a"), deleting=True))
    made.pod_is(bound(pod("b"), at("n", 0)))

    assert isinstance(made.assume(pod("a"), "n", 0.0), Refusal)
    assert isinstance(made.assume(pod("b"), "n", 0.0), Refusal)
    assert [] == made.filter(pod("b"), ["n"], 0.0).fit


def test_what_others_bound_is_booked_and_seen_as_over_commitment():
    """Trap 9: an over-committed card has no room, never a wrapped-round lot of it, and raises an alarm."""
    made = books(node("n", 2, 8))
    for i in range(3):
        made.pod_is(bound(pod(f"x{i}", 5), at("n", 0, size=5)))

    assert [15, 0] == used(made)
    (over,) = made.overcommitted()
    assert ("n", "GPU-n-0", gib(7)) == (over.node, over.uuid, over.bytes)
    assert (1,) == indices(made.assume(pod("a", 8), "n", 0.0))
    assert isinstance(made.assume(pod("b", 1), "n", 0.0), Refusal)


def test_a_pod_bound_by_somebody_else_loses_what_was_assumed_for_it():
    """Its own record counts, on whatever node it is."""
    made = books(node("n", 1, 8), node("m", 1, 8))
    made.assume(pod("a", 5), "n", 0.0)
    made.pod_is(bound(pod("a", 5), at("m", 0, size=5)))

    assert [0] == used(made, "n")
    assert [5] == used(made, "m")
    assert {} == made.assumed()


def test_a_bound_pod_without_a_record_is_named():
    """What it uses nobody knows: it is no hold, and it is not hidden."""
    made = books(node("n", 1, 8))
    made.pod_is(bound(pod("a", 5), Placement("n")))

    assert ["ml/pod-a"] == made.unrecorded()
    assert [0] == used(made)


def test_a_node_that_comes_back_finds_its_holds_again():
    """A node object deleted and made anew under running pods; its cards are held all the time."""
    made = books(node("n", 1, 8))
    made.pod_is(bound(pod("a", 5), at("n", 0, size=5)))
    made.node_gone("n")
    assert isinstance(made.assume(pod("b", 5), "n", 0.0), Refusal)
    made.pod_is(bound(pod("c", 2), at("n", 0, size=2)))
    made.node_is(node("n", 1, 8))
    made.node_is(node("n", 1, 8))

    assert [7] == used(made)
    made.pod_gone("a")
    made.pod_gone("c")
    assert [0] == used(made)


def test_cards_are_known_by_uuid_and_not_by_index():
    """Trap 10: the node comes back with other cards in other order; a hold stays with its card."""
    made = books(node("n", 2, 8))
    made.pod_is(bound(pod("a", 5), at("n", 1, size=5)))
    swapped = (replace(card(0, 8), uuid="GPU-n-1"), replace(card(1, 16), uuid="GPU-new"))
    made.node_is(replace(node("n", 2, 8), cards=swapped))

    assert [5, 0] == used(made)
    made.pod_is(bound(pod("b", 5), at("n", 0, size=5)))  # its card is gone: it holds nothing that is there
    assert [5, 0] == used(made)
    made.node_is(node("n", 2, 8))
    assert [5, 5] == used(made)


@pytest.mark.parametrize("named_first", [True, False])
def test_a_card_without_a_name_yet_is_the_card_of_its_index(named_first):
    """Records made before the agent named the cards, or read while the name is missing, count on the same card."""
    nameless = replace(node("n", 2, 8), cards=tuple(replace(card(i, 8), uuid=f"n/{i}") for i in range(2)))
    named = node("n", 2, 8)
    first, then = (named, nameless) if named_first else (nameless, named)
    made = books(first)
    placed = made.assume(pod("a", 5), "n", 0.0)
    made.node_is(then)

    assert 5 == sum(used(made))
    assert used(made).index(5) == indices(placed)[0]


def test_an_unhealthy_card_takes_nobody_and_is_no_alarm():
    """Trap 10: what it holds stays; what comes goes elsewhere; it is not over-committed."""
    made = books(node("n", 2, 8))
    made.pod_is(bound(pod("a", 5), at("n", 0, size=5)))
    sick = replace(node("n", 2, 8), cards=(replace(card(0, 8), healthy=False), card(1, 8)))
    made.node_is(sick)

    assert [] == made.overcommitted()
    assert (1,) == indices(made.assume(pod("b", 2), "n", 0.0))
    made.node_is(node("n", 2, 8))
    assert (0,) == indices(made.assume(pod("c", 3), "n", 0.0)) or (1,) == indices(made.assume(pod("c", 3), "n", 0.0))


@pytest.mark.parametrize(("choice", "expected"), [(CardChoice.BINPACK, 1), (CardChoice.SPREAD, 2)])
def test_the_nodes_label_decides_between_its_cards(choice, expected):
    """Binpack fills a card, spread keeps replicas of one owner apart."""
    made = books(node("n", 2, 8, choice=choice))
    cards = {indices(made.assume(pod(f"{i}", 2, owner="ReplicaSet/ml/web"), "n", 0.0)) for i in range(2)}

    assert expected == len(cards)


def test_the_best_node_gets_all_points_and_a_full_one_none():
    """Points are 0 to 10 in the order asked; a node that does not fit is worth nothing."""
    made = books(*(node(f"n{i}", 2, 8) for i in range(4)))
    made.pod_is(bound(pod("a", 4), at("n1", 0)))
    made.pod_is(bound(pod("b", 8), at("n2", 0, size=8)))
    made.pod_is(bound(pod("c", 8), at("n2", 1, size=8)))

    points = made.prioritize(pod("p", 4), ["n0", "n1", "n2", "who?", "n3"], 0.0)

    assert 10 == max(points)
    assert 10 == points[1]
    assert [0, 0] == points[2:4]
    assert points[0] == points[4] < 10


def test_a_pod_without_shares_is_not_this_schedulers():
    """Every node fits, none is better, and it is not bound here."""
    made = books(node("n", 1, 8))
    whole = replace(pod("a"), request=replace(pod("a").request, whole=True))

    assert ["n", "m"] == made.filter(whole, ["n", "m"], 0.0).fit
    assert [0, 0] == made.prioritize(whole, ["n", "m"], 0.0)
    assert isinstance(made.assume(whole, "n", 0.0), Refusal)
    assert isinstance(made.assume(replace(pod("a"), uid=""), "n", 0.0), Refusal)


# Reservations.


def test_a_reservation_takes_room_from_all_but_its_holder():
    """Nobody else fits; the holder does, is steered there, and gets exactly the cards that were kept."""
    made = books(node("n", 2, 8), node("m", 2, 8))
    made.reservation_is(reserve("r", "a", at("n", 1, size=8)))

    assert 8 == sum(used(made))
    assert [] == made.filter(pod("b", 8, 2), ["n"], 0.0).fit
    assert ["n"] == made.filter(pod("a", 8), ["n"], 0.0).fit
    assert [10, 9] == made.prioritize(pod("a", 8), ["n", "m"], 0.0)
    found = made.assume(pod("a", 8), "n", 0.0)
    assert ((1,), "r") == (indices(found), found.reservation)
    assert 8 == sum(used(made))


def test_a_reservation_for_a_controller_serves_its_next_pod_and_no_third():
    """Two reservations, two replicas; the next one gets what is left over."""
    made = books(node("n", 2, 8))
    for i in range(2):
        made.reservation_is(reserve(f"r{i}", "rs", at("n", i, size=8)))
    replicas = [pod(f"p{i}", 8, owner_uid="rs") for i in range(3)]

    kept = {made.assume(one, "n", 0.0).reservation for one in replicas[:2]}

    assert {"r0", "r1"} == kept
    assert isinstance(made.assume(replicas[2], "n", 0.0), Refusal)


def test_a_reservation_is_used_up_by_the_binding_that_names_it():
    """Then it keeps nothing, also if it is told again, and can be deleted; before it is certain, it cannot."""
    made = books(node("n", 1, 8))
    kept = reserve("r", "a", at("n", 0, size=8))
    made.reservation_is(kept)
    placed = made.assume(pod("a", 8), "n", 0.0)
    assert [] == made.stale_reservations(0.0)
    made.confirm("a")
    made.pod_is(bound(pod("a", 8), placed.placement, "r"))
    made.reservation_is(kept)

    assert [8] == used(made)
    assert [kept] == made.stale_reservations(0.0)
    made.reservation_gone("r")
    made.pod_gone("a")
    assert [0] == used(made)


def test_a_rebuilt_replica_knows_that_a_reservation_was_used_up():
    """Pods are read before reservations: the room is not counted twice."""
    made = books(node("n", 1, 8))
    made.pod_is(bound(pod("a", 4), at("n", 0), "r"))
    made.reservation_is(reserve("r", "a", at("n", 0)))

    assert [4] == used(made)


def test_a_stranger_cannot_use_up_somebody_elses_reservation():
    """A pod that names a reservation which was not made for it changes nothing."""
    made = books(node("n", 1, 8))
    made.reservation_is(reserve("r", "a", at("n", 0)))
    made.pod_is(bound(pod("thief", 4), at("n", 0), "r"))

    assert [8] == used(made)
    assert [] == made.stale_reservations(0.0)


def test_a_tenant_who_names_somebody_elses_controller_gets_nothing_of_its_reservation():
    """Owner references are the tenant's own words; the namespace is not."""
    made = books(node("n", 1, 8))
    made.reservation_is(reserve("r", "rs", at("n", 0, size=8), namespace="ml"))

    assert [] == made.filter(pod("thief", 8, owner_uid="rs", namespace="evil"), ["n"], 0.0).fit
    assert ["n"] == made.filter(pod("a", 8, owner_uid="rs"), ["n"], 0.0).fit


@pytest.mark.parametrize("answer", ["undo", "pod_gone"])
def test_a_bind_that_failed_gives_the_reservation_back(answer):
    """Not to everybody: to the next pod of its controller."""
    made = books(node("n", 1, 8))
    made.reservation_is(reserve("r", "rs", at("n", 0, size=8)))
    made.assume(pod("a", 8, owner_uid="rs"), "n", 0.0)
    getattr(made, answer)("a")

    assert isinstance(made.assume(pod("x", 1), "n", 0.0), Refusal)
    assert "r" == made.assume(pod("b", 8, owner_uid="rs"), "n", 0.0).reservation


def test_a_reservation_ends_with_its_time_its_object_or_its_pod():
    """Expired, deleted, its pod gone, its pod bound elsewhere: the room is everybody's."""
    ends = {
        "time": lambda made: made.filter(pod("x"), ["n"], 50.0),
        "object": lambda made: made.reservation_gone("r"),
        "pod": lambda made: made.pod_gone("a"),
        "elsewhere": lambda made: made.pod_is(bound(pod("a", 8), at("m", 0, size=8))),
    }
    for name, end in ends.items():
        made = books(node("n", 1, 8), node("m", 1, 8))
        made.pod_is(pod("a", 8))
        made.reservation_is(reserve("r", "a", at("n", 0, size=8), 50.0))
        assert isinstance(made.assume(pod("b", 1), "n", 49.0), Refusal), name
        end(made)

        assert isinstance(made.assume(pod("c", 8), "n", 51.0), Assumed), name
        assert (name != "object") == bool(made.stale_reservations(51.0)), name


def test_a_reservation_waits_for_room_that_victims_still_hold():
    """Made before they end, it keeps what they leave from everybody else."""
    made = books(node("n", 1, 8))
    made.pod_is(bound(pod("victim", 8), at("n", 0, size=8)))
    made.reservation_is(reserve("r", "a", at("n", 0, size=8)))

    assert [] == made.overcommitted()
    assert [] == made.filter(pod("a", 8), ["n"], 0.0).fit
    made.pod_gone("victim")
    assert [] == made.filter(pod("b", 1), ["n"], 0.0).fit
    assert ["n"] == made.filter(pod("a", 8), ["n"], 0.0).fit


# Quotas.


def test_a_namespace_gets_no_more_of_a_card_model_than_its_quota():
    """Counted in units, over all nodes of the model, and checked again when the room is taken."""
    made = books(node("t", 2, 8, model="T4"), node("t2", 2, 8, model="T4"), node("a", 2, 8, model="A10"))
    made.quota_is("ml", {"T4": 10})
    made.pod_is(bound(pod("old", 4), at("t", 0)))
    made.assume(pod("new", 4), "t2", 0.0)

    found = made.filter(pod("p", 4), ["t", "t2", "a"], 0.0)

    assert ["a"] == found.fit
    assert "quota of namespace ml for T4: 8 GiB of 10 GiB taken" == found.failed["t"]
    assert isinstance(made.assume(pod("p", 4), "t", 0.0), Refusal)
    assert isinstance(made.assume(pod("q", 2), "t", 0.0), Assumed)
    assert isinstance(made.assume(pod("r", 4, namespace="other"), "t", 0.0), Assumed)


def test_quotas_follow_what_ends_what_changes_and_what_is_reserved():
    """A pod's end, another quota, a node whose cards turn out to be of another model, a reservation."""
    made = books(node("t", 2, 8, model="T4"))
    made.quota_is("ml", {"T4": 8})
    made.pod_is(bound(pod("old", 6), at("t", 0, size=6)))
    assert isinstance(made.assume(pod("p", 4), "t", 0.0), Refusal)
    made.node_is(node("t", 2, 8, model="V100"))
    assert ["t"] == made.filter(pod("p", 4), ["t"], 0.0).fit
    made.node_is(node("t", 2, 8, model="T4"))
    made.quota_is("ml", {"T4": 12})
    made.reservation_is(reserve("r", "a", at("t", 1), namespace="ml"))
    assert [] == made.filter(pod("p", 4), ["t"], 0.0).fit
    assert ["t"] == made.filter(pod("a", 4), ["t"], 0.0).fit
    made.pod_gone("old")
    assert ["t"] == made.filter(pod("p", 4), ["t"], 0.0).fit
    made.quota_is("ml", {"T4": 0})
    assert [] == made.filter(pod("p", 1), ["t"], 0.0).fit
    made.quota_is("ml", None)
    assert ["t"] == made.filter(pod("p", 4), ["t"], 0.0).fit


# Strangers' numbers.


def test_forged_amounts_never_wrap_a_card_round_to_free():
    """Trap 9 again: thousands of pods on one card by forged records, each of the most that the codec lets through."""
    made = books(node("n", 1, 8))
    most = pod("x", (1 << 50) // gib(1) - 1)
    for i in range(9000):
        made.pod_is(bound(replace(most, uid=f"x{i}"), at("n", 0)))
        if i % 1000 == 0:
            assert isinstance(made.assume(pod("a", 1), "n", 0.0), Refusal)

    assert [] == made.filter(pod("a", 1), ["n"], 0.0).fit
    for i in range(9000):
        made.pod_gone(f"x{i}")
    assert ["n"] == made.filter(pod("a", 8), ["n"], 0.0).fit


def test_a_card_of_any_size_that_a_node_claims_is_counted_without_overflow():
    """Sixty-four cards of the most bytes that an annotation may say."""
    huge = tuple(replace(card(i), total_bytes=(1 << 62) - 1) for i in range(64))
    made = books(replace(node("n"), cards=huge))

    assert ["n"] == made.filter(pod("a", 1 << 15, 64), ["n"], 0.0).fit
    assert isinstance(made.assume(pod("a", 1 << 15, 64), "n", 0.0), Assumed)
    assert [] == made.overcommitted()


def test_card_sizes_that_come_and_go_are_forgotten_and_holds_are_not():
    """A node that claims another size each second costs neither memory without end nor anybody's room."""
    made = books(node("n", 1, 8), node("m", 1, 8))
    made.pod_is(bound(pod("a", 5), at("n", 0, size=5)))
    made.reservation_is(reserve("r", "b", at("n", 0, size=3)))
    for i in range(1000):
        made.node_is(replace(node("m"), cards=(replace(card(0, node="m"), total_bytes=gib(10) + i * gib(1)),)))

    assert 200 > len(made._room.engine.fleet.kinds)
    assert [8] == used(made)
    made.pod_gone("a")
    made.reservation_gone("r")
    assert [0] == used(made)


def test_room_that_nobody_saw_taken_is_told_of_as_it_becomes_free():
    """
    Assumed, never seen bound, and found gone, unbound or elsewhere by the server's word: others may be waiting.
    """
    made, told = books(node("n", 1, 8), node("m", 1, 8)), []
    made.on_freed(lambda: told.append(sum(used(made)) + sum(used(made, "m"))))

    for uid in ("gone", "undone", "elsewhere"):
        made.assume(pod(uid, 2), "n", 0.0)
    made.confirm("gone")
    assert [] == told
    made.pod_gone("gone")
    made.undo("undone")
    assert [4, 2] == told
    made.pod_is(bound(pod("elsewhere", 2), at("n", 0, size=2)))
    assert 2 == len(told)  # where it was assumed: nothing is free
    made.assume(pod("moved", 2), "n", 0.0)
    made.bound_as("moved", at("m", 0, size=2))
    assert 3 == len(told)
    made.pod_gone("never known")
    assert 3 == len(told)


def test_reserved_room_is_told_of_as_its_time_ends():
    """
    Whoever waits need not wait until somebody has deleted the object.
    """
    made, told = books(node("n", 1, 8)), []
    made.on_freed(lambda: told.append("room"))
    made.reservation_is(reserve("r", "somebody", at("n", 0, size=8), expires=10.0))

    assert [] == made.filter(pod("p", 4), ["n"], 9.0).fit
    assert [] == told
    assert ["n"] == made.filter(pod("p", 4), ["n"], 11.0).fit
    assert ["room"] == told


@pytest.mark.parametrize(
    ("reason", "ends", "expected"),
    [(PREEMPTION, None, ["r"]), (PREEMPTION, 3.0, []), (PREEMPTION, "its pod", ["r"]), ("move", None, [])],
    ids=["nobody goes", "the victim goes", "its pod never came", "not for pre-emption"],
)
def test_a_reservation_for_which_nobody_goes_is_given_up(reason, ends, expected):
    """
    Its maker died before it asked the victim to go, or its pod went meanwhile: after a moment the leader begins anew.
    """
    made, victim = books(node("n", 1, 8)), bound(pod("victim", 6), at("n", 0, size=6))
    made.pod_is(victim)
    if ends == "its pod":
        made.pod_gone("victim")
    else:
        made.pod_is(pod("a", 4))
    made.reservation_is(reserve("r", "a", at("n", 0, size=4), reason=reason))

    assert [] == made.stale_reservations(1.0)
    if ends == 3.0:
        made.pod_is(replace(victim, deleting=True))
    assert [] == made.stale_reservations(1.0 + HOLLOW_SECONDS - 0.1)
    assert expected == [one.name for one in made.stale_reservations(1.0 + HOLLOW_SECONDS)]


def test_a_reservation_whose_room_has_come_is_not_given_up():
    """
    However long its pod takes to use it: who looked short for a moment counts anew.
    """
    made = books(node("n", 1, 8))
    made.pod_is(bound(pod("victim", 6), at("n", 0, size=6)))
    made.pod_is(pod("a", 4))
    made.reservation_is(reserve("r", "a", at("n", 0, size=4), reason=PREEMPTION))

    assert [] == made.stale_reservations(0.0)
    made.pod_gone("victim")
    assert [] == made.stale_reservations(4.0)
    made.pod_is(bound(pod("intruder", 6), at("n", 0, size=6)))
    assert [] == made.stale_reservations(6.0)
    assert ["r"] == [one.name for one in made.stale_reservations(6.0 + HOLLOW_SECONDS)]
