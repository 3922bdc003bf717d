# SPDX-License-Identifier: Apache-2.0
"""The annotations by which cluster-autoscaler is told whose pods it counts: put on, carried, taken away again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.kube import handover
from autoscaler.kube.annotations import PodNote
from autoscaler.kube.handover import AT_ONCE, AnnotationChange, written
from isolation.contract.cluster_autoscaler_annotations import DELAY, HANDOVER, Ours, changes
from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.pod import safe_to_evict
from isolation.contract.codec.pools import PublishedPool, decode_pools, encode_pools
from isolation.contract.codec.template import NodeTemplate
from isolation.contract.model import Card, Mode, Node, Pod, Request, Requirement, Rules
from isolation.contract.names import SAFE_TO_EVICT, SCALE_UP_DELAY, SCHEDULER, USER_SAFE_TO_EVICT, USER_SCALE_UP_DELAY
from isolation.contract.quantity import GIB
from isolation.kube.core.errors import RefusedError, UnreachableError
from isolation.kube.writes import PodRef
from isolation.placement.node_rules import could_host, ours_of

BOTH, NEITHER = Ours(buys=True, drains=True), Ours()
OURS = {SCALE_UP_DELAY: DELAY, SAFE_TO_EVICT: "false"}
SILENT = {USER_SCALE_UP_DELAY: "", USER_SAFE_TO_EVICT: ""}


def applied(annotations, ours):
    """The pod's annotations once the changes are written."""
    found = annotations | changes(annotations, ours)
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({SAFE_TO_EVICT: "true"}, {USER_SAFE_TO_EVICT: "true"}),
        ({SAFE_TO_EVICT: "false"}, {USER_SAFE_TO_EVICT: "false"}),
        ({SAFE_TO_EVICT: "maybe"}, {USER_SAFE_TO_EVICT: "maybe"}),
        ({SCALE_UP_DELAY: "600s"}, {USER_SCALE_UP_DELAY: "600s"}),
        ({SCALE_UP_DELAY: DELAY}, {USER_SCALE_UP_DELAY: DELAY}),
        # written to the one or the other while both stand there
        (OURS | SILENT | {SAFE_TO_EVICT: "true"}, {USER_SAFE_TO_EVICT: "true"}),
        (OURS | SILENT | {SCALE_UP_DELAY: "600s"}, {USER_SCALE_UP_DELAY: "600s"}),
        (OURS | {USER_SAFE_TO_EVICT: "true", USER_SCALE_UP_DELAY: ""}, {USER_SAFE_TO_EVICT: "true"}),
        (OURS | {USER_SAFE_TO_EVICT: "", USER_SCALE_UP_DELAY: "600s"}, {USER_SCALE_UP_DELAY: "600s"}),
    ],
)
def test_where_we_buy_and_drain_the_owners_word_is_moved(before, after):
    """
    The newest one; nothing else of the pod is touched.
    """
    assert OURS | SILENT | after | {"x": "y"} == applied(before | {"x": "y"}, BOTH)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OURS | SILENT, {}),
        (OURS | SILENT | {USER_SAFE_TO_EVICT: "true"}, {SAFE_TO_EVICT: "true"}),
        (OURS | SILENT | {USER_SAFE_TO_EVICT: "false"}, {SAFE_TO_EVICT: "false"}),
        (OURS | SILENT | {SAFE_TO_EVICT: "true"}, {SAFE_TO_EVICT: "true"}),
        (OURS | SILENT | {USER_SCALE_UP_DELAY: "600s"}, {SCALE_UP_DELAY: "600s"}),
        (OURS | SILENT | {USER_SCALE_UP_DELAY: DELAY}, {SCALE_UP_DELAY: DELAY}),
        (OURS | SILENT | {SCALE_UP_DELAY: "600s"}, {SCALE_UP_DELAY: "600s"}),
        ({SCALE_UP_DELAY: "600s", SAFE_TO_EVICT: "false"}, {SCALE_UP_DELAY: "600s", SAFE_TO_EVICT: "false"}),
        ({}, {}),
    ],
)
def test_where_we_do_neither_the_owners_word_is_back(before, after):
    """
    And what the owner wrote without us is left alone.
    """
    assert after == applied(before, NEITHER)


def test_each_setting_has_its_own_annotation():
    """
    Who buys is told by the delay, who drains by safe-to-evict.
    """
    assert {SCALE_UP_DELAY: DELAY, USER_SCALE_UP_DELAY: ""} == changes({}, Ours(buys=True))
    assert {SAFE_TO_EVICT: "false", USER_SAFE_TO_EVICT: ""} == changes({}, Ours(drains=True))


VALUES = st.sampled_from([None, "", "true", "false", "x", DELAY])
ANNOTATIONS = st.fixed_dictionaries(dict.fromkeys(HANDOVER, VALUES)).map(
    lambda found: {key: value for key, value in found.items() if value is not None}
)
WHOSE = st.builds(Ours, st.booleans(), st.booleans())


@given(ANNOTATIONS, WHOSE, WHOSE)
def test_whatever_stands_there_a_second_time_changes_nothing(annotations, first, then):
    """
    So that two who write, or a webhook that is asked again, agree; and a way there and back ends in one place.
    """
    once = applied(annotations, first)
    assert {} == changes(once, first)
    assert (once.get(SAFE_TO_EVICT) == "false" and USER_SAFE_TO_EVICT in once) or not first.drains
    assert (once.get(SCALE_UP_DELAY) == DELAY and USER_SCALE_UP_DELAY in once) or not first.buys
    back = applied(applied(once, then), NEITHER)
    assert not back.keys() & {USER_SAFE_TO_EVICT, USER_SCALE_UP_DELAY}
    assert {} == changes(back, NEITHER)


