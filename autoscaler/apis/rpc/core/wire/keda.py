# SPDX-License-Identifier: Apache-2.0
"""
KEDA's external scaler: names, numbers and types.

Whole numbers (`targetSize`, `metricValue`) are deprecated and kept for KEDA before 2.14: a reader of today
takes the `Float` fields. Knows no metric.

Source: kedacore/keda, pkg/scalers/externalscaler/externalscaler.proto (StreamMetricSpec, unreleased and
optional, is not served: KEDA then asks GetMetricSpec).
"""

from __future__ import annotations

from typing import Final

from isolation.contract.protobuf import Wire

SERVICE: Final = "externalscaler.ExternalScaler"
_messages: Final = Wire().package(
    "externalscaler",
    {
        "ScaledObjectRef": {"name": "1 string", "namespace": "2 string", "scalerMetadata": "3 {string}"},
        "IsActiveResponse": {"result": "1 bool"},
        "GetMetricSpecResponse": {"metricSpecs": "1 *MetricSpec"},
        "MetricSpec": {"metricName": "1 string", "targetSize": "2 int64", "targetSizeFloat": "3 double"},
        "GetMetricsRequest": {"scaledObjectRef": "1 ScaledObjectRef", "metricName": "2 string"},
        "GetMetricsResponse": {"metricValues": "1 *MetricValue"},
        "MetricValue": {"metricName": "1 string", "metricValue": "2 int64", "metricValueFloat": "3 double"},
    },
)
ScaledObjectRef: Final = _messages["ScaledObjectRef"]
METHODS: Final = {
    "IsActive": (ScaledObjectRef, _messages["IsActiveResponse"]),
    "GetMetricSpec": (ScaledObjectRef, _messages["GetMetricSpecResponse"]),
    "GetMetrics": (_messages["GetMetricsRequest"], _messages["GetMetricsResponse"]),
    "StreamIsActive": (ScaledObjectRef, _messages["IsActiveResponse"]),
}
