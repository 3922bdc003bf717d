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
from isolation.contract.names import ALLOCATION
from isolation.contract.quantity import GIB
from isolation.contract.reservation import reservation_of
from isolation.node.book import Book, card_of, hash_of, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from interleave.kubelet import Kubelet
    from interleave.machine import Container, Machine
    from interleave.objects import Plan
    from interleave.server import Happened, Server, Thing

    from isolation.contract.codec import Allocation

KINDS: Final = (
    "double_allocation",
    "double_booking",
    "wrong_card",
    "torn",
    "leaked",
    "wedged",
    "lost",
    "broken",
)
WEDGED_SECONDS: Final = 60.0
LOST_SECONDS: Final = 60.0
MISNAMED_SECONDS: Final = 20.0
"""Longer than any outage: the API server tells that an init container has ended."""
ENDED: Final = ("Succeeded", "Failed")


@dataclass(slots=True)
class Judge:
    """See the module."""

    server: Server
    kubelets: Mapping[str, Kubelet]
    plans: Mapping[str, Plan]
    findings: list[tuple[float, str, str]] = field(default_factory=list)
    """When, of which kind, what."""
    records: dict[str, Allocation] = field(default_factory=dict)
    progress: dict[str, float] = field(default_factory=dict)
    """When a pod last came on: bound, a container started or ended."""
    could: dict[str, float] = field(default_factory=dict)
    """Since when a waiting pod could have been placed."""
    calm_since: float = float("inf")
    """When the storm ended: in it a watch may be blind for longer."""
    misnamed: dict[str, float] = field(default_factory=dict)
    """Since when a container runs under its predecessor's name."""
    classic: bool = False
    """Whether the programs under judgement are the old ones: no book, no delivery."""
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

    def _booked(self, pod: Thing) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        try:
            self.records[uid] = decode_allocation(pod["metadata"].get("annotations", {}).get(ALLOCATION, ""))
        except CodecError as exc:
            self.accuse("wrong_card", uid, f"{name} was bound without a record: {exc}")
            return
        node = pod["spec"]["nodeName"]
        for uuid, (have, offered) in self.booked(node).items():
            if have > offered:
                self.accuse("double_booking", f"{uuid} {uid}", f"{name} on {uuid}: {have >> 30} of {offered >> 30} GiB")

    def booked(self, node: str) -> dict[str, tuple[int, int]]:
        """Bytes promised by records, and bytes offered, of each card of a node."""
        cards = self.kubelets[node].machine.cards
        sums: Counter[str] = Counter()
        for pod in self.server.things["pods"].values():
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ENDED:
                record = self.records.get(pod["metadata"]["uid"])
                for part in record.slices if record else ():
                    sums[part.uuid] += part.bytes
        return {card.uuid: (sums[card.uuid], card.allocatable_bytes) for card in cards}

    # Containers.

    def container_started(self, machine: Machine, container: Container) -> None:
        """At its first moment."""
        self.started += 1
        self.progress[container.uid] = self.server.now()
        if not container.ids:
            return
        self._judge_card(machine, container)
        self._judge_rivals(machine, container)
        if not self.classic:
            self._judge_book(machine, container)

    def _judge_card(self, machine: Machine, container: Container) -> None:
        name = f"{self.plans[container.uid].name}/{container.name} on {machine.name}"
        record = self.records.get(container.uid)
        part = next((one.slices for one in record.parts if one.container == container.name), ()) if record else ()
        wanted = {one.uuid: one.bytes for one in part}
        given = {one.uuid: one.bytes for one in container.slices}
        units = {card: count * GIB for card, count in Counter(map(card_of, container.ids)).items()}
        if wanted != given:
            self.accuse("wrong_card", container.cid, f"{name}: record {_show(wanted)}, container {_show(given)}")
        elif wanted != units and not self.classic:
            self.accuse("wrong_card", container.cid, f"{name}: record {_show(wanted)}, devices {_show(units)}")
        listed = self.kubelets[machine.name].shown(self.plans[container.uid].name) or {}
        cards = {card_of(one) for one in listed.get(container.name, ())}
        if not self.classic and not cards <= set(wanted):
            self.accuse("wrong_card", container.cid, f"{name}: the kubelet lists {sorted(cards)}")

    def _judge_rivals(self, machine: Machine, container: Container) -> None:
        name = f"{self.plans[container.uid].name}/{container.name} on {machine.name}"
        sums: Counter[str] = Counter()
        for one in machine.containers:
            for part in one.slices:
                sums[part.uuid] += part.bytes
            twice = set(one.ids) & set(container.ids)
            if one is not container and twice and not self.classic:
                other = f"{self.plans[one.uid].name}/{one.name}"
                self.accuse("double_allocation", container.cid, f"{name} and {other} both have {min(twice)}")
        for card in machine.cards:
            if sums[card.uuid] > card.allocatable_bytes:
                have = f"{sums[card.uuid] >> 30} of {card.allocatable_bytes >> 30} GiB"
                self.accuse("double_allocation", f"{card.uuid} {container.cid}", f"{name}: {card.uuid} has {have}")

    def _judge_book(self, machine: Machine, container: Container) -> None:
        name = f"{self.plans[container.uid].name}/{container.name} on {machine.name}"
        book = load(machine.book) if machine.book else Book()
        found = book.get(container.uid, container.name)
        if found is None or found.ids != frozenset(container.ids):
            self.accuse("wrong_card", container.cid, f"{name}: the book on the disk does not say so")
        # An init container and the app after it may have the very same devices; then nobody can tell at this
        # moment whose turn it is, the amounts are the same, and the name is put right later (`_judge_files`).
        mine = (one for one in book.exactly(frozenset(container.ids)) if one.uid == container.uid)
        same = {f"{one.uid}.{one.container}" for one in mine}
        if container.promise not in same:
            self.accuse("wrong_card", container.cid, f"{name}: its files promise {container.promise}")

    # At times.

    def look(self) -> bool:
        """About once a second; whether all is at rest: whoever is bound runs, whoever waits does not fit."""
        rest = True
        now = self.server.now()
        for name, kubelet in self.kubelets.items():
            for container in kubelet.machine.containers:
                self._judge_files(name, kubelet.machine, container)
        for pod in self.server.things["pods"].values():
            if pod["status"].get("phase") in ENDED or "deletionTimestamp" in pod["metadata"]:
                continue
            judge = self._judge_wedged if pod["spec"].get("nodeName") else self._judge_lost
            rest &= judge(pod, now)
        return rest

    def _judge_files(self, node: str, machine: Machine, container: Container) -> None:
        if self.classic or not container.ids:
            return
        stands = machine.delivered.get(hash_of(container.ids))
        name = f"{self.plans[container.uid].name}/{container.name} on {node}"
        if stands is None or not stands.hold or stands.promise.partition(".")[0] != container.uid:
            is_now = "nothing" if stands is None else f"{stands.promise} (hold {stands.hold})"
            self.accuse("torn", container.cid, f"{name} runs, and its files are those of {is_now}")
        elif stands.promise != f"{container.uid}.{container.name}":
            since = max(self.calm_since, self.misnamed.setdefault(container.cid, self.server.now()))
            if self.server.now() - since > MISNAMED_SECONDS:
                self.accuse("torn", container.cid, f"{name} runs as {stands.promise} since {since:.0f}")

    def _judge_wedged(self, pod: Thing, now: float) -> bool:
        """Whether every app of a bound pod runs."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        machine = self.kubelets[pod["spec"]["nodeName"]].machine
        living = {one.name for one in machine.living(uid)}
        plan = self.plans[uid]
        missing = [box.name for box in plan.apps if box.name not in living]
        self.longest = max(self.longest, now - self.progress.get(uid, now))
        if not missing:
            self.progress[uid] = now
        elif now - self.progress.get(uid, now) > WEDGED_SECONDS:
            since = now - self.progress[uid]
            self.accuse("wedged", uid, f"{name} on {machine.name}: {missing} not running for {since:.0f} s")
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
        free = [offered - have - kept.get(uuid, 0) for uuid, (have, offered) in self.booked(node).items()]
        return sum(room >= plan.units * GIB for room in free) >= plan.cards


def _show(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{uuid}: {size >> 30}" for uuid, size in sorted(parts.items())) or "nothing"
