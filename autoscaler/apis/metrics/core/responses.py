# SPDX-License-Identifier: Apache-2.0
"""
The JSON of the metrics APIs: values, lists, discovery and refusals.

Pure. Field names are Kubernetes' own: custom.metrics.k8s.io v1beta1 and v1beta2,
external.metrics.k8s.io v1beta1 (k8s.io/metrics), meta v1 Status and APIResourceList.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoscaler.apis.metrics.core.selector import Selector

CUSTOM: Final = "custom.metrics.k8s.io"
EXTERNAL: Final = "external.metrics.k8s.io"
VERSIONS: Final = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
"""Of each group, the preferred one first."""
_LIST: Final = {CUSTOM: "MetricValueList", EXTERNAL: "ExternalMetricValueList"}
_OBJECTS: Final = {"pods/": True, "nodes/": False, "namespaces/": False}
"""What custom metrics describe, and whether it is namespaced."""
_REASONS: Final = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.UNAUTHORIZED: "Unauthorized",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.NOT_FOUND: "NotFound",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowed",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
}
_OPERATORS: Final = {"in": "In", "notin": "NotIn", "exists": "Exists", "absent": "DoesNotExist"}
_LONGEST_MESSAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class JsonReply:
    """An answer, whole."""

    status: HTTPStatus
    body: bytes


@dataclass(frozen=True, slots=True)
class StatusReply:
    """Why a question gets no figures, with what to do about it."""

    status: HTTPStatus
    message: str

    def reply(self) -> JsonReply:
        """As Kubernetes says it."""
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message[:_LONGEST_MESSAGE],
            "reason": _REASONS.get(self.status, "InternalError"),
            "code": int(self.status),
        }
        return JsonReply(self.status, _text(body))


@dataclass(frozen=True, slots=True)
class ObjectValue:
    """The figure of a pod, a node or a namespace."""

    namespace: str
    """Empty: the object is root-scoped."""
    name: str
    value: float
    at: float
    """Seconds since 1970."""
    window: float = 0.0
    """Seconds up to then over which it is an average; 0: it is none."""
    kind: str = "Pod"


def list_resources(group: str, version: str, metrics: Iterable[str]) -> JsonReply:
    """What the group has, for discovery."""
    objects = _OBJECTS if group == CUSTOM else {"": True}
    named = [
        {
            "name": f"{prefix}{name}",
            "singularName": "",
            "namespaced": namespaced,
            "kind": _LIST[group],
            "verbs": ["get"],
        }
        for name in metrics
        for prefix, namespaced in objects.items()
    ]
    body = {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}",
        "resources": named,
    }
    return JsonReply(HTTPStatus.OK, _text(body))


def list_object_values(version: str, metric: str, selector: Selector, values: Iterable[ObjectValue]) -> JsonReply:
    """Figures of pods, nodes or namespaces."""
    return _listed(CUSTOM, version, [_object_item(version, metric, selector, value) for value in values])


def list_external_values(
    version: str, metric: str, figures: Iterable[tuple[dict[str, str], float]], at: float
) -> JsonReply:
    """Figures of pools."""
    stamp = format_timestamp(at)
    items = [
        {"metricName": metric, "metricLabels": labels, "timestamp": stamp, "value": format_quantity(value)}
        for labels, value in figures
    ]
    return _listed(EXTERNAL, version, items)


def format_quantity(value: float) -> str:
    """A figure as Kubernetes writes amounts; thousandths are as fine as HorizontalPodAutoscaler looks."""
    if value == int(value):
        return str(int(value))
    thousandths = round(value * 1000)
    whole, rest = divmod(thousandths, 1000)
    return str(whole) if rest == 0 else f"{thousandths}m"


def format_timestamp(seconds: float) -> str:
    """RFC 3339, in UTC."""
    return _stamp(int(seconds))


@lru_cache(maxsize=1024)
def _stamp(seconds: int) -> str:
    """The figures of one answer share few moments."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _object_item(version: str, metric: str, selector: Selector, value: ObjectValue) -> dict[str, Any]:
    scope = {"namespace": value.namespace} if value.namespace else {}
    chosen = {"selector": _selector(selector)} if selector.terms else {}
    item: dict[str, Any] = {
        "describedObject": {"kind": value.kind, **scope, "name": value.name, "apiVersion": "/v1"},
        "timestamp": format_timestamp(value.at),
        "value": format_quantity(value.value),
    }
    if value.window:
        item["window" if version == "v1beta1" else "windowSeconds"] = max(1, round(value.window))
    if version == "v1beta1":
        item["metricName"] = metric
        item.update(chosen)
    else:
        item["metric"] = {"name": metric, **chosen}
    return item


def _selector(selector: Selector) -> dict[str, Any]:
    """As Kubernetes' LabelSelector, which knows no comparison of numbers."""
    said = [term for term in selector.terms if term.op in _OPERATORS]
    values = [{"values": sorted(term.values)} if term.values else {} for term in said]
    return {
        "matchExpressions": [
            {"key": term.key, "operator": _OPERATORS[term.op]} | given for term, given in zip(said, values, strict=True)
        ]
    }


def _listed(group: str, version: str, items: list[dict[str, Any]]) -> JsonReply:
    body = {"kind": _LIST[group], "apiVersion": f"{group}/{version}", "metadata": {}, "items": items}
    return JsonReply(HTTPStatus.OK, _text(body))


def _text(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
