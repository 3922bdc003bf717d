# SPDX-License-Identifier: Apache-2.0
"""Which running pods may be resized, with what is known of them, and what their successors will request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.core.decide import decide
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.observation import observe_cluster
from autoscaler.core.plan import Drain, Move
from autoscaler.core.pools import Pool
from autoscaler.core.rightsizing.histogram import DAY
from autoscaler.core.rightsizing.history import ProgramHistory, ProgramKey, UsageReading
from autoscaler.core.rightsizing.live import LiveReading, PodWish, find_live, find_successors
from autoscaler.core.rightsizing.programs import life_of
from autoscaler.core.rightsizing.recommend import EvidencePolicy
from autoscaler.core.rightsizing.trial import Trial, TrialState
from autoscaler.core.state import AutoscalerState
from isolation.contract.codec.recommendations import ProgramRecommendation, Recommended
from isolation.contract.codec.resize import (
    RESERVED,
    ResizeCondition,
    ResizeReason,
    ResizeStatus,
    encode_status,
    encode_wanted,
)
from isolation.contract.model import (
    Ask,
    Card,
    Cluster,
    Mode,
    Node,
    Part,
    Phase,
    Placement,
    Pod,
    Request,
    Resize,
    Slice,
)
from isolation.contract.names import ACK
from isolation.contract.quantity import GIB
from isolation.contract.right_size import RightSize, RightSizeWish

NOW = 100 * DAY
LIVE = PodWish(RightSizeWish(RightSize.LIVE))
KEY = ProgramKey("default", "StatefulSet/web", "main", "T4")


def pod(units=12, cards=1, node="n", uid="u", more=(), **changes):
    """A replica of a StatefulSet, bound; `more`: units of further containers."""
    names = ["main", *(f"side{at}" for at in range(len(more)))]
    asks = tuple(
        Ask(name, part * GIB, position=at) for at, (name, part) in enumerate(zip(names, [units, *more], strict=True))
    )
    each = sum(ask.bytes for ask in asks) // cards
    request = Request(cards, each, owner="StatefulSet/default/web", asks=asks)
    slices = tuple(Slice(f"{node}/{at}", at, each) for at in range(cards))
    made = Pod(uid, f"web-{uid}", request=request, placement=Placement(node, slices), phase=Phase.RUNNING)
    return replace(made, created=NOW - 10 * DAY, evictable=True, **changes)


def history(*uuids, used=3, container="main"):
    """Ten days of the pod's life on these cards."""
    made = ProgramHistory()
    for uuid in uuids:
        for step in range(10 * 48 + 1):
            at = NOW - 10 * DAY + step * 1800
            amount = int(used * GIB * (1 - 0.1 * (step % 5)))
            made = made.record(UsageReading(life_of("u", container, uuid), at, NOW - 10 * DAY, 12 * GIB, amount))
    return made


def found(one, wish=LIVE, uuids=("n/0",), denied=None):
    """What is known of it, by container."""
    reading = LiveReading({KEY: history(*uuids)}, denied or {}, NOW, EvidencePolicy())
    return {live.container: live for live in find_live({"u": one}, {"u": wish}, reading).values()}


def test_a_pod_that_allows_it_is_found_with_its_recommendation():
    """With what its program has used, and what was denied to it."""
    live = found(pod(), denied={life_of("u", "main", "n/0"): 2})["main"]
    assert (12 * GIB, 12 * GIB, 0, False) == (live.promised_bytes, live.pod_bytes, live.reserved_bytes, live.resized)
    assert 3 * GIB < live.recommended_bytes < 8 * GIB
    assert (2, "default/StatefulSet/web", "n") == (live.denied, live.owner, live.node)
    assert found(pod())["main"].denied is None


@pytest.mark.parametrize(
    ("one", "wish", "recommended"),
    [
        (pod(deleting=True), LIVE, None),
        (replace(pod(), placement=None), LIVE, None),
        (pod(), PodWish(RightSizeWish(RightSize.INITIAL)), None),
        (replace(pod(), request=replace(pod().request, asks=(Ask("main", 12 * GIB, init=True),))), LIVE, None),
        (pod(cards=2), LIVE, 0),
        (pod(), PodWish(RightSizeWish(RightSize.LIVE, 10)), 10 * GIB),
        (pod(), PodWish(RightSizeWish(RightSize.LIVE, 1, 2)), 2 * GIB),
    ],
)
def test_bounds_hold_and_others_are_left_out(one, wish, recommended):
    """Those that end, wait or have init containers; of a card that was not measured nothing is recommended."""
    live = found(one, wish)
    assert recommended == (live["main"].recommended_bytes if live else None)


def test_a_pod_on_trial_shows_what_is_reserved_for_it():
    """Of each card; two containers have their parts."""
    parts = tuple(Part(name, (Slice("n/0", 0, part * GIB),)) for name, part in (("main", 4), ("side0", 2)))
    wanted = encode_wanted({"main": {ACK.memory: 4}, RESERVED: {ACK.memory: 14}})
    one = pod(more=(2,), resize=Resize(1, 14 * GIB, 0, parts), wanted_resize=wanted)
    live = found(one)
    assert (4 * GIB, 6 * GIB, 14 * GIB, True) == (
        live["main"].promised_bytes,
        live["main"].pod_bytes,
        live["main"].reserved_bytes,
        live["main"].resized,
    )
    assert 0 == live["side0"].recommended_bytes


