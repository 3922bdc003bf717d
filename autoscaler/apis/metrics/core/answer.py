# SPDX-License-Identifier: Apache-2.0
"""
The answer to a metrics request, from the latest snapshot; nothing that is too old.

Pure. A pod whose figure is stale or unknown is left out, so that HorizontalPodAutoscaler counts it
as missing, not as idle; where nothing is known the answer is an error with the reason, which stands in
the autoscaler's conditions, and it holds still. Two clocks: ages by one that cannot be set, stamps by the
wall's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Final

from autoscaler.apis.metrics.core.catalogue import POD_METRICS, POOL_METRICS, PodMetric
from autoscaler.apis.metrics.core.request import ALL, NODE, DiscoveryRequest, GroupRequest, PodsRequest
from autoscaler.apis.metrics.core.responses import (
    CUSTOM,
    JsonReply,
    ObjectValue,
    StatusReply,
    list_external_values,
    list_object_values,
    list_resources,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.apis.metrics.core.readings import MetricsSnapshot, PodUse
    from autoscaler.apis.metrics.core.request import MetricsRequest, PoolsRequest

_AHEAD_SECONDS: Final = 1.0
"""A reading from further ahead is none."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Now, on both clocks, and how old a figure may be."""

    steady: float
    wall: float
    fresh_seconds: float

    def fresh(self, at: float | None) -> bool:
        """Whether a figure of that time may be used."""
        return at is not None and -_AHEAD_SECONDS <= self.steady - at <= self.fresh_seconds

    def stamp(self, at: float) -> float:
        """That time on the wall's clock."""
        return self.wall - max(0.0, self.steady - at)


def build_reply(asked: MetricsRequest, picture: MetricsSnapshot, now: Clocks) -> JsonReply | StatusReply:
    """The figures asked for."""
    if isinstance(asked, DiscoveryRequest):
        return list_resources(asked.group, asked.version, POD_METRICS if asked.group == CUSTOM else POOL_METRICS)
    if not now.fresh(picture.at):
        return StatusReply(HTTPStatus.SERVICE_UNAVAILABLE, f"the cluster state is {_age(picture.at, now, 'unknown')}")
    if isinstance(asked, PodsRequest):
        return _pods(asked, picture, now)
    if isinstance(asked, GroupRequest):
        return _groups(asked, picture, now)
    return _pools(asked, picture, now)


def _pods(asked: PodsRequest, picture: MetricsSnapshot, now: Clocks) -> JsonReply | StatusReply:
    pods = picture.pods.get(asked.namespace, ())
    if asked.pod == ALL:
        found = [pod for pod in pods if asked.selector.matches(pod.labels)]
    else:
        found = [pod for pod in pods if pod.name == asked.pod]
    if not found and asked.pod != ALL:
        return StatusReply(HTTPStatus.NOT_FOUND, f"{asked.namespace}/{asked.pod} is not a running pod with GPUs")
    metric = POD_METRICS[asked.metric]
    values = [value for pod in found if (value := _value(asked, metric, (pod,), picture, now)) is not None]
    if found and not values:
        why = _nothing(asked, metric, found, now)
        return _unknown(f"{asked.metric}: no value for any of {len(found)} pods; {why}")
    return list_object_values(asked.version, asked.metric, asked.parts, values)


def _groups(asked: GroupRequest, picture: MetricsSnapshot, now: Clocks) -> JsonReply | StatusReply:
    """A node or namespace of which part is unknown has no figure: part of a sum is no sum."""
    if asked.kind == NODE:
        on: dict[str, list[PodUse]] = {name: [] for name in picture.nodes if asked.name in (ALL, name)}
        for pod in chain.from_iterable(picture.pods.values()):
            if asked.name in (ALL, pod.node):
                on.setdefault(pod.node, []).append(pod)
    else:
        on = {asked.name: list(picture.pods.get(asked.name, ()))}
    if not on and asked.name != ALL:
        return StatusReply(HTTPStatus.NOT_FOUND, f"{asked.name} is not a node with GPUs")
    metric = POD_METRICS[asked.metric]
    values = [
        replace(value, kind=asked.kind, namespace="", name=name)
        for name, pods in sorted(on.items())
        if (value := _value(asked, metric, pods, picture, now)) is not None
    ]
    if values or not on:
        return list_object_values(asked.version, asked.metric, asked.parts, values)
    pods = next(iter(on.values()))
    why = _nothing(asked, metric, pods, now) if pods else "no running pod with GPUs"
    return _unknown(f"{asked.metric} of {asked.kind} {next(iter(on))}: {why}")


def _value(
    asked: PodsRequest | GroupRequest, metric: PodMetric, pods: Sequence[PodUse], picture: MetricsSnapshot, now: Clocks
) -> ObjectValue | None:
    """Of these pods together, named as the first of them."""
    times = [pod.measured if metric.measured else picture.at for pod in pods] or [picture.at]
    known = [at for at in times if at is not None and now.fresh(at)]
    # Nobody runs: together they use nothing, but nothing has no ratio.
    figure = metric.of_all(pods, asked.parts) if pods else 0.0 if metric.base is None else None
    if len(known) < len(times) or figure is None:
        return None
    window = max((use.window for pod in pods for use in pod.uses), default=0.0) if metric.averaged else 0.0
    namespace, name = (pods[0].namespace, pods[0].name) if pods else ("", "")
    return ObjectValue(namespace, name, figure, now.stamp(min(known)), window)


def _nothing(asked: PodsRequest | GroupRequest, metric: PodMetric, found: list[PodUse], now: Clocks) -> str:
    """Why these pods have no figure: the reason of the first one that has none."""
    stale = [pod for pod in found if metric.measured and not now.fresh(pod.measured)]
    unknown = [pod for pod in found if metric.of(pod, asked.parts) is None]
    pod = min(stale or unknown or found, key=lambda each: each.name)
    if metric.measured and not now.fresh(pod.measured):
        why = f"its measurement from the exporter on node {pod.node} is {_age(pod.measured, now, 'missing')}"
    else:
        selected = f" for metricLabelSelector {asked.parts.text!r}" if asked.parts.text else ""
        why = f"its value{selected} is unknown"
    return f"{pod.namespace}/{pod.name}: {why}"


def _unknown(why: str) -> StatusReply:
    return StatusReply(HTTPStatus.SERVICE_UNAVAILABLE, why)


def _pools(asked: PoolsRequest, picture: MetricsSnapshot, now: Clocks) -> JsonReply | StatusReply:
    every = POOL_METRICS[asked.metric].figures(picture, asked.namespace, asked.selector)
    figures = [each for each in every if isfinite(each[1])]
    if len(figures) < len(every):
        return StatusReply(HTTPStatus.SERVICE_UNAVAILABLE, f"{asked.metric}: unknown for some of the selected pools")
    if not figures:
        known = ", ".join(sorted(room.pool for room in picture.pools)) or "none yet"
        return StatusReply(HTTPStatus.NOT_FOUND, f"selector {asked.selector.text!r} matches no pool; pools: {known}")
    at = now.stamp(picture.at if picture.at is not None else now.steady)
    return list_external_values(asked.version, asked.metric, figures, at)


def _age(at: float | None, now: Clocks, absent: str) -> str:
    if at is None:
        return absent
    return f"{now.steady - at:.0f} s old (maximum {now.fresh_seconds:.0f} s)"
