# SPDX-License-Identifier: Apache-2.0
"""
The agent's answers to the container runtime: what each container gets, and when its part of the card is free again.

All from memory and this node's files: no question to the API server is asked while the runtime waits. What cannot be
known now is refused with the reason; the kubelet tries again. What a pod may have is the word of the API server's watch
where that has one, else the annotation that its sandbox was made with. That annotation is frozen: of a sandbox older
than this agent it counts only until the watch is in step, and meanwhile a container gets what it had before.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from isolation.contract.host_allocation import Tenant
from isolation.contract.model import Mode
from isolation.contract.names import ACK, START_NONCE
from isolation.contract.nri_api import VOID, NriContainerState
from isolation.node.backend import UndeliverableError
from isolation.node.core.container_check import (
    Given,
    NodeFacts,
    check_other,
    check_room,
    check_share,
    may_see_cards,
    record_of,
    share_of,
)
from isolation.node.delivery import promise_id
from isolation.node.image_check import Root
from isolation.node.nri.model import Adjustment, NriRefusedError
from isolation.node.overlimit import end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.contract import codec
    from isolation.contract.model import Card, Slice
    from isolation.node.allocations import Allocations, TenantAllocation
    from isolation.node.bound import Bound
    from isolation.node.cdi import Mount
    from isolation.node.delivery import Delivery
    from isolation.node.guard_device import GuardDevice
    from isolation.node.memory_limits import LimitKeeper
    from isolation.node.mps.backend import MpsClients
    from isolation.node.nri.model import Container, Sandbox
    from isolation.node.resizing import Resizing

_log: Final = logging.getLogger(__name__)
_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LOCKS: Final = 64
FAULT_SECONDS: Final = 60.0
"""The kubelet has tried again by then, and failed for the same reason, or the pod is gone."""
REFUSE: Final = "refuse"
ALLOW: Final = "allow"


class Inventory(Protocol):
    """This node: its cards and what it serves."""

    def cards(self) -> Sequence[Card]:
        """Every card that was ever seen."""

    def mode(self) -> Mode:
        """What the node's label says."""

    def whole(self) -> bool:
        """Whether somebody offers whole cards here."""


class Pods(Protocol):
    """Pods of this node, by the API server's watch; from memory."""

    def get(self, uid: str) -> Bound | None:
        """None: the watch does not show it, or it has ended."""

    def synced(self) -> bool:
        """Whether the watch has shown every pod once, and still runs."""

    def exempt(self) -> frozenset[str] | None:
        """Namespaces of system software; None: not known yet."""

    def unisolated(self) -> frozenset[str]:
        """Namespaces whose containers may switch their isolation off, as far as they are known."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Whom the answers come from."""

    pods: Pods
    inventory: Inventory
    allocations: Allocations
    delivery: Delivery
    guard_device: GuardDevice
    resizing: Resizing | None = None
    """None: changed records are followed at once."""


