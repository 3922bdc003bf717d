# SPDX-License-Identifier: Apache-2.0
"""Right-sizing in the embedded cluster: measured, recommended, made smaller, tried, released or restored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.core.rightsizing.live import PodWish
from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
from autoscaler.demo.embedded.node_pools import demo_fleet, demo_limits
from autoscaler.demo.embedded.usage import UsageProfile
from autoscaler.demo.embedded.workload import demo_workload
from isolation.contract.quantity import GIB
from isolation.contract.right_size import RightSize, RightSizeWish

STEPS = ("recommend", "shrink", "restore", "release")
MINUTE = 60.0


class LateUse(UsageProfile):
    """A program that needs more than ever after a day and a half of its life."""

    def memory_ratio(self, age):
        """As before until then."""
        return 0.7 if age > 22 * MINUTE else super().memory_ratio(age)


def arrivals(until, **changes):
    """The service of the demonstration and the pod that waits, without the others; with these changes."""
    for one in demo_workload(1):
        if one.at > until:
            return
        if one.name.startswith("search"):
            yield replace(one, **changes)
        elif one.name == "reindex":
            yield one


def run(minutes, limits=None, **changes):
    """What happened: kind, subject and time of each step, and of the placement of the pod that waits."""
    embedded = EmbeddedCluster(demo_fleet(), arrivals(10.0, **changes), seed=1, limits=limits or demo_limits())
    told = {}
    for _ in range(int(minutes * 6)):
        embedded.advance(10.0)
        for card, (free, _) in zip(
            embedded.cluster.state.engine.nodes["search-1"].cards,
            embedded.cluster.state.engine.room("search-1"),
            strict=True,
        ):
            held = sum(
                hold.bytes
                for pod in embedded.cluster.state.on["search-1"].values()
                for hold in pod.holds
                if hold.uuid == card.uuid
            )
            assert free >= 0
            assert held <= card.allocatable_bytes
        for event in embedded.cluster.accounting.latest:
            if event.kind in STEPS or (event.kind == "place" and event.subject == "demo/reindex"):
                told[event.kind, event.subject] = event.at
    return told, embedded


def test_a_waiting_pod_takes_what_a_wasteful_one_does_not_need_after_its_trial():
    """Recommended after days of work, made smaller, tried for a day; nobody has the room before."""
    told, embedded = run(40)
    [(_, first)] = [key for key in told if key[0] == "shrink"]  # one of an owner each hour
    times = [
        told["recommend", "demo/ReplicaSet/search"],
        told["shrink", first],
        told["release", first],
        told["place", "demo/reindex"],
    ]
    assert sorted(times) == times
    assert 10 * MINUTE <= times[2] - times[1] <= 11 * MINUTE
    assert times[3] - times[2] < MINUTE
    [shown] = [c for n in embedded.frame().nodes for c in n.containers if f"demo/{c.pod}" == first]
    assert shown.used_bytes <= shown.allocated_bytes < 12 * GIB


def test_what_needs_more_on_trial_has_it_back_at_once_and_the_other_waits_on():
    """A peak that nothing had shown: denied once, and restored from its reservation in the next cycle."""
    late = LateUse(level=0.25, ramp_seconds=20, wobble=0.12, period_seconds=170, busy=0.6, duty=0.7)
    told, embedded = run(45, profile=late)
    [at] = [when for (kind, _), when in told.items() if kind == "restore"]
    assert at - 22 * MINUTE < 30
    assert not {"release", "place"} & {kind for kind, _ in told}
    pods = [pod for pod in embedded.cluster.state.pods.values() if pod.name.startswith("search")]
    assert [12 * GIB] * 2 == [hold.bytes for pod in pods for hold in pod.holds]


@pytest.mark.parametrize(
    ("limits", "changes"),
    [
        (replace(demo_limits(), max_resizes_per_hour=0), {}),
        (None, {"wish": None}),
        (None, {"wish": PodWish(RightSizeWish(RightSize.LIVE, least_units=12))}),
    ],
)
def test_nothing_is_made_smaller_unasked(limits, changes):
    """Not where the operator allows none, where the owner does not, or below what the owner sets."""
    told, _ = run(35, limits, **changes)
    assert not [kind for kind, _ in told if kind != "recommend"]