def recommended(gib, **more):
    """What the autoscaler has published."""
    given = {"namespace": "default", "owner": "StatefulSet/web", "container": "main", "model": "T4"}
    return Recommended.of([ProgramRecommendation(**(given | {"next_bytes": gib * GIB} | more))])


@pytest.mark.parametrize("mode", [RightSize.INITIAL, RightSize.LIVE])
def test_a_successor_requests_what_admission_will_make_of_it(mode):
    """Never more than the pod; of two cards on both."""
    wish = {"u": PodWish(RightSizeWish(mode))}
    assert {"u": 4 * GIB} == {
        uid: request.card_bytes for uid, request in find_successors({"u": pod()}, wish, recommended(4), GIB).items()
    }
    [two] = find_successors({"u": pod(cards=2)}, wish, recommended(4), GIB).values()
    assert (4 * GIB, 8 * GIB) == (two.card_bytes, two.asks[0].bytes)
    assert not find_successors({"u": pod()}, wish, recommended(40), GIB)
    assert not find_successors({"u": pod()}, wish, recommended(4, revision="other"), GIB)
    assert not find_successors({"u": pod()}, {}, recommended(4), GIB)


def test_who_has_no_room_for_what_it_gave_up_is_moved_to_where_there_is():
    """Only while its resize waits for room, and only if it may be moved: a pod without siblings stays."""
    nodes = tuple(
        Node(name, (Card(f"{name}/0", 0, 15 * GIB),), Mode.CGPU, cpu_milli=9000, memory_bytes=99 * GIB, pool="p")
        for name in "ab"
    )
    parts = (Part("main", (Slice("a/0", 0, 4 * GIB),)),)
    small = Placement("a", (Slice("a/0", 0, 4 * GIB),))
    status = encode_status(ResizeStatus(ResizeCondition.PENDING, ResizeReason.DEFERRED, "no room", "{}"))
    late = pod(12, node="a", resize=Resize(3, 4 * GIB, 0, parts), resize_status=status, wanted_resize="{}")
    late = replace(late, placement=small)
    neighbour = pod(10, node="a", uid="v")
    limits = ScalingLimits(min_replicas=1)
    seen = observe_cluster(Cluster(nodes, (late, neighbour)), [Pool("p", nodes[0], 0, 5)], at=NOW)
    seen = replace(seen, live=find_live(dict(seen.pods), {"u": LIVE}, LiveReading({}, {}, NOW, EvidencePolicy())))
    trial = Trial("u", "main", "o", 12 * GIB, 4 * GIB, 12 * GIB, 0.0, 9.0)
    state = AutoscalerState(trials=TrialState(waiting={trial.key: trial}))

    def moves(seen, limits=limits):
        return [step for step in decide(seen, limits, state)[0].steps if isinstance(step, Move)]

    [move] = moves(seen)
    assert ("restore", "b", 12 * GIB) == (
        move.kind,
        move.reservation.placement.node,
        move.reservation.placement.slices[0].bytes,
    )
    assert not moves(seen, replace(limits, min_replicas=3))
    assert not moves(replace(seen, live={key: replace(one, deferred=False) for key, one in seen.live.items()}))
    done = {key: replace(one, promised_bytes=12 * GIB) for key, one in seen.live.items()}
    assert not decide(replace(seen, live=done), limits, state)[1].trials.waiting


def test_a_node_can_go_when_its_pod_will_need_less_elsewhere():
    """12 GiB fit nowhere else; the 4 that its successor will request do. Its reservation is as large."""
    nodes = tuple(
        Node(name, (Card(f"{name}/0", 0, 15 * GIB),), Mode.CGPU, cpu_milli=9000, memory_bytes=99 * GIB, pool="p")
        for name in "ab"
    )
    moving, other = pod(12, node="a"), pod(10, node="b", uid="v")
    limits = ScalingLimits(
        scale_down_unneeded_seconds=0.0,
        min_node_age_seconds=0.0,
        scale_down_utilization_threshold=1.0,
        min_replicas=1,
        disruption_cost_ratio=10.0,
    )
    seen = observe_cluster(Cluster(nodes, (moving, other)), [Pool("p", nodes[0], 0, 5)], at=NOW)
    assert not [step for step in decide(seen, limits, AutoscalerState())[0].steps if isinstance(step, Drain)]
    successors = find_successors(dict(seen.pods), {"u": LIVE}, recommended(4), GIB)
    [drain] = [
        step
        for step in decide(replace(seen, successors=successors), limits, AutoscalerState())[0].steps
        if isinstance(step, Drain)
    ]
    [reservation] = drain.reservations
    assert ("a", 4 * GIB, "b") == (drain.node, reservation.request.card_bytes, reservation.placement.node)