class Containers:
    """See the module; fulfils `nri.model.Handler`."""

    def __init__(
        self,
        parts: Parts,
        unsupported: str = REFUSE,
        proc: str = "/proc",
        keeper: LimitKeeper | None = None,
        mps: MpsClients | None = None,
    ) -> None:
        """`unsupported`: what becomes of an image whose loader reads no /etc/ld.so.preload."""
        self._keeper, self._mps = keeper, mps
        self._pods, self._inventory, self._allocations = parts.pods, parts.inventory, parts.allocations
        self._delivery, self._guard_device = parts.delivery, parts.guard_device
        self._unsupported, self._proc = unsupported, proc
        self._resizing = parts.resizing
        self._locks = tuple(threading.Lock() for _ in range(_LOCKS))
        self._judging = threading.Lock()
        self._mounts: dict[str, tuple[Mount, ...]] = {}
        """Of containers that were delivered and have not ended, by the runtime's id."""
        self._creating: set[str] = set()
        self._late: set[str] = set()
        """Of those that are being created, the ones that the runtime has given up meanwhile; by its ids."""
        self._older: frozenset[str] | None = None
        """Sandboxes that are older than this agent."""
        self._fault = ("", 0.0)

    def load(self) -> None:
        """Before anything else: promises that stand on the disk. What cannot be read, or is of another boot, goes."""
        for ident, hold in tuple(self._delivery.standing()):
            if hold is None:
                self._delivery.retire(ident)
            else:
                self._allocations.load([hold])

    def synchronize(self, sandboxes: Sequence[Sandbox], containers: Sequence[Container]) -> None:
        """See `Handler`."""
        if self._older is None:
            self._older = frozenset(one.id for one in sandboxes)
        self._late |= self._creating.difference(one.id for one in containers)
        self._allocations.runtime_has(containers, sandboxes)
        known = {one.id for one in containers if one.runs}
        self._mounts = {ident: mounts for ident, mounts in self._mounts.items() if ident in known}
        self._guard_device.sweep(lambda: known)
        for one in containers:
            if one.runs and START_NONCE in one.annotations:
                self._recall(one)
            if one.runs and one.state != NriContainerState.CREATED and self._unprepared(one):
                self._end(one)

    def create(self, container: Container) -> Adjustment | None:
        """See `Handler`."""
        self._creating.add(container.id)
        self._allocations.named(container)
        try:
            return self._create(container)
        finally:
            self._creating.discard(container.id)
            if container.id in self._late:  # our answer came after its deadline, and after the word that it is gone
                self._late.discard(container.id)
                self.gone(container, removed=True)

    def _create(self, container: Container) -> Adjustment | None:
        sandbox = container.sandbox
        record, guarded = self._record(sandbox), self._guard_device.is_guarded(container.hooks)
        node = self._node()
        if not guarded and share_of(container, record) is None:
            closes = node.shares and check_other(container, node.exempt)
            return Adjustment(env={ACK.env_visible: VOID}) if closes else None
        if not _UID.fullmatch(sandbox.uid) or not _NAME.fullmatch(container.name):
            raise NriRefusedError(
                f"{container.key}: the container runtime names the pod by an invalid UID or container"
            )
        tenant = _tenant(container)
        ident = promise_id(tenant)
        with self._lock(ident):
            before = self._allocations.get(ident)
            with self._judging:  # what one is given, the next one must see
                given = self._judge(container, record, node, before)
                allocation = self._allocations.creates(tenant, given, container.id, container.sandbox.id)
            try:
                delivered = self._delivery.deliver(tenant, given, node.cards)
                allocation.given = replace(given, enforced=delivered.hold.enforced)
                mounts = delivered.edits.guarded if delivered.hold.enforced else ()
                annotations = self._guard_device.mark(container.id, mounts, delivered.limits)
            except (UndeliverableError, OSError) as exc:
                self._allocations.gone(container)
                self._fault = (str(exc), time.monotonic())
                _log.error("cannot start container %s: %s", container.key, exc)
                raise NriRefusedError(f"{container.key}: {exc}") from None
        self._fault = ("", 0.0)
        self._mounts[container.id] = mounts
        edits = delivered.edits
        hook = () if guarded else self._guard_device.hook
        return Adjustment(edits.env, edits.mounts, edits.devices, annotations, hook, edits.injected)

    def start(self, container: Container) -> None:
        """See `Handler`. A second look, also at what was created while nobody was connected."""
        try:
            self._look(container, min(self._pids(container), default=0))
        except NriRefusedError as exc:
            if not container.pid:  # CRI-O names no process, and starts the container in spite of an error
                _log.error("ending container %s before its start: %s", container.key, exc)
                end(lambda: self._pids(container))
            raise

    def _look(self, container: Container, pid: int) -> None:
        mounts = self._mounts.get(container.id)
        if mounts is None:
            if self._unprepared(container) and may_see_cards(container):
                raise NriRefusedError(
                    f"{container.key}: the container was created while the node agent was not connected to the "
                    "container runtime; the kubelet creates it again"
                )
            return
        if not mounts:
            return
        try:
            with Root(pid, self._proc) as root:
                hidden, problem = root.hidden(mounts), root.preload_problem()
        except OSError as exc:
            raise NriRefusedError(f"{container.key}: cannot look into the container: {exc.strerror}") from None
        if hidden:
            raise NriRefusedError(f"{container.key}: the image or a volume of the pod hides {hidden}")
        if problem and self._unsupported == REFUSE:
            raise NriRefusedError(
                f"{container.key}: limits cannot be enforced: {problem}; use an image with glibc 2.17 or newer"
            )
        if problem:
            _log.warning("container %s runs without limits: %s", container.key, problem)
            self._record_unlimited(promise_id(_tenant(container)))

    def gone(self, container: Container, *, removed: bool) -> None:
        """See `Handler`."""
        if container.id in self._creating:
            self._late.add(container.id)
        self._allocations.gone(container)
        if self._mps is not None:
            self._mps.gone(container.id)
        if why := self._guard_device.forget(container.id):
            _log.warning("the guard refused to start container %s: %s", container.key, why)
        if removed:
            self._mounts.pop(container.id, None)

    def tidy(self) -> None:
        """What is due once a second: parts of pods that are gone, init containers that have ended, changed records."""
        if not self._pods.synced() or self._older is None:
            return
        for allocation in self._allocations.all():
            with self._lock(allocation.id):
                pod = self._pods.get(allocation.tenant.uid)
                if pod is None:
                    self._allocations.end_unstarted(allocation)
                    if not self._allocations.is_in_force(allocation):
                        self._delivery.retire(allocation.id)
                        self._allocations.drop(allocation.id)
                    continue
                if allocation.renewed:
                    self._allocations.end_unstarted(allocation)
                self._uncount(allocation, pod)
                self._follow(allocation, pod)
                self._restore(allocation)
                if self._keeper is not None and allocation.given.enforced:
                    self._keeper.keep(allocation.key, allocation.tenant.uid, tuple(allocation.runs), allocation.slices)
                if self._mps is not None and allocation.runs:
                    self._mps.keep(allocation)
        for ident, _ in tuple(self._delivery.standing()):
            with self._lock(ident):
                if self._allocations.get(ident) is None:
                    self._delivery.retire(ident)
        self._guard_device.sweep(lambda: {container for one in self._allocations.all() for container in one.runs})

    @property
    def fault(self) -> str:
        """What kept the last container with a share from starting here, a moment ago; empty: nothing."""
        text, when = self._fault
        return text if time.monotonic() - when < FAULT_SECONDS else ""

    def _lock(self, ident: str) -> threading.Lock:
        """Files of one container are written and removed by one thread at a time."""
        return self._locks[hash(ident) % _LOCKS]

    # What is known.

    def _record(self, sandbox: Sandbox) -> codec.Allocation | None:
        pod = self._pods.get(sandbox.uid)
        if pod is not None:
            return pod.allocation
        return record_of(sandbox)

    def _judge(
        self, container: Container, record: codec.Allocation | None, node: NodeFacts, before: TenantAllocation | None
    ) -> Given:
        had = before.given if before is not None else None
        others = self._allocations.in_force(but=promise_id(_tenant(container)))
        older = self._older is None or container.sandbox.id in self._older
        if not older or self._pods.synced() or self._pods.get(container.sandbox.uid) is not None:
            given = check_share(container, record, node, had, others)
            pod = self._pods.get(container.sandbox.uid)
            if had is None or pod is None or self._may_have(pod, had.slices, given.slices):
                return given
            return replace(given, slices=had.slices)  # the larger limits follow
        if had is None:
            raise NriRefusedError(
                f"{container.key}: the pod is older than this node agent, which has not reached the API server since "
                "it started: its allocation may have changed; the kubelet will retry"
            )
        check_room(container.key, had.slices, node.cards, others)
        return had

    def _node(self) -> NodeFacts:
        inventory = self._inventory
        cards = {card.uuid: card for card in inventory.cards()}
        return NodeFacts(inventory.mode(), inventory.whole(), cards, self._pods.exempt(), self._pods.unisolated())

    def _record_unlimited(self, ident: str) -> None:
        """The exporter shows the policy `none` for a container in which nothing enforces limits."""
        with self._lock(ident):
            known = self._allocations.get(ident)
            if known is not None and known.given.enforced:
                known.given = replace(known.given, enforced=False)
                with contextlib.suppress(UndeliverableError):
                    self._delivery.change(known.tenant, known.given, {})

    def _unprepared(self, container: Container) -> bool:
        """Whether a container should have a share and was not given it: the kubelet ran it before it knew of us."""
        if container.id in self._mounts or START_NONCE in container.annotations:
            return False
        known = self._allocations.get(promise_id(_tenant(container)))
        return bool(share_of(container, self._record(container.sandbox))) and known is None

    def _recall(self, container: Container) -> None:
        """One that an agent prepared, of which nothing stands on the disk any more: it has what its record says."""
        record = self._record(container.sandbox)
        share, tenant = share_of(container, record), _tenant(container)
        if record and share and self._allocations.get(promise_id(tenant)) is None:
            given = Given(share, self._inventory.mode() is not Mode.SHARE, record.compute, record.trust)
            self._allocations.creates(tenant, given, container.id, container.sandbox.id)

    def _end(self, container: Container) -> None:
        """What may see a card must not run without limits; what sees none is left to its owner."""
        advice = "the kubelet started it before it knew of shared memory; its next start gets its share"
        if not may_see_cards(container):
            _log.warning("container %s runs without its card: %s", container.key, advice)
            return
        _log.warning("ending container %s, which runs without limits: %s", container.key, advice)
        end(lambda: self._pids(container))

    def _pids(self, container: Container) -> frozenset[int]:
        """Its first process, else all of them; empty: none that can be found."""
        if container.pid:
            return frozenset({container.pid})
        return self._allocations.processes_of(container)

    # What follows the watch.

    def _uncount(self, allocation: TenantAllocation, pod: Bound) -> None:
        """An init container that has ended gives its promise back; the containers after it have their own."""
        wanted = pod.container(allocation.tenant.container)
        ended = wanted is not None and wanted.init and wanted.done
        if allocation.counted and ended and not self._allocations.is_in_force(allocation):
            self._delivery.uncount(allocation.id)
            allocation.counted = False

    def _follow(self, allocation: TenantAllocation, pod: Bound) -> None:
        """A record that was changed while the container runs: other limits on the same cards."""
        part = pod.part(allocation.tenant.container)
        if part is None or pod.allocation is None or not allocation.runs:
            return
        given, resizing = allocation.given, self._resizing
        wanted = replace(given, slices=part, compute=pod.allocation.compute if given.enforced else given.compute)
        if resizing is not None and (had := resizing.second_look(allocation, part)) is not None:
            # It was faster than the smaller limits, which would only refuse it everything.
            self._change(allocation, had)
            return
        if wanted == given or [one.uuid for one in part] != [one.uuid for one in allocation.slices]:
            return  # other cards come with the next start
        if self._mps is not None and resizing and (why := self._mps.needs_restart(allocation, part)):
            resizing.hinders(allocation, why)  # its next start gets them
            return
        shrinks = any(one.bytes < had.bytes for one, had in zip(part, given.slices, strict=True))
        if not self._may_have(pod, given.slices, part) or (shrinks and resizing and resizing.in_use(allocation, part)):
            return  # looked at again in a second
        if self._change(allocation, wanted):
            _log.info("changed the limits of %s", allocation.key)
            if shrinks and resizing is not None:
                resizing.lowered(allocation, given)

    def _change(self, allocation: TenantAllocation, wanted: Given) -> bool:
        """Put other limits in force."""
        cards = {card.uuid: card for card in self._inventory.cards()}
        try:
            with self._judging:
                check_room(allocation.key, wanted.slices, cards, self._allocations.in_force(but=allocation.id))
                self._delivery.change(allocation.tenant, wanted, cards)
                allocation.given = wanted
        except (NriRefusedError, UndeliverableError) as exc:
            _log.error("cannot change the limits of %s: %s", allocation.key, exc)
            if self._resizing is not None:
                self._resizing.hinders(allocation, str(exc))
            return False
        return True

    def _may_have(self, pod: Bound, had: Sequence[Slice], part: Sequence[Slice]) -> bool:
        """Whether these limits may be in force after those: larger ones once the kubelet counts by them."""
        grows = any(one.bytes > before.bytes for one, before in zip(part, had, strict=False))
        return not grows or self._resizing is None or self._resizing.may_grow(pod)

    def _restore(self, allocation: TenantAllocation) -> None:
        """Files that somebody removed, so that the exporter sees the promise of a container that runs."""
        if allocation.runs and allocation.counted and not self._delivery.stands(allocation.id):
            cards = {card.uuid: card for card in self._inventory.cards()}
            with contextlib.suppress(UndeliverableError):  # tried again in a second
                self._delivery.deliver(allocation.tenant, allocation.given, cards)


def _tenant(container: Container) -> Tenant:
    sandbox = container.sandbox
    return Tenant(sandbox.namespace, sandbox.name, sandbox.uid, container.name)
