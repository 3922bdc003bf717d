"""
What the exporter costs: samples, time of a scrape, of a turn as pods grow, memory over a day.

Prints the bars of the project beside each figure, keeps everything in `--json`. Never a test: speed depends on
the machine. The sources answer from memory (`recorded`); everything behind them is what a node runs.
"""

from __future__ import annotations

import gc
import gzip
import http.client
import json
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
from recorded import RecordedNode

from exporter.attribute import Place
from exporter.cycle import Clock, Cycle
from exporter.exposition import Exposition, Form
from exporter.facts import Outcome
from exporter.itself import resident_bytes
from exporter.judge import Judge
from exporter.node import collectors
from exporter.runner import Runner
from exporter.server import MetricsServer
from isolation.contract.quantity import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exporter.cycle import Reader
    from exporter.judge import Told

CARDS: Final = 8
PODS: Final = (8, 16, 32, 64, 128, 256, 512)
CLIENTS: Final = 20
PERIOD: Final = 2.0
DAY: Final = 86_400.0
DAY_PODS: Final = 10_000
STACK: Final = ("grpc", "pynvml", "exporter.kubelet", "exporter.web")
"""What a node's exporter has loaded beside what is measured here."""
HEADERS: Final = {
    "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


class Now:
    """Seconds that pass when we say so."""

    def __init__(self) -> None:
        self.at = 1000.0

    @property
    def clock(self) -> Clock:
        """For a cycle."""
        return Clock(lambda: self.at, lambda: self.at)


class Inline:
    """A runner without threads: a simulated day has no time to wait for them."""

    def run_all(self, reads: Mapping[str, Callable[[], Any]], _deadline: float) -> dict[str, Outcome[Any]]:
        """Every outcome at once."""
        return {name: Outcome(read()) for name, read in reads.items()}


def exporter_of(node: RecordedNode, reader: Reader, clock: Clock) -> tuple[Cycle, Exposition[Told]]:
    """A node's exporter behind recorded sources."""
    pages: Exposition[Told] = Exposition(collectors(frozenset()), clock=time.perf_counter, release="benchmark")

    def publish(told: Told) -> None:
        pages.publish(told, told.snapshot.epoch, ready=True)

    return Cycle(node, reader, Judge(Place("node-1")), publish, period=PERIOD, clock=clock), pages


def samples(body: bytes) -> int:
    """Lines that are samples."""
    return sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))


