# SPDX-License-Identifier: Apache-2.0
"""
One seed, one run: a small cluster in a storm, then calm, then everybody leaves; what the judge found.

A run is a pure function of its `Setup`. Its three parts are the storm (pods come, go and are killed while
everything breaks), a calm in which whatever waits must come to something, and the end: every pod deleted,
time for what is due, and nothing may be left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from interleave import bought
from interleave.agent import NodeAgent
from interleave.case import Result, Setup
from interleave.chaos import Cast, Storm
from interleave.clocks import run_time
from interleave.device_plugin import DevicePlugin
from interleave.judge import ENDED, Judge
from interleave.kubelet import Kubelet
from interleave.kubescheduler import KubeScheduler
from interleave.loop import StuckError, VirtualLoop, thrown_away
from interleave.machine import Machine
from interleave.objects import PROTECTED, cards_of, drawn_crowd, drawn_plan, node_object, pod_object
from interleave.replica import Replica
from interleave.runtime import Runtime
from interleave.server import Route, Server
from interleave.tally import IDLE, counts, left
from interleave.wire import Net

from isolation.contract.codec.resize import encode_wanted
from isolation.contract.names import ACK, POOL, RESIZE, SCHEDULER, SYSTEM_NAMESPACE
from isolation.kube.core.errors import RefusedError

if TYPE_CHECKING:
    from interleave.objects import Plan

STORM_SECONDS: Final = 45.0
REST_SECONDS: Final = 4.0
"""All must have been at rest for so long to go on sooner."""
SETTLE_SECONDS: Final = 30.0
"""A resize that can be done has been, after the storm and a scheduler's unanswered writes."""
DRAIN_SECONDS: Final = 60.0


