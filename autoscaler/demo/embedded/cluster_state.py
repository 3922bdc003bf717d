# SPDX-License-Identifier: Apache-2.0
"""
The state of the simulated cluster: its pods, nodes and reservations, and what is free on each card.

The placement engine alone knows what is free; the mappings next to it are indexes of the same pods and change in the
same call. Decides nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoscaler.core.pools import compute_load
from isolation.contract.codec.resize import encode_wanted_memory
from isolation.contract.model import Phase, Resize, parts_of
from isolation.contract.quantity import GIB
from isolation.placement.engine import Engine, PlacementError

if TYPE_CHECKING:
    from autoscaler.core.observation import SuccessorReservation
    from autoscaler.core.plan import ResizePod
    from isolation.contract.model import Node, Placement, Pod


class FakeClusterState:
    """Pods, nodes and room."""

    def __init__(self, policy: str, seed: int) -> None:
        self.engine = Engine(policy=policy, seed=seed)
        self.pods: dict[str, Pod] = {}
        self.on: dict[str, dict[str, Pod]] = {}
        self.load: dict[str, float] = {}
        self.reserved: dict[str, SuccessorReservation] = {}
        self.breaches: dict[str, int] = {}
        """Promises broken on each node so far, once per container and card."""
        self.changed: set[str] = set()
        """Nodes that look different since the last reading, which empties it."""

    def add_node(self, node: Node) -> None:
        """A node becomes usable."""
        self.engine.put_node(node)
        self.on[node.name] = {}
        self.breaches[node.name] = 0
        self._update_load(node.name)

    def cordon(self, name: str, *, cordoned: bool) -> None:
        """Whether new pods may come; what is there stays."""
        self.engine.put_node(replace(self.engine.nodes[name], cordoned=cordoned))
        self.changed.add(name)

    def remove_node(self, name: str) -> None:
        """An empty node goes."""
        if self.on[name]:
            raise RuntimeError(f"node {name} still has {len(self.on[name])} pods")
        # homes kept on a node that goes are homes no more; their drains are called off by the loop
        for home in [home for home in self.reserved.values() if home.placement.node == name]:
            self.unreserve(home)
        self.engine.drop_node(name)
        del self.on[name], self.load[name], self.breaches[name]
        self.changed.add(name)

    def bind(self, pod: Pod, placement: Placement) -> Pod:
        """A pod takes its room; PlacementError, with nothing changed, where there is none."""
        self.engine.hold(pod.uid, pod.request, placement)
        bound = replace(pod, placement=placement, phase=Phase.RUNNING)
        self.pods[pod.uid] = self.on[placement.node][pod.uid] = bound
        self._update_load(placement.node)
        return bound

    def resize(self, step: ResizePod) -> Pod:
        """A pod is promised something else; PlacementError, with nothing changed, where there is no room for it."""
        pod = self.pods[step.pod]
        if pod.placement is None:
            raise RuntimeError(f"pod {pod.key} runs nowhere")
        before = pod.resize.parts if pod.resize is not None else parts_of(pod.request, pod.placement)
        parts = tuple(
            replace(part, slices=tuple(replace(at, bytes=step.card_bytes) for at in part.slices))
            if part.container == step.trial.container
            else part
            for part in before
        )
        each = max(step.reserved_bytes, sum(part.slices[0].bytes for part in parts))
        booked = replace(pod.placement, slices=tuple(replace(at, bytes=each) for at in pod.placement.slices))
        self.engine.release(pod.uid)
        try:
            self.engine.hold(pod.uid, pod.request, booked)
        except PlacementError:
            self.engine.hold(pod.uid, pod.request, pod.placement, force=True)
            raise
        cards = len(booked.slices)
        wanted = encode_wanted_memory(step.trial.container, step.card_bytes, step.reserved_bytes, cards, GIB)
        changed = Resize((pod.resize.generation if pod.resize else 0) + 1, each, pod.request.card_core, parts)
        resized = replace(pod, placement=booked, resize=changed, wanted_resize=wanted)
        self.pods[pod.uid] = self.on[booked.node][pod.uid] = resized
        self._update_load(booked.node)
        return resized

    def mark_deleting(self, pod: Pod) -> None:
        """A deletion was asked for; the room stays taken until `remove`."""
        self.pods[pod.uid] = ending = replace(pod, deleting=True)
        if pod.placement is not None:
            self.on[pod.placement.node][pod.uid] = ending

    def remove(self, uid: str) -> Pod:
        """A pod is gone, its room is free."""
        pod = self.pods.pop(uid)
        if pod.placement is not None:
            self.engine.release(uid)
            del self.on[pod.placement.node][uid]
            self._update_load(pod.placement.node)
        return pod

    def reserve(self, home: SuccessorReservation) -> None:
        """Keep room free for a pod that moves; PlacementError where there is none."""
        self.engine.hold(home.hold, home.request, home.placement)
        self.reserved[home.pod] = home

    def unreserve(self, home: SuccessorReservation) -> None:
        """Give it back."""
        self.engine.release(home.hold)
        del self.reserved[home.pod]

    def _update_load(self, name: str) -> None:
        held = [(pod.request, pod.placement) for pod in self.on[name].values() if pod.placement is not None]
        self.load[name] = compute_load(self.engine.nodes[name], held)
        self.changed.add(name)
