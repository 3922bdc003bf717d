# SPDX-License-Identifier: Apache-2.0
"""
What must never be, looked for in the truth: containers that run, records that were committed, what is left.

Every finding is a sentence with a moment, under one of the words of `KINDS`. The judge sees the machines
and the API server's store directly and at once, believes no program, and asks the programs themselves only
for what they hold at the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from isolation.contract.codec import CodecError, decode_allocation
from isolation.contract.codec.resize import ResizeCondition, decode_status
from isolation.contract.names import ALLOCATION, RESIZE_STATUS
from isolation.contract.nri_api import NriContainerState
from isolation.contract.quantity import GIB
from isolation.contract.reservation import reservation_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from interleave.kubelet import Kubelet
    from interleave.machine import Container, Machine
    from interleave.objects import Plan
    from interleave.server import Happened, Server, Thing

    from isolation.contract.codec import Allocation
    from isolation.contract.model import Slice

KINDS: Final = (
    "double_allocation",
    "double_booking",
    "wrong_card",
    "without_limits",
    "spoilt",
    "leaked",
    "wedged",
    "lost",
    "deleted",
    "units",
    "resize",
    "broken",
)
WEDGED_SECONDS: Final = 75.0
"""Longer than the longest back-off of the kubelet, and what leaves the card meanwhile."""
LOST_SECONDS: Final = 60.0
OLD_SECONDS: Final = 45.0
"""In which a changed record must be in force once the storm is over: longer than the longest back-off of a watch."""
ENDED: Final = ("Succeeded", "Failed")


@dataclass(slots=True)
class Judge:
    """See the module."""

    server: Server
    kubelets: Mapping[str, Kubelet]
    plans: Mapping[str, Plan]
    findings: list[tuple[float, str, str]] = field(default_factory=list)
    """When, of which kind, what."""
    records: dict[str, list[Allocation]] = field(default_factory=dict)
    """By pod, all it ever had; the last one counts."""
    progress: dict[str, float] = field(default_factory=dict)
    """When a pod last came on: bound, a container started or ended."""
    could: dict[str, float] = field(default_factory=dict)
    """Since when a waiting pod could have been placed."""
    calm_since: float = float("inf")
    """When the storm ended: in it a watch may be blind for longer."""
    changed: dict[str, float] = field(default_factory=dict)
    """When a pod's record last became another one."""
    longest: float = 0.0
    """Seconds that a bound pod has not come on at most."""
    started: int = 0
    bound: int = 0
    said: set[tuple[str, str]] = field(default_factory=set)

    def accuse(self, kind: str, about: str, text: str) -> None:
        """One finding, once."""
        if (kind, about) not in self.said:
            self.said.add((kind, about))
            self.findings.append((self.server.now(), kind, text))

    # Records.

    def saw(self, happened: Happened) -> None:
        """A commit of the API server."""
        before, after = happened.before, happened.after
        if happened.kind != "pods" or after is None or not after["spec"].get("nodeName"):
            return
        uid = after["metadata"]["uid"]
        if before is None or not before["spec"].get("nodeName"):
            self.bound += 1
            self.progress[uid] = self.server.now()
            self._booked(after)
        elif _record(before) != _record(after):
            self._booked(after)

    def _booked(self, pod: Thing) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        try:
            self.records.setdefault(uid, []).append(decode_allocation(_record(pod)))
        except CodecError as exc:
            self.accuse("wrong_card", uid, f"{name} was bound without a record: {exc}")
            return
        self.changed[uid] = self.server.now()
        node = pod["spec"]["nodeName"]
        for uuid, (have, offered) in self.booked(node).items():
            if have > offered:
                self.accuse("double_booking", f"{uuid} {uid}", f"{name} on {uuid}: {have >> 30} of {offered >> 30} GiB")

    def booked(self, node: str, record: int = -1) -> dict[str, tuple[int, int]]:
        """Bytes promised by records (the last, or the first that a pod had), and bytes offered, by card of a node."""
        cards = self.kubelets[node].machine.cards
        sums: Counter[str] = Counter()
        for pod in self.server.things["pods"].values():
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ENDED:
                for part in self.records[pod["metadata"]["uid"]][record].slices:
                    sums[part.uuid] += part.bytes
        return {card.uuid: (sums[card.uuid], card.allocatable_bytes) for card in cards}

    def held(self, node: str) -> dict[str, tuple[int, int]]:
        """The same as our scheduler counts it: a record that it has not changed itself books what the spec requests."""
        cards = self.kubelets[node].machine.cards
        sums: Counter[str] = Counter()
        for uid in self._here(node):
            last, first = self.records[uid][-1], self.records[uid][0]
            for part in (last if last.resize is not None else first).slices:
                sums[part.uuid] += part.bytes
        return {card.uuid: (sums[card.uuid], card.allocatable_bytes) for card in cards}

    def judge_units(self) -> None:
        """At rest: the kubelet can give what the cards have left, not a unit more or less; no resize is half done."""
        for node, kubelet in self.kubelets.items():
            asked = sum(self.plans[uid].asks for uid in self._here(node))
            free = len(kubelet.units.healthy) - asked
            left = sum(offered - have for have, offered in self.held(node).values()) // GIB
            if kubelet.plug is not None and free != left:
                self.accuse("units", node, f"{node}: the kubelet has {free} units to give, its cards {left}")
            for uid, why in kubelet.short:
                self.accuse("units", uid, f"{self.plans[uid].name} was rejected: {why}")
        for pod in self.server.things["pods"].values():
            status = pod["metadata"].get("annotations", {}).get(RESIZE_STATUS)
            if (
                status
                and pod["status"].get("phase") not in ENDED
                and decode_status(status).condition is ResizeCondition.IN_PROGRESS
            ):
                self.accuse("resize", pod["metadata"]["uid"], f"{pod['metadata']['name']}: {status}")

    def _here(self, node: str) -> list[str]:
        """UIDs of pods that are bound there and have not ended."""
        pods = self.server.things["pods"].values()
        here = (pod for pod in pods if pod["spec"].get("nodeName") == node)
        return [pod["metadata"]["uid"] for pod in here if pod["status"].get("phase") not in ENDED]

    # Containers.

    def container_started(self, machine: Machine, container: Container) -> None:
        """At its first moment."""
        self.started += 1
        uid = container.sandbox.uid
        self.progress[uid] = self.server.now()
        records = [_parts(record, container.name) for record in self.records.get(uid, ())]
        if not container.guarded:
            return
        name = self._name(machine, container)
        if container.files is None:
            self.accuse("without_limits", container.cid, f"{name}: nothing was delivered")
            return
        given = _shown(container.files.slices)
        if given not in records or container.cards != set(given):
            cards = ", ".join(sorted(container.cards))
            self.accuse("wrong_card", container.cid, f"{name}: records {records}, limits {given}, cards {cards}")
        self._judge_cards(machine)

    def container_spoilt(self, machine: Machine, container: Container) -> None:
        """It was prepared, and the guard refused it."""
        self.accuse("spoilt", container.cid, f"{self._name(machine, container)}: the guard does not find its mark")

    def _name(self, machine: Machine, container: Container) -> str:
        return f"{container.sandbox.name}/{container.name} on {machine.name}"

    def _judge_cards(self, machine: Machine) -> None:
        """Limits of one promise count once: all of its containers have one region."""
        sums: Counter[str] = Counter()
        for files in {id(one.files): one.files for one in machine.containers if one.files is not None}.values():
            sums.update({part.uuid: part.bytes for part in files.slices})
        for card in machine.cards:
            if sums[card.uuid] > card.allocatable_bytes:
                have = f"{sums[card.uuid] >> 30} of {card.allocatable_bytes >> 30} GiB"
                names = ", ".join(self._name(machine, one) for one in machine.containers if card.uuid in one.cards)
                self.accuse("double_allocation", f"{card.uuid} {names}", f"{card.uuid} has {have}: {names}")

    # At times.

    def look(self) -> bool:
        """About once a second; whether all is at rest: whoever is bound runs, whoever waits does not fit."""
        rest = True
        now = self.server.now()
        for name, kubelet in self.kubelets.items():
            for container in kubelet.machine.containers:
                rest &= self._judge_files(kubelet.machine, container)
            self._judge_cards(kubelet.machine)
            for pod in self._deletions(name):
                self.accuse("deleted", pod, f"{pod} was deleted by the agent of {name}")
        for pod in self.server.things["pods"].values():
            if pod["status"].get("phase") in ENDED or "deletionTimestamp" in pod["metadata"]:
                continue
            judge = self._judge_wedged if pod["spec"].get("nodeName") else self._judge_lost
            rest &= judge(pod, now)
        return rest

    def _deletions(self, node: str) -> Iterator[str]:
        """What the node's agent has deleted."""
        for who, what in self.server.writes:
            if who == f"agent {node}" and ("DELETE" in what or "eviction" in what):
                yield what

    def _judge_files(self, machine: Machine, container: Container) -> bool:
        """Whether what the container was given still stands, and is what it should have by now."""
        if container.files is None:
            return True
        name, uid, now = self._name(machine, container), container.sandbox.uid, self.server.now()
        if machine.disk.get(container.promise) is not container.files:
            self.accuse("without_limits", container.cid, f"{name} runs, and its files are gone")
        stays = any(pod["metadata"]["uid"] == uid for pod in self.server.things["pods"].values())
        has, wanted = _shown(container.files.slices), _parts(self.records[uid][-1], container.name)
        if has == wanted or not stays:
            return True
        if now - max(self.calm_since, self.changed[uid]) > OLD_SECONDS:
            self.accuse("wrong_card", container.cid, f"{name} has {has}, record {wanted}")
        return False

    def _judge_wedged(self, pod: Thing, now: float) -> bool:
        """Whether every app of a bound pod runs."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        runtime = self.kubelets[pod["spec"]["nodeName"]].runtime
        living = {one.name for one in runtime.of(uid) if one.state == NriContainerState.RUNNING}
        plan = self.plans[uid]
        missing = [box.name for box in plan.apps if box.name not in living]
        self.longest = max(self.longest, now - self.progress.get(uid, now))
        if not missing:
            self.progress[uid] = now
        elif now - self.progress.get(uid, now) > WEDGED_SECONDS:
            since = now - self.progress[uid]
            self.accuse("wedged", uid, f"{name}: {missing} not running for {since:.0f} s")
        return not missing

    def _judge_lost(self, pod: Thing, now: float) -> bool:
        """Whether a waiting pod has nowhere to go."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if not any(self._fits(self.plans[uid], node, {}) for node in self.kubelets):
            self.could.pop(uid, None)
            return True
        if not any(self._fits(self.plans[uid], node, self._kept(uid, node)) for node in self.kubelets):
            self.could.pop(uid, None)
            return False
        if now - self.could.setdefault(uid, now) > LOST_SECONDS:
            self.accuse("lost", uid, f"{name} waits since {self.could[uid]:.0f} although there is room")
        return False

    def _kept(self, uid: str, node: str) -> Mapping[str, int]:
        """Bytes of each card that others have reserved while somebody whom they evicted is still leaving the node."""
        kept: Counter[str] = Counter()
        pods = self.server.things["pods"].values()
        here = [pod for pod in pods if pod["spec"].get("nodeName") == node]
        if any("deletionTimestamp" in pod["metadata"] for pod in here):
            waiting = {pod["metadata"]["uid"] for pod in pods if not pod["spec"].get("nodeName")} - {uid}
            for made in map(reservation_of, self.server.things["reservations"].values()):
                if made.placement.node == node and made.holder in waiting:
                    kept.update({part.uuid: part.bytes for part in made.placement.slices})
        return kept

    def _fits(self, plan: Plan, node: str, kept: Mapping[str, int]) -> bool:
        kubelet = self.kubelets[node]
        if kubelet.plug is None:
            return False
        pods = self.server.things["pods"].values()
        here = [pod for pod in pods if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ENDED]
        asked = sum(self.plans[pod["metadata"]["uid"]].asks for pod in here)
        if asked + plan.asks > len(kubelet.units.healthy):
            return False
        free = [offered - have - kept.get(uuid, 0) for uuid, (have, offered) in self.held(node).items()]
        return sum(room >= plan.units * GIB for room in free) >= plan.cards


def _record(pod: Thing) -> str:
    return str(pod["metadata"].get("annotations", {}).get(ALLOCATION, ""))


def _parts(record: Allocation, container: str) -> Mapping[str, int]:
    return _shown(next((one.slices for one in record.parts if one.container == container), ()))


def _shown(slices: Iterable[Slice]) -> Mapping[str, int]:
    """Bytes by card."""
    return {part.uuid: part.bytes for part in slices}