def cost(turns: int) -> dict[str, Any]:
    """Milliseconds of a turn by number of pods, rendering and compressing included, and how they grow."""
    rows = []
    for pods in PODS:
        now = Now()
        cycle, pages = exporter_of(RecordedNode(CARDS, pods), Inline(), now.clock)
        spent = []
        for _ in range(turns):
            now.at += PERIOD
            begun = time.perf_counter()
            cycle.turn()
            spent.append(time.perf_counter() - begun)
            pages.page(Form(openmetrics=True, gzip=True))
        body = pages.page().body
        row = {"pods": pods, "ms": 1000 * median(spent[turns // 4 :]), "samples": samples(body), "bytes": len(body)}
        row["bar_samples"] = 10 * pods + 30 * CARDS + 60
        rows.append(row)
        click.echo(
            f"  {pods:4} pods  {row['ms']:7.2f} ms a turn  {row['samples']:5} samples (at most {row['bar_samples']})"
            f"  {row['bytes'] / 1024:6.0f} KiB"
        )
    return {"rows": rows, "exponent": slope([(row["pods"], row["ms"]) for row in rows])}


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares on logarithms: 1 is linear."""
    xs, ys = [log(x) for x, _ in points], [log(y) for _, y in points]
    mean_x, mean_y = fmean(xs), fmean(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)


def serve(pods: int, *, still: bool) -> None:
    """A node's exporter until standard input ends, or one that makes no turns; says its port."""
    for name in STACK:
        import_module(name)
    sys.setswitchinterval(0.0005)
    cycle, pages = exporter_of(RecordedNode(CARDS, pods), Runner(), Clock())
    stop = threading.Event()
    cycle.turn()
    gc.collect()
    gc.freeze()
    if not still:
        threading.Thread(target=cycle.run, args=(stop,), daemon=True).start()
    with MetricsServer(pages, 0) as server:
        print(server.port, flush=True)
        sys.stdin.read()
        print(resident_bytes(), flush=True)
        stop.set()


def scrape(pods: int, seconds: float, *, still: bool = False) -> dict[str, Any]:
    """Latencies of clients that scrape once a second while turns are made, or (`still`) while none are."""
    words = [sys.executable, __file__, "--serve", str(pods), *(["--still"] if still else [])]
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
    found |= {"max_ms": 1000 * max(spent), "resident_mib": resident / MIB}
    kind = ", no turns" if still else ""
    click.echo(
        f"  {pods:4} pods{kind:10}  p50 {found['p50_ms']:.2f}  p99 {found['p99_ms']:.2f}  worst {found['max_ms']:.2f}"
        f" ms of {len(spent)} scrapes (p99 at most 5 ms)  {found['resident_mib']:.1f} MiB resident"
    )
    return found


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
        cycle.turn()
        pages.page(Form(openmetrics=True, gzip=True))
        if turn % hour == 0 or turn == turns:
            print(json.dumps({"hour": turn * PERIOD / 3600, "resident_mib": resident_bytes() / MIB}), flush=True)


def memory(pods: int, hours: float) -> dict[str, Any]:
    """The above in a process of its own."""
    words = [sys.executable, __file__, "--day", str(pods), "--hours", str(hours)]
    rows = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 (PIPE above)
        for line in process.stdout:
            rows.append(json.loads(line))
            click.echo(f"\r  hour {rows[-1]['hour']:4.1f}  {rows[-1]['resident_mib']:.1f} MiB", nl=False, err=True)
    settled = next((row for row in rows if row["hour"] >= 1), rows[-1])
    found = {"pods": pods, "rows": rows, "resident_mib": rows[-1]["resident_mib"]}
    found["growth_mib"] = rows[-1]["resident_mib"] - settled["resident_mib"]
    click.echo(
        f"\r  {DAY_PODS * hours / 24:.0f} pods in {hours:g} hours, {pods} at a time: {found['resident_mib']:.1f} MiB "
        f"resident (at most 64), {found['growth_mib']:+.2f} MiB since the first hour (at most +2)"
    )
    return found


def measure(path: Path | None, *, quick: bool) -> None:
    """Everything, one after the other."""
    found: dict[str, Any] = {}
    click.echo(f"cost of a turn, {CARDS} cards")
    found["cost"] = cost(8 if quick else 40)
    click.echo(f"  grows with pods to the power of {found['cost']['exponent']:.2f} (at most 1)")
    click.echo(f"scrapes of {CLIENTS} clients at 1 Hz, a turn every {PERIOD:g} s")
    seconds = 6.0 if quick else 60.0
    # without turns: what this machine's own noise is
    found["scrape"] = [scrape(pods, seconds, still=still) for pods in (64, 512) for still in (True, False)]
    click.echo("memory")
    found["memory"] = memory(64, 2.4 if quick else 24.0)
    if path is not None:
        path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of the time, for a first look.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Keep every figure in this file.")
@click.option("--serve", "served", type=int, hidden=True)
@click.option("--still", is_flag=True, hidden=True)
@click.option("--day", "day_pods", type=int, hidden=True)
@click.option("--hours", type=float, hidden=True)
def main(**given: Any) -> None:
    """Measure the exporter."""
    if given["served"] is not None:
        serve(given["served"], still=given["still"])
    elif given["day_pods"] is not None:
        day(given["day_pods"], given["hours"])
    else:
        measure(given["path"], quick=given["quick"])


if __name__ == "__main__":
    main()
