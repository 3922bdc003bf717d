# SPDX-License-Identifier: Apache-2.0
"""
What a request for metrics asks, from its path and query.

Pure, and total over whatever is sent: a question, or a problem with its HTTP status. Paths are split before
they are decoded, since clients write the star of "all pods" as %2A and a name may not make new segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

from autoscaler.apis.metrics.core.catalogue import PART_LABELS, POD_METRICS, POOL_METRICS
from autoscaler.apis.metrics.core.responses import CUSTOM, EXTERNAL, VERSIONS, StatusReply
from autoscaler.apis.metrics.core.selector import Selector, SelectorError, parse_selector

if TYPE_CHECKING:
    from collections.abc import Collection

ALL: Final = "*"
NODE: Final = "Node"
NAMESPACE: Final = "Namespace"
MAX_LETTERS: Final = 16384
_LONGEST_NAME: Final = 253
_MAX_FIELDS: Final = 32
_GROUP_SEGMENTS: Final = 3
_OBJECTS: Final = "a HorizontalPodAutoscaler can describe a Pod or its own Namespace"


@dataclass(frozen=True, slots=True)
class DiscoveryRequest:
    """Which metrics there are."""

    group: str
    version: str


@dataclass(frozen=True, slots=True)
class PodsRequest:
    """A metric of one pod, or of all that are selected."""

    version: str
    namespace: str
    pod: str
    """A name, or `ALL`."""
    metric: str
    selector: Selector
    parts: Selector
    """Which (container, card) parts of each pod count."""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A metric of the pods on a node, or in a namespace, together: of a root-scoped object."""

    version: str
    kind: str
    """`NODE` or `NAMESPACE`."""
    name: str
    """A name; of nodes also `ALL`."""
    metric: str
    parts: Selector


@dataclass(frozen=True, slots=True)
class PoolsRequest:
    """A metric of pools, in the eyes of a namespace."""

    version: str
    namespace: str
    metric: str
    selector: Selector


MetricsRequest = DiscoveryRequest | PodsRequest | GroupRequest | PoolsRequest


@dataclass(frozen=True, slots=True)
class ResourceAttributes:
    """What is to be allowed, as Kubernetes' authorizers see it."""

    verb: str
    group: str
    version: str
    namespace: str
    resource: str
    subresource: str = ""
    name: str = ""


def make_attributes(asked: PodsRequest | GroupRequest | PoolsRequest) -> ResourceAttributes:
    """As kube-apiserver reads the same path: a GET without a name is a list."""
    if isinstance(asked, PodsRequest):
        return ResourceAttributes("get", CUSTOM, asked.version, asked.namespace, "pods", asked.metric, asked.pod)
    if isinstance(asked, GroupRequest):
        if asked.kind == NODE:
            return ResourceAttributes("get", CUSTOM, asked.version, "", "nodes", asked.metric, asked.name)
        return ResourceAttributes("get", CUSTOM, asked.version, asked.name, "metrics", name=asked.metric)
    return ResourceAttributes("list", EXTERNAL, asked.version, asked.namespace, asked.metric)


def parse_request(target: str, groups: Collection[str]) -> MetricsRequest | StatusReply:
    """Read a request target (path and query, as sent), for a server of these groups."""
    if len(target) > MAX_LETTERS:
        return StatusReply(HTTPStatus.BAD_REQUEST, f"the request is longer than {MAX_LETTERS} characters")
    raw, _, query = target.partition("?")
    try:
        segments = [unquote(part, errors="strict") for part in raw.strip("/").split("/")]
    except UnicodeDecodeError:
        return StatusReply(HTTPStatus.BAD_REQUEST, "the path is not UTF-8")
    if len(segments) < _GROUP_SEGMENTS or segments[0] != "apis" or any(len(each) > _LONGEST_NAME for each in segments):
        return _unknown(raw)
    group, version, rest = segments[1], segments[2], segments[3:]
    if group not in groups or version not in VERSIONS.get(group, ()):
        return _unknown(raw)
    if not rest:
        return DiscoveryRequest(group, version)
    selectors = _selectors(query)
    if isinstance(selectors, StatusReply):
        return selectors
    asked = _objects(version, rest, *selectors) if group == CUSTOM else _pools(version, rest, selectors[0])
    return asked or _unknown(raw)


