# SPDX-License-Identifier: Apache-2.0
"""
One look at the cluster, one decision, nothing touched: what `gpushare autoscaler plan` is made of.

Decides how long it waits for the cluster to be read. Needs rights to read only; what cannot be read for want of them
(the switch, what is remembered) is said beside the plan.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from autoscaler.apis.metrics.core.readings import LatestSnapshot
from autoscaler.apis.rpc.provider_groups import ProviderGroups
from autoscaler.core.decide import decide
from autoscaler.core.scale_down import explain_needed
from autoscaler.kube.composition import opened
from autoscaler.kube.config.file import ConfigFile
from autoscaler.kube.core.conditions import DoubtError
from autoscaler.kube.core.inhibition import Facts, Why, hold_of
from autoscaler.kube.core.telemetry_rows import Reading
from autoscaler.kube.plan_view import Beside, Prospect, prospect_of
from autoscaler.kube.state_store import Remembered, StateStore
from autoscaler.kube.switch import Switch
from autoscaler.kube.watches import BUDGETS_PATH, RESERVATIONS_PATH, Sources
from autoscaler.kube.world import KubeWorld, Parts
from isolation.contract.codec.cursor import CodecError
from isolation.kube.access import Access
from isolation.kube.core.errors import (
    ClusterError,
    CredentialsError,
    ForbiddenError,
    MalformedError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autoscaler.kube.composition import Wired
    from autoscaler.kube.options import Options

READ_SECONDS: Final = 60.0
"""For the first whole list of a large cluster."""
_READ: Final = ("/api/v1/nodes", "/api/v1/pods", RESERVATIONS_PATH, BUDGETS_PATH)
_MOST_KEPT: Final = 20


class CannotTellError(Exception):
    """There is no plan; the message says why."""


class _Silent:
    """Says nothing to the cluster."""

    async def node(self, name: str, uid: str, reason: str, note: str, *, warning: bool = False) -> None:
        """Nothing."""

    async def pod(self, key: str, uid: str, reason: str, note: str, *, warning: bool = False) -> None:
        """Nothing."""


async def looked(options: Options, seconds: float = READ_SECONDS) -> Prospect:
    """The plan; CannotTellError, and the errors of the configuration and of the credentials."""
    config = ConfigFile(options.config).first()
    async with Access(options.kubeconfig, options.context) as access:
        wired = opened(config, access, ProviderGroups(()))
        try:
            return await _looked(options, access, wired, seconds)
        finally:
            await wired.close()


async def _asked(access: Access, seconds: float) -> None:
    """One object of each kind, so that what will never be answered is said at once, and why; CannotTellError."""
    denied: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            for path in _READ:
                try:
                    await access.page(path, {"limit": "1"})
                except (UnauthorizedError, ForbiddenError):
                    denied.append(path)
                except RefusedError:
                    continue
    except TimeoutError:
        raise CannotTellError(f"the API server did not respond within {seconds:.0f} s") from None
    except CredentialsError as exc:
        raise CannotTellError(str(exc)) from None
    except (UnreachableError, MalformedError) as exc:
        raise CannotTellError(f"cannot reach the API server: {exc}; check --kubeconfig and --context") from None
    if denied:
        needed = "grant list and watch on these resources"
        raise CannotTellError(f"these credentials cannot read {', '.join(denied)}: {needed}")


async def _looked(options: Options, access: Access, wired: Wired, seconds: float) -> Prospect:
    await _asked(access, seconds)
    sources, board = Sources(access, unit_bytes=options.unit_bytes), LatestSnapshot()
    switch = Switch(access, options.namespace, boottime)
    async with sources.following():
        await switch.look()
        remembered, trouble = await _remembered(options, access)
        try:
            await asyncio.wait_for(sources.synced(), seconds)
        except TimeoutError:
            raise CannotTellError(
                f"the initial lists did not complete within {seconds:.0f} s: {sources.missing()}"
            ) from None
        parts = Parts(
            access=access,
            sources=sources,
            providers=wired.providers,
            figures=wired.figures,
            events=_Silent(),
            fence=lambda: "this command only plans",
            now=time.time,
            board=board,
        )
        world = KubeWorld(parts, wired.config.pools, wired.config.limits, remembered.kept)
        try:
            seen = await world.observe()
            seen = replace(seen, pools=wired.config.ranked(seen.pools))
        except DoubtError as exc:
            raise CannotTellError(str(exc)) from None
    plan, memory = decide(seen, wired.config.limits, remembered.memory)
    reading = Reading(seen, memory, wired.config.limits, board.latest(), unanswered=world.unanswered())
    stay = islice(explain_needed(seen, wired.config.limits).items(), _MOST_KEPT)
    told = (*plan.capped, *(f"node {name} is not drained: {why}" for name, why in stay))
    doubts = (*_nothing(options, wired), *told, *(doubt.text for doubt in world.doubts()), *trouble)
    silent = world.seen.silent if world.seen is not None else {}
    return prospect_of(reading, plan.steps, Beside(doubts, _holds(options, switch), silent))


def _nothing(options: Options, wired: Wired) -> Iterator[str]:
    """That nothing can be planned, where there is nothing to plan with."""
    if not wired.config.pools:
        where = "set --config FILE" if options.config is None else f"{options.config} lists none"
        yield f"no pools are configured: {where} (docs/autoscaler.md describes the file)"


async def _remembered(options: Options, access: Access) -> tuple[Remembered, tuple[str, ...]]:
    """What the running autoscaler remembers: without it every node has been superfluous for no time at all."""
    store = StateStore(access, options.namespace)
    try:
        return await store.load(time.time()) or Remembered(), ()
    except (ClusterError, CodecError) as exc:
        return Remembered(), (f"cannot read the saved state of the running autoscaler ({store.where}): {exc}",)


def _holds(options: Options, switch: Switch) -> tuple[str, ...]:
    """What the switch says to the one that runs; whether one runs is not known here."""
    facts = Facts(
        stopping=False,
        epoch=0,
        holder=None,
        position=switch.position(),
        where=switch.where,
        dry_run=options.dry_run,
        inherited=0,
    )
    hold = hold_of(facts)
    return () if hold is None or hold.why not in (Why.SWITCH, Why.DRY_RUN) else (hold.text,)
