# SPDX-License-Identifier: Apache-2.0
"""Right-sizing that starts beside a real Prometheus with days of measurements judges running pods at once."""

from __future__ import annotations

import asyncio
import time

from support.prometheus_harness import configured

from autoscaler.core.observation import observe_cluster
from autoscaler.kube.right_sizing import RightSizing
from autoscaler.kube.usage_http import Prometheus
from isolation.contract.metrics import (
    CONTAINER_COMPUTE_SECONDS,
    CONTAINER_MEMORY_ALLOCATED,
    CONTAINER_MEMORY_USED,
    DENIED_ALLOCATIONS,
)
from isolation.contract.model import Ask, Card, Cluster, Mode, Node, Placement, Pod, Request, Slice
from isolation.contract.quantity import GIB

DAYS = 5
STEP = 600
"""Seconds: longer than a Prometheus looks back for a value by itself."""


def past(now):
    """Five days of one container, a sample each ten minutes: 2 GiB, each fourth hour a peak of 3; half of a card."""
    labels = 'namespace="team",pod="web-0",container="main",uuid="GPU-a",node="n",instance="n"'
    begin = int(now) // STEP * STEP - DAYS * 86_400
    times = range(begin, int(now) - STEP, STEP)
    used = [(at, (3 if at // STEP % 24 == 0 else 2) * GIB) for at in times]
    series = {
        CONTAINER_MEMORY_USED: used,
        CONTAINER_MEMORY_ALLOCATED: [(at, 12 * GIB) for at in times],
        DENIED_ALLOCATIONS: [(at, 0) for at in times],
        CONTAINER_COMPUTE_SECONDS: [(at, (at - begin) / 2) for at in times],
    }
    lines = []
    for spec, samples in series.items():
        family = spec.name.removesuffix("_total") if spec.kind.value == "counter" else spec.name
        lines.append(f"# TYPE {family} {spec.kind.value}")
        lines += [f"{spec.name}{{{labels}}} {value} {at}" for at, value in samples]
    return "\n".join([*lines, "# EOF", ""]), float(begin)


def test_what_a_real_prometheus_has_of_running_pods_is_enough_to_judge_them():
    """Peaks between two of the moments that are asked for are seen; compute too; it takes seconds."""
    now = time.time()
    text, begin = past(now)
    request = Request(1, 12 * GIB, owner="StatefulSet/team/web", asks=(Ask("main", 12 * GIB),))
    placement = Placement("n", (Slice("GPU-a", 0, 12 * GIB),))
    node = Node("n", (Card("GPU-a", 0, 16 * GIB, model="T4"),), Mode.CGPU)
    seen = observe_cluster(
        Cluster((node,), (Pod("u", "web-0", "team", request, placement, created=begin),)), [], at=now
    )

    async def story(url):
        sizing = RightSizing(None, "gpushare-system")
        async with Prometheus(url, 15.0) as prometheus:
            await sizing.backfill(seen, prometheus.past(now), (node,))
        sizing.observe(seen, None, (node,))
        return sizing.programs

    with configured("global: {}", text) as prometheus:
        [one] = asyncio.run(story(prometheus.url))
    assert ("StatefulSet/web", 3 * GIB, 12 * GIB, "") == (one.owner, one.peak_bytes, one.promised_bytes, one.abstained)
    assert 3 * GIB < one.memory_bytes <= 6 * GIB
    assert 55 <= one.core <= 65