@given(ANNOTATIONS, WHOSE, WHOSE)
def test_what_the_owner_wrote_is_back_after_any_settings(annotations, first, then):
    """
    An empty value says as much as none.
    """
    plain = {key: value for key, value in annotations.items() if value and key in (SCALE_UP_DELAY, SAFE_TO_EVICT)}
    assert plain == applied(applied(applied(plain, first), then), NEITHER)


@given(ANNOTATIONS, WHOSE)
def test_what_the_owner_says_of_evicting_the_pod_is_read_the_same_whoever_drains(annotations, ours):
    """
    As it was before the first of them wrote, or by what the owner wrote over it since.
    """
    plain = {key: value for key, value in annotations.items() if key != USER_SAFE_TO_EVICT}
    assert safe_to_evict(plain) == safe_to_evict(applied(plain, ours))


def fresh(card_gib=16, cards=1, **labels):
    """A node of a pool as it comes."""
    return Node(
        "n",
        tuple(Card(f"u{number}", number, card_gib * GIB) for number in range(cards)),
        Mode.CGPU,
        labels=labels,
    )


def test_a_pod_is_for_the_pools_that_could_host_it():
    """
    By the cards and by the pod's own rules; what is done for any of them is done for the pod.
    """
    large, picky = Request(1, 20 * GIB), Request(1, GIB, rules=Rules(terms=((Requirement("zone", "In", ("a",)),),)))
    assert not could_host(large, fresh(16))
    assert could_host(large, fresh(24))
    assert not could_host(Request(2, GIB), fresh())
    assert could_host(picky, fresh(zone="a"))
    assert not could_host(picky, fresh(zone="b"))
    pools = [(fresh(16), Ours(buys=True)), (fresh(24), Ours(drains=True))]
    assert Ours(drains=True) == ours_of(large, pools)
    assert BOTH == ours_of(Request(1, GIB), pools)
    assert NEITHER == ours_of(Request(1, 40 * GIB), pools)


class Server:
    """Answers each write as the test says."""

    def __init__(self, answer):
        self.answer, self.asked = answer, 0

    async def send(self, *_):
        """One write."""
        self.asked += 1
        error = self.answer(self.asked)
        await asyncio.sleep(0)
        if error is not None:
            raise error


WISHES = [AnnotationChange(PodRef("default", f"p{number}", f"u{number}"), "1", {}) for number in range(50)]


def test_a_server_that_does_not_answer_ends_the_pass_at_once():
    """
    The next one tries again; nobody goes on behind its back.
    """
    server = Server(lambda _: UnreachableError("away"))
    with pytest.raises(UnreachableError):
        asyncio.run(written(server, WISHES, lambda: True))
    assert server.asked <= AT_ONCE


def test_a_pod_that_has_changed_is_left_to_the_next_pass_and_nothing_is_written_without_the_lease():
    """
    The others are written to.
    """
    server = Server(lambda asked: None if asked % 2 else RefusedError(409, "Conflict", "changed"))
    assert 25 == asyncio.run(written(server, WISHES, lambda: True))
    assert 0 == asyncio.run(written(server, WISHES, lambda: False))
    assert 50 == server.asked


def test_a_pass_over_many_pods_decides_once_for_those_alike(monkeypatch):
    """
    2,000 pods wait, all of them asking for one of two things: two decisions, and 250 are written to.
    """
    asked = [Request(1, GIB), Request(1, 99 * GIB)]
    pods = {f"u{n}": Pod(f"u{n}", f"p{n}", request=replace(asked[n % 2], owner=f"web{n}")) for n in range(2000)}
    pools = {"a": SimpleNamespace(template=fresh())}
    seen = SimpleNamespace(pods=pods, machines={}, pools=pools)
    notes = dict.fromkeys(pods, PodNote(SCHEDULER))
    decided = []
    monkeypatch.setattr(handover, "ours_of", lambda *of: decided.append(of) or ours_of(*of))
    server = Server(lambda _: None)
    passing = handover.Handover(server, lambda: True)
    asyncio.run(passing.carry(seen, notes, {"a": BOTH}))
    assert (2, handover.MAX_WRITES_PER_PASS, 1000 - handover.MAX_WRITES_PER_PASS) == (
        len(decided),
        server.asked,
        passing.left,
    )


POOLS = (
    PublishedPool(
        "a", NodeTemplate(mode=Mode.CGPU, cards=fresh(cards=2).cards, labels={"x": "y"}).node("a"), 1, 4, BOTH
    ),
    PublishedPool("b", NodeTemplate().node("b")),
)


def test_published_pools_are_read_as_they_were_written():
    """
    What a fresh node is like, its bounds, and who scales it.
    """
    found = decode_pools(encode_pools(POOLS)).pools
    assert [(pool.name, pool.min_nodes, pool.max_nodes, pool.ours) for pool in POOLS] == [
        (pool.name, pool.min_nodes, pool.max_nodes, pool.ours) for pool in found
    ]
    assert [dict(pool.fresh.labels) for pool in POOLS] == [dict(pool.fresh.labels) for pool in found]
    assert [16 * GIB] * 2 == [card.allocatable_bytes for card in found[0].fresh.cards]


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "{",
        lambda _: "[" * 100_000,
        lambda _: " " * 1_000_000,
        lambda text: text.replace('"version": 1, "complete"', '"version": 2, "complete"'),
        lambda text: text.replace('gpushare"', 'somebody"'),
        lambda text: text.replace('"min_nodes": 1', '"min_nodes": -1'),
        lambda text: text.replace('"name": "a"', '"name": "A B"'),
    ],
)
def test_a_text_that_is_not_all_pools_is_none(change):
    """
    Half of the pools would be taken for all.
    """
    with pytest.raises(CodecError):
        decode_pools(change(encode_pools(POOLS)))
