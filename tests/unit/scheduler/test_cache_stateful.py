# SPDX-License-Identifier: Apache-2.0
"""
The cache against brute force: any sequence of events and answers, and what a plain sum over all holds says.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.budget import examples
from support.builders import card, node
from support.scheduler_harness import bound, pod, reserve

from isolation.contract.model import Mode, Phase, Placement, Slice
from isolation.contract.quantity import GIB, gib
from isolation.scheduler.core.cache import AssumedPlacement, SchedulerCache
from isolation.scheduler.core.preemption import Victims

NAMES = ("n0", "n1", "n2")
UIDS = tuple(f"u{i}" for i in range(8))
MODES = (Mode.CGPU, Mode.CGPU, Mode.CORE_MEM, Mode.EXCLUSIVE, Mode.SHARE)


class Cluster(RuleBasedStateMachine):
    """One set of cache, told and asked anything; the truth beside it as plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SchedulerCache()
        self.now = 100.0
        self.nodes = {}
        self.pods = {}  # as created
        self.held = {}  # uid: placement, bound or assumed
        self.seen = {}  # uid: last bound event, for repeats
        self.answers = {}  # uid: assumption that waits for its end
        self.kept = {}  # name: reservation
        self.used = {}  # name of a reservation: uid that has, or is about to have, used it up
        self.purposeless = set()
        self.deleting = set()  # asked to end before they were bound
        self.limits = {}

    # The truth, by sums.

    def standing(self):
        """Reservations that keep room."""
        return {
            name: r
            for name, r in self.kept.items()
            if r.expires > self.now and name not in self.used and name not in self.purposeless
        }

    def lent(self, asked):
        """Reservations that serve this pod."""
        return {name for name, r in self.standing().items() if r.serves(asked)}

    def parts(self, but=()):
        """Everything held: (namespace, node, slice)."""
        yield from (("ml", p.node, part) for p in self.held.values() for part in p.slices)
        for name, r in self.standing().items():
            if name not in but:
                yield from ((r.namespace, r.placement.node, part) for part in r.placement.slices)

    def free(self, name, one, but=()):
        """Bytes and percent that nobody holds of a card."""
        mine = [part for _, n, part in self.parts(but) if n == name and part.uuid == one.uuid]
        offered = one.allocatable_bytes if one.healthy else 0
        return offered - sum(p.bytes for p in mine), 100 - sum(p.core for p in mine)

    def within_quota(self, asked, name, but=()):
        """Whether the namespace may have so much more of every model on the node."""
        models = {c.model for c in self.nodes[name].cards}
        for model in models & self.limits.keys():
            spent = sum(
                part.bytes
                for namespace, n, part in self.parts(but)
                if namespace == "ml"
                and n in self.nodes
                and self.nodes[n].mode in (Mode.CGPU, Mode.SHARE, Mode.CORE_MEM)
                and any(c.uuid == part.uuid and c.model == model for c in self.nodes[n].cards)
            )
            if spent + asked.request.card_bytes * asked.request.cards > self.limits[model] * GIB:
                return False
        return True

    def place_without(self, asked, name, but=()):
        """Whether the node takes the pod."""
        n = self.nodes.get(name)
        modes = (Mode.CORE_MEM,) if asked.request.card_core else (Mode.CGPU, Mode.SHARE)
        if n is None or n.mode not in modes or not n.serving or asked.uid in self.deleting:
            return False
        room = [self.free(name, c, but) for c in n.cards]
        enough = sum(b >= asked.request.card_bytes and c >= asked.request.card_core for b, c in room)
        return enough >= asked.request.cards and self.within_quota(asked, name, but)

    # What the cluster does.

    @initialize(sizes=st.lists(st.integers(4, 9), min_size=3, max_size=3), asks=st.lists(st.integers(1, 6), max_size=8))
    def begins(self, sizes, asks):
        """Some nodes and some pods, so that most steps have something to work on."""
        for name, size in zip(NAMES, sizes, strict=True):
            self.set_node(name=name, cards=2, size=size, mode=Mode.CGPU, unhealthy=False, serving=1, model="T4")
        for uid, size in zip(UIDS, asks, strict=False):
            owner = "rs" if size % 2 else ""
            self.created(uid=uid, size=size, cards=1, core=0, priority=0, owner=owner, reported=bool(size % 3))

    @rule(
        name=st.sampled_from(NAMES),
        cards=st.integers(0, 3),
        size=st.integers(4, 9),
        mode=st.sampled_from(MODES),
        unhealthy=st.booleans(),
        serving=st.integers(0, 5),
        model=st.sampled_from(["T4", "A10"]),
    )
    def set_node(self, *, name, cards, size, mode, unhealthy, serving, model):
        """A node, new or changed in any way."""
        many = tuple(card(i, size, node=name, model=model, healthy=not (unhealthy and i == 0)) for i in range(cards))
        self.nodes[name] = replace(node(name, cards, mode=mode), cards=many, serving=serving > 0)
        self.cache.set_node(self.nodes[name])

    @rule(name=st.sampled_from(NAMES))
    def remove_node(self, name):
        """A node object is deleted, whatever runs there."""
        self.nodes.pop(name, None)
        self.cache.remove_node(name)

    @rule(
        uid=st.sampled_from(UIDS),
        size=st.integers(1, 6),
        cards=st.integers(1, 2),
        core=st.sampled_from([0, 0, 30, 60]),
        priority=st.integers(0, 2),
        owner=st.sampled_from(["", "rs"]),
        reported=st.booleans(),
    )
    def created(self, *, uid, size, cards, core, priority, owner, reported):
        """A pod that the watch may show later than kube-scheduler asks for it."""
        if uid in self.pods:
            return
        self.pods[uid] = pod(uid, size, cards, core=core, priority=priority, owner=owner, owner_uid=owner)
        if reported:
            self.cache.set_pod(self.pods[uid])

    @rule(uid=st.sampled_from(UIDS))
    def report_pending(self, uid):
        """The pod as it was made: in time, again, or long after it was bound."""
        if uid in self.pods:
            self.cache.set_pod(self.pods[uid])

    @rule(pick=st.integers(0, 7), name=st.sampled_from(NAMES), best=st.booleans())
    def asked(self, pick, name, best):
        """Filter and bind: the answer is that of the sums, and what is taken was free."""
        waiting = sorted(self.pods.keys() - self.held.keys())
        if not waiting:
            return
        uid = waiting[pick % len(waiting)]
        one, lent = self.pods[uid], self.lent(self.pods[uid])
        found = self.cache.filter(one, NAMES, self.now)
        assert set(NAMES) == {*found.fit, *found.failed, *found.unresolvable}
        assert len(NAMES) == len(found.fit) + len(found.failed) + len(found.unresolvable)
        assert {n for n in NAMES if self.place_without(one, n, lent)} == set(found.fit)
        name = found.fit[0] if best and found.fit else name
        assert all(0 <= point <= 10 for point in self.cache.prioritize(one, NAMES, self.now))
        before = {c.uuid: self.free(name, c) for c in self.nodes[name].cards} if name in self.nodes else {}
        got = self.cache.assume(one, name, self.now)
        if not isinstance(got, AssumedPlacement):
            # Two reservations lent at once may show room that a single one does not give.
            assert name not in found.fit or len(lent) > 1
            return
        assert name in found.fit
        assert one.request.cards == len({part.uuid for part in got.placement.slices})
        for part in got.placement.slices:
            size, core = before[part.uuid]
            if got.reservation:
                r = self.kept[got.reservation].placement
                size += sum(p.bytes for p in r.slices if p.uuid == part.uuid)
                core += sum(p.core for p in r.slices if p.uuid == part.uuid)
            assert (part.bytes, part.core) == (one.request.card_bytes, one.request.card_core)
            assert size >= part.bytes
            assert core >= part.core
        self.held[uid], self.answers[uid] = got.placement, got
        if got.reservation:
            self.used[got.reservation] = uid

    @rule(uid=st.sampled_from(UIDS))
    def report_bound(self, uid):
        """The echo of our bind, first, late or again."""
        if uid in self.answers:
            self._bound(uid, self.answers.pop(uid))
        elif uid in self.seen:
            self.cache.set_pod(self.seen[uid])

    @rule(uid=st.sampled_from(UIDS))
    def confirmed(self, uid):
        """The server's answer; it may be late, or nobody's."""
        if uid not in self.answers:
            self.cache.confirm(uid)
        else:
            self.cache.confirm(uid)
            self._bound(uid, self.answers.pop(uid))

    @rule(uid=st.sampled_from(UIDS), pick=st.none() | st.integers(0, 7))
    def undone(self, uid, pick):
        """The server refused; or the answer comes when all is settled otherwise."""
        if self.answers and pick is not None:
            uid = sorted(self.answers)[pick % len(self.answers)]
        self.cache.forget(uid)
        got = self.answers.pop(uid, None)
        if got is not None:
            del self.held[uid]
            self.used.pop(got.reservation, None)

    def _bound(self, uid, got):
        self.seen[uid] = bound(self.pods[uid], got.placement, got.reservation)
        self.cache.set_pod(self.seen[uid])
        self._no_need(uid)

    def _no_need(self, uid):
        self.purposeless |= {name for name, r in self.kept.items() if r.holder == uid}

    @rule(uid=st.sampled_from(UIDS), name=st.sampled_from(NAMES), index=st.integers(0, 3))
    def bound_by_others(self, uid, name, index):
        """With any record, whatever we assumed: it is booked as it is."""
        if uid not in self.pods or uid in self.seen:
            return
        request = self.pods[uid].request
        slices = tuple(
            Slice(f"GPU-{name}-{index + i}", index + i, request.card_bytes, request.card_core)
            for i in range(request.cards)
        )
        got = self.answers.pop(uid, None)
        if got is not None:
            self.used.pop(got.reservation, None)
        self.held[uid] = Placement(name, slices)
        self.seen[uid] = bound(self.pods[uid], self.held[uid])
        self.cache.set_pod(self.seen[uid])
        self._no_need(uid)

    @rule(uid=st.sampled_from(UIDS))
    def deleting(self, uid):
        """A request to end: the pod holds what it holds."""
        if uid in self.seen:
            self.seen[uid] = replace(self.seen[uid], deleting=True)
            self.cache.set_pod(self.seen[uid])
        elif uid in self.pods and uid not in self.held:
            self.deleting.add(uid)
            self.pods[uid] = replace(self.pods[uid], deleting=True)
            self.cache.set_pod(self.pods[uid])

    @rule(uid=st.sampled_from(UIDS), ended=st.booleans())
    def gone(self, uid, ended):
        """An end or a deletion, also of a pod whose bind is under way, and once more."""
        if ended and uid in self.seen:
            self.cache.set_pod(replace(self.seen[uid], phase=Phase.DONE))
        self.cache.remove_pod(uid)
        got = self.answers.pop(uid, None)
        if got is not None:
            self.used.pop(got.reservation, None)
        self._no_need(uid)
        for plain in (self.pods, self.held, self.seen):
            plain.pop(uid, None)
        self.deleting.discard(uid)

    @rule(
        name=st.sampled_from(["r0", "r1"]),
        holder=st.sampled_from([*UIDS[:3], "rs", "nobody"]),
        where=st.sampled_from(NAMES),
        index=st.integers(0, 2),
        size=st.integers(1, 6),
        seconds=st.integers(0, 20),
        mine=st.booleans(),
    )
    def reserved(self, *, name, holder, where, index, size, seconds, mine):
        """A reservation under a free name, for cards that are there or not, free or not."""
        if name in self.kept:
            self.cache.set_reservation(self.kept[name])
            if self.kept[name].holder in self.seen:
                self.purposeless.add(name)
            return
        if holder in self.seen:
            self.purposeless.add(name)
        made = Placement(where, (Slice(f"GPU-{where}-{index}", index, gib(size)),))
        self.kept[name] = reserve(name, holder, made, self.now + seconds, namespace="ml" if mine else "")
        self.cache.set_reservation(self.kept[name])

    @rule(name=st.sampled_from(["r0", "r1"]))
    def remove_reservation(self, name):
        """Deleted, used up or not."""
        if self.used.get(name) in self.answers:
            return
        self.kept.pop(name, None)
        self.used.pop(name, None)
        self.purposeless.discard(name)
        self.cache.remove_reservation(name)
        # A later one of the same name is another object, which nobody has used up.
        self.seen = {uid: replace(p, reservation="") if p.reservation == name else p for uid, p in self.seen.items()}
        for uid, one in self.seen.items():
            if self.held[uid]:
                self.cache.set_pod(one)

    @rule(seconds=st.floats(0.1, 15))
    def later(self, seconds):
        """Time passes."""
        self.now += seconds
        self.cache.find_stale_reservations(self.now)

    @rule(model=st.sampled_from(["T4", "A10"]), units=st.integers(0, 12), there=st.booleans())
    def quota(self, model, units, there):
        """The namespace's quota changes."""
        self.limits = {model: units} if there else {}
        self.cache.set_quota("ml", self.limits or None)

    @rule(size=st.integers(1, 6), cards=st.integers(1, 2))
    def preempted(self, size, cards):
        """Both ways to pre-empt name victims that are enough, of lower priority, and change nothing by asking."""
        high = pod("high", size, cards, priority=2)
        fits = {name for name in NAMES if self.place_without(high, name, self.lent(high))}
        # kube-scheduler proposes pods of lower priority only
        lower = {uid: p.node for uid, p in self.held.items() if self.pods[uid].priority < high.priority}
        proposal = {name: Victims(tuple(uid for uid, node in lower.items() if node == name)) for name in NAMES}
        answer = self.cache.preempt(high, proposal, self.now)
        for name, victims in answer.items():
            assert name in fits or self._enough(high, name, victims.uids)
        relief = self.cache.find_preemption(high, NAMES, self.now)
        if relief is not None:
            assert not fits
            assert self._enough(high, relief.node, relief.victims)
        self.cache.remove_pod("high")

    def _enough(self, high, name, uids):
        assert all(self.pods[uid].priority < high.priority for uid in uids)
        ending = {uid for uid, p in self.seen.items() if p.deleting and self.held[uid].node == name}
        before = self.held
        self.held = {uid: p for uid, p in before.items() if uid not in {*uids, *ending}}
        try:
            return self.place_without(high, name, self.lent(high))
        finally:
            self.held = before

    @invariant()
    def agrees(self):
        """Every card has promised what the sums say; what was assumed and not seen is what waits for its answer."""
        self.cache.find_stale_reservations(self.now)
        assert set(self.answers) == set(self.cache.assumed_pods())
        for found in self.cache.inspect():
            for one, there in zip(found.cards, self.nodes[found.name].cards, strict=True):
                total = there.allocatable_bytes if there.healthy else 0
                assert gib(one.used) == total - self.free(found.name, there)[0]

    def teardown(self):
        """When all is over, every card is empty and nothing is remembered."""
        for uid in UIDS:
            self.cache.remove_pod(uid)
        for name in ("r0", "r1"):
            self.cache.remove_reservation(name)
        assert all(one.used == 0 for found in self.cache.inspect() for one in found.cards)
        room = self.cache._capacity
        assert ({}, {}, {}, {}) == (dict(room.engine.holds), room.held, room.keys_by_node, dict(room.quota._spent))
        assert {} == self.cache.assumed_pods()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
