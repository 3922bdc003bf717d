# SPDX-License-Identifier: Apache-2.0
"""
Every query of every dashboard returns data from a real Prometheus that scraped the whole stack for a minute.
"""

from __future__ import annotations

import asyncio
import json
import math
import time

from e2e.dashboards_harness import whole
from support.prometheus_harness import stand

from dashboards.boards import files, queries

SECONDS = 60.0
NOTHING = {
    ("gpushare-card", "Throttled", "A"): "no card is throttled here, and what did not happen is not drawn",
    ("gpushare-card", "Errors", "C"): "no packet is sent twice here, and what did not happen is not drawn",
    ("gpushare-card", "Errors", "D"): "these cards have no NVLink",
    **dict.fromkeys(
        (("gpushare-card", "State of the hardware", letter) for letter in "ABD"),
        "these cards remap no rows, and their driver is older than recovery actions",
    ),
    **dict.fromkeys(
        (("gpushare-card", *of) for of in (("State of the hardware", "G"), ("NVLink", "A"), ("NVLink", "B"))),
        "these cards have no NVLink",
    ),
    **dict.fromkeys(
        (("gpushare-card", "Activity of multiprocessors", letter) for letter in "ABC"),
        "these cards are older than Hopper",
    ),
    ("gpushare-card", "Memory bandwidth", "A"): "likewise",
    **dict.fromkeys((("gpushare-card", "Broken memory", letter) for letter in "AB"), "no memory breaks here"),
    ("gpushare-card", "PCI Express errors", "A"): "there are none here, and what did not happen is not drawn",
    ("gpushare-namespace", "Recommended memory", "C"): "nobody is promised compute here",
    ("gpushare-autoscaler", "gRPC requests", "A"): "neither cluster-autoscaler nor KEDA asks here",
}
"""Queries that cannot have data here, and why."""
SOMETIMES = {("gpushare-card", "Video engines by container", letter) for letter in "AB"}
"""Have data only while a process computes on the cards of the exporter that collects them."""


def without_data(prometheus):
    """[(dashboard, panel, letter)] of queries that return nothing."""
    found = []
    for board in files.BOARDS:
        dashboard = json.loads((files.FOLDER / f"{board.uid}.json").read_text())
        values = queries.defaults(dashboard) | queries.windows("1m", "5m")
        found += [
            (board.uid, one.panel, one.letter)
            for one in queries.asked(dashboard)
            if not _has_data(prometheus, queries.filled(one.expr, values))
        ]
    return found


def _has_data(prometheus, expr):
    """Whether any series has a number; a quantile of nothing is NaN, which a graph does not show."""
    return any(not math.isnan(value) for _, value in prometheus.series(expr))


def test_every_query_returns_data(plane, tmp_path):
    """
    After a minute, three on a busy machine; the exceptions are listed with their reason, and are exceptions indeed.
    """

    async def story():
        async with whole(plane, tmp_path) as prometheus:
            begun = time.monotonic()
            await asyncio.sleep(SECONDS)
            while True:
                missing = set(await asyncio.to_thread(without_data, prometheus))
                if not missing - NOTHING.keys() - SOMETIMES or time.monotonic() - begun > 3 * SECONDS:
                    return missing
                await asyncio.sleep(1)

    missing = asyncio.run(story())
    assert set() == missing - NOTHING.keys() - SOMETIMES, "no data"
    assert set() == NOTHING.keys() - missing, "data after all"


def test_an_empty_prometheus_tells_nothing():
    """No query is refused, and none makes up a figure: what nobody measured is absent, never 0."""
    with stand({}) as prometheus:
        answered = []
        for board in files.BOARDS:
            dashboard = json.loads((files.FOLDER / f"{board.uid}.json").read_text())
            values = queries.defaults(dashboard) | queries.windows("1m", "5m")
            answered += [
                (board.uid, one.panel)
                for one in queries.asked(dashboard)
                if prometheus.series(queries.filled(one.expr, values))
            ]
    assert [] == answered
