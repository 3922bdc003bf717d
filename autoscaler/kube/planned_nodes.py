# SPDX-License-Identifier: Apache-2.0
"""
Reservations that tell the scheduler which pods the coming nodes were bought for: by pool, not yet by node.

Decides which reservations are stored for them. They follow the `Nomination`s, so it is the same who bought,
and a leader that ends between a purchase and its reservations leaves nothing undone: the next one makes them. The
scheduler chooses the node (`isolation.scheduler.core.planned_nodes`) and deletes what is used up, expired or without a
pod.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from autoscaler.core.lifecycle import COMING
from autoscaler.kube.observe.nominations import HOME_SECONDS
from autoscaler.kube.step_context import RefusedStepError
from isolation.contract.model import Placement, Slice
from isolation.contract.reservation import LONGEST_SECONDS, PURCHASE, RESERVATIONS_PATH, Reservation, manifest_of
from isolation.kube.core.errors import ClusterError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.core.lifecycle import PoolMachine
    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Nomination
    from autoscaler.kube.step_context import StepContext
    from isolation.contract.model import Pod

log = logging.getLogger(__name__)
MAX_WRITES_PER_CYCLE: Final = 200
"""Reservations that are stored at a time; the others follow in the next cycle, long before a node is up."""
SEEN_SECONDS: Final = 30.0
"""A reservation of ours that the watch has not shown after so long is no more."""
REFUSED_SECONDS: Final = 300.0
"""Until it is tried again where the API server takes no reservation from us at all."""
_MISSING: Final = {
    403: "this account may not write them (on ACK it may not: its scheduler does not honor them)",
    404: "the CustomResourceDefinition is not installed (manifests/base/crd)",
    422: "the CustomResourceDefinition is of another version (manifests/base/crd)",
}
"""By status of the answer."""


class PlannedNodes:
    """See the module."""

    def __init__(self, context: StepContext, limits: ScalingLimits) -> None:
        self._context, self._limits = context, limits
        self._made: dict[str, tuple[float, Reservation]] = {}
        """By UID of the pod, when it was stored by this process."""
        self._homeless: dict[str, float] = {}
        """By UID of pods with a reservation and no home, since when."""
        self._refused, self._refused_until = 0, 0.0
        """The status with which reservations are refused; 0: they are not."""

    async def reserve(
        self, homes: Mapping[str, Nomination], machines: Mapping[str, PoolMachine], pods: Mapping[str, Pod]
    ) -> None:
        """Store what is missing and delete what is wrong; trouble costs a cycle, and no purchase."""
        now = self._context.now()
        if now < self._refused_until:
            return
        known = self._known()
        pool_of = {uid: machines[home.machine].pool for uid, home in homes.items() if home.machine in machines}
        self._homeless = {uid: self._homeless.get(uid, now) for uid in known if uid not in pool_of}
        wrong = [uid for uid, made in known.items() if made.expires <= now or pool_of.get(uid, made.pool) != made.pool]
        wrong += [uid for uid, since in self._homeless.items() if now - since >= HOME_SECONDS and uid not in wrong]
        try:
            for uid in wrong:
                await self._context.delete_reservation(known.pop(uid).name)
                self._made.pop(uid, None)
            for made in self._missing(homes, machines, pods, known)[:MAX_WRITES_PER_CYCLE]:
                await self._context.write("POST", RESERVATIONS_PATH, manifest_of(made))
                self._made[made.holder] = now, made
                self._refused = 0
        except (RefusedStepError, ClusterError) as exc:
            if isinstance(exc, RefusedError) and exc.status in _MISSING:
                self._pause(exc, now)
                return
            log.info("cannot reserve memory on nodes to come: others may take it; retrying in the next cycle: %s", exc)

    def _pause(self, refused: RefusedError, now: float) -> None:
        """Nobody is asked again for a while; what is missing is said once."""
        self._refused_until = now + REFUSED_SECONDS
        if refused.status != self._refused:
            log.warning(
                "cannot reserve memory on nodes to come, the first pod that fits takes it: %s; "
                "retrying every %.0f s: %s",
                _MISSING[refused.status],
                REFUSED_SECONDS,
                refused,
            )
        self._refused = refused.status

    def _known(self) -> dict[str, Reservation]:
        """By UID of the pod: as the watch shows them, and those that it has not shown yet."""
        stored, now = self._context.sources.reservations.all(), self._context.now()
        self._made = {
            uid: (at, made)
            for uid, (at, made) in self._made.items()
            if made.name not in stored and now - at < SEEN_SECONDS
        }
        known = {one.made.holder: one.made for one in stored.values() if one.made.pool}
        return {uid: made for uid, (_, made) in self._made.items()} | known

    def _missing(
        self,
        homes: Mapping[str, Nomination],
        machines: Mapping[str, PoolMachine],
        pods: Mapping[str, Pod],
        known: Mapping[str, Reservation],
    ) -> list[Reservation]:
        """What is to be stored; pods of one machine share a planned node."""
        now = self._context.now()
        stamp = f"{int(now * 1000):x}"
        seconds = min(self._limits.max_node_provision_seconds + 2 * HOME_SECONDS, LONGEST_SECONDS)
        planned = {home.machine: known[uid].planned_node for uid, home in homes.items() if uid in known}
        found = []
        for uid, home in homes.items():
            machine, pod = machines.get(home.machine), pods.get(uid)
            if uid in known or pod is None or not pod.request.shared or machine is None or machine.state not in COMING:
                continue
            node = planned.setdefault(home.machine, f"{machine.pool}-{stamp}-{len(planned)}")
            part = pod.request.card_bytes, pod.request.card_core
            place = Placement("", tuple(Slice("", position, *part) for position in home.cards))
            name = f"{PURCHASE}-{uid}-{stamp}"
            until = now + seconds
            found.append(
                Reservation(
                    name, uid, place, until, pod.namespace, reason=PURCHASE, pool=machine.pool, planned_node=node
                )
            )
        return found