def _objects(
    version: str, rest: list[str], selector: Selector, parts: Selector
) -> PodsRequest | GroupRequest | StatusReply | None:
    asked: PodsRequest | GroupRequest
    match rest:
        case ["namespaces", namespace, "pods", name, metric] if namespace and name:
            asked = PodsRequest(version, namespace, name, metric, selector, parts)
        case ["namespaces", name, "metrics", _] if name == ALL:
            return StatusReply(HTTPStatus.BAD_REQUEST, "metrics of all namespaces are not available; name one")
        case ["namespaces", name, "metrics", metric] if name:
            asked = GroupRequest(version, NAMESPACE, name, metric, parts)
        case ["nodes", name, metric] if name:
            asked = GroupRequest(version, NODE, name, metric, parts)
        case ["namespaces", namespace, "nodes", _, metric] if namespace:
            # As HorizontalPodAutoscaler asks of a Node; what other tenants use there is no namespace's business.
            return StatusReply(
                HTTPStatus.NOT_FOUND, f"{metric} of nodes is not available within a namespace; {_OBJECTS}"
            )
        case ["namespaces", namespace, _, _, metric] if namespace:
            return StatusReply(HTTPStatus.NOT_FOUND, f"{metric} is not available for this kind; {_OBJECTS}")
        case _:
            return None
    if asked.metric not in POD_METRICS:
        return _no_metric(asked.metric, POD_METRICS)
    if strange := parts.keys - PART_LABELS:
        return _no_label(strange, PART_LABELS)
    if isinstance(asked, GroupRequest) and selector.terms:
        return StatusReply(HTTPStatus.BAD_REQUEST, f"{asked.kind} objects cannot be selected by labels; name one")
    return asked


def _pools(version: str, rest: list[str], selector: Selector) -> PoolsRequest | StatusReply | None:
    match rest:
        case ["namespaces", namespace, name] if namespace:
            metric = POOL_METRICS.get(name)
            if metric is None:
                return _no_metric(name, POOL_METRICS)
            if strange := selector.keys - metric.labels:
                return _no_label(strange, metric.labels)
            return PoolsRequest(version, namespace, name, selector)
    return None


def _selectors(query: str) -> tuple[Selector, Selector] | StatusReply:
    """Of pods (or pools), and of the metric."""
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
        found = {"labelSelector": "", "metricLabelSelector": ""}
        for key, value in fields:
            if key in found and found[key] and value:
                return StatusReply(HTTPStatus.BAD_REQUEST, f"{key} is set twice; join its requirements with commas")
            if key in found:
                found[key] = found[key] or value
        return parse_selector(found["labelSelector"]), parse_selector(found["metricLabelSelector"])
    except SelectorError as exc:
        return StatusReply(HTTPStatus.BAD_REQUEST, str(exc))
    except ValueError:  # too many fields, or no UTF-8
        return StatusReply(HTTPStatus.BAD_REQUEST, f"the query has more than {_MAX_FIELDS} fields or is not UTF-8")


def _unknown(raw: str) -> StatusReply:
    return StatusReply(HTTPStatus.NOT_FOUND, f"unknown path {raw[:200]!r}")


def _no_metric(name: str, known: Collection[str]) -> StatusReply:
    return StatusReply(HTTPStatus.NOT_FOUND, f"unknown metric {name!r}; metrics: {', '.join(sorted(known))}")


def _no_label(strange: Collection[str], known: Collection[str]) -> StatusReply:
    text = f"the metric has no label {', '.join(sorted(strange))[:200]}; labels: {', '.join(sorted(known))}"
    return StatusReply(HTTPStatus.BAD_REQUEST, text)
