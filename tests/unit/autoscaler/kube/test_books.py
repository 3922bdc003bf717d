# SPDX-License-Identifier: Apache-2.0
"""What is kept between readings never differs from a reading made from nothing, whatever happened in between."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import islice
from random import Random

import msgspec
import pytest

from autoscaler.apis.metrics.core.readings import Sample, Spot
from autoscaler.core.limits import Limits
from autoscaler.kube.core.config import PoolConfig
from autoscaler.kube.observe.cache import Books
from autoscaler.kube.observe.snapshot import Snapshot, observed, observing
from autoscaler.kube.persisted import Kept
from autoscaler.kube.usage import Measured
from autoscaler.kube.watches import Sources
from autoscaler.providers.base import DeniedError, Instance, InstanceState, PoolState
from autoscaler.providers.registry import PoolSource
from isolation.contract.codec import encode_allocation, encode_cards
from isolation.contract.codec.cursor import At
from isolation.contract.model import Ask, Card, Placement, Request, Slice
from isolation.contract.names import ALLOCATION, CARDS, DELETION_COST, DRAIN, EVICT, MOVED, RESERVATION, SCHEDULER
from isolation.contract.quantity import GIB
from isolation.contract.reservation import Reservation, manifest_of

NODES = tuple(f"n{number}" for number in range(8))
POOLS = ("a", "b")
APPS = ("web", "chat", "batch")
LIMITS = Limits()
CONFIGS = tuple(PoolConfig(name, PoolSource(name, "memory", At({})), max_nodes=9, spare_nodes=1) for name in POOLS)
START = 1_800_000_000.0


def a_node(draw, name):
    """Somehow: with cards or without, ready or not, marked, cordoned, tainted, in a zone."""
    cards = [Card(f"GPU-{name}-{i}", i, 8 * GIB, healthy=draw.random() > 0.1) for i in range(draw.choice((0, 1, 2, 2)))]
    units = str(8 * len(cards))
    room = {"cpu": "8", "memory": "64Gi", "pods": "50", "aliyun.com/gpu-mem": units, "aliyun.com/gpu-count": "1"}
    taints = [{"key": DRAIN, "effect": "NoSchedule"}] if draw.random() < 0.2 else []
    taints += [{"key": "team", "effect": "NoSchedule"}] if draw.random() < 0.2 else []
    marked = {DRAIN: json.dumps({"since": START - 5, "why": "idle"})} if draw.random() < 0.2 else {}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {
                "ack.node.gpu.schedule": "cgpu",
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": draw.choice("xy"),
            },
            "annotations": {CARDS: encode_cards(cards), **marked},
            "creationTimestamp": "2027-01-15T07:00:00Z",
        },
        "spec": {"taints": taints, "unschedulable": draw.random() < 0.1, "providerID": f"id-{name}"},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True" if draw.random() > 0.1 else "False"}],
        },
    }


def a_pod(draw, uid):
    """Somehow: waiting or bound, on cards or not, spread or not, of an app or of a DaemonSet, ending, over."""
    app, units, node = draw.choice(APPS), draw.choice((0, 1, 2, 4, 9)), draw.choice((*NODES, "gone", "", ""))
    request = Request(1, units * GIB, asks=(Ask("main", units * GIB),))
    record = {EVICT: draw.choice(("true", "false"))} if draw.random() < 0.2 else {}
    if node and units:
        card = draw.choice((0, 1))
        place = Placement(node, (Slice(f"GPU-{node}-{card}", card, units * GIB),))
        record[ALLOCATION] = encode_allocation(uid, request, place)
    if draw.random() < 0.2:
        record[DELETION_COST] = "7"
    if draw.random() < 0.1:
        record[RESERVATION] = f"home-{draw.randrange(4)}"
    kind = "DaemonSet" if draw.random() < 0.1 else "ReplicaSet"
    spread = {
        "maxSkew": 1,
        "topologyKey": draw.choice(("topology.kubernetes.io/zone", "kubernetes.io/hostname")),
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    }
    limits = {"cpu": "1"} | ({"aliyun.com/gpu-mem": str(units)} if units else {})
    return {
        "metadata": {
            "name": uid,
            "uid": uid,
            "namespace": draw.choice(("default", "team")),
            "labels": {"app": app},
            "annotations": record,
            "creationTimestamp": f"2027-01-15T07:0{draw.randrange(10)}:00Z",
            "ownerReferences": [
                {"kind": kind, "name": app, "uid": f"rs-{app}", "controller": True, "apiVersion": "apps/v1"}
            ],
            **({"deletionTimestamp": "2027-01-15T08:00:00Z"} if draw.random() < 0.1 else {}),
        },
        "spec": {
            "schedulerName": SCHEDULER if draw.random() > 0.2 else "default-scheduler",
            "containers": [{"name": "main", "resources": {"limits": limits}}],
            "topologySpreadConstraints": [spread] if draw.random() < 0.2 else [],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": ("Succeeded" if draw.random() < 0.1 else "Running") if node else "Pending"},
    }


def a_budget(draw, name):
    """Over one app or over all of a namespace; with something left or nothing."""
    return {
        "metadata": {"name": name, "uid": name, "namespace": draw.choice(("default", "team")), "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": draw.choice(APPS)}} if draw.random() > 0.3 else {}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": draw.randrange(2)},
    }


def a_reservation(draw, name):
    """Of ours, or of somebody else's; where there is room, or not; over, or not."""
    node, app, units = draw.choice(NODES), draw.choice(APPS), draw.choice((1, 2, 4))
    place = Placement(node, (Slice(f"GPU-{node}-0", 0, units * GIB),))
    made = Reservation(name, f"rs-{app}", place, START + draw.choice((-10, 500)), draw.choice(("", "default")))
    thing = manifest_of(made)
    thing["metadata"]["creationTimestamp"] = "2027-01-15T07:59:00Z"
    if draw.random() < 0.7:
        thing["metadata"].setdefault("annotations", {})[MOVED] = f"p{draw.randrange(30)}"
    return thing


