# SPDX-License-Identifier: Apache-2.0
"""
A node in memory, for tests of the agent's mind: pods, kubelet, processes, disk and time.

    node = AgentWorld(cards=2, units=8)
    node.bind("a", main=(0, 4))                  # a pod with 4 units on card 0, as the scheduler writes it
    await node.admit("a")                        # as the kubelet does: preferences, Allocate
    await node.start("a", "main")                # PreStart, then a process lives

The kubelet forgets on demand (`forget`: the in-use set of R1) and reuses the IDs of whoever is force-deleted.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from isolation.contract.codec import Allocation
from isolation.contract.model import Card, Mode, Part, Slice
from isolation.contract.quantity import GIB
from isolation.node.agent import Agent
from isolation.node.book import hash_of, id_of
from isolation.node.world import Ask, Bound, Moment, UndeliverableError, UnreachableError, Wanted, World


class AgentWorld:
    """See the module; stands for every protocol of the world at once."""

    def __init__(self, cards=2, units=8, seed=0):
        self.random = random.Random(seed)  # noqa: S311 (a test that can be run again)
        self.time = 0.0
        self.boot = "boot 1"
        self.all_cards = [Card(f"GPU-{i}", i, units * GIB) for i in range(cards)]
        self.node_mode, self.offers_whole = Mode.CGPU, False
        self.api: dict[str, Bound] = {}
        """What the API server has, by name."""
        self.watched: dict[str, Bound] = {}
        self.watching, self.api_up, self.kubelet_up, self.has_get = True, True, True, True
        self.admitted: dict[str, dict[str, frozenset[str]]] = {}
        """What the kubelet gave, by pod UID and container; init containers too."""
        self.names: dict[str, tuple[str, str]] = {}
        self.in_use: set[str] = set()
        self.processes: set[str] = set()
        self.text, self.disk_full = None, False
        self.files: dict[str, object] = {}
        self.counted: set[str] = set()
        self.library = True
        self.deleted: list[tuple[str, str]] = []
        self.gets: list[str] = []
        self.world = World(self, self, self, self, self, self, self)
        self.agent = Agent(self.world)

    # --- the API server -------------------------------------------------------------------------------------

    def bind(self, name, *, init=(), core=0, watched=True, record=True, uid="", created=None, **containers):
        """A bound pod; containers as name=(card or cards, units); `init` names those that are init containers."""
        uid = uid or f"uid-{name}-{len(self.names)}"
        wanted, parts = [], []
        for box, (where, units) in containers.items():
            cards = (where,) if isinstance(where, int) else where
            wanted.append(Wanted(box, units, init=box in init))
            each = units * GIB // len(cards)
            parts.append(Part(box, tuple(Slice(f"GPU-{c}", c, each, core) for c in cards)))
        allocation = Allocation(uid, parts[0].slices, tuple(parts)) if record else None
        pod = Bound(uid, name, "ml", tuple(wanted), allocation, created=self.time if created is None else created)
        self.api[name] = pod
        self.names[uid] = ("ml", name)
        if watched:
            self.watched[name] = pod
        return pod

    def change(self, name, **fields):
        """Something of a pod's status changes."""
        self.api[name] = self.watched[name] = replace(self.api[name], **fields)

    def force_delete(self, name):
        """Gone from the API at once; the kubelet forgets its devices; its processes live on."""
        pod = self.api.pop(name)
        self.watched.pop(name, None)
        self.in_use -= {one for ids in self.admitted.pop(pod.uid, {}).values() for one in ids}
        return pod

    def vanish(self, name):
        """An ordinary end: processes first, then the kubelet, then the API server."""
        self.processes.discard(self.api[name].uid)
        return self.force_delete(name)

    # --- the kubelet ----------------------------------------------------------------------------------------

    def offered(self):
        """What the kubelet takes for free, in its own order."""
        ids = [one.id for one in self.agent.devices() if one.healthy and one.id not in self.in_use]
        self.random.shuffle(ids)
        return ids

    async def admit(self, name, *, meanwhile=None):
        """Preferences and Allocate for each container, init containers' devices reused as the kubelet does."""
        pod, reusable = self.api[name], []
        boxes = self.admitted.setdefault(pod.uid, {})
        for wanted in pod.wanted:
            if len(reusable) >= wanted.units:
                ids = frozenset(self.random.sample(reusable, wanted.units))
            else:
                ask = Ask((*self.offered(), *reusable), tuple(reusable), wanted.units)
                answer = (await self.agent.preferred([ask]))[0]
                assert len(set(answer)) == wanted.units
                assert set(answer) <= set(ask.available)
                ids = frozenset(answer)
            if meanwhile is not None:
                meanwhile()
            granted = (await self.agent.allocate([sorted(ids)]))[0]
            assert granted.cdi_device.endswith(hash_of(ids))
            boxes[wanted.name] = ids
            self.in_use |= ids
            reusable = sorted({*reusable, *ids}) if wanted.init else [one for one in reusable if one not in ids]
        return boxes

    async def start(self, name, container):
        """PreStart, and then it runs."""
        pod = self.api[name]
        ids = self.admitted[pod.uid][container]
        await self.agent.prestart(sorted(ids))
        self.processes.add(pod.uid)
        self.change(name, started=True)
        return self.files[hash_of(ids)]

    def restart_agent(self):
        """The agent is killed and started again: memory is lost, the disk stays."""
        self.agent = Agent(self.world)

    # --- world.Pods -----------------------------------------------------------------------------------------

    def bound(self):
        """See `world.Pods`."""
        return tuple(self.watched.values())

    def synced(self):
        """See `world.Pods`."""
        return self.watching

    async def changed(self, seconds):
        """See `world.Pods`."""
        self.time += seconds

    async def fetch(self, seconds):
        """See `world.Pods`."""
        if not self.api_up:
            self.time += seconds
            raise UnreachableError("down")
        return tuple(self.api.values())

    async def delete(self, pod, reason):
        """See `world.Pods`."""
        if not self.api_up:
            raise UnreachableError("down")
        if pod.name in self.api and self.api[pod.name].uid == pod.uid:
            self.deleted.append((pod.name, reason))
            self.vanish(pod.name)

    # --- world.Pods and world.PodResources, told apart by what they are asked --------------------------------

    async def get(self, namespace, name, seconds=None):
        """See `world.Pods` and `world.PodResources`."""
        assert namespace == "ml"
        if seconds is None:
            if not self.api_up:
                raise UnreachableError("down")
            return self.api.get(name)
        self.gets.append(name)
        if not (self.kubelet_up and self.has_get):
            begun = self.time
            await asyncio.sleep(0)  # those who ask at once wait at once
            self.time = max(self.time, begun + seconds)
            raise UnreachableError("down")
        uid = next((uid for uid in self.admitted if self.names[uid][1] == name), None)
        if uid is None:
            return None
        init = {one.name for one in self.api[name].wanted if one.init} if name in self.api else set()
        boxes = {box: ids for box, ids in self.admitted[uid].items() if box not in init}
        return {one.name: frozenset() for one in self.api[name].wanted if not one.init} | boxes

    # --- the others -----------------------------------------------------------------------------------------

    def living(self, uid):
        """See `world.Cgroups`."""
        return uid in self.processes

    def cards(self):
        """See `world.Inventory`."""
        return self.all_cards

    def mode(self):
        """See `world.Inventory`."""
        return self.node_mode

    def whole(self):
        """See `world.Inventory`."""
        return self.offers_whole

    def load(self):
        """See `world.Shelf`."""
        return self.text

    async def save(self, text):
        """See `world.Shelf`."""
        if self.disk_full:
            raise UnreachableError("no space left")
        self.text = text

    async def deliver(self, promise):
        """See `world.Delivery`."""
        if not self.library:
            raise UndeliverableError("the library is missing")
        self.files[promise.hash] = promise
        self.counted.add(promise.hash)

    async def uncount(self, hash_):
        """See `world.Delivery`."""
        self.counted.discard(hash_)

    async def retire(self, hash_):
        """See `world.Delivery`."""
        self.files.pop(hash_, None)
        self.counted.discard(hash_)

    def standing(self):
        """See `world.Delivery`."""
        return tuple(self.files)

    def claims(self):
        """See `world.Delivery`."""
        return [promise.claim for promise in self.files.values()]

    def now(self):
        """See `world.Clock`."""
        return self.time

    def moment(self):
        """See `world.Clock`."""
        return Moment(self.time, 1_800_000_000.0 + self.time, self.boot)

    async def sleep(self, seconds):
        """See `world.Clock`."""
        self.time += seconds

    def ids(self, card, *numbers):
        """Device IDs of a card."""
        return frozenset(id_of(f"GPU-{card}", number) for number in numbers)
