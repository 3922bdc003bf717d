# SPDX-License-Identifier: Apache-2.0
"""Graphs of the ten largest, asked of a real Prometheus over a range: who is shown, and when."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.parse

from support.ports import free_port
from support.prometheus_harness import fetch, program
from support.waiting import until

from dashboards.boards import files, queries

BEGUN, STEP, POINTS = 1_800_000_000, 60, 61
"""An hour."""


def denied(moment, number):
    """Allocations denied to a pod until then: all in one burst, more for a higher number, one pod after another."""
    return (number + 1) * 10 if moment >= 3 * number + 6 else 0


def backfilled(folder):
    """An hour of fifteen pods, each in trouble for a moment and gone ten minutes later."""
    name = "gpushare_isolation_denied_allocations_total"
    lines = [f"# TYPE {name.removesuffix('_total')} counter"]
    for number in range(15):
        for moment in range(POINTS):
            if moment <= 3 * number + 16:
                labels = (
                    f'cluster="",job="gpushare-exporter",node="n",namespace="team",pod="p{number:02}",container="main"'
                )
                lines.append(f"{name}{{{labels}}} {denied(moment, number)} {BEGUN + moment * STEP}")
    written = folder / "hour.txt"
    written.write_text("\n".join([*lines, "# EOF", ""]))
    promtool = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(written), str(folder / "data")]
    subprocess.run(promtool, check=True, capture_output=True, timeout=60)


def drawn(folder, expr):
    """The series of the graph: pod, and the largest value."""
    config, address = folder / "prometheus.yml", f"127.0.0.1:{free_port()}"
    config.write_text("{}")
    words = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}")
    server = subprocess.Popen(
        [program("prometheus"), *words, "--storage.tsdb.retention.time=100y"], stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: ready(address))
        query = {"query": expr, "start": BEGUN, "end": BEGUN + (POINTS - 1) * STEP, "step": STEP}
        found = fetch(f"http://{address}/api/v1/query_range?{urllib.parse.urlencode(query)}")["data"]["result"]
        return {each["metric"]["pod"]: max(float(value) for _, value in each["values"]) for each in found}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def ready(address):
    """Whether it answers."""
    try:
        return bool(fetch(f"http://{address}/api/v1/status/buildinfo"))
    except OSError:
        return False


def test_a_graph_of_events_shows_who_had_most_in_all_the_time(tmp_path):
    """Pods that are gone at the end are shown too, and the five with the fewest at no moment."""
    dashboard = json.loads((files.FOLDER / "gpushare-breaches.json").read_text())
    (one,) = (each for each in queries.asked(dashboard) if each.panel == "Denied allocations" and not each.instant)
    expr = queries.filled(one.expr, queries.defaults(dashboard) | queries.windows("2m", "1h"))
    backfilled(tmp_path)

    found = drawn(tmp_path, expr)
    assert {f"p{number:02}" for number in range(5, 15)} == set(found)
    assert all(found.values())
