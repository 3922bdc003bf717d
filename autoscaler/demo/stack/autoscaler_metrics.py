# SPDX-License-Identifier: Apache-2.0
"""
The metrics of the embedded cluster's autoscaler, and the HTTP server of their page: the same families as on Kubernetes.

The loop and its deciders are the same ones, so reconciles, steps, pools and pending pods are counted as they happen.
What only a process on Kubernetes has (watches, a configuration file, staleness of measured metrics) is absent. Gauges
are sampled by the thread that owns the cluster, at most once a second; a scrape gets the last sample.
"""

from __future__ import annotations

import time
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Final

from autoscaler.apis.metrics.core.pressure import list_pending, summarize_pools
from autoscaler.apis.metrics.core.readings import MetricsSnapshot
from autoscaler.core.decide import decide
from autoscaler.demo.stack.addresses import HOST
from autoscaler.kube.core.telemetry_rows import TelemetryReading, rows_of
from autoscaler.kube.telemetry.metrics import Telemetry
from isolation.contract.metrics import autoscaler as catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from autoscaler.core.limits import ScalingLimits
    from autoscaler.core.observation import Observation
    from autoscaler.core.plan import Plan
    from autoscaler.core.state import AutoscalerState
    from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
    from isolation.contract.metrics import MetricSpec

    Rows = Mapping[MetricSpec, Mapping[tuple[str, ...], float]]

PROVIDER: Final = "embedded"
SAMPLE_SECONDS: Final = 1.0
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CONNECTION_SECONDS: Final = 5.0
SHUTDOWN_POLL_SECONDS: Final = 0.1
"""The longest that an end has to wait for the server."""


class LoopMetrics:
    """Counts what the loop does: pass `decide` and `record_done` to it, and call `sample` now and then."""

    def __init__(self) -> None:
        self._telemetry = Telemetry()
        self._telemetry.watch(lambda: self._rows)
        self._rows: Rows = {}
        self._sampled_at = float("-inf")
        self._reconciled_at: float | None = None
        self._before: Observation | None = None

    def decide(self, seen: Observation, limits: ScalingLimits, memory: AutoscalerState) -> tuple[Plan, AutoscalerState]:
        """The autoscaler's own decision, timed."""
        started = time.perf_counter()
        plan, after = decide(seen, limits, memory)
        self._telemetry.took("decide", time.perf_counter() - started)
        self._telemetry.decided(seen, plan, limits)
        # A machine that is given back is not there any more when the turn has ended.
        self._before = replace(seen, machines=dict(seen.machines)) if plan.steps else None
        return plan, after

    def record_done(self, plan: Plan) -> None:
        """A turn has ended with these steps taken."""
        for step in plan.steps:
            self._telemetry.stepped(step, "done", self._before)
        self._telemetry.reconciled("done" if plan.steps else "idle")
        self._reconciled_at = time.time()

    def sample(self, cluster: EmbeddedCluster, now: float) -> None:
        """Take the gauges, unless that was done just now; `now` is monotonic."""
        if now - self._sampled_at < SAMPLE_SECONDS:
            return
        self._sampled_at = now
        seen = cluster.cluster.snapshot()
        picture = MetricsSnapshot(now, {}, summarize_pools(seen), list_pending(seen))
        budget = cluster.memory.budget(seen, cluster.limits, {})
        reading = TelemetryReading(
            seen, cluster.memory, cluster.limits, picture, targets=seen.sizes(), left=budget.left
        )
        yes, no = _unlabelled(1.0), _unlabelled(0.0)
        ended: Rows = {} if self._reconciled_at is None else {catalogue.LAST_CYCLE: _unlabelled(self._reconciled_at)}
        self._rows = {
            **rows_of(reading),
            **ended,
            catalogue.LEADER: yes,
            catalogue.ENABLED: yes,
            catalogue.SYNCED: yes,
            catalogue.DRY_RUN: no,
            catalogue.PROVIDER_UP: {(name, PROVIDER): 1.0 for name in seen.pools},
        }

    def render(self) -> bytes:
        """For a scraper."""
        return self._telemetry.page()


def _unlabelled(value: float) -> Mapping[tuple[str, ...], float]:
    """The only sample of a metric without labels."""
    return {(): value}


class LoopMetricsServer:
    """A context manager: serves `page()` as /metrics, and /healthz."""

    def __init__(self, port: int, page: Callable[[], bytes]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = CONNECTION_SECONDS

            def do_GET(self) -> None:
                """Answer."""
                known = self.path in {"/metrics", "/healthz"}
                body = page() if self.path == "/metrics" else b"ok\n" if known else b"see /metrics\n"
                self.send_response(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing: the terminal belongs to the screen."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that leaves is no news."""

        self._server = Server((HOST, port), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(SHUTDOWN_POLL_SECONDS,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
