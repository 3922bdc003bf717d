# SPDX-License-Identifier: Apache-2.0
"""Under MPS a card is one group's and one user's: pods of others are placed beside, or wait."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.builders import ask, node

from isolation.contract.model import Mode, Placement, Refusal, Request, Rules, Trust, Why
from isolation.contract.names import ACK
from isolation.contract.quantity import gib
from isolation.placement.engine import Engine, PlacementError

MPS = Rules(mps=True)
INTERLEAVINGS = 10_000


def mps(name: str = "n", cards: int = 2, size: int = 16) -> object:
    return replace(node(name, cards, size, mode=Mode.MPS), labels={ACK.mode_label: "mps"})


def of(group: str, uid: int | None = 0, size: int = 2, **more: object) -> Request:
    return replace(ask(size, **more), rules=MPS, group=group, uid=uid)  # type: ignore[arg-type]


def index(placed: Placement | Refusal) -> int:
    assert isinstance(placed, Placement), placed
    return placed.slices[0].index


def held(engine: Engine, *requests: Request) -> list[int]:
    """The cards that these get, one after the other."""
    found = []
    for request in requests:
        placed = engine.place(request)
        found.append(index(placed))
        assert isinstance(placed, Placement)
        engine.hold(f"p{len(engine.holds)}", request, placed)
    return found


def test_pods_of_one_group_and_user_share_a_card_and_others_get_another() -> None:
    first, same, other = held(Engine([mps()]), of("ml"), of("ml"), of("web"))
    assert first == same != other


def test_another_user_of_the_same_group_gets_another_card() -> None:
    """A server serves one user: the second one's programs would wait for the first one's."""
    first, second = held(Engine([mps()]), of("ml", 0), of("ml", 1000))
    assert first != second


def test_who_finds_every_card_with_others_waits_and_is_told_why_until_the_last_of_them_has_ended() -> None:
    engine = Engine([mps()])
    held(engine, of("ml"), of("ml"), of("web"))
    refused = engine.place(of("ops"))
    assert isinstance(refused, Refusal)
    assert refused.why is Why.TRUST
    assert "another group's or user's" in refused.reason
    assert engine.why_not(of("ops"), ["n"]) == {Why.TRUST: ["n"]}
    engine.release("p0")
    assert isinstance(engine.place(of("ops")), Refusal)
    engine.release("p1")
    assert isinstance(engine.place(of("ops")), Placement)


@pytest.mark.parametrize(
    ("request_", "why", "words"),
    [
        (of("ml", None), Why.TRUST, "runAsUser"),
        (of("ml", 0, 2, cards=2), Why.MODE, "request one card"),
        (replace(of("ml"), rules=Rules()), Why.MODE, "for pods that select"),
        (of("ml", 0, 32), Why.CARD_TOO_SMALL, "largest card"),
    ],
)
def test_who_cannot_share_a_server_is_told_what_to_change(request_: Request, why: Why, words: str) -> None:
    refused = Engine([mps()]).place(request_)
    assert isinstance(refused, Refusal)
    assert refused.why is why
    assert words in refused.reason


def test_a_pod_without_cards_may_be_on_any_node() -> None:
    engine = Engine([mps()])
    held(engine, of("ml"), of("web"))
    assert isinstance(engine.place(Request(cpu_milli=100)), Placement)


def test_in_other_modes_groups_share_cards() -> None:
    plain = [replace(of(group), rules=Rules()) for group in ("ml", "web")]
    assert len(set(held(Engine([node("n", 2, 16)]), *plain))) == 1


def test_a_hold_beside_strangers_is_refused_unless_it_is_so_in_reality() -> None:
    """What two replicas decided at once, or somebody wrote by hand, keeps everybody else off the card."""
    engine = Engine([mps(cards=1)])
    placed = engine.place(of("ml"))
    assert isinstance(placed, Placement)
    engine.hold("a", of("ml"), placed)
    with pytest.raises(PlacementError, match="another group's"):
        engine.hold("b", of("web"), placed)
    engine.hold("b", of("web"), placed, force=True)
    assert isinstance(engine.place(of("ml")), Refusal)
    assert isinstance(engine.place(of("web")), Refusal)


def test_a_pod_whose_user_is_not_known_keeps_everybody_off() -> None:
    engine = Engine([mps(cards=1)])
    placed = engine.place(of("ml"))
    assert isinstance(placed, Placement)
    engine.hold("a", of("ml", None), placed, force=True)
    assert isinstance(engine.place(of("ml")), Refusal)


def test_groups_are_kept_apart_also_after_the_node_was_written_again_and_rules_were_forgotten() -> None:
    engine = Engine([mps(), mps("m", 1)])
    held(engine, of("ml"), of("web"), of("ops"))
    for change in (lambda: engine.put_node(mps()), engine.forget_card_rules):  # type: ignore[arg-type]
        change()
        assert isinstance(engine.place(of("new")), Refusal)
        assert isinstance(engine.fork().place(of("new")), Refusal)
        assert isinstance(engine.place(of("web")), Placement)
    engine.drop_node("n")
    engine.put_node(mps())  # type: ignore[arg-type]
    assert isinstance(engine.place(of("new")), Placement)


def test_in_ten_thousand_interleavings_no_card_has_two_groups_or_two_users() -> None:
    """Arrivals, ends, nodes that come, go and are written again, replicas that work on a fork and come back."""
    dice = random.Random(23)  # noqa: S311 (a test)
    engine = Engine([mps(f"n{at}", 4) for at in range(5)])
    alive: dict[str, Request] = {}
    placed = waited = 0
    for step in range(INTERLEAVINGS):
        what = dice.random()
        if what < 0.55:
            request = of(f"g{dice.randrange(6)}", dice.randrange(3), dice.choice((1, 2, 4, 8)))
            found = engine.place(request)
            waited += isinstance(found, Refusal)
            if isinstance(found, Placement):
                name, placed = f"p{step}", placed + 1
                engine.hold(name, request, found)
                alive[name] = request
        elif what < 0.95 and alive:
            name = dice.choice(sorted(alive))
            engine.release(name)
            del alive[name]
        elif what < 0.97:
            engine = engine.fork()
        elif what < 0.99:
            name = f"n{dice.randrange(5)}"
            if dice.random() < 0.3 and name in engine.nodes:
                alive = {uid: one for uid, one in alive.items() if engine.holds[uid][1].node != name}
                engine.drop_node(name)
            engine.put_node(mps(name, 4))  # type: ignore[arg-type]
        else:
            engine.forget_card_rules()
        users: dict[str, set[Trust | None]] = {}
        for request, where in engine.holds.values():
            users.setdefault(where.slices[0].uuid, set()).add(request.trust)
        assert all(len(trusts) == 1 for trusts in users.values()), step
    assert placed > 2000
    assert waited > 100


def test_who_could_share_a_card_is_not_turned_away() -> None:
    """Whatever is placed, a pod of a group whose card has room gets it."""
    engine = Engine([mps(cards=3)])
    held(engine, of("a", size=8), of("b", size=8), of("c", size=8))
    for group in "abc":
        assert isinstance(engine.place(of(group, size=8)), Placement)
        assert isinstance(engine.place(of(group, size=9)), Refusal)
    assert engine.room("n")[0][0] == gib(8)
