# SPDX-License-Identifier: Apache-2.0
"""
`gpushare up`: an embedded cluster driven by the wall clock, shown and measured while it runs.

Decides which cluster and workload run, at which speed and for how long, whether real processes on simulated cards run
as well (`stack`), and how the run ends. The terminal and the metrics endpoint come from `gpushare.py` (`outputs`):
autoscaler may not import dashboards and exporter. Bad input ends with status 2; Ctrl-C and SIGTERM end with a summary
and status 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import click

from autoscaler.core.metric_families import COLLECTORS
from autoscaler.demo.embedded.node_pools import ScenarioError
from autoscaler.demo.embedded.readings import ComputeSeconds
from autoscaler.demo.pace import Progress, run_paced
from autoscaler.demo.scenario import Scenario, load_demo, load_manifests, load_trace
from autoscaler.demo.stack.autoscaler_metrics import LoopMetrics
from autoscaler.demo.stack.demo_stack import StackError
from autoscaler.demo.stack.optional_stack import OptionalStack
from isolation import options
from isolation.kube.options import NumberType
from isolation.options import InputError
from isolation.simulator.place.manifests import ManifestError
from isolation.simulator.traces.csvfile import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType, TracebackType
    from typing import Self

    from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
    from autoscaler.demo.outputs import MetricsEndpoint, Outputs

DEFAULT_PORT: Final = 9445
OTHER_PORT: Final = 'use --port N (make up ARGS="--port N"), or --no-metrics'
LARGEST_SPEED: Final = 1e6
LARGEST_SEED: Final = 2**32 - 1


class StopSignal:
    """
    Set by the first SIGINT, SIGTERM or SIGHUP; a second one ends the program at once.

    A queue, since a handler runs in the middle of whoever waits: an `Event` would take a lock twice there
    and hang. `SimpleQueue.put` is made for that (Python's `queue`, "reentrant").
    """

    def __init__(self) -> None:
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def wait(self, seconds: float) -> bool:
        """Sleep up to so long; true if it is time to stop."""
        try:
            number = self._signals.get(timeout=seconds)
        except Empty:
            return False
        self._signals.put(number)
        return True

    def _set(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (signal's signature)
        self._signals.put(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class UpSettings:
    """One run, as asked for."""

    speed: float
    seconds: float | None
    seed: int
    port: int | None
    as_json: bool
    addresses: Path | None = None
    """Where to write down what listens where."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--manifest",
    "manifests",
    metavar="FILE",
    multiple=True,
    help="Run the pods of this manifest instead of the demo workload; - reads stdin. Repeat for several.",
)
@click.option("--nodes-csv", metavar="FILE", help="Node list of a trace to replay; needs --pods-csv.")
@click.option(
    "--pods-csv",
    metavar="FILE",
    help="Pod list of a trace to replay, with creation_time and deletion_time; needs --nodes-csv.",
)
@click.option(
    "--speed",
    type=NumberType(0, LARGEST_SPEED, min_open=True),
    show_default="60; 3600 for a trace",
    help="Seconds of simulated time per second of real time.",
)
@click.option(
    "--for",
    "seconds",
    type=NumberType(0, 1e9),
    metavar="SECONDS",
    help="Stop after this many seconds of real time.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="First of the ports on 127.0.0.1; 0 picks free ports.",
)
@click.option("--no-metrics", is_flag=True, help="Serve no metrics; implies --no-stack.")
@click.option("--no-stack", is_flag=True, help="Run only the simulated cluster, without processes on simulated cards.")
@click.option(
    "--addresses",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the addresses of all endpoints to this file, as JSON.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    default=42,
    show_default=True,
    help="Random seed of the simulated cluster; the same seed gives the same events.",
)
@options.output(text="Output format. json: at the end, a summary and the final state on stdout.")
@click.pass_obj
def up(
    outputs: Outputs,
    *,
    manifests: tuple[str, ...],
    nodes_csv: str | None,
    pods_csv: str | None,
    speed: float | None,
    seconds: float | None,
    port: int,
    no_metrics: bool,
    no_stack: bool,
    addresses: Path | None,
    seed: int,
    output: str,
) -> None:
    """
    Run the full stack on one machine, with simulated cards.

    Real processes share two simulated cards under the isolation library, and the exporter measures them.
    At the same time, a simulated cluster runs pods, and its node pools grow and shrink. Alerts fire if
    Prometheus and Alertmanager are installed. With --manifest or a trace, only the simulated cluster runs.
    """
    loop_metrics = None if no_stack or no_metrics or manifests or nodes_csv or pods_csv else LoopMetrics()
    if addresses is not None and loop_metrics is None:
        raise click.UsageError(
            "--addresses needs the stack; drop what disables it: --no-stack, --no-metrics, --manifest or a trace"
        )
    scenario = (
        _load_scenario(manifests, nodes_csv, pods_csv, seed) if loop_metrics is None else load_demo(seed, loop_metrics)
    )
    for remark in scenario.remarks:
        click.echo(remark, err=True)
    served = None if no_metrics else port
    settings = UpSettings(speed or scenario.speed, seconds, seed, served, bool(output), addresses)
    try:
        click.echo(run_demo(scenario.cluster, outputs, settings, loop_metrics))
        sys.stdout.flush()
    except StackError as exc:
        raise click.ClickException(str(exc)) from exc
    except OSError as exc:
        # Without this the interpreter would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(exc, BrokenPipeError):
            raise click.ClickException(f"cannot write the output: {exc.strerror}") from None