class Run:
    """See the module."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._draw = random.Random(setup.seed)  # noqa: S311 (chance, no secret)
        self._loop = VirtualLoop(random.Random(~setup.seed))  # noqa: S311 (chance, no secret)
        self._storm = Storm(self._draw, STORM_SECONDS, setup.extra, say=self._say)
        self._net = Net(self._loop, Server(self._loop.time), self._draw, self._storm.weather())
        self._net.shuffled = self._draw.random() < 0.3
        self._wishes = random.Random(f"resize {setup.seed}")  # noqa: S311 (chance, no secret)
        self._plans: dict[str, Plan] = {}
        self._trace: list[str] = []
        self._cast = self._people()
        self._purchases = bought.Purchases(self._net, setup.seed, STORM_SECONDS) if setup.bought else None
        self._kubelets = {kubelet.machine.name: kubelet for kubelet in self._cast.kubelets}
        self._judge = Judge(self._net.server, self._kubelets, self._plans)
        self._net.server.watchers.append(self._judge.saw)
        for kubelet in self._cast.kubelets:
            kubelet.machine.started = self._judge.container_started
            kubelet.machine.spoilt = self._judge.container_spoilt
        if setup.trace:
            self._net.server.watchers.append(self._tell)

    def result(self) -> Result:
        """Run it."""
        try:
            with run_time(self._loop, self._draw):
                self._loop.run_until_complete(self._play())
        except StuckError as exc:
            self._judge.accuse("broken", "stuck", str(exc))
        finally:
            self._loop.close()
        for text in self._loop.broken:
            self._judge.accuse("broken", text, text)
        judge = self._judge
        met = Counter(pods=len(self._plans), bound=judge.bound, containers=judge.started)
        met["purchases"] = self._purchases.stored if self._purchases is not None else 0
        count = self._storm.count + counts(self._cast) + met
        longest = {IDLE: judge.longest}
        return Result(self._setup.seed, judge.findings, count, self._loop.steps, longest, self._trace)

    # The stage.

    def _people(self) -> Cast:
        draw, net = self._draw, self._net
        net.server.put(Route("namespaces", "", PROTECTED), {"metadata": {"name": PROTECTED, "uid": net.server.uid()}})
        if draw.random() < 0.9:  # else it is the first start of all
            for namespace, name in (("kube-system", "kube-scheduler"), (SYSTEM_NAMESPACE, SCHEDULER)):
                lease = {"metadata": {"name": name, "uid": net.server.uid()}, "spec": {}}
                net.server.put(Route("leases", namespace, name), lease)
        kubelets = []
        for at in range(draw.choice((1, 2, 2, 3))):
            name = f"n{at}"
            cards = cards_of(name, draw.choice((1, 2, 2, 4)), draw.choice((6, 8, 8, 16)))
            choice = draw.choice(("binpack", "spread"))
            node = node_object(name, net.server.uid(), cards, choice=choice)
            node["metadata"]["labels"] |= {POOL: bought.POOL_NAME} if self._setup.bought else {}
            net.server.put(Route("nodes", "", name), node)
            runtime = Runtime(net, Machine(name, cards, self._loop, draw), self._say, self._setup.opens)
            kubelets.append(Kubelet(net, runtime, self._plans, self._say))
        agents = [NodeAgent(net, kubelet, self._setup.make) for kubelet in kubelets]
        replicas = [Replica(net, f"host{at}", self._setup.parts) for at in range(2)]
        schedulers = [KubeScheduler(net, f"host{at}", replica, self._say) for at, replica in enumerate(replicas)]
        for one in schedulers:
            one.filters = "shortlist" if self._setup.seed % 2 else "filter"
        plugins = [DevicePlugin(net, kubelet) for kubelet in kubelets]
        return Cast(net, replicas, schedulers, kubelets, agents, plugins)

    def _say(self, text: str) -> None:
        if self._setup.trace:
            self._trace.append(f"{self._loop.time():8.3f}  {text}")

    def _tell(self, happened: Any) -> None:
        thing = happened.after or happened.before
        if happened.kind == "pods":
            status = thing["status"]
            what = "gone" if happened.after is None else f"{thing['spec'].get('nodeName', '-')} {status.get('phase')}"
            going = " deleting" if "deletionTimestamp" in thing["metadata"] else ""
            self._say(f"pod {thing['metadata']['name']} {thing['metadata']['uid'][-4:]}: {what}{going}")

    # The play.

    async def _play(self) -> None:
        cast = self._cast
        for kubelet in cast.kubelets:
            kubelet.runtime.start()
            kubelet.start()
        for ours in (*cast.device_plugins, *cast.agents):
            ours.start()
        for one in (*cast.replicas, *cast.schedulers):
            self._loop.later(self._draw.uniform(0.0, 1.0), one.start)
        most = max(len(kubelet.machine.cards) for kubelet in cast.kubelets)
        units = max(card.allocatable_bytes for kubelet in cast.kubelets for card in kubelet.machine.cards) >> 30
        crowd = drawn_crowd(self._draw, STORM_SECONDS)
        for serial in range(crowd.pods):
            plan = drawn_plan(self._draw, serial, crowd, most, units)
            self._loop.later(plan.created, self._create, plan)
        self._wish(units)
        self._storm.unleash(cast)
        await self._watch(STORM_SECONDS)
        self._say("the storm is over")
        self._storm.clear(cast)
        self._judge.calm_since = self._loop.time()
        await self._watch(self._setup.calm, until=REST_SECONDS)
        if self._setup.resizes:
            await self._watch(SETTLE_SECONDS)
            self._judge.judge_units()
        self._say("everybody leaves")
        for plan in self._plans.values():
            self._delete(plan, forced=False)
        end = self._loop.time() + DRAIN_SECONDS
        while self._loop.time() < end and any(left(self._cast)):
            await self._watch(1.0)
        for about, text in left(self._cast):
            self._judge.accuse("leaked", about, text)

    async def _watch(self, seconds: float, until: float | None = None) -> None:
        """Look each second; no longer than all has been at rest for `until` seconds."""
        end = self._loop.time() + seconds
        busy = self._loop.time()
        while self._loop.time() < end:
            await asyncio.sleep(1.0)
            if not self._judge.look():
                busy = self._loop.time()
            if until is not None and self._loop.time() - busy >= until:
                return

    def _wish(self, most: int) -> None:
        """Every resize at its time."""
        if self._setup.resizes:  # a record that somebody writes by hand makes the units of no resize
            self._storm.strokes = [one for one in self._storm.strokes if one[1] != "record_changed"]
        for _ in range(self._setup.resizes):
            self._loop.later(self._wishes.uniform(3.0, STORM_SECONDS), self._resize, most)

    def _resize(self, most: int) -> None:
        """Somebody asks for another amount of a bound pod, often more than there is."""
        pods = self._net.server.things["pods"].values()
        bound = [pod for pod in pods if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ENDED]
        if not bound:
            return
        pod = self._wishes.choice(bound)
        plan = self._plans[pod["metadata"]["uid"]]
        box = self._wishes.choice([box for box in (*plan.inits, *plan.apps) if box.units])
        units = plan.cards * self._wishes.randint(1, self._wishes.choice((2, 4, most)))
        wanted = encode_wanted({box.name: {ACK.memory: units}})
        body = {"metadata": {"annotations": {RESIZE: wanted}}}
        self._say(f"--- resize {plan.key} to {wanted}")
        self._storm.count["resize"] += 1
        self._net.server.handle("tenant", "PATCH", plan.path, body, "merge-patch")

    def _create(self, plan: Plan) -> None:
        plan.uid = self._net.server.uid()
        self._plans[plan.uid] = plan
        self._net.server.put(Route("pods", *plan.key), pod_object(plan, self._loop.time()))
        if self._purchases is not None:
            self._purchases.ordered(plan)
        if plan.deleted is not None and plan.deleted < STORM_SECONDS:
            self._loop.later(plan.deleted - plan.created, lambda: self._delete(plan, forced=plan.forced))

    def _delete(self, plan: Plan, *, forced: bool) -> None:
        options: dict[str, Any] = {"preconditions": {"uid": plan.uid}}
        if forced:
            options["gracePeriodSeconds"] = 0
        try:
            self._net.server.handle("tenant", "DELETE", plan.path, options)
        except RefusedError:
            return
        if plan.again:
            self._again(plan)

    def _again(self, plan: Plan) -> None:
        """Another pod of the same name as soon as there is none, as a StatefulSet makes it."""
        now = self._loop.time()
        if now >= STORM_SECONDS:
            return
        if plan.key in self._net.server.things["pods"]:
            self._loop.later(0.2, self._again, plan)
            return
        self._create(replace(plan, created=now, deleted=now + self._draw.uniform(1.0, 40.0), again=False))


def play(setup: Setup) -> Result:
    """One run, and nothing of it left."""
    with thrown_away():
        return Run(setup).result()
