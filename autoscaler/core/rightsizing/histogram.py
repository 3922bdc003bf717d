# SPDX-License-Identifier: Apache-2.0
"""
A histogram with exponential buckets whose samples lose half their weight in each half-life.

A value; `add` returns the next. Pure.

Source: kubernetes/autoscaler, vertical-pod-autoscaler/pkg/recommender: util/histogram.go, util/decaying_histogram.go
and model/aggregations_config.go (bucket growth 1.05, half-life 24 h; a percentile is the upper bound of its bucket).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

GROWTH: Final = 1.05
"""Ratio of the widths of two neighbouring buckets."""
MAX_BUCKETS: Final = 256
DAY: Final = 86_400.0
_MIN_WEIGHT: Final = 1e-4
"""A bucket with less of the total is dropped (VPA: epsilon)."""
_MANY: Final = 64
"""Of so many buckets the light ones are looked for."""
_MAX_EXPONENT: Final = 100.0
"""Weights grow by 2 in each half-life; beyond this many they are scaled back (VPA: maxDecayExponent)."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Weights by bucket. `first`: upper bound of the first bucket, in the unit of the samples."""

    first: float
    half_life: float = DAY
    """In seconds."""
    since: float = 0.0
    """Reference time of the weights, in seconds since the epoch."""
    weights: Mapping[int, float] = field(default_factory=dict)

    def add(self, value: float, weight: float, at: float) -> Histogram:
        """With one more sample, measured at a time; one that is no finite positive weight changes nothing."""
        if not (math.isfinite(value) and math.isfinite(weight) and weight > 0):
            return self
        weights, since = dict(self.weights), self.since if self.weights else at
        if (at - since) / self.half_life > _MAX_EXPONENT:
            factor = 2.0 ** ((since - at) / self.half_life)
            weights, since = {bucket: old * factor for bucket, old in weights.items()}, at
        bucket = self.bucket_of(value)
        weights[bucket] = weights.get(bucket, 0.0) + weight * 2.0 ** max(-_MAX_EXPONENT, (at - since) / self.half_life)
        if len(weights) > _MANY:
            total = sum(weights.values())
            weights = {bucket: old for bucket, old in weights.items() if old >= _MIN_WEIGHT * total}
        return Histogram(self.first, self.half_life, since, weights)

    def bucket_of(self, value: float) -> int:
        """The bucket of a value: 0 up to `first`, then each wider by `GROWTH`."""
        if value <= self.first:
            return 0
        bucket = math.log(value / self.first * (GROWTH - 1) + 1) / math.log(GROWTH)
        return min(MAX_BUCKETS - 1, math.ceil(bucket - 1e-9) - 1)

    def upper(self, bucket: int) -> float:
        """The upper bound of a bucket."""
        return self.first * (GROWTH ** (bucket + 1) - 1) / (GROWTH - 1)

    def quantile(self, ratio: float) -> float | None:
        """The upper bound of the bucket in which this ratio of the weight is reached; None: no samples."""
        wanted = ratio * sum(self.weights.values())
        for bucket, weight in sorted(self.weights.items()):
            wanted -= weight
            if wanted <= 1e-12:  # noqa: PLR2004 (rounding of the sum)
                return self.upper(bucket)
        return self.upper(max(self.weights)) if self.weights else None