def _load_scenario(manifests: tuple[str, ...], nodes_csv: str | None, pods_csv: str | None, seed: int) -> Scenario:
    if (nodes_csv is None) != (pods_csv is None):
        raise click.UsageError("a trace needs both --nodes-csv and --pods-csv")
    if manifests and nodes_csv is not None:
        raise click.UsageError("--manifest cannot be combined with a trace, which has its own pods")
    try:
        if nodes_csv is not None and pods_csv is not None:
            return load_trace(nodes_csv, pods_csv, seed)
        return (
            load_manifests(manifests, sys.stdin.buffer if sys.stdin else BytesIO(), seed)
            if manifests
            else load_demo(seed)
        )
    except (TraceError, ManifestError, ScenarioError) as exc:
        raise InputError(str(exc)) from exc


def run_demo(
    cluster: EmbeddedCluster, outputs: Outputs, settings: UpSettings, loop_metrics: LoopMetrics | None = None
) -> str:
    """Run to the end, with the stack where `loop_metrics` watches the loop; returns what is to be said about it."""
    stack = OptionalStack(
        settings.port,
        loop_metrics=loop_metrics,
        addresses_file=settings.addresses,
        report=lambda text: click.echo(text, err=True),
    )
    compute = ComputeSeconds()
    with ExitStack() as held:
        stop = held.enter_context(StopSignal())
        endpoint: MetricsEndpoint | None = None
        try:
            held.enter_context(stack)
            if stack.port is not None:
                endpoint = held.enter_context(outputs.metrics(stack.port, COLLECTORS))
        except OSError as exc:
            if exc.filename:
                raise InputError(f"{exc.filename}: {exc.strerror}") from exc
            raise click.ClickException(f"{exc}: {OTHER_PORT}") from exc
        screen = held.enter_context(outputs.screen(sys.stderr if settings.as_json else sys.stdout, time.monotonic))

        def draw(progress: Progress) -> None:
            frame = cluster.frame()
            stack.sample(cluster, time.monotonic())
            if endpoint is not None:
                endpoint.publish(compute.add(frame, time.monotonic()))
            screen.show(frame, build_notes(settings.speed, progress, endpoint.url if endpoint else None), stack.status)

        ran = run_paced(
            cluster, draw, speed=settings.speed, seconds=settings.seconds, clock=time.monotonic, wait=stop.wait
        )
    return (
        build_document(cluster, settings, ran, stack)
        if settings.as_json
        else render_summary(cluster.summary(), ran, stack.render_summary())
    )


def build_notes(speed: float, progress: Progress, url: str | None) -> tuple[tuple[str, str], ...]:
    """What stands stack the frame: the clock's speed, whether this machine is too slow for it, the address."""
    said = f"x{speed:g}, machine too slow" if progress.late else f"x{speed:g}"
    return (("clock", said), *((("metrics", url),) if url else ()))


def render_summary(summary: Mapping[str, int | float], ran: Progress, machine: str | None = None) -> str:
    """The summary for people; `machine` is what is to be said of the real processes."""
    head = f"ended after {ran.wall_seconds:.1f} s; the simulated cluster ran for {ran.simulated_seconds:,.0f} s"
    if ran.lag_seconds >= 1:
        head += f", {ran.lag_seconds:,.0f} s less than requested"
    totals = {
        name.replace("_", " ").replace("gib", "GiB"): value for name, value in summary.items() if name != "seconds"
    }
    width = max(map(len, totals), default=0)
    lines = [f"  {name:<{width}}  {value:,.{0 if isinstance(value, int) else 2}f}" for name, value in totals.items()]
    return "\n".join([head, *lines, *((machine,) if machine else ())])


def build_document(cluster: EmbeddedCluster, settings: UpSettings, ran: Progress, stack: OptionalStack) -> str:
    """Summary and last frame as one line of JSON."""
    return json.dumps(
        {
            "seed": settings.seed,
            "speed": settings.speed,
            "wall_seconds": ran.wall_seconds,
            "simulated_seconds": ran.simulated_seconds,
            "lag_seconds": ran.lag_seconds,
            "summary": dict(cluster.summary()),
            "frame": asdict(cluster.frame()),
            "stack": stack.build_document(),
        },
        allow_nan=False,
    )
