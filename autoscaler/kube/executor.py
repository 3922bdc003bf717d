# SPDX-License-Identifier: Apache-2.0
"""
Steps of a plan as real calls: each with a deadline, each asked for right before it is made, each safe to repeat.

Decides what a step is outside and in which order its parts come, so that whoever ends in between leaves something that
the next one understands: room is reserved before a node is marked, marked before anybody is evicted; its removal is
written into the mark, and its pods are listed past every cache, before it is given back. A refusal of the cluster or
of a provider is a value. Whether a step is wise was decided in the plan.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autoscaler.core.lifecycle import MachineState, PoolMachine
from autoscaler.core.observation import Nomination
from autoscaler.core.plan import (
    CancelDrain,
    CancelScaleUp,
    Drain,
    Evict,
    Move,
    RemoveFailedNode,
    RemoveNode,
    ResizePod,
    ScaleUp,
    get_action,
)
from autoscaler.kube.core.conditions import Condition, ConditionKind
from autoscaler.kube.drain_marks import DrainMarks
from autoscaler.kube.evictions import Evictions
from autoscaler.kube.node_pods import find_node
from autoscaler.kube.planned_nodes import PlannedNodes
from autoscaler.kube.resizes import resize_pod
from autoscaler.kube.step_context import RefusedStepError, StepContext
from autoscaler.providers.base import ChangedError, DeniedError, OutOfStockError, ProviderError
from isolation.contract.model import Refusal, Why
from isolation.kube.core.errors import ClusterError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.plan import Step
    from autoscaler.kube.observe.observed_cluster import ObservedCluster
    from autoscaler.kube.state import ControllerState

log = logging.getLogger(__name__)

_MAX_CONDITIONS: Final = 20
_NO_POD_WAITS: Final = Refusal(Why.NOT_READY, "its pods no longer wait")


class Executor:
    """Carries out steps; knows what this cycle has done already."""

    def __init__(self, context: StepContext, limits: ScalingLimits) -> None:
        self._context, self._limits = context, limits
        self._marks, self._evictions = DrainMarks(context), Evictions(context, limits)
        self._planned_nodes = PlannedNodes(context, limits)
        self._targets: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._bought: list[tuple[str, ScaleUp]] = []
        self._back: set[str] = set()
        self._conditions: list[Condition] = []
        self.dry: dict[str, str] = {}
        """Pools whose provider would not sell, and what it said; until the plan has given them up for a while."""
        self.irremovable: dict[str, str] = {}
        """Drained nodes that stay, and what the API server said against it, until their drain is called off"""

    def begin(self, seen: ObservedCluster, *, recheck: bool = False) -> None:
        """
        A new reading: what was done before is in it.

        At a recheck the targets stay those on which the plan was made: who buys in between has bought for us too.
        """
        if not recheck:
            self._targets = dict(seen.targets)
        self._slots, self._bought, self._back, self._conditions = {}, [], set(), []
        draining = {name for name, one in seen.observation.machines.items() if one.state is MachineState.DRAINING}
        self.irremovable = {name: why for name, why in self.irremovable.items() if name in draining}

    def conditions(self) -> tuple[Condition, ...]:
        """What steps since the last reading ran into, and what keeps evictions from being made."""
        return (*self._conditions, *self._evictions.conditions())

    async def apply(self, step: Step, seen: ObservedCluster) -> Refusal | None:
        """Do it; why not, where that was refused."""
        if isinstance(step, ScaleUp):
            return (await self.buy((step,), seen))[0]
        try:
            await self._do(step, seen)
        except (RefusedStepError, ProviderError, ClusterError) as exc:
            refused = self._refuse(step, exc)
            if isinstance(exc, UnreachableError) and isinstance(step, Evict | Move):
                raise  # it may have happened: whoever counts evictions counts it
            return refused
        log.info("%s: %s", _name(step), step.reason)
        return None

    async def buy(self, steps: Sequence[ScaleUp], seen: ObservedCluster) -> list[Refusal | None]:
        """
        So many machines for one pool in as few calls as it takes; for each step why not, where that was refused.

        The first steps are served first, those whose pods have all gone meanwhile not at all. Who ends in between has
        changed the provider's target and nothing else: whoever comes next reads it there, and a call on an older target
        is refused (`seen`).
        """
        bought: list[ScaleUp] = []
        trouble = None
        try:
            async for some in self._grow(steps):
                for step in some:
                    self._name_machine(step, seen)
                bought += some
        except (RefusedStepError, ProviderError, ClusterError) as exc:
            trouble = exc
        for step in bought:
            log.info("%s: %s", _name(step), step.reason)
            await self._report_purchase(step, seen)
        refused = _NO_POD_WAITS if trouble is None else self._refuse(steps[0], trouble)
        return [None if any(step is one for one in bought) else refused for step in steps]

    def _refuse(self, step: Step, exc: Exception) -> Refusal:
        """An error as a value, and as a condition for the reports."""
        if isinstance(exc, RefusedStepError):
            return self._note(Condition(exc.kind, str(exc), pool=exc.pool, node=exc.node))
        if isinstance(exc, ProviderError):
            if isinstance(step, ScaleUp) and isinstance(exc, OutOfStockError | DeniedError):
                self.dry[step.pool] = str(exc)
            pool = step.pool if isinstance(step, ScaleUp | RemoveFailedNode | CancelScaleUp) else ""
            return self._note(Condition(ConditionKind.PROVIDER, f"{_name(step)}: {exc}", pool=pool))
        return self._note(Condition(ConditionKind.NOT_READ, f"{_name(step)}: {exc}"))

    def _note(self, condition: Condition) -> Refusal:
        log.warning("step refused: %s", condition.text)
        if len(self._conditions) < _MAX_CONDITIONS:
            self._conditions.append(condition)
        return Refusal(Why.NOT_READY, condition.text)

    def record(self, state: ControllerState) -> ControllerState:
        """Machines that were just bought stand among the others at once, and who waits for them too."""
        bought, self._bought = self._bought, []
        machines: dict[str, PoolMachine] = {}
        homes: dict[str, Nomination] = {}
        for name, step in bought:
            machines[name] = PoolMachine(name, step.pool, MachineState.REQUESTED, self._context.now())
            homes |= {uid: Nomination(name, cards) for uid, cards in zip(step.pods, step.places, strict=False)}
        back, self._back = self._back, set()
        if not machines and not back:
            return state
        stay = {name: machine for name, machine in state.machines.items() if name not in back}
        return replace(state, machines=stay | machines, homes={**state.homes, **homes})

    async def tidy(self, seen: ObservedCluster) -> None:
        """Delete our reservations that are over; trouble costs a cycle."""
        try:
            await self._evictions.forget(seen.over)
        except (RefusedStepError, ClusterError) as exc:
            log.info("cannot delete expired reservations: retrying later: %s", exc)

    async def reserve_planned(self, state: ControllerState, seen: ObservedCluster) -> None:
        """Reserve, for the scheduler, what pods are nominated for on machines that are coming."""
        await self._planned_nodes.reserve(state.homes, state.machines, seen.observation.pods)

    # -- one kind of step each -------------------------------------------------------------------

    async def _do(self, step: Step, seen: ObservedCluster) -> None:
        if isinstance(step, Drain):
            await self._drain(step, seen)
        elif isinstance(step, CancelDrain):
            await self._keep(step, seen)
        elif isinstance(step, Evict):
            await self._evictions.evict(step.pod, step.reason, seen)
        elif isinstance(step, Move):
            await self._evictions.move(step, seen)
        elif isinstance(step, RemoveNode):
            await self._delete(step, seen)
        elif isinstance(step, RemoveFailedNode):
            await self._discard(step, seen)
        elif isinstance(step, ResizePod):
            await resize_pod(self._context, step, seen)
        elif isinstance(step, CancelScaleUp):
            await self._take_back(step)

    async def _grow(self, steps: Sequence[ScaleUp]) -> AsyncGenerator[Sequence[ScaleUp], None]:
        """
        For which of the steps, all of one pool, it has grown: call by call, until all have their machine.

        One that will not give so many at once is asked for half of it, so that it gives what it has.
        """
        pool, part, left = steps[0].pool, len(steps), steps
        while left := [step for step in left if self._wanted(step)]:
            target = self._targets.get(pool)
            if target is None:
                raise RefusedStepError(
                    ConditionKind.PROVIDER, f"pool {pool}: provider state unknown: no scale-up", pool=pool
                )
            part = min(part, len(left))
            self._context.allowed()
            try:
                now = await self._context.providers.grow(pool, part, seen=target)
            except (OutOfStockError, DeniedError):
                if part == 1:
                    raise
                part //= 2
                continue
            self._targets[pool] = now
            got = max(0, min(part, now - target))
            yield left[:got]
            left = left[got:]
            if got < part:
                text = f"pool {pool}: provider added {got} of {part} requested nodes"
                raise RefusedStepError(ConditionKind.PROVIDER, text, pool=pool)

    def _wanted(self, step: ScaleUp) -> bool:
        """Whether any of its pods still waits at this moment: steps before it may have taken long."""
        pods = map(self._context.sources.notes.pods.get, step.pods)
        return not step.pods or any(pod and pod.placement is None and not pod.deleting for pod in pods)

    def _name_machine(self, step: ScaleUp, seen: ObservedCluster) -> None:
        """A machine that was asked for has a name of ours until it has its own."""
        number = self._slots.get(step.pool, 0)
        taken = seen.observation.machines.keys()
        while f"{step.pool}/{number}" in taken:
            number += 1
        self._slots[step.pool] = number + 1
        self._bought.append((f"{step.pool}/{number}", step))

    async def _report_purchase(self, step: ScaleUp, seen: ObservedCluster) -> None:
        for uid in step.pods:
            pod = seen.observation.pods.get(uid)
            if pod is not None:
                note = f"Scaling up pool {step.pool}: {step.reason}"
                await self._context.events.pod(pod.key, uid, "TriggeredScaleUp", note)

    async def _discard(self, step: RemoveFailedNode, seen: ObservedCluster) -> None:
        if step.node == f"{step.pool}/dry":
            self.dry.pop(step.pool, None)
            return
        if step.node in seen.fleet.slots:
            self._context.allowed()
            await self._context.providers.cancel(step.pool, 1)
            return
        node = step.node if step.has_node else await find_node(self._context.access, step.node)
        await self._empty(node or step.node)
        if not node:
            self._context.allowed()
            await self._remove(step.pool, (step.node,))
            return
        # somebody may be bound there at this moment: from here on it goes the way of a node that is drained
        uid = seen.uids.get(node, "")
        await self._marks.put(node, uid, step.reason, failed=True)
        await self._context.events.node(node, uid, "ProvisioningFailed", step.reason, warning=True)

    async def _take_back(self, step: CancelScaleUp) -> None:
        self._context.allowed()
        if not await self._context.providers.take_back(step.pool, 1):
            text = f"pool {step.pool}: the order has been carried out in the meantime"
            raise RefusedStepError(ConditionKind.CONFLICT, text, pool=step.pool)
        self._back.add(step.node)

    async def _empty(self, node: str) -> None:
        """Raise where a pod would be lost with the node, by the API server's own word at this moment."""
        late = await self._context.lost_with(node)
        if late:
            raise RefusedStepError(ConditionKind.CONFLICT, _not_empty(node, late), node=node)

    def _against(self, node: str, why: str) -> RefusedStepError:
        """What keeps a drained node from being removed, so that the next cycle calls its drain off."""
        self.irremovable[node] = why
        return RefusedStepError(ConditionKind.CONFLICT, why, node=node)

    async def _remove(self, pool: str, names: Sequence[str]) -> None:
        gone = await self._context.providers.remove(pool, names)
        missing = set(names) - set(gone)
        if missing:
            raise RefusedStepError(
                ConditionKind.CONFLICT, f"pool {pool} no longer has {', '.join(sorted(missing))}", pool=pool
            )

    async def _drain(self, step: Drain, seen: ObservedCluster) -> None:
        made: list[str] = []
        try:
            for home in step.reservations:
                made.append(await self._evictions.reserve(home, seen))  # noqa: PERF401 (those made before one fails count)
            await self._marks.put(step.node, seen.uids.get(step.node, ""), step.reason)
        except (RefusedStepError, ClusterError):
            # nothing is begun by halves; what cannot be taken back now lapses by itself
            try:
                await self._evictions.forget(made)
            except (RefusedStepError, ClusterError) as exc:
                log.info("cannot delete reservations of a failed drain: they expire later: %s", exc)
            raise
        await self._context.events.node(step.node, seen.uids.get(step.node, ""), "Draining", step.reason)

    async def _keep(self, step: CancelDrain, seen: ObservedCluster) -> None:
        here = seen.observation.on.get(step.node, {})
        staying = {uid for uid, pod in here.items() if not pod.deleting}
        await self._evictions.forget(tuple(name for uid, name in seen.names.items() if uid in staying))
        await self._marks.take(step.node)
        self.irremovable.pop(step.node, None)
        await self._context.events.node(step.node, seen.uids.get(step.node, ""), "DrainCancelled", step.reason)

    async def _delete(self, step: RemoveNode, seen: ObservedCluster) -> None:
        """
        The taint is old enough that no bind can be under way any more: who is not on the list now never will be.

        An answer of the provider that was lost may yet come true: such a node stays sealed until it is gone.
        """
        node, uid = step.node, seen.uids.get(step.node, "")
        self._context.allowed()
        delay = self._limits.node_delete_delay_after_taint_seconds
        if not await self._marks.seal(node, uid, self._context.now() - delay):
            raise self._against(node, f"node {node} no longer carries the drain taint")
        late = await self._context.lost_with(node)
        if late:
            await self._marks.open(node)
            raise self._against(node, _not_empty(node, late))
        self._context.allowed()
        try:
            await self._remove(seen.observation.machines[node].pool, (node,))
        except (RefusedStepError, DeniedError, ChangedError):
            await self._marks.open(node)
            raise
        await self._context.events.node(step.node, uid, "NodeRemoved", step.reason)


def _not_empty(node: str, pods: Sequence[str]) -> str:
    return f"node {node} is not empty: pod {pods[0]}"


def _name(step: Step) -> str:
    what = step.pool if isinstance(step, ScaleUp) else step.pod if isinstance(step, Evict | Move) else step.node
    return f"{get_action(step)} {what}"
