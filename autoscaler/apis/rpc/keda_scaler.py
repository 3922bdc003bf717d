# SPDX-License-Identifier: Apache-2.0
"""
KEDA's external scaler: metrics of pods and pools for ScaledObjects.

An unknown value is an error and never 0: KEDA then leaves the replicas as they are. Which metrics there are is decided
in `core.keda_trigger`. A stream sends at once whether the trigger is active, and again when that changes; while it is
unknown nothing is sent.

An invalid trigger gets a spec all the same: KEDA puts errors of IsActive and GetMetrics on the ScaledObject, and errors
of GetMetricSpec only into its log (2.20.2, pkg/scalers/external_scaler.go).
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

import grpc

from autoscaler.apis.metrics.core.answer import Clocks
from autoscaler.apis.rpc.core.keda_trigger import (
    METRICS,
    KedaTrigger,
    TriggerError,
    UnknownValue,
    compute_value,
    parse_trigger,
)
from autoscaler.apis.rpc.core.wire import keda as wire
from autoscaler.apis.rpc.handler import INVALID, UNAVAILABLE, CallPolicy, MethodHandlers, StatusError
from isolation.kube.election import boottime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from autoscaler.apis.metrics.core.readings import SnapshotSource

FRESH_SECONDS: Final = 45.0
"""Three scrapes of 15 s, the default interval."""
LOOK_SECONDS: Final = 2.0
MAX_STREAMS: Final = 512
REFUSED_METRIC: Final = "gpushare-trigger-refused"
"""Metric name in the spec of an invalid trigger; it never has a value."""


class ExternalScaler:
    """Answers IsActive, StreamIsActive, GetMetricSpec and GetMetrics."""

    def __init__(
        self,
        readings: SnapshotSource,
        policy: CallPolicy | None = None,
        *,
        fresh_seconds: float = FRESH_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        steady: Callable[[], float] = boottime,
    ) -> None:
        self._readings, self._fresh, self._look, self._steady = readings, fresh_seconds, look_seconds, steady
        self._service = MethodHandlers(wire.SERVICE, wire.METHODS, policy or CallPolicy())
        self._streams = 0

    def handler(self) -> Any:
        """For the server."""
        answers = {"IsActive": self._is_active, "GetMetricSpec": self._spec, "GetMetrics": self._metrics}
        return self._service.handler(answers, {"StreamIsActive": self._stream})

    async def finish(self, seconds: float) -> None:
        """Wait at most so long for the calls that have begun."""
        await self._service.finish(seconds)

    async def _is_active(self, request: Any) -> Any:
        trigger = _trigger(request)
        return _answer("IsActive", result=self._require_value(trigger) > trigger.activation)

    async def _spec(self, request: Any) -> Any:
        try:
            trigger = _trigger(request)
        except StatusError:
            metric = dict(request.scalerMetadata).get("metric")
            trigger = KedaTrigger(request.namespace, metric if metric in METRICS else REFUSED_METRIC, 1.0)
        # a whole target of 0 would be no target: readers of the old field get 1 at least
        spec = {
            "metricName": trigger.metric,
            "targetSize": math.ceil(trigger.target),
            "targetSizeFloat": trigger.target,
        }
        return _answer("GetMetricSpec", metricSpecs=[spec])

    async def _metrics(self, request: Any) -> Any:
        trigger = _trigger(request.scaledObjectRef)
        if request.metricName not in ("", trigger.metric):
            raise StatusError(INVALID, f"metricName does not match the trigger: its metric is {trigger.metric}")
        value = self._require_value(trigger)
        reply = {"metricName": trigger.metric, "metricValue": math.ceil(value), "metricValueFloat": value}
        return _answer("GetMetrics", metricValues=[reply])

    async def _stream(self, request: Any) -> AsyncIterator[Any]:
        trigger, sent = _trigger(request), None
        if self._streams >= MAX_STREAMS:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_STREAMS} streams are open, the maximum; use trigger type external",
            )
        self._streams += 1
        try:
            while True:
                value = self._compute(trigger)
                if not isinstance(value, UnknownValue) and (value > trigger.activation) is not sent:
                    sent = value > trigger.activation
                    yield _answer("StreamIsActive", result=sent)
                await asyncio.sleep(self._look)
        finally:
            self._streams -= 1

    def _require_value(self, trigger: KedaTrigger) -> float:
        value = self._compute(trigger)
        if isinstance(value, UnknownValue):
            raise StatusError(UNAVAILABLE, f"{trigger.metric}: {value.reason}")
        return value

    def _compute(self, trigger: KedaTrigger) -> float | UnknownValue:
        return compute_value(trigger, self._readings.latest(), Clocks(self._steady(), 0.0, self._fresh))


def _trigger(reference: Any) -> KedaTrigger:
    try:
        return parse_trigger(reference.namespace, dict(reference.scalerMetadata))
    except TriggerError as exc:
        raise StatusError(INVALID, str(exc)) from None


def _answer(method: str, **fields: Any) -> Any:
    return wire.METHODS[method][1](**fields)
