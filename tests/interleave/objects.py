# SPDX-License-Identifier: Apache-2.0
"""
Pods and nodes as Kubernetes JSON, from a few words.

A `Plan` is what a tenant asks for and what its programs will do; the spec in the API server says the
first half, the kubelet acts out the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from interleave.server import stamp

from isolation.contract.codec import encode_cards
from isolation.contract.model import Card
from isolation.contract.names import ACK, AGENT, CARDS, SCHEDULER, SHARED
from isolation.contract.quantity import GIB

if TYPE_CHECKING:
    import random

PROTECTED: Final = "default"


@dataclass(frozen=True, slots=True)
class Box:
    """One container."""

    name: str
    units: int = 0
    """Of shared memory that it asks for, over all of its cards."""
    sidecar: bool = False
    """Among the init containers: restartPolicy Always."""
    seconds: float | None = None
    """How long an init container runs before it succeeds."""


@dataclass(slots=True)
class Plan:
    """One pod."""

    name: str
    cards: int
    inits: list[Box]
    apps: list[Box]
    created: float
    """Seconds into the run."""
    lives: float | None
    """How long its apps run before they succeed; None: until deleted."""
    deleted: float | None
    """When somebody deletes it; None: at the end."""
    forced: bool = False
    crashes: float | None = None
    """After so many seconds an app container crashes, once."""
    grace: float = 5.0
    linger: float = 0.0
    """Most seconds that its processes need to end."""
    priority: int = 0
    again: bool = False
    """Once deleted, another of the same name follows."""
    uid: str = ""
    boxes: dict[str, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.boxes = {box.name: box for box in (*self.inits, *self.apps)}

    @property
    def init_names(self) -> frozenset[str]:
        """Init containers that end, not sidecars."""
        return frozenset(box.name for box in self.inits if not box.sidecar)

    @property
    def asks(self) -> int:
        """Units over all cards: Kubernetes' rule, by hand and not by our codec."""
        sidecars = most = 0
        for box in self.inits:
            most = max(most, sidecars + box.units)
            sidecars += box.units if box.sidecar else 0
        return max(most, sidecars + sum(box.units for box in self.apps))

    @property
    def units(self) -> int:
        """Of each card."""
        return self.asks // self.cards

    @property
    def path(self) -> str:
        """Of the object."""
        return f"/api/v1/namespaces/{PROTECTED}/pods/{self.name}"

    @property
    def key(self) -> tuple[str, str]:
        """Of the object within its kind."""
        return (PROTECTED, self.name)


def pod_object(plan: Plan, now: float) -> dict[str, Any]:
    """As admission leaves it: our label, our scheduler."""
    labels = {SHARED: "true"} | ({ACK.card_count: str(plan.cards)} if plan.cards > 1 else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.name,
            "namespace": PROTECTED,
            "uid": plan.uid,
            "labels": labels,
            "creationTimestamp": stamp(now),
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "priority": plan.priority,
            "terminationGracePeriodSeconds": int(plan.grace),
            "initContainers": [_container(box) for box in plan.inits],
            "containers": [_container(box) for box in plan.apps],
        },
        "status": {"phase": "Pending"},
    }


def _container(box: Box) -> dict[str, Any]:
    amounts = {ACK.memory: str(box.units)} if box.units else {}
    wanted: dict[str, Any] = {"name": box.name, "resources": {"limits": amounts, "requests": amounts}}
    return wanted | ({"restartPolicy": "Always"} if box.sidecar else {})


def node_object(name: str, uid: str, cards: tuple[Card, ...], *, choice: str) -> dict[str, Any]:
    """A shared node whose agent is ready."""
    units = sum(card.allocatable_bytes for card in cards) // GIB
    amounts = {ACK.memory: str(units), ACK.card_count: str(len(cards)), "cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": uid,
            "labels": {ACK.mode_label: "cgpu", ACK.choice_label: choice},
            "annotations": {CARDS: encode_cards(cards), AGENT: "ready"},
        },
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def cards_of(node: str, count: int, units: int) -> tuple[Card, ...]:
    """Equal cards; a little is left over on each, as on real ones."""
    return tuple(Card(f"GPU-{node}-{i}", i, units * GIB + (1 << 27), model="Tesla-T4") for i in range(count))


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many pods come, and when."""

    pods: int
    waves: tuple[float, ...]
    """Moments at which they come all at once; empty: at any time."""
    slow: bool
    """Whether they take their time to end."""
    horizon: float
    """Seconds of the storm."""


def drawn_crowd(draw: random.Random, horizon: float) -> Crowd:
    """A trickle, or waves as when Deployments grow; as many as fit, or far more."""
    waves = tuple(draw.uniform(0.5, horizon * 0.7) for _ in range(draw.choice((0, 1, 2, 3))))
    return Crowd(draw.choice((8, 12, 16, 24)), waves, draw.random() < 0.3, horizon)


def drawn_plan(draw: random.Random, serial: int, crowd: Crowd, most_cards: int, units: int) -> Plan:
    """A pod of one of the shapes that have broken others; of few sizes, so that one fits where another was."""
    kind = draw.choices(("one", "many", "init", "sidecar", "pair", "initonly"), (50, 16, 12, 10, 10, 2))[0]
    size = draw.choice((2, 2, 4, 4, 4, 6, min(8, units)))
    cards = draw.randint(2, most_cards) if kind == "many" and most_cards > 1 else 1
    if cards > 1:
        size = draw.choice((1, 2, 4))

    def box(name: str, each: int, *, sidecar: bool = False, seconds: float | None = None) -> Box:
        return Box(name, each * cards, sidecar, seconds)

    inits: list[Box] = []
    apps = [box("main", size)]
    brief = draw.uniform(0.1, 4.0)
    if kind == "init":
        inits = [box("prepare", draw.choice((size, max(1, size // 2), size + 2)), seconds=brief)]
    elif kind == "sidecar":
        inits = [box("warm", draw.choice((0, size)), seconds=brief), box("helper", draw.choice((1, 2)), sidecar=True)]
        inits = [one for one in inits if one.units or draw.random() < 0.3]
    elif kind == "pair":
        apps = [box("main", size), box("second", draw.choice((1, 2, size)))]
    elif kind == "initonly":
        inits, apps = [box("prepare", size, seconds=brief)], [box("main", 0)]
    created = draw.choice(crowd.waves) + draw.random() * 0.3 if crowd.waves else draw.uniform(0.0, crowd.horizon * 0.6)
    lives = draw.uniform(2.0, 30.0) if draw.random() < 0.4 else None
    deleted = created + draw.expovariate(1 / 15.0) if draw.random() < 0.6 else None
    return Plan(
        name=f"pod-{serial}",
        cards=cards,
        inits=inits,
        apps=apps,
        created=created,
        lives=lives,
        deleted=deleted,
        forced=draw.random() < 0.4,
        crashes=draw.uniform(0.5, 10.0) if draw.random() < 0.15 else None,
        grace=draw.choice((0.5, 2.0, 10.0)),
        linger=draw.choice((3.0, 12.0, 20.0) if crowd.slow else (0.0, 0.3, 3.0, 12.0)),
        priority=draw.choice((0, 0, 0, 10)),
        again=draw.random() < 0.3,
    )
