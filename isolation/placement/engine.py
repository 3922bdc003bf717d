# SPDX-License-Identifier: Apache-2.0
"""
The placement engine: which node and which cards a pod gets, for the scheduler, the simulator and the autoscaler.

Incremental: a decision rates only the nodes that changed since a pod of the same shape was last placed. Decisions
(`place`, `place_on`, `rate`, `why_not`) change nothing; `hold` and `release` (of `FleetState`) record what was decided.
So a what-if is a `fork`, and a crash between the two loses nothing. Does no I/O and knows no clock.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from isolation.contract.model import FULL_CORE, Placement, Refusal, Slice, Why
from isolation.placement import native
from isolation.placement.explain import BARRED, NATIVE_WHYS, describe_reason, explain_refusal, nearest_reason
from isolation.placement.fleet_state import FleetState, PlacementError
from isolation.placement.groups import WHYS
from isolation.placement.policy import Rank
from isolation.placement.workload_mix import FIRST, STEADY, WorkloadMix

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from isolation.contract.model import Node, Request
    from isolation.placement.fit_cache import FitRow

__all__ = ["Engine", "PlacementError"]

_CODES: Final = (
    *NATIVE_WHYS,
    None,  # GS_NO_COUNT: it would take the pod
    *WHYS,  # a node that its group may not use: Groups' own code, put behind the native ones
    Why.NO_NODES,
)
"""What `why_not` finds for a node, by code."""
_BARRED, _UNKNOWN = len(NATIVE_WHYS) + 1, len(_CODES) - 1


class Engine(FleetState):
    """See the module; `policy` is a name of `isolation.placement.policy.POLICIES`."""

    def fork(self) -> Engine:
        """An independent copy for what-if questions, with the workload mix and the nodes' potential."""
        twin = Engine(policy=self.policy.name, seed=self.seed)
        twin.fleet, twin.groups, twin.learner = self.fleet.copy(), self.groups.copy(), self.learner.copy()
        twin._nodes, twin._row_of, twin._node_at = dict(self._nodes), dict(self._row_of), dict(self._node_at)
        twin._spare, twin._holds, twin._masks = list(self._spare), dict(self._holds), dict(self._masks)
        twin._held_on = {row: dict(uids) for row, uids in self._held_on.items()}
        twin._owners = {owner: replicas.copy() for owner, replicas in self._owners.items()}
        twin._draws, twin._table = self._draws, self._table
        twin._forget()
        twin._answers = self._answers.copy(twin.fleet)
        return twin

    def fragments(self, names: Iterable[str] | None = None) -> tuple[float, float]:
        """Idle cards, and how many of them the mix could not use (FGD's measure); of these nodes, or of all."""
        idle, fleet = ctypes.c_double(), self.fleet
        if names is not None:
            fleet = self.fleet.copy()
            away = np.ones(fleet.capacity, bool)
            away[[self._row_of[name] for name in names]] = False
            for array in (fleet.node["cards"], fleet.node["pods"], fleet.card["offered"], fleet.card["free"]):
                array[away] = 0
        lost = native.LIB.gs_fragment(fleet.struct, self._mix, ctypes.byref(idle))
        return idle.value, float(lost)

    # -- the workload ------------------------------------------------------------------------

    def arrive(self, request: Request) -> None:
        """Add one arrival to the workload mix; a policy that is not online ignores it."""
        if self.policy.online and self.policy.rank is Rank.POTENTIAL and self.learner.add(self._shape(request)[1]):
            self._learn()

    def teach(self, requests: Iterable[Request]) -> None:
        """Preload the workload mix with a known workload, as the published baseline does."""
        for request in requests:
            self.learner.add(self._shape(request)[1])
        self._learn()

    def relearn(self, requests: Iterable[Request]) -> None:
        """Learn the workload mix again from exactly these, in any order, without decay."""
        counts = Counter(self._shape(request)[1] for request in requests)
        self.learner = WorkloadMix()
        self.learner.counts, self.learner.arrived = dict(counts), counts.total()
        self.learner.due = max(FIRST, self.learner.arrived + STEADY)
        self._learn()

    # -- decisions ---------------------------------------------------------------------------

    def place(self, request: Request) -> Placement | Refusal:
        """Where the pod goes, or the true reason why it cannot; changes nothing."""
        ask, shape = self._shape(request)
        mask = ctypes.c_uint64()
        row = self._answers.row(shape, anew=self.policy.rank is Rank.RANDOM)
        near = self._replica_pointers(request)
        found = native.LIB.gs_pick(
            self.fleet.struct, self._mix, self._weights(), ask, row.struct, *near, ctypes.byref(mask)
        )
        if found < 0:
            return self._refuse(request, ask)
        return self._placement(request, self._node_at[found], mask.value)

    def place_on(self, request: Request, name: str) -> Placement | Refusal:
        """Which cards of this one node the pod takes, or why none will do; KeyError for an unknown node."""
        row = self._row_of[name]
        answers = self._rate_nodes(request, np.array([row], np.int32))
        if not np.isfinite(answers.score[row]):
            (why,) = self.why_not(request, (name,))
            return Refusal(why or Why.CARDS, describe_reason(why or Why.CARDS, request))
        return self._placement(request, self._node_at[row], int(answers.mask[row]))

    def rate(
        self, request: Request, names: Sequence[str]
    ) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.uint64]]]:
        """
        Score each of these nodes for the pod, with the cards it would take there, as bits by card order.

        Smaller is better; infinite: it does not fit, or there is no such node.
        """
        rows = self._rows(names)
        known = rows >= 0
        answers = self._rate_nodes(request, rows[known])
        scores, masks = np.full(len(rows), np.inf), np.zeros(len(rows), np.uint64)
        scores[known], masks[known] = answers.score[rows[known]], answers.mask[rows[known]]
        return scores, masks

    def why_not(self, request: Request, names: Sequence[str]) -> dict[Why | None, list[str]]:
        """Group these nodes by the reason why the pod does not fit; None: it fits. Unknown nodes: NO_NODES."""
        ask, rows = self._shape(request)[0], self._rows(names)
        known = rows >= 0
        codes = np.full(len(rows), _UNKNOWN, np.uint8)
        found = np.empty(int(known.sum()), np.uint8)
        asked = np.ascontiguousarray(rows[known])
        eligible, may = native.pointer(self.groups.eligible[ask.group]), self._allowed_cards(ask)
        nodes = native.pointer(asked)
        native.LIB.gs_say(self.fleet.struct, ask, eligible, may, nodes, len(asked), native.pointer(found))
        barred = found == 0
        found[barred] = _BARRED + self.groups.why[ask.group, asked[barred]]
        codes[known] = found
        by_reason: dict[Why | None, list[str]] = {}
        for code in np.unique(codes).tolist():
            by_reason[_CODES[code]] = [names[at] for at in np.flatnonzero(codes == code).tolist()]
        return by_reason

    # -- internal ----------------------------------------------------------------------------

    def _allowed_cards(self, ask: native.AskStruct) -> int | None:
        """Pointer to the cards of each node that the pod may use; None: all."""
        may = self.groups.may
        return None if may is None else native.pointer(may[ask.group])

    def _weights(self) -> native.PolicyStruct:
        if self.policy.rank is Rank.RANDOM:
            self._draws += 1
            self._policy.salt = (self.seed * 0x9E3779B97F4A7C15 + self._draws) & (1 << 64) - 1
        return self._policy

    def _replica_pointers(self, request: Request) -> tuple[int | None, int | None, int]:
        """Pointers to the nodes and cards of the owner's other replicas, for the spread policy."""
        replicas = self._owners.get(request.owner) if request.owner else None
        if replicas is None:
            return None, None, 0
        return replicas.rows.buffer_info()[0], replicas.masks.buffer_info()[0], len(replicas.rows)

    def _rows(self, names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.fromiter(map(self._row_of.get, names, repeat(-1)), np.int32, len(names))

    def _rate_nodes(self, request: Request, rows: np.ndarray[Any, np.dtype[np.int32]]) -> FitRow:
        """The cached row of the request's shape, up to date for these nodes."""
        ask, shape = self._shape(request)
        answer = self._answers.row(shape, anew=self.policy.rank is Rank.RANDOM)
        asked, near = np.ascontiguousarray(rows), self._replica_pointers(request)
        native.LIB.gs_rate(
            self.fleet.struct, self._mix, self._weights(), ask, answer.struct, *near, native.pointer(asked), len(asked)
        )
        return answer

    def _placement(self, request: Request, node: Node, mask: int) -> Placement:
        taken = (card for at, card in enumerate(node.cards) if mask >> at & 1)
        if request.whole:
            return Placement(node.name, tuple(Slice(c.uuid, c.index, c.allocatable_bytes, FULL_CORE) for c in taken))
        return Placement(node.name, tuple(Slice(c.uuid, c.index, request.card_bytes, request.card_core) for c in taken))

    def _refuse(self, request: Request, ask: native.AskStruct) -> Refusal:
        best, found = native.BestStruct(), np.zeros(len(NATIVE_WHYS) + 1, np.int32)
        eligible = native.pointer(self.groups.eligible[ask.group])
        native.LIB.gs_why(self.fleet.struct, ask, eligible, self._allowed_cards(ask), native.pointer(found), best)
        counts = self.groups.barred(ask.group, self.fleet.rows)
        counts |= {why: n for why, n in zip(NATIVE_WHYS, found.tolist(), strict=False) if why is not None and n}
        why = nearest_reason(counts)
        example = self.groups.example(ask.group, why, self._node_at) if why in BARRED else ""
        return explain_refusal(request, counts, best, example)
