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
from urllib.parse import quote

from autoscaler.apis.metrics.core.readings import LatestSnapshot
from autoscaler.apis.rpc.provider_groups import ProviderGroups
from autoscaler.core.decide import decide
from autoscaler.core.rightsizing.codec import HistoryError, decode
from autoscaler.core.rightsizing.recommend import EvidencePolicy
from autoscaler.core.scale_down import explain_needed
from autoscaler.kube.backends import open_backends
from autoscaler.kube.cluster import ClusterParts, KubeCluster
from autoscaler.kube.config.file import ConfigFile
from autoscaler.kube.core.conditions import ConditionError
from autoscaler.kube.core.inhibition import Authority, Cause, find_inhibition
from autoscaler.kube.core.telemetry_rows import TelemetryReading
from autoscaler.kube.plan_view import Beside, Prospect, make_prospect
from autoscaler.kube.right_sizing import HISTORY_KEY
from autoscaler.kube.state import ControllerState
from autoscaler.kube.state_store import StateConfigMap
from autoscaler.kube.switch import Switch
from autoscaler.kube.watches import BUDGETS_PATH, Sources
from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.recommendations import KEY, Recommended, decode_recommendations
from isolation.contract.names import RIGHT_SIZING
from isolation.contract.quantity import GIB
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube.access import Access
from isolation.kube.core.errors import (
    ClusterError,
    CredentialsError,
    ForbiddenError,
    MalformedError,
    NotFoundError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from isolation.kube.election import boottime
from isolation.kube.writes import decode_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autoscaler.core.rightsizing.history import ProgramHistory, ProgramKey
    from autoscaler.kube.backends import Backends
    from autoscaler.kube.options import Options

READ_SECONDS: Final = 60.0
"""For the first whole list of a large cluster."""
_READ: Final = ("/api/v1/nodes", "/api/v1/pods", RESERVATIONS_PATH, BUDGETS_PATH)
_MAX_KEPT: Final = 20


class CannotTellError(Exception):
    """There is no plan; the message says why."""


class _Silent:
    """Says nothing to the cluster."""

    async def node(self, name: str, uid: str, reason: str, note: str, *, warning: bool = False) -> None:
        """Nothing."""

    async def pod(self, key: str, uid: str, reason: str, note: str, *, warning: bool = False) -> None:
        """Nothing."""


async def make_prospect_now(options: Options, seconds: float = READ_SECONDS) -> Prospect:
    """The plan; CannotTellError, and the errors of the configuration and of the credentials."""
    config = ConfigFile(options.config).first()
    async with Access(options.kubeconfig, options.context) as access:
        backends = open_backends(config, access, ProviderGroups(()))
        try:
            return await _looked(options, access, backends, seconds)
        finally:
            await backends.close()


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


async def _looked(options: Options, access: Access, backends: Backends, seconds: float) -> Prospect:
    await _asked(access, seconds)
    sources, board = Sources(access, unit_bytes=options.unit_bytes), LatestSnapshot()
    switch = Switch(access, options.namespace, boottime)
    async with sources.following():
        await switch.look()
        state, trouble = await _load_state(options, access)
        sizing, histories, recommended = await _load_right_sizing(options, access)
        try:
            await asyncio.wait_for(sources.synced(), seconds)
        except TimeoutError:
            raise CannotTellError(
                f"the initial lists did not complete within {seconds:.0f} s: {sources.missing()}"
            ) from None
        parts = ClusterParts(
            access=access,
            sources=sources,
            providers=backends.providers,
            usage=backends.usage,
            events=_Silent(),
            fence=lambda: "this command only plans",
            now=time.time,
            board=board,
            histories=lambda: histories,
            policy=EvidencePolicy(unit_bytes=options.unit_bytes),
            recommended=lambda: recommended,
        )
        cluster = KubeCluster(parts, backends.config.pools, backends.config.limits, state)
        try:
            seen = await cluster.observe()
            seen = replace(seen, pools=backends.config.ranked(seen.pools))
        except ConditionError as exc:
            raise CannotTellError(str(exc)) from None
    plan, memory = decide(seen, backends.config.limits, state.memory)
    reading = TelemetryReading(seen, memory, backends.config.limits, board.latest(), unanswered=cluster.unanswered())
    stay = islice(explain_needed(seen, backends.config.limits).items(), _MAX_KEPT)
    limits = (*plan.capped, *(f"node {name} is not drained: {why}" for name, why in stay))
    conditions = (
        *_nothing(options, backends),
        *limits,
        *(condition.text for condition in cluster.conditions()),
        *trouble,
        *sizing,
    )
    silent = cluster.observed.silent if cluster.observed is not None else {}
    return make_prospect(reading, plan.steps, Beside(conditions, _find_inhibitions(options, switch), silent))


def _nothing(options: Options, backends: Backends) -> Iterator[str]:
    """That nothing can be planned, where there is nothing to plan with."""
    if not backends.config.pools:
        where = "set --config FILE" if options.config is None else f"{options.config} lists none"
        yield f"no pools are configured: {where} (docs/autoscaler.md describes the file)"


async def _load_state(options: Options, access: Access) -> tuple[ControllerState, tuple[str, ...]]:
    """What the running autoscaler remembers: without it every node has been superfluous for no time at all."""
    store = StateConfigMap(access, options.namespace)
    try:
        return await store.load(time.time()) or ControllerState(), ()
    except (ClusterError, CodecError) as exc:
        return ControllerState(), (f"cannot read the saved state of the running autoscaler ({store.where}): {exc}",)


async def _load_right_sizing(
    options: Options, access: Access
) -> tuple[tuple[str, ...], Mapping[ProgramKey, ProgramHistory], Recommended]:
    """What right-sizing would free, and what it rests on, by the running autoscaler; nothing where there is none."""
    path = f"/api/v1/namespaces/{quote(options.namespace, safe='')}/configmaps/{RIGHT_SIZING}"
    try:
        data = decode_object(await access.send("GET", path)).get("data")
        found = decode_recommendations(data[KEY]) if isinstance(data, dict) and KEY in data else None
        known = decode(data[HISTORY_KEY], time.time()) if isinstance(data, dict) and HISTORY_KEY in data else {}
    except NotFoundError:
        return (), {}, Recommended()
    except (ClusterError, CodecError, HistoryError, TypeError) as exc:
        text = f"cannot read what right-sizing would free (ConfigMap {options.namespace}/{RIGHT_SIZING}): {exc}"
        return (text,), {}, Recommended()
    wasteful = [one for one in found.programs if one.freed_bytes] if found is not None else []
    freed = sum(one.freed_bytes for one in wasteful) / GIB
    text = f"right-sizing {len(wasteful)} workloads would free {freed:.0f} GiB (gpushare recommend)"
    return (text,) if wasteful else (), known, Recommended.of(found.programs if found is not None else ())


def _find_inhibitions(options: Options, switch: Switch) -> tuple[str, ...]:
    """What the switch says to the one that runs; whether one runs is not known here."""
    now = Authority(
        stopping=False,
        epoch=0,
        holder=None,
        position=switch.position(),
        where=switch.where,
        dry_run=options.dry_run,
        loaded=0,
    )
    inhibition = find_inhibition(now)
    return () if inhibition is None or inhibition.cause not in (Cause.SWITCH, Cause.DRY_RUN) else (inhibition.text,)
