# SPDX-License-Identifier: Apache-2.0
"""
What the exporter costs: samples, time of a scrape, of a turn as pods grow, memory over a day.

Measures and judges nothing (`__main__` does). The sources answer from memory (`recorded_node`); everything behind
them is what a node runs.
"""

from __future__ import annotations

import gc
import gzip
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from math import log
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any, Final

import click

from benchmarks.exporter.recorded_node import RecordedNode
from exporter.app import collectors
from exporter.cycle import CycleClock, ExporterCycle
from exporter.evaluate import Evaluator
from exporter.front import Front
from exporter.http.listen import listen
from exporter.http.pages import Exposition, Form
from exporter.pipeline.attribution import NodeLabels
from exporter.pipeline.snapshot import SourceOutcome
from exporter.runner import Runner
from exporter.self_metrics import resident_bytes
from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exporter.cycle import ParallelReads
    from exporter.evaluate import CycleResult

COMMAND: Final = (sys.executable, "-m", "benchmarks.exporter")
MAX_SCRAPE_MS: Final = {64: 10.0, 512: 25.0}
"""By pods."""
MAX_MIB: Final = 70.0
"""Both processes, what they share counted once."""
MAX_GROWTH_MIB: Final = 2.0
CARDS: Final = 8
PODS: Final = (8, 16, 32, 64, 128, 256, 512)
CLIENTS: Final = 20
PERIOD: Final = 2.0
DAY: Final = 86_400.0
DAY_PODS: Final = 10_000
DAY_AT_ONCE: Final = 64
"""Pods on eight cards, as other exporters are measured."""
STACK: Final = ("grpc", "pynvml", "exporter.kubelet")
"""What the reading process has loaded beside what is measured here."""
HEADERS: Final = {
    "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


class Now:
    """Seconds that pass when we say so."""

    def __init__(self) -> None:
        self.at = 1000.0

    @property
    def clock(self) -> CycleClock:
        """For a cycle."""
        return CycleClock(lambda: self.at, lambda: self.at)


class Inline:
    """A runner without threads: a simulated day has no time to wait for them."""

    def run_all(self, reads: Mapping[str, Callable[[], Any]], _deadline: float) -> dict[str, SourceOutcome[Any]]:
        """Every outcome at once."""
        return {name: SourceOutcome(read()) for name, read in reads.items()}


def exporter_of(
    node: RecordedNode, reader: ParallelReads, clock: CycleClock, front: Front | None = None
) -> tuple[ExporterCycle, Exposition[CycleResult]]:
    """A node's exporter behind recorded sources."""
    pages: Exposition[CycleResult] = Exposition(collectors(frozenset()), clock=time.perf_counter, release="benchmark")

    def publish(result: CycleResult) -> None:
        pages.publish(result, result.snapshot.epoch, ready=True)
        if front is not None:
            front.publish(pages.pages, {})

    return ExporterCycle(node, reader, Evaluator(NodeLabels("node-1")), publish, period=PERIOD, clock=clock), pages


def samples(body: bytes) -> int:
    """Lines that are samples."""
    return sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))


def page(cards: int, pods: int) -> dict[str, Any]:
    """How much a scrape is, beside the most samples that it may have."""
    now = Now()
    cycle, pages = exporter_of(RecordedNode(cards, pods), Inline(), now.clock)
    for _ in range(2):  # some figures need two looks
        now.at += PERIOD
        cycle.run_once()
    body, packed = pages.page().body, pages.page(Form(openmetrics=True, gzip=True)).body
    found = {"cards": cards, "pods": pods, "samples": samples(body), "most": 11 * pods + 60 * cards + 60}
    return found | {"kib": len(body) / 1024, "gzip_kib": len(packed) / 1024}


