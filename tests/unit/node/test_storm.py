# SPDX-License-Identifier: Apache-2.0
"""
The agent against a simple model of the kubelet, in whatever order things happen.

What must never be: two living pods with one device, a container with files that are not its record's. What
must be in the end: nothing left.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.agent_world import AgentWorld
from support.budget import examples

from isolation.contract.quantity import GIB
from isolation.node.book import hash_of
from isolation.node.world import NotYetError

UNITS, CARDS = 6, 2
SHAPES = st.sampled_from(
    [
        {"main": 2},
        {"main": 4},
        {"main": 1, "second": 1},
        {"init": ("fetch",), "fetch": 2, "main": 2},
        {"init": ("fetch",), "fetch": 3, "main": 1},
        {"init": ("fetch",), "fetch": 2, "side": 1, "main": 2},
        {"init": ("fetch",), "fetch": 2},
        {"cards": 2, "main": 4},
    ]
)


class NodeStorm(RuleBasedStateMachine):
    """See the module."""

    def __init__(self):
        super().__init__()
        self.node = AgentWorld(cards=CARDS, units=UNITS)
        asyncio.run(self.node.agent.start())
        self.room = dict.fromkeys(range(CARDS), UNITS)
        self.taken: dict[str, dict[int, int]] = {}
        """By name, what the scheduler's book has for a pod: units by card."""
        self.running: dict[tuple[str, str], frozenset[str]] = {}
        """Devices of every container that has a process, by UID and container."""
        self.waiting: list[str] = []
        """Bound, not yet admitted."""
        self.serial = 0

    # What happens.

    @rule(shape=SHAPES, card=st.integers(0, CARDS - 1), seen=st.booleans())
    def bind(self, shape, card, seen):
        """The scheduler finds room by its own book."""
        boxes = {name: units for name, units in shape.items() if name not in {"init", "cards"}}
        inits = shape.get("init", ())
        cards = tuple(range(shape.get("cards", 1))) if "cards" in shape else (card,)
        lasting = sum(units for name, units in boxes.items() if name not in inits)
        need = max([lasting, *(boxes[name] for name in inits)]) // len(cards)
        if any(self.room[one] < need for one in cards):
            return
        name, self.serial = f"p{self.serial}", self.serial + 1
        self.taken[name] = dict.fromkeys(cards, need)
        for one in cards:
            self.room[one] -= need
        self.node.bind(name, init=inits, watched=seen, **{box: (cards, units) for box, units in boxes.items()})
        self.waiting.append(name)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data):
        """The kubelet takes one of them, not always the oldest."""
        name = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(name)
        asyncio.run(self.node.admit(name))

    @rule(data=st.data())
    def start(self, data):
        """The next container of a pod."""
        names = [
            name for name, pod in self.node.api.items() if pod.uid in self.node.admitted and name not in self.waiting
        ]
        if not names:
            return
        name = data.draw(st.sampled_from(names))
        pod = self.node.api[name]
        ready = [one for one in pod.wanted if (pod.uid, one.name) not in self.running and not one.done]
        if not ready:
            return
        if ready[0].init and any(key[0] == pod.uid and pod.container(key[1]).init for key in self.running):
            return
        if not ready[0].init and any(one.init and not one.done for one in pod.wanted):
            return
        self._start(name, ready[0].name)

    def _start(self, name, container):
        node, pod = self.node, self.node.api[name]
        ids = node.admitted[pod.uid][container]
        try:
            promise = asyncio.run(node.start(name, container))
        except NotYetError:
            return
        self.running[pod.uid, container] = ids
        part = pod.part(container)
        assert (pod.uid, part) == (promise.pod.uid, promise.slices)
        assert sum(one.bytes for one in part) == len(ids) * GIB

    @rule(data=st.data())
    def end_init(self, data):
        """An init container ends well; whether the watch hears of it at once is another matter."""
        inits = [(uid, box) for uid, box in self.running if self._pod(uid) and self._pod(uid).container(box).init]
        if not inits:
            return
        uid, box = data.draw(st.sampled_from(inits))
        del self.running[uid, box]
        pod = self._pod(uid)
        self.node.change(pod.name, wanted=tuple(replace(one, done=one.done or one.name == box) for one in pod.wanted))
        self._processes(uid)

    @rule(data=st.data(), forced=st.booleans())
    def delete(self, data, forced):
        """A pod goes: in order, or at once while its processes live on."""
        names = [name for name in self.node.api if name not in self.waiting]
        if not names:
            return
        name = data.draw(st.sampled_from(names))
        uid = self.node.api[name].uid
        if forced:
            self.node.force_delete(name)
        else:
            self._end(uid)
            self.node.vanish(name)
        self._left(name)

    @rule()
    def last_processes_end(self):
        """Of pods that are gone."""
        here = {pod.uid for pod in self.node.api.values()}
        for uid in {uid for uid, _ in self.running} - here:
            self._end(uid)

    @rule()
    def watch_catches_up(self):
        """Everything the API server has is told."""
        self.node.watched = dict(self.node.api)

    @rule(api=st.booleans(), get=st.booleans())
    def outage(self, api, get):
        """The API server or the kubelet's list is away, or back."""
        self.node.api_up, self.node.has_get = api, get

    @rule()
    def foreign_list(self):
        """R1: the kubelet forgets what is in use, but for the pods that it still knows... half of them."""
        for uid in list(self.node.admitted)[::2]:
            for ids in self.node.admitted[uid].values():
                self.node.in_use -= ids

    @rule(lost=st.booleans())
    def agent_restarts(self, lost):
        """It is killed; perhaps its book is gone."""
        if lost:
            self.node.text = '{"format"'
        self.node.restart_agent()
        asyncio.run(self.node.agent.start())

    @rule(seconds=st.integers(1, 30))
    def time_passes(self, seconds):
        """The agent looks after things."""
        for _ in range(seconds):
            self.node.time += 1
            asyncio.run(self.node.agent.tick())
        self._buried()

    # What is never to be seen.

    @invariant()
    def no_device_is_with_two(self):
        """Living processes of different pods share nothing, whatever the kubelet gave."""
        owner: dict[str, str] = {}
        for (uid, _), ids in self.running.items():
            for ident in ids:
                assert owner.setdefault(ident, uid) == uid

    @invariant()
    def the_book_has_who_runs(self):
        """Every device of a living process is held, and its files stand."""
        held = self.node.agent.book.held()
        for (uid, box), ids in self.running.items():
            assert ids <= held, (uid, box)
            assert self.node.files[hash_of(ids)].pod.uid == uid

    def teardown(self):
        """Everybody leaves, and nothing is left."""
        node = self.node
        node.api_up, node.has_get, node.watched = True, True, dict(node.api)
        for name in list(node.api):
            self._end(node.api[name].uid)
            node.vanish(name)
        for uid in {uid for uid, _ in self.running}:
            self._end(uid)
        node.watched = {}
        for _ in range(60):
            node.time += 1
            asyncio.run(node.agent.tick())
        assert set() == node.agent.book.held()
        # a rebuilt book is believed in full by the next agent only
        node.restart_agent()
        asyncio.run(node.agent.start())
        asyncio.run(node.agent.tick())
        assert {} == node.files

    # Bookkeeping.

    def _pod(self, uid):
        return next((pod for pod in self.node.api.values() if pod.uid == uid), None)

    def _end(self, uid):
        self.running = {key: ids for key, ids in self.running.items() if key[0] != uid}
        self._processes(uid)

    def _processes(self, uid):
        if not any(key[0] == uid for key in self.running):
            self.node.processes.discard(uid)

    def _left(self, name):
        for card, units in self.taken.pop(name, {}).items():
            self.room[card] += units

    def _buried(self):
        """Pods that the agent deleted: their containers have ended."""
        here = {pod.uid for pod in self.node.api.values()}
        for name, _ in self.node.deleted:
            if name in self.taken and name not in self.node.api:
                self._left(name)
                self.waiting = [one for one in self.waiting if one != name]
        for uid in {uid for uid, _ in self.running} - here:
            if uid not in self.node.processes:
                self._end(uid)


TestNodeStorm = NodeStorm.TestCase
TestNodeStorm.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
