# SPDX-License-Identifier: Apache-2.0
"""
cluster-autoscaler's loop over a cluster and a cloud: the same calls in the same order, deciders from beside it.

Order, and how often every node is asked for its group, are those of 1.36 (core/static_autoscaler.go and what it calls):
eight times in a loop, nine where pods are to be served. Time is a clock's that may run faster than the wall's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from e2e.cluster_autoscaler import scale_down, scale_up
from e2e.cluster_autoscaler.cloud import CallError, sized
from e2e.cluster_autoscaler.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from e2e.cluster_autoscaler.cloud import Cloud
    from e2e.cluster_autoscaler.objects import Budget, Node, Pod
    from e2e.cluster_autoscaler.options import Options
    from e2e.cluster_autoscaler.scale_up import Group

log = logging.getLogger("cluster-autoscaler")
_EVICTION_RETRY = 10.0
_EVICTION_HEADROOM = 30.0
_LOOK_AGAIN = 5.0


class ClusterError(Exception):
    """The API server refused or did not answer."""


class Cluster(Protocol):
    """What is read and written of the API server; each raises ClusterError."""

    async def nodes(self) -> list[Node]:
        """All of them."""

    async def pods(self) -> list[Pod]:
        """All that have not ended."""

    async def budgets(self) -> list[Budget]:
        """All PodDisruptionBudgets."""

    async def mark(self, node: str, *, leaving: bool) -> None:
        """Set or remove the taint of a node that is to be deleted."""

    async def evict(self, pod: Pod, grace: float) -> None:
        """Through the Eviction API."""


class Clock(Protocol):
    """The autoscaler's own time."""

    def now(self) -> float:
        """Seconds."""

    def at(self, wall: float) -> float:
        """A time of the wall's clock as one of this."""

    async def sleep(self, seconds: float) -> None:
        """Of this clock."""


@dataclass(slots=True)
class Backoff:
    """One group that did not deliver."""

    until: float
    duration: float
    since: float


@dataclass(slots=True)
class State:
    """One loop's view of the groups."""

    groups: dict[str, Group] = field(default_factory=dict)
    of: dict[str, str] = field(default_factory=dict)
    upcoming: dict[str, int] = field(default_factory=dict)
    """Machines of each group that are not usable nodes yet."""
    starting: set[str] = field(default_factory=set)
    """Nodes that are there and not ready."""
    coming: set[str] = field(default_factory=set)
    """Names under which `upcoming` stands in the snapshot."""
    budgets: Sequence[Budget] = ()
    awaits_more: bool = False
    """All pods that wait are new: nothing is bought for them yet, and nothing is taken away."""