class Storm:
    """A cluster to which anything happens."""

    def __init__(self, seed):
        self.draw, self.at = Random(seed), START  # noqa: S311 (weather, no secret)
        self.sources = Sources(None)
        self.kept, self.books, self.measured = Kept(), Books(), Measured()
        self.states, self.failed, self.dry, self.still = {}, {}, {}, ""
        self.nodes = {}
        self.provided()

    def blow(self):
        """One thing happens."""
        draw, notes = self.draw, self.sources.notes
        uid, name, thing = f"p{draw.randrange(30)}", draw.choice(NODES), f"home-{draw.randrange(4)}"
        happens = draw.choice(
            (
                *[lambda: notes.pod_is(raw(a_pod(draw, uid)))] * 8,
                *[lambda: notes.node_is(raw(self.node(name)))] * 4,
                *[lambda: notes.node_is(raw(self.marked(name)))] * 2,
                *[lambda: notes.pod_gone(uid)] * 3,
                lambda: notes.node_gone(name),
                lambda: notes.retain_pods(set(draw.sample(sorted(notes.pods), len(notes.pods) // 2))),
                lambda: notes.retain_nodes(set(draw.sample(sorted(notes.nodes), len(notes.nodes) // 2))),
                lambda: self.sources.budgets.put(raw(a_budget(draw, f"b{draw.randrange(3)}"))),
                lambda: self.sources.budgets.drop(raw(a_budget(draw, f"b{draw.randrange(3)}"))),
                *[lambda: self.sources.reservations.put(raw(a_reservation(draw, thing)))] * 2,
                lambda: self.sources.reservations.drop(raw({"metadata": {"name": thing}})),
                lambda: notes.pod_is(raw({"metadata": {"uid": uid}, "spec": {"containers": 7}})),
                self.measure,
                *[self.provided] * 2,
            )
        )
        happens()
        self.at += draw.choice((0.0, 1.0, 100.0))

    def node(self, name):
        """Another one."""
        self.nodes[name] = a_node(self.draw, name)
        return self.nodes[name]

    def marked(self, name):
        """The same one as before, but for its mark."""
        thing = self.nodes.get(name) or self.node(name)
        marks = thing["metadata"]["annotations"]
        if marks.pop(DRAIN, None) is None:
            marks[DRAIN] = json.dumps({"since": self.at, "why": "idle"})
        return thing

    def provided(self):
        """Providers say something else of their machines, or nothing."""
        draw = self.draw
        names = draw.sample(NODES, len(NODES))
        self.states, self.failed = {}, {}
        for pool, mine in zip(POOLS, (names[:3], names[3:6]), strict=True):
            if draw.random() < 0.1:
                self.failed[pool] = DeniedError("no")
                continue
            nodes = tuple(
                Instance(f"id-{name}", name, draw.choice(tuple(InstanceState) + (InstanceState.RUNNING,) * 9))
                for name in mine
            )
            self.states[pool] = PoolState(pool, 3 + draw.randrange(2), nodes)
        self.dry = {"a": "none left"} if draw.random() < 0.1 else {}
        self.still = "the clock" if draw.random() < 0.1 else ""

    def measure(self):
        """Exporters tell anew of some pods."""
        pods = [pod for pod in self.sources.notes.pods.values() if self.draw.random() < 0.8]
        samples = {
            Spot(pod.namespace, pod.name, hold.container, hold.uuid): Sample(1, self.draw.random())
            for pod in pods
            for hold in pod.holds
        }
        self.measured = Measured(samples, stale=frozenset({self.draw.choice(NODES)}))

    def snapshot(self):
        """Of this moment."""
        return Snapshot(
            at=self.at,
            view=self.sources.view(),
            notes=self.sources.notes,
            reservations=self.sources.reservations.all(),
            budgets=self.sources.budgets.all(),
            states=self.states,
            failed=self.failed,
            measured=self.measured,
            dry=self.dry,
            held_still=self.still,
        )


def raw(thing):
    """As the API server tells it."""
    return msgspec.Raw(json.dumps(thing).encode())


def shown(seen):
    """Everything of a reading that can be compared; the engine by what it has, holds and has learnt."""
    engine = seen.observation.engine
    fields = {name: getattr(seen, name) for name in seen.__slots__ if name != "observation"}
    parts = {name: getattr(seen.observation, name) for name in seen.observation.__slots__ if name != "engine"}
    learnt = Counter()
    for shape, count in engine.learner.counts.items():
        learnt[(shape[:-1], engine.groups.keys[shape.group])] += count
    rooms = {name: engine.room(name) for name in engine.nodes}
    mix = [round(part, 9) for part in engine.fragments()]
    return (
        fields
        | parts
        | {"nodes": dict(engine.nodes), "holds": dict(engine.holds), "rooms": rooms, "mix": mix, "learnt": learnt}
    )


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 25))])
def test_books_say_what_a_reading_from_nothing_says(seed):
    """
    After any storm of changes, also with readings that were begun and left in the middle.
    """

    async def stormed():
        return Storm(seed)

    storm = asyncio.run(stormed())
    for _ in range(60):
        for _ in range(storm.draw.choice((0, 1, 3, 20))):
            storm.blow()
        now = storm.snapshot()
        if storm.draw.random() < 0.3:
            left = observing(now, CONFIGS, LIMITS, storm.kept, storm.books)
            list(islice(left, storm.draw.randrange(20)))
            storm.blow()
            now = storm.snapshot()
        fresh = Books()
        expected = observed(now, CONFIGS, LIMITS, storm.kept, fresh)
        actual = observed(now, CONFIGS, LIMITS, storm.kept, storm.books)

        assert shown(expected) == shown(actual)
        assert "" == storm.books.differs(fresh)
        storm.kept = actual.kept


@pytest.mark.parametrize("seed", range(5))
def test_what_has_not_changed_is_not_read_again(seed):
    """
    A second reading of the same cluster reads nobody; after one pod has changed it reads that one.
    """

    async def stormed():
        return Storm(seed)

    storm = asyncio.run(stormed())
    for _ in range(200):
        storm.blow()
    storm.sources.notes.pod_is(raw(a_pod(storm.draw, "last")))
    observed(storm.snapshot(), CONFIGS, LIMITS, storm.kept, storm.books)
    read = storm.books.changed

    observed(storm.snapshot(), CONFIGS, LIMITS, storm.kept, storm.books)
    again = storm.books.changed
    storm.sources.notes.pod_is(raw(a_pod(storm.draw, "last")))
    observed(storm.snapshot(), CONFIGS, LIMITS, storm.kept, storm.books)

    assert (read, read + 1) == (again, storm.books.changed)


def test_a_reading_does_not_change_when_the_next_one_is_made():
    """
    Whoever still looks at an older observation sees what it said.
    """

    async def stormed():
        return Storm(3)

    storm = asyncio.run(stormed())
    for _ in range(100):
        storm.blow()
    old = observed(storm.snapshot(), CONFIGS, LIMITS, storm.kept, storm.books)
    before = shown(old)
    for _ in range(100):
        storm.blow()
    observed(storm.snapshot(), CONFIGS, LIMITS, old.kept, storm.books)

    assert before == shown(old)


def test_books_that_are_wrong_are_told_from_right_ones():
    """
    Room that was not given back is seen when the books are made anew.
    """

    async def stormed():
        return Storm(1)

    storm = asyncio.run(stormed())
    for name in NODES:
        storm.sources.notes.node_is(raw(a_node(Random(1), name)))  # noqa: S311 (no secret)
    storm.states = {"a": PoolState("a", 8, tuple(Instance(f"id-{name}", name) for name in NODES))}
    right = Books()
    observed(storm.snapshot(), CONFIGS, LIMITS, storm.kept, right)
    seen = observed(storm.snapshot(), CONFIGS, LIMITS, storm.kept, storm.books)
    node = next(node for node in seen.observation.engine.nodes.values() if node.cards and node.cards[0].healthy)
    lost = Placement(node.name, (Slice(node.cards[0].uuid, 0, GIB),))
    assert "" == right.differs(storm.books)

    storm.books.room._engine.hold("nobody", Request(1, GIB), lost)

    assert f"the room of node {node.name}" == right.differs(storm.books)
