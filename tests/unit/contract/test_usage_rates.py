# SPDX-License-Identifier: Apache-2.0
"""What HPA and KEDA are told of compute: averages of a minute from counters, whatever the bursts are."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from autoscaler.apis.metrics.core.answer import Clocks, build_reply
from autoscaler.apis.metrics.core.readings import MetricsSnapshot, pod_uses
from autoscaler.apis.metrics.core.request import PodsRequest
from autoscaler.apis.metrics.core.selector import Selector
from autoscaler.apis.rpc.core.keda_trigger import compute_value, parse_trigger
from autoscaler.kube.usage import MeasurementAges, Row
from isolation.contract.metrics import (
    CARD_BUSY_SECONDS,
    CONTAINER_COMPUTE_SECONDS,
    CONTAINER_MEMORY_ALLOCATED,
    CONTAINER_MEMORY_USED,
    SAMPLE_TIMESTAMP,
)
from isolation.contract.model import Ask, Phase, Placement, Pod, Request, Slice
from isolation.contract.usage_rates import UsageHistory, add_reading, usage_rates

GIB = 1 << 30
HOUR = 3600
POD = Pod(
    "p",
    "burst",
    "ml",
    Request(1, GIB, asks=(Ask("main", GIB),)),
    Placement("n1", (Slice("GPU-1", 0, GIB),)),
    phase=Phase.RUNNING,
)


class Rates:
    """A history that is kept, and its averages after each reading."""

    def __init__(self, window):
        self.history = UsageHistory(window)

    def take(self, stamp, counters):
        """The averages at that moment."""
        self.history = add_reading(self.history, stamp, counters)
        return usage_rates(self.history)


def computed(moment, burst, every, phase):
    """Seconds of compute from 0 on of a tenant that computes for `burst` seconds of `every`."""
    rounds, rest = divmod(moment + phase, every)
    return rounds * burst + min(rest, burst) - min(phase, burst)


def rows(stamp, seconds):
    """What its exporter says."""
    spot = {"namespace": "ml", "pod": "burst", "container": "main", "uuid": "GPU-1", "node": "n1"}
    return [
        Row(SAMPLE_TIMESTAMP.name, {}, stamp),
        Row(CONTAINER_MEMORY_USED.name, spot, GIB),
        Row(CONTAINER_COMPUTE_SECONDS.name, spot, seconds),
        Row(CARD_BUSY_SECONDS.name, {"uuid": "GPU-1", "node": "n1"}, seconds),
    ]


def sample(pattern, seconds, scrape=15.0, begin=1e9):
    """(moment, HPA's figure, KEDA's, its window) at each scrape, each scrape a little early or late."""
    drawn, ages, found = random.Random(7), MeasurementAges(3 * scrape, 4 * scrape), []  # noqa: S311 (the same each time)
    for number in range(int(seconds / scrape) + 1):
        now = number * scrape + drawn.uniform(0, 2)
        measured = ages.joined({"n1": rows(begin + now, computed(now, *pattern))}, {}, now)
        picture = MetricsSnapshot(now, pod_uses([POD], measured.samples, measured.measured))
        moment = Clocks(now, begin + now, 3 * scrape)
        reply = build_reply(
            PodsRequest("v1beta2", "ml", "*", "gpu_core_used_ratio", Selector(""), Selector("")), picture, moment
        )
        if number == 0:
            assert 503 == reply.status, "one reading of a counter is no average"
            continue
        (item,) = json.loads(reply.body)["items"]
        keda = compute_value(parse_trigger("ml", {"metric": "gpu_core_used_ratio", "target": "0.8"}), picture, moment)
        value = item["value"]
        hpa = int(value[:-1]) / 1000 if value.endswith("m") else float(value)
        found.append((now, hpa, keda, item["windowSeconds"]))
    return found


PATTERNS = [(3, 15, 0), (2, 60, 20), (3, 17, 5)]
_DRAWN = random.Random(19)  # noqa: S311 (the same each time)
for _ in range(50):
    _EVERY = _DRAWN.uniform(4, 60)
    PATTERNS.append((_EVERY * _DRAWN.uniform(0.05, 0.9), _EVERY, _DRAWN.uniform(0, _EVERY)))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: f"{one[0]:.1f} in {one[1]:.1f}")
def test_hpa_and_keda_are_told_what_bursts_come_to(pattern):
    """Over an hour within 2 % of the truth; over any five minutes never off by more than one burst."""
    found = sample(pattern, HOUR)
    burst, every, _ = pattern

    for which in (1, 2):
        mean = sum(one[which] for one in found) / len(found)
        assert mean == pytest.approx(burst / every, rel=0.02, abs=0.002)
        for at in range(len(found) - 20):
            part = found[at : at + 20]
            true = computed(part[-1][0], *pattern) - computed(part[0][0], *pattern)
            seconds = part[-1][0] - part[0][0]
            assert abs(sum(one[which] for one in part[1:]) / 19 * seconds - true) <= burst * 1.02 + 0.6
    assert {one[3] for one in found[5:]} <= set(range(60, 78)), "a minute, and up to one scrape more"


def test_a_counter_that_begins_again_is_not_negative():
    """An exporter that was restarted counts from 0; what its counter stands at then has been computed since."""
    rates = Rates(60.0)
    stamps = [(0, 100.0), (15, 103.0), (30, 1.0), (45, 4.0)]

    found = [dict(rates.take(stamp, {"a": total})).get("a") for stamp, total in stamps]

    assert None is found[0]
    assert [(3 / 15, 15), (4 / 30, 30), (7 / 45, 45)] == [tuple(one) for one in found[1:]]


def test_a_counter_that_appears_began_at_zero():
    """A container that came after the last reading has used what its counter says since then."""
    rates = Rates(60.0)
    rates.take(0, {"old": 5.0})
    rates.take(15, {"old": 6.0})

    found = rates.take(30, {"old": 7.0, "new": 9.0})

    assert (9 / 15, 15) == tuple(found["new"])
    assert (2 / 30, 30) == tuple(found["old"])


def test_a_clock_that_is_set_back_starts_over():
    """No average over a time that never was."""
    rates = Rates(60.0)
    rates.take(100, {"a": 5.0})

    assert {} == rates.take(50, {"a": 6.0})
    assert (1 / 10, 10) == tuple(rates.take(60, {"a": 7.0})["a"])
    assert (1 / 10, 10) == tuple(rates.take(60, {"a": 7.0})["a"]), "the same reading once more"


def test_a_pod_with_whole_cards_is_reported_like_one_with_shares():
    """Which cards it has only its node's exporter knows; compute is of the whole cards, memory of what they have."""
    pod = replace(POD, name="whole", request=Request(2, 0, whole=True), placement=Placement("n1", ()))
    ages, spots = MeasurementAges(45.0, 60.0), [{"uuid": f"GPU-{at}", "card": str(at)} for at in range(2)]

    def page(stamp):
        sample = {"namespace": "ml", "pod": "whole", "container": "main", "node": "n1", "mode": "exclusive"}
        rows = [Row(SAMPLE_TIMESTAMP.name, {}, stamp)]
        for at, spot in enumerate(spots):
            rows += [
                Row(CONTAINER_MEMORY_USED.name, sample | spot, 3 * GIB),
                Row(CONTAINER_MEMORY_ALLOCATED.name, sample | spot, 15 * GIB),
                Row(CONTAINER_COMPUTE_SECONDS.name, sample | spot, stamp * (0.2 + 0.4 * at)),
            ]
        return rows

    ages.joined({"n1": page(0.0)}, {}, 0.0)
    measured = ages.joined({"n1": page(15.0)}, {}, 15.0)
    uses = pod_uses([pod], measured.samples, measured.measured, measured.whole)
    picture, moment = MetricsSnapshot(15.0, uses), Clocks(15.0, 1e9, 45.0)

    def value(metric):
        asked = PodsRequest("v1beta1", "ml", "whole", metric, Selector(""), Selector(""))
        (item,) = json.loads(build_reply(asked, picture, moment).body)["items"]
        return item["value"], item.get("window")

    assert ("400m", 15) == value("gpu_core_used_ratio")
    assert (str(6 * GIB), None) == value("gpu_mem_used_bytes")
    assert (str(30 * GIB), None) == value("gpu_mem_allocated_bytes")
    assert ("200m", None) == value("gpu_mem_used_ratio")
    elsewhere = replace(pod, placement=Placement("n2", ()))
    assert () == pod_uses([elsewhere], measured.samples, measured.measured, measured.whole)["ml"][0].uses


def test_a_row_without_labels_costs_no_other_reading():
    """
    A whole card of no pod, as a page may have it that is no exporter's of ours.
    """
    strange = Row(CONTAINER_MEMORY_USED.name, {"mode": "exclusive", "card": "0", "uuid": "GPU-1"}, GIB)
    measured = MeasurementAges(45.0, 60.0).joined({"n1": [*rows(1e9, 0.0), strange]}, {}, 1.0)

    assert {"burst", ""} == {spot.pod for spot in measured.samples}