class Autoscaler:
    """See the module; `count` and `bought` are for tests."""

    def __init__(self, cluster: Cluster, cloud: Cloud, clock: Clock, options: Options) -> None:
        self._cluster, self._cloud, self._clock, self._options = cluster, cloud, clock, options
        self._memory = scale_down.Memory()
        self._clean = False
        self._backoffs: dict[str, Backoff] = {}
        self._requests: dict[str, float] = {}
        self._wrong_size: dict[str, tuple[int, float]] = {}
        self._unregistered: dict[str, float] = {}
        self._deleting: dict[str, asyncio.Task[None]] = {}
        self._last_scale_up = self._last_failure = float("-inf")
        self.count: Counter[str] = Counter()
        self.bought: Counter[str] = Counter()
        self.findings = scale_down.Findings()

    @property
    def scan_interval(self) -> float:
        """Seconds from loop to loop."""
        return self._options.scan_interval

    async def run(self) -> None:
        """Loop after loop."""
        while True:
            began = self._clock.now()
            try:
                await self.run_once()
                self.count["loops"] += 1
            except (CallError, ClusterError) as exc:
                self.count["loops given up"] += 1
                log.warning("loop given up: %s", exc)
            await self._clock.sleep(max(0.0, began + self._options.scan_interval - self._clock.now()))

    async def run_once(self) -> None:
        """One loop."""
        now, options = self._clock.now(), self._options
        nodes = await self._cluster.nodes()
        if not self._clean:
            await self._clean_up(nodes)
        pods = scale_up.seen(await self._cluster.pods(), options)
        budgets = await self._cluster.budgets()
        await self._cloud.gpu_label()
        await self._cloud.refresh()
        groups = await self._cloud.groups()
        templates = await self._templates(nodes, groups)
        state = await self._state(nodes, groups, templates, now)
        if not self._healthy(nodes):
            self._memory = scale_down.Memory()
            return
        if await self._mend(state, nodes, now):
            return
        snapshot = Snapshot((node for node in nodes if node.name not in state.starting), pods.allocated)
        state.budgets = budgets
        self._join(snapshot, state)
        young = scale_up.unserved(pods.unschedulable, snapshot, self._deleting)
        age = {pod.uid: now - self._clock.at(pod.created) for pod in young}
        waiting = scale_up.old_enough(young, age, options)
        state.awaits_more = scale_up.all_new(waiting, age)
        if waiting and not state.awaits_more and await self._buy_for(waiting, nodes, state, now):
            return
        if options.scale_down_enabled:
            await self._scale_down(nodes, snapshot, state, now)
        if options.enforce_node_group_min_size:
            await self._buy_minimum(nodes, state, now)

    # What there is.

    async def _clean_up(self, nodes: Sequence[Node]) -> None:
        """Marks of a life before."""
        for node in nodes:
            if await self._cloud.group_of(node) and node.being_deleted:
                await self._cluster.mark(node.name, leaving=False)
        self._clean = True

    async def _ask_all(self, nodes: Iterable[Node]) -> dict[str, str]:
        """Every node for its group; those of none are absent."""
        found = {node.name: await self._cloud.group_of(node) for node in nodes}
        return {name: group for name, group in found.items() if group}

    async def _templates(self, nodes: Sequence[Node], groups: Iterable[str]) -> dict[str, Node | None]:
        """A node of the group that is ready, else what the provider says."""
        found: dict[str, Node | None] = {}
        of = await self._ask_all(nodes)
        for node in nodes:
            group = of.get(node.name)
            if group and group not in found and node.ready and not node.unschedulable and not node.being_deleted:
                found[group] = node.fresh(f"template-{group}")
        for group in groups:
            if group not in found:
                found[group] = await self._cloud.template(group)
        return found

    async def _state(
        self, nodes: Sequence[Node], groups: Mapping[str, Group], templates: Mapping[str, Node | None], now: float
    ) -> State:
        state = State()
        for name, group in groups.items():
            backed_off = self._backed_off(name, now)
            whole = replace(await sized(self._cloud, group), template=templates.get(name), backed_off=backed_off)
            state.groups[name] = whole
        state.of = await self._ask_all(nodes)
        await self._ask_all(nodes)
        limit = self._options.max_node_provision_time
        for node in nodes:
            if node.name in state.of and not node.ready and now - self._clock.at(node.created) < limit:
                state.starting.add(node.name)
        for name, group in state.groups.items():
            here = [node for node in nodes if state.of.get(node.name) == name and node.name not in state.starting]
            state.upcoming[name] = max(0, group.target - len(here))
            request = self._requests.get(name)
            if request is not None and not state.upcoming[name]:
                del self._requests[name]
                self._backoffs.pop(name, None)
            elif request is not None and now - request > limit:
                del self._requests[name]
                self._fail(name, now)
        return state

    def _healthy(self, nodes: Sequence[Node]) -> bool:
        unready = sum(not node.ready for node in nodes)
        some = unready > self._options.ok_total_unready_count
        return not (some and unready > len(nodes) * self._options.max_total_unready_percentage / 100)

    async def _mend(self, state: State, nodes: Sequence[Node], now: float) -> bool:
        """Machines that never came or came broken are given back; a target that nobody reaches is lowered."""
        known = {node.provider_id for node in nodes}
        fixed = False
        for name, group in state.groups.items():
            instances = await self._cloud.instances(name, now)
            failed = [one for one in instances if one.creating and one.trouble]
            if failed:
                self._requests.pop(name, None)
                self._fail(name, now)
                await self._give_back(name, [one.id for one in failed])
            late = []
            for one in instances:
                if one.id in known or one in failed:
                    self._unregistered.pop(one.id, None)
                elif now - self._unregistered.setdefault(one.id, now) > self._options.max_node_provision_time:
                    late.append(one.id)
            if late and group.target - len(late) >= group.min_size:
                await self._give_back(name, late)
            missing = group.target - len(instances)
            wrong, since = self._wrong_size.get(name, (0, now))
            if missing <= 0 or wrong != missing:
                self._wrong_size[name] = (max(0, missing), now)
            elif now - since > self._options.max_node_provision_time:
                await self._cloud.decrease(name, missing)
                del self._wrong_size[name]
                fixed = True
        return fixed

    async def _give_back(self, group: str, ids: Sequence[str]) -> None:
        try:
            await self._cloud.delete(group, [(ident, ident) for ident in ids])
        except CallError as exc:
            log.warning("cannot give %s of %s back: %s", ids, group, exc)

    def _join(self, snapshot: Snapshot, state: State) -> None:
        """Nodes that are coming, as if they were there."""
        for group, count in state.upcoming.items():
            template = state.groups[group].template
            if template is not None:
                for node in (template.fresh(f"upcoming-{group}-{at}") for at in range(count)):
                    snapshot.join(node)
                    state.coming.add(node.name)

    # What is bought.

    async def _buy_for(self, waiting: Sequence[Pod], nodes: Sequence[Node], state: State, now: float) -> bool:
        await self._ask_all(nodes)
        groups = [await sized(self._cloud, group) for group in state.groups.values()]
        found = scale_up.options_for(waiting, groups, self._options)
        chosen = scale_up.least_waste(await self._cloud.best(found)) if found else None
        if chosen is None:
            return False
        log.info("buying %s of %s for %s", chosen.count, chosen.group, [pod.name for pod in chosen.pods])
        await self._increase(chosen.group, chosen.count, now)
        return True

    async def _buy_minimum(self, nodes: Sequence[Node], state: State, now: float) -> None:
        await self._ask_all(nodes)
        for group in state.groups.values():
            target = await self._cloud.target(group.name)
            if target >= group.min_size or group.backed_off or group.template is None:
                continue
            log.info("raising %s from %s to its minimum of %s", group.name, target, group.min_size)
            await self._increase(group.name, min(group.min_size, group.max_size) - target, now)

    async def _increase(self, group: str, by: int, now: float) -> None:
        try:
            await self._cloud.increase(group, by)
        except CallError as exc:
            log.warning("cannot buy %s of %s: %s", by, group, exc)
            self._fail(group, now)
            return
        self.bought[group] += by
        self._requests[group] = now
        self._last_scale_up = now

    def _fail(self, group: str, now: float) -> None:
        options, old = self._options, self._backoffs.get(group)
        if old is not None and now < old.until:
            return
        duration = options.initial_node_group_backoff_duration
        if old is not None and now - old.since < options.node_group_backoff_reset_timeout:
            duration = min(old.duration * 2, options.max_node_group_backoff_duration)
        self._backoffs[group] = Backoff(now + duration, duration, now)
        self.count["backoffs"] += 1

    def _backed_off(self, group: str, now: float) -> bool:
        return group in self._backoffs and now < self._backoffs[group].until

    # What is given back.

    async def _scale_down(self, nodes: Sequence[Node], snapshot: Snapshot, state: State, now: float) -> None:
        options = self._options
        for _ in range(4):  # candidates, their order, limits, soft taints
            of = await self._ask_all(nodes)
        situation = scale_down.Situation(snapshot, state.groups, of, state.budgets, tuple(self._deleting), state.coming)
        self.findings, self._memory = scale_down.find(situation, self._memory, options, now)
        cool = now - self._last_scale_up >= options.scale_down_delay_after_add
        if state.awaits_more or not cool or now - self._last_failure < options.scale_down_delay_after_failure:
            return
        leaving = scale_down.due(self.findings, self._memory, situation, options, now)
        by_name = {node.name: node for node in nodes}
        for name in leaving:
            log.info("removing %s, evicting %s", name, [pod.name for pod in self.findings.moves[name]])
            await self._cluster.mark(name, leaving=True)
        for name in leaving:
            work = self._delete(by_name[name], of[name], drain=bool(self.findings.moves[name]))
            self._deleting[name] = asyncio.create_task(work)
            self._deleting[name].add_done_callback(lambda _, name=name: self._deleting.pop(name, None))

    async def _delete(self, node: Node, group: str, *, drain: bool) -> None:
        """One node to its end; whatever fails opens it again."""
        try:
            await self._empty(node, drain=drain)
            await self._cloud.delete(group, [(node.provider_id, node.name)])
            self.count["nodes deleted"] += 1
            log.info("deleted %s", node.name)
        except (CallError, ClusterError) as exc:
            log.warning("cannot delete %s: %s", node.name, exc)
            self.count["deletions given up"] += 1
            self._last_failure = self._clock.now()
            try:
                await self._cluster.mark(node.name, leaving=False)
            except ClusterError as refused:
                log.warning("cannot open %s again: %s", node.name, refused)

    async def _empty(self, node: Node, *, drain: bool) -> None:
        """Evict; here every pod of the node counts, whoever schedules it."""
        now, options = self._clock.now(), self._options
        budgets = await self._cluster.budgets()
        moving = [pod for pod in await self._cluster.pods() if pod.node == node.name]
        moving = [pod for pod in moving if scale_down.blocked(pod, budgets, options, now) is not None]
        for pod in moving:
            why = scale_down.blocked(pod, budgets, options, now)
            if why:
                raise ClusterError(f"{pod.namespace}/{pod.name} on {node.name}: {why}")
        if moving and not drain:
            raise ClusterError(f"{node.name} is not empty: new pods got scheduled")
        await asyncio.gather(*(self._evict(pod) for pod in moving))
        end = self._clock.now() + options.max_graceful_termination + _EVICTION_HEADROOM
        uids = {pod.uid for pod in moving}
        while uids & {pod.uid for pod in await self._cluster.pods() if pod.node == node.name}:
            if self._clock.now() > end:
                raise ClusterError(f"pods remain on {node.name}")
            await self._clock.sleep(_LOOK_AGAIN)

    async def _evict(self, pod: Pod) -> None:
        end = self._clock.now() + self._options.max_pod_eviction_time
        grace = float(pod.spec.get("terminationGracePeriodSeconds", 30))
        while True:
            try:
                await self._cluster.evict(pod, min(grace, self._options.max_graceful_termination))
            except ClusterError:
                if self._clock.now() >= end:
                    raise
                await self._clock.sleep(_EVICTION_RETRY)
            else:
                self.count["evictions"] += 1
                log.info("evicted %s/%s", pod.namespace, pod.name)
                return
