# SPDX-License-Identifier: Apache-2.0
"""
One trigger of a ScaledObject: which figure it asks for, and what that is now.

Pure. The figures are those of the metrics APIs (`apis.metrics.core.catalogue`). Decides when there is a value: with a
stale reading, or with one selected pod whose figure is missing, there is none, since a sum with
an unknown part would scale down on a monitoring outage. Everything in a trigger is untrusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoscaler.apis.metrics.core.catalogue import POD_METRICS, POOL_METRICS
from autoscaler.apis.metrics.core.selector import Selector, SelectorError, parse_selector
from isolation.contract import quantity
from isolation.contract.codec.cursor import show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autoscaler.apis.metrics.core.answer import Clocks
    from autoscaler.apis.metrics.core.catalogue import PodMetric
    from autoscaler.apis.metrics.core.readings import MetricsSnapshot

METRICS: Final = (*POD_METRICS, *POOL_METRICS)
KEYS: Final = ("metric", "target", "activation", "selector", "combine")
KEDA_KEYS: Final = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey", "tlsCertFile"}
)
"""KEDA's own, which it sends along (2.20.2, pkg/scalers/external_scaler.go; `tlsCertFile` is of older ones)."""
_LARGEST: Final = 1 << 62
"""Both wires carry whole numbers of 64 bits."""
EVERYTHING: Final = Selector()


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_COMBINES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {"sum": sum, "max": max, "average": _average}


class TriggerError(ValueError):
    """A trigger that says nothing sensible; the message says what to write."""


@dataclass(frozen=True, slots=True)
class KedaTrigger:
    """What one ScaledObject asks."""

    namespace: str
    metric: str
    target: float
    """What one replica should carry (metricType AverageValue), or all together (Value)."""
    activation: float = 0.0
    """Above it there is something to do."""
    selector: Selector = EVERYTHING
    """On pods' labels; of metrics of pools, on `pool` and `namespace`."""
    combined: str = "sum"
    """How the figures of several pods become one."""


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """No figure, and why."""

    reason: str


def parse_trigger(namespace: str, metadata: Mapping[str, str]) -> KedaTrigger:
    """Read `scalerMetadata`; TriggerError. A key that nobody knows is one: a selector misspelt would select all."""
    unknown = sorted(metadata.keys() - KEDA_KEYS - set(KEYS))
    if unknown:
        raise TriggerError(f"unknown key {show(unknown[0])}; write one of {', '.join(KEYS)}")
    metric, combined = metadata.get("metric", ""), metadata.get("combine", "sum")
    if metric not in METRICS:
        raise TriggerError(f"unknown metric {show(metric)}; write one of {', '.join(METRICS)}")
    if combined not in _COMBINES:
        raise TriggerError(f"unknown combine {show(combined)}; write one of {', '.join(_COMBINES)}")
    if not namespace:
        raise TriggerError("the ScaledObject has no namespace")
    target = _amount(metadata, "target", "")
    if target <= 0:
        raise TriggerError('target must be greater than 0: it is the load for one replica, e.g. "8Gi" or "0.8"')
    try:
        selector = parse_selector(metadata.get("selector", ""))
    except SelectorError as exc:
        raise TriggerError(f"selector: {exc}") from None
    pool = POOL_METRICS.get(metric)
    if pool is not None and not selector.keys <= pool.labels:
        raise TriggerError(f"selector: {metric} supports only the labels {', '.join(sorted(pool.labels))}")
    return KedaTrigger(namespace, metric, target, _amount(metadata, "activation", "0"), selector, combined)


def compute_value(trigger: KedaTrigger, picture: MetricsSnapshot, now: Clocks) -> float | UnknownValue:
    """The figure as it is now."""
    if not now.fresh(picture.at):
        return UnknownValue("the cluster state is unknown or too old")
    if trigger.metric in POD_METRICS:
        return _of_pods(trigger, POD_METRICS[trigger.metric], picture, now)
    figures = POOL_METRICS[trigger.metric].figures(picture, trigger.namespace, trigger.selector)
    if not figures:
        return UnknownValue(f"selector {trigger.selector.text!r} matches no pool")
    return _bounded(sum(value for _, value in figures), trigger)


def _of_pods(trigger: KedaTrigger, metric: PodMetric, picture: MetricsSnapshot, now: Clocks) -> float | UnknownValue:
    values = []
    for pod in picture.pods.get(trigger.namespace, ()):
        if not trigger.selector.matches(pod.labels):
            continue
        at = pod.measured if metric.measured else picture.at
        value = metric.of(pod, EVERYTHING) if now.fresh(at) else None
        if value is None:
            return UnknownValue(
                f"pod {pod.namespace}/{pod.name} has no fresh measurement; check the exporter on node {pod.node}"
            )
        values.append(value)
    return _combined(values, trigger)


def _combined(values: Sequence[float], trigger: KedaTrigger) -> float | UnknownValue:
    if values:
        return _bounded(float(_COMBINES[trigger.combined](values)), trigger)
    # Nobody runs: together they use nothing, but they have no average and no maximum.
    return 0.0 if trigger.combined == "sum" else UnknownValue("the selector matches no running pod with shared cards")


def _bounded(value: float, trigger: KedaTrigger) -> float | UnknownValue:
    return value if 0 <= value < _LARGEST else UnknownValue(f"{trigger.metric} is out of range")


def _amount(metadata: Mapping[str, str], key: str, default: str) -> float:
    text = metadata.get(key, default)
    try:
        value = quantity.parse(text)
    except quantity.QuantityError:
        raise TriggerError(f'{key} {show(text)} is not a quantity; write for example "8Gi" or "0.8"') from None
    if not 0 <= value < _LARGEST:
        raise TriggerError(f"{key} {show(text)} is out of range; write 0 or more, and less than {_LARGEST}")
    return float(value)
