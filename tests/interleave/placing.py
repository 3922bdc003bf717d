# SPDX-License-Identifier: Apache-2.0
"""
Our scheduler's deciders over the stored objects, without its processes: what a story's scheduler asks, pod by pod.

The cache is the real one, with the reservations on nodes to come (`core.planned_nodes`); it is told of each
change at once. `Promised` is the judge's own count: by what is stored, and by trying every possibility.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interleave.server import EPOCH

from isolation.contract.codec.node import node_of
from isolation.contract.codec.pod import pod_of
from isolation.contract.model import Pod, Refusal
from isolation.contract.quantity import GIB
from isolation.contract.reservation import reservation_of
from isolation.scheduler.core.cache import SchedulerCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from interleave.server import Happened, Server, Thing

    from isolation.contract.reservation import Reservation
    from isolation.scheduler.core.cache import AssumedPlacement

_MAX_TRIES: Final = 20_000
"""Of one search; beyond them it cannot be told."""


class Scheduler:
    """One leader's cache, from its start to its end."""

    def __init__(
        self, server: Server, now: Callable[[], float], made: Callable[[], SchedulerCache] = SchedulerCache
    ) -> None:
        """`now`: seconds of the story."""
        self._server, self._now, self.cache = server, now, made()
        self._pods: dict[str, Pod] = {}
        """Those with shares."""
        for kind in ("nodes", "pods", "reservations"):
            for thing in server.things[kind].values():
                self._learn(kind, None, thing)
        server.watchers.append(self._happened)

    def end(self) -> None:
        """Another leads from now on."""
        self._server.watchers.remove(self._happened)

    def place(self, uid: str, names: Sequence[str]) -> AssumedPlacement | None:
        """The cards that a pod takes on one of these nodes, assumed; None: there are none."""
        pod = self._pods.get(uid)
        if pod is None:
            return None
        fit = self.cache.filter(pod, names, self._wall()).fit
        for name in self.cache.shortlist(pod, fit, 1, self._wall()) or fit:
            found = self.cache.assume(pod, name, self._wall())
            if not isinstance(found, Refusal):
                return found
        return None

    def fits(self, uid: str, names: Sequence[str]) -> bool:
        """Whether one of these nodes has cards for the pod that are kept for nobody else."""
        pod = self._pods.get(uid)
        return pod is not None and bool(self.cache.filter(pod, names, self._wall()).fit)

    def tidy(self) -> list[str]:
        """Names of reservations that have had their day."""
        return [made.name for made in self.cache.find_stale_reservations(self._wall())]

    def _wall(self) -> float:
        return EPOCH + self._now()

    def _happened(self, one: Happened) -> None:
        self._learn(one.kind, one.before, one.after)

    def _learn(self, kind: str, before: Thing | None, after: Thing | None) -> None:
        name = (after or before or {})["metadata"]["name"]
        match kind:
            case "nodes" if after is None:
                self.cache.remove_node(name)
            case "nodes":
                self.cache.set_node(node_of(after))
            case "pods" if after is None:
                self._pods.pop(uid := (before or {})["metadata"]["uid"], None)
                self.cache.remove_pod(uid)
            case "pods":
                pod = _read(after or {})
                if pod is not None:
                    self._pods[pod.uid] = pod
                    self.cache.set_pod(pod)
            case "reservations" if after is None:
                self.cache.remove_reservation(name)
            case "reservations":
                self.cache.set_reservation(reservation_of(after))


def _read(thing: Thing) -> Pod | None:
    """None: it asks for no share."""
    pod = pod_of(thing)
    return pod if isinstance(pod, Pod) and pod.request.shared else None


class Promised:
    """For whom machines were bought who wait still, and what those machines came with that nobody has had since."""

    def __init__(self, server: Server, now: Callable[[], float]) -> None:
        """`now`: seconds of the story."""
        self._server, self._now = server, now
        self._since: dict[tuple[str, str], float] = {}
        """By kind and name, since when there is a node or a reservation."""
        self._least: dict[str, dict[str, int]] = {}
        """By node, the least that was ever free of each card: what became free again is anybody's."""
        server.watchers.append(self._happened)

    def _happened(self, one: Happened) -> None:
        if one.before is None and one.after is not None and one.kind in ("nodes", "reservations"):
            self._since[one.kind, one.after["metadata"]["name"]] = self._now()

    def holders(self) -> dict[str, list[Reservation]]:
        """By pool, the stored purchases whose pods wait."""
        pods = {thing["metadata"]["uid"]: thing for thing in self._server.things["pods"].values()}
        found: dict[str, list[Reservation]] = {}
        for thing in self._server.things["reservations"].values():
            made = reservation_of(thing)
            pod = pods.get(made.holder)
            waits = pod is not None and not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
            if made.pool and waits and made.expires > EPOCH + self._now():
                found.setdefault(made.pool, []).append(made)
        return found

    def fit(
        self, free: Mapping[str, Mapping[str, int]], pools: Mapping[str, str], coming: Mapping[str, Sequence[int]]
    ) -> dict[str, bool | None]:
        """
        By pool, whether all of them fit on machines that came since and those to come; None: it cannot be told.

        `free`: GiB by node and card now; `coming`: by pool, GiB of each card of machines that are no nodes yet.
        """
        for node, cards in free.items():
            before = self._least.get(node, cards)
            self._least[node] = {card: min(units, before.get(card, units)) for card, units in cards.items()}
        found = {}
        for pool, holders in self.holders().items():
            begin = min(self._since["reservations", made.name] for made in holders)
            fresh = (node for node in free if pools[node] == pool and self._since.get(("nodes", node), 0.0) >= begin)
            cards = [units for node in fresh for units in self._least[node].values()]
            sizes = [made.placement.slices[0].bytes // GIB for made in holders]
            found[pool] = room_for_all([*cards, *coming.get(pool, ())], sizes)
        return found


def room_for_all(cards: Iterable[int], sizes: Iterable[int]) -> bool | None:
    """Whether all of these fit on the cards together, each on one (GiB); None: it cannot be told soon enough."""
    tries = 0

    def placed(free: tuple[int, ...], left: tuple[int, ...]) -> bool:
        nonlocal tries
        tries += 1
        if not left or tries > _MAX_TRIES:
            return True
        first, rest = left[0], left[1:]
        for size in sorted({room for room in free if room >= first}):
            at = free.index(size)
            if placed((*free[:at], size - first, *free[at + 1 :]), rest):
                return True
        return False

    found = placed(tuple(sorted(cards)), tuple(sorted(sizes, reverse=True)))
    return None if tries > _MAX_TRIES else found