def growth(turns: int) -> dict[str, Any]:
    """Milliseconds of a turn by number of pods, rendering and compressing included, and how they grow."""
    rows = []
    for pods in PODS:
        now = Now()
        cycle, pages = exporter_of(RecordedNode(CARDS, pods), Inline(), now.clock)
        spent = []
        for _ in range(turns):
            now.at += PERIOD
            begun = time.process_time()
            cycle.run_once()
            pages.page(Form(openmetrics=True, gzip=True))
            spent.append(time.process_time() - begun)
        rows.append({"pods": pods, "ms": 1000 * median(spent[turns // 4 :])})
    return {"rows": rows, "exponent": slope([(row["pods"], row["ms"]) for row in rows])}


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares on logarithms: 1 is linear."""
    xs, ys = [log(x) for x, _ in points], [log(y) for _, y in points]
    mean_x, mean_y = fmean(xs), fmean(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)


def serve(pods: int, *, still: bool) -> None:
    """A node's exporter until standard input ends, or one that makes no turns; says its port."""
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    gc.freeze()
    front = Front.fork(listener, None, 3600.0)
    for name in STACK:
        import_module(name)
    sys.setswitchinterval(0.0005)
    cycle, pages = exporter_of(RecordedNode(CARDS, pods), Runner(), CycleClock(), front)
    stop = threading.Event()
    front.start(pages, stop.set)
    cycle.run_once()
    gc.collect()
    gc.freeze()
    if not still:
        threading.Thread(target=cycle.run, args=(stop,), daemon=True).start()
    print(port, flush=True)
    sys.stdin.read()
    print(proportional_bytes() + proportional_bytes(front.pid), flush=True)
    stop.set()
    os._exit(0)


def proportional_bytes(pid: int | str = "self") -> int:
    """Memory of a process, what it shares counted in parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def scrape(pods: int, seconds: float, *, still: bool = False) -> dict[str, Any]:
    """Latencies of clients that scrape once a second while turns are made, or (`still`) while none are."""
    words = [*COMMAND, "--serve", str(pods), *(["--still"] if still else [])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None  # noqa: S101 (PIPE above)
        port = int(server.stdout.readline())
        spent: list[float] = []
        threads = [threading.Thread(target=client, args=(port, at, seconds, spent)) for at in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.stdin is not None  # noqa: S101 (PIPE above)
        server.stdin.close()
        resident = float(server.stdout.readline())
    cuts = quantiles(spent, n=100)
    found = {"pods": pods, "still": still, "scrapes": len(spent), "p50_ms": 1000 * cuts[49], "p99_ms": 1000 * cuts[98]}
    return found | {"max_ms": 1000 * max(spent), "resident_mib": resident / MIB}


def client(port: int, at: int, seconds: float, spent: list[float]) -> None:
    """One Prometheus: a kept connection, OpenMetrics, compressed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    due = time.monotonic() + at / CLIENTS
    end = due + seconds
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        begun = time.perf_counter()
        connection.request("GET", "/metrics", headers=HEADERS)
        body = connection.getresponse().read()
        spent.append(time.perf_counter() - begun)
        if not gzip.decompress(body).endswith(b"# EOF\n"):
            raise click.ClickException("a scrape was not whole")
        due += 1.0


def day(pods: int, hours: float) -> None:
    """A day of turns with pods that come and go, as fast as they can be made; prints memory by the hour."""
    for name in STACK:
        import_module(name)
    now = Now()
    cycle, pages = exporter_of(RecordedNode(CARDS, pods, life=pods * DAY / DAY_PODS), Inline(), now.clock)
    turns = int(hours * 3600 / PERIOD)
    hour = int(3600 / PERIOD)
    for turn in range(turns + 1):
        now.at += PERIOD
        cycle.run_once()
        pages.page(Form(openmetrics=True, gzip=True))
        if turn % hour == 0 or turn == turns:
            print(json.dumps({"hour": turn * PERIOD / 3600, "resident_mib": resident_bytes() / MIB}), flush=True)


def memory(pods: int, hours: float) -> dict[str, Any]:
    """The above in a process of its own; growth is counted from the end of the first hour."""
    words = [*COMMAND, "--day", str(pods), "--hours", str(hours)]
    rows = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 (PIPE above)
        for line in process.stdout:
            rows.append(json.loads(line))
            if sys.stderr.isatty():
                click.echo(f"\r  hour {rows[-1]['hour']:4.1f}  {rows[-1]['resident_mib']:.1f} MiB ", nl=False, err=True)
    if process.returncode or not rows:
        raise click.ClickException("the day ended early")
    settled = next((row for row in rows if row["hour"] >= 1), rows[-1])
    found = {"pods": pods, "hours": hours, "gone": round(DAY_PODS * hours / 24), "rows": rows}
    found |= {"resident_mib": max(row["resident_mib"] for row in rows)}
    return found | {"growth_mib": rows[-1]["resident_mib"] - settled["resident_mib"]}
