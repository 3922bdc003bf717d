# SPDX-License-Identifier: Apache-2.0
"""
Pools on AWS Auto Scaling groups, by boto3.

Decides how groups and activities are read and how one machine more or less is asked for; knows no pods. The API
has no compare-and-set: the group is read again just before each write, and what the reader expected is compared.

Source: Amazon EC2 Auto Scaling API reference (DescribeAutoScalingGroups, SetDesiredCapacity,
TerminateInstanceInAutoScalingGroup, DescribeScalingActivities).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoscaler.providers.base import (
    READ_SECONDS,
    WRITE_SECONDS,
    ChangedError,
    DeniedError,
    InstanceState,
    OutOfStockError,
    PoolState,
    ProviderError,
    ProviderInstance,
    ProviderUnreachableError,
    deadline,
    raise_target,
)
from autoscaler.providers.cloud import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    call_in_thread,
    import_sdk,
    is_raised_by,
    read_texts,
)
from autoscaler.providers.core.node_description import aws_template
from autoscaler.providers.core.stock import is_out_of_stock, shorten_error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from isolation.contract.codec.cursor import At
    from isolation.contract.codec.template import NodeTemplate

NAME: Final = "aws"
_EXTRA: Final = "aws"
_BATCH: Final = 50
"""Names that one request may list."""
_MAX_PAGES: Final = 100
_THREADS: Final = 4
_ACTIVITIES: Final = 10
_WEIGHTED: Final = "the group has instance weights, which are not supported; use a group without them"
_LATER: Final = frozenset({"ScalingActivityInProgress", "ResourceContention"})
_BUSY: Final = frozenset({"Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestThrottled"})
_STATES: Final = {
    "Pending": InstanceState.COMING,
    "InService": InstanceState.RUNNING,
    "Quarantined": InstanceState.FAILED,
    "ReplacingRootVolume": InstanceState.RUNNING,
    "RootVolumeReplaced": InstanceState.RUNNING,
    "Terminating": InstanceState.LEAVING,
    "Detaching": InstanceState.LEAVING,
}
"""By the word before the colon. Others (standby, warm pool, gone) do not count towards what a group desires."""


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """One group."""

    region: str
    group: str


def parse_settings(at: At) -> AwsSettings:
    """`region` and `group`; raises CodecError."""
    return AwsSettings(*read_texts(at, NAME, ("region", "group")))


def make_client(region: str) -> Any:
    """
    boto3's client for this region, with every time bounded; MissingError without boto3.

    Nothing is sent twice: a termination that was lost on its way back would lower the group twice.
    """
    boto3, config = import_sdk("boto3", _EXTRA), import_sdk("botocore.config", _EXTRA)
    bounds = config.Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=_THREADS,
    )
    return boto3.client("autoscaling", region_name=region, config=bounds)


class AwsProvider:
    """The groups of one region."""

    def __init__(self, api: Any, pools: Mapping[str, AwsSettings]) -> None:
        self._api, self._pools = api, dict(pools)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aws")
        self._before: dict[str, str] = {}
        """The newest activity of each pool before we asked for more: an older failure says nothing about that."""

    @property
    def name(self) -> str:
        """As in the configuration."""
        return NAME

    async def pools(self) -> tuple[PoolState, ...]:
        """All groups in one request for each fifty; a group that is not there is left out."""
        async with deadline(READ_SECONDS, "reading the Auto Scaling groups"):
            groups = await self._groups(one.group for one in self._pools.values())
            found = [(pool, groups[one.group]) for pool, one in sorted(self._pools.items()) if one.group in groups]
            return tuple([await self._with_trouble(_state(pool, group)) for pool, group in found])

    async def grow(self, pool: str, by: int, seen: int | None = None) -> int:
        """Raise what the group desires, cooldown or not."""
        if by < 1:
            raise DeniedError(f"{pool}: cannot add {by} nodes; add 1 or more")
        async with deadline(WRITE_SECONDS, f"{pool}: scaling up"):
            newest = await self._activities(pool)
            state = await self._fresh(pool)
            target = raise_target(state, by, seen, "the group's MaxSize")
            self._before[pool] = str(newest[0].get("ActivityId", "")) if newest else ""
            return await self._set(pool, target)

    async def remove(self, pool: str, names: Collection[str]) -> tuple[str, ...]:
        """Terminate these and lower what is desired, one by one; one that terminates already is not asked again."""
        async with deadline(WRITE_SECONDS, f"{pool}: removing nodes"):
            state = await self._fresh(pool)
            gone: list[str] = []
            for one in state.nodes:
                called = {one.id, one.id.rpartition("/")[2]} & set(names)
                if not called:
                    continue
                try:
                    if one.state is not InstanceState.LEAVING:
                        await self._terminate(one)
                except ProviderError:
                    if not gone:
                        raise
                    break  # what is done is said; the rest is asked for again
                gone.append(min(called))
            return tuple(gone)

    async def cancel(self, pool: str, by: int) -> int:
        """Lower what is desired by as many as have not been found."""
        async with deadline(WRITE_SECONDS, f"{pool}: cancelling missing nodes"):
            state = await self._fresh(pool)
            fewer = max(state.target - min(max(0, by), state.missing), state.min_nodes or 0)
            return state.target if fewer >= state.target else await self._set(pool, fewer)

    async def template(self, pool: str) -> NodeTemplate | None:
        """From the group's tags, as for the cluster-autoscaler."""
        async with deadline(READ_SECONDS, f"{pool}: reading the template"):
            tags = (await self._group(pool)).get("Tags") or ()
            return aws_template({str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in tags})

    async def close(self) -> None:
        """Threads end when their requests do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- requests ------------------------------------------------------------------------------

    def _place(self, pool: str) -> AwsSettings:
        if pool not in self._pools:
            raise DeniedError(f"pool {pool} is not configured")
        return self._pools[pool]

    async def _ask(self, method: str, **given: object) -> dict[str, Any]:
        try:
            answer = await call_in_thread(self._threads, WRITE_SECONDS, getattr(self._api, method), **given)
        except ProviderError:
            raise
        except Exception as exc:
            raise _understood(exc) from exc
        return answer if isinstance(answer, dict) else {}

    async def _groups(self, names: Collection[str] | Any) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        wanted = sorted(set(names))
        for start in range(0, len(wanted), _BATCH):
            token: dict[str, str] = {}
            for _ in range(_MAX_PAGES):
                batch = wanted[start : start + _BATCH]
                answer = await self._ask("describe_auto_scaling_groups", AutoScalingGroupNames=batch, **token)
                found |= {group["AutoScalingGroupName"]: group for group in answer.get("AutoScalingGroups", ())}
                if not answer.get("NextToken"):
                    break
                token = {"NextToken": answer["NextToken"]}
        return found

    async def _group(self, pool: str) -> dict[str, Any]:
        one = self._place(pool)
        groups = await self._groups([one.group])
        if one.group not in groups:
            raise DeniedError(f"{pool}: Auto Scaling group {one.group} does not exist in {one.region}")
        return groups[one.group]

    async def _fresh(self, pool: str) -> PoolState:
        """The group now, if it is one that counts machines."""
        state = _state(pool, await self._group(pool))
        if state.short == _WEIGHTED:
            raise DeniedError(f"{pool}: {_WEIGHTED}")
        return state

    async def _set(self, pool: str, desired: int) -> int:
        await self._ask(
            "set_desired_capacity",
            AutoScalingGroupName=self._pools[pool].group,
            DesiredCapacity=desired,
            HonorCooldown=False,
        )
        return desired

    async def _terminate(self, one: ProviderInstance) -> None:
        await self._ask(
            "terminate_instance_in_auto_scaling_group",
            InstanceId=one.id.rpartition("/")[2],
            ShouldDecrementDesiredCapacity=True,
        )

    async def _activities(self, pool: str) -> list[dict[str, Any]]:
        """Newest first."""
        group = self._place(pool).group
        answer = await self._ask("describe_scaling_activities", AutoScalingGroupName=group, MaxRecords=_ACTIVITIES)
        return list(answer.get("Activities", ()))

    async def _with_trouble(self, state: PoolState) -> PoolState:
        """Why machines that were asked for do not come, if the newest launch since then has failed."""
        if state.short or not state.missing:
            return state
        for activity in await self._activities(state.name):
            if activity.get("ActivityId") == self._before.get(state.name):
                break
            if not str(activity.get("Description", "")).startswith("Launching"):
                continue
            if activity.get("StatusCode") in ("Failed", "Cancelled"):
                why = shorten_error(str(activity.get("StatusMessage", ""))) or "a launch failed"
                return PoolState(state.name, state.target, state.nodes, why, state.min_nodes, state.max_nodes)
            break
        return state


def _state(pool: str, group: Mapping[str, Any]) -> PoolState:
    instances = [one for one in group.get("Instances") or () if _word(one) in _STATES]
    weighted = any(str(one.get("WeightedCapacity") or "1") != "1" for one in instances)
    weighted = weighted or group.get("DesiredCapacityType") not in (None, "", "units")
    return PoolState(
        name=pool,
        target=int(group["DesiredCapacity"]),
        nodes=tuple(
            ProviderInstance(
                f"aws:///{one.get('AvailabilityZone', '')}/{one['InstanceId']}",
                state=_STATES[_word(one)],
                note=shorten_error(f"{one.get('LifecycleState')}, {one.get('HealthStatus')}"),
            )
            for one in sorted(instances, key=lambda one: str(one["InstanceId"]))
        ),
        short=_WEIGHTED if weighted else "",
        min_nodes=int(group.get("MinSize", 0)),
        max_nodes=int(group["MaxSize"]) if "MaxSize" in group else None,
    )


def _word(instance: Mapping[str, Any]) -> str:
    return str(instance.get("LifecycleState", "")).partition(":")[0]


def _understood(exc: Exception) -> Exception:
    """An error of the SDK as a provider's; anything else as it is."""
    response = getattr(exc, "response", None)
    if not isinstance(response, dict):
        return (
            ProviderUnreachableError(shorten_error(str(exc)))
            if is_raised_by(exc, "botocore", "boto3", "urllib3")
            else exc
        )
    error = response.get("Error") or {}
    code, text = str(error.get("Code", "")), shorten_error(f"{error.get('Code')}: {error.get('Message')}")
    status = (response.get("ResponseMetadata") or {}).get("HTTPStatusCode", 0)
    if code in _LATER:
        return ChangedError(text)
    if code in _BUSY or status >= 500:  # noqa: PLR2004 (the server's own trouble)
        return ProviderUnreachableError(text)
    return OutOfStockError(text) if is_out_of_stock(text) else DeniedError(text)
