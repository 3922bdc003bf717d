# SPDX-License-Identifier: Apache-2.0
"""
A real Prometheus and a real Alertmanager on free loopback ports, for tests that judge rules and queries by them.

    with stand({"gpushare-exporter": ["127.0.0.1:9445"]}, rules=[path], alerting=True) as prometheus:
        prometheus.until(lambda: prometheus.series("up == 1"))
        prometheus.firing()

Both come with Debian's packages (tests/get_promtool.sh); where they are missing the test is skipped, in CI it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.ports import free_port
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


ROUTING = """
route: {receiver: nobody, group_wait: 0s, group_interval: 1s, repeat_interval: 1h, group_by: ["..."]}
receivers: [{name: nobody}]
"""

Series = list[tuple[dict[str, str], float]]


def program(name: str) -> str:
    """Where it is; without it the test is skipped, and in CI it fails."""
    found = shutil.which(name)
    if found is None:
        message = f"no {name}: tests/get_promtool.sh"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    return found


def fetch(url: str) -> Any:
    """What JSON stands there."""
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (our own, on the loopback)
        return json.load(answer)


@dataclass
class Stand:
    """What tests ask of it; times in seconds since the epoch."""

    url: str
    folder: Path
    alertmanager: str | None = None
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def api(self, path: str, **fields: object) -> Any:
        """`data` of the answer of /api/v1/`path`; a refused query raises with Prometheus' own words."""
        words = {name.rstrip("_"): value for name, value in fields.items() if value is not None}
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words, doseq=True)}"
        try:
            return fetch(url)["data"]
        except urllib.error.HTTPError as exc:
            said = exc.read(10_000).decode(errors="replace")
            raise AssertionError(f"{path} {words}: {exc.code} {said}") from exc

    def series(self, query: str, at: float | None = None) -> Series:
        """[(labels, value)] of an instant query; a scalar has no labels."""
        answer = self.api("query", query=query, time=at)
        if answer["resultType"] == "scalar":
            return [({}, float(answer["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in answer["result"]]

    def value(self, query: str, at: float | None = None) -> float | None:
        """The one value of a query that has one series; None where it has none."""
        found = self.series(query, at)
        if len(found) > 1:
            raise AssertionError(f"{query} has {len(found)} series")
        return found[0][1] if found else None

    def span(
        self, query: str, seconds: float, step: float = 5.0, end: float | None = None
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """[(labels, [(time, value)])] of the last so many seconds."""
        last = time.time() if end is None else end
        answer = self.api("query_range", query=query, start=last - seconds, end=last, step=step)
        return [(one["metric"], [(float(at), float(value)) for at, value in one["values"]]) for one in answer["result"]]

    def names(self) -> set[str]:
        """Names of all metrics that it has."""
        return set(self.api("label/__name__/values"))

    def pending_or_firing(self) -> list[dict[str, Any]]:
        """Alerts as Prometheus sees them: labels, annotations, state."""
        found: list[dict[str, Any]] = self.api("alerts")["alerts"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health and its last error."""
        groups = self.api("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def firing(self, name: str | None = None) -> list[dict[str, Any]]:
        """Alerts that the Alertmanager has active now, of one name or all."""
        assert self.alertmanager is not None, "stand(..., alerting=True)"
        try:
            found = fetch(f"{self.alertmanager}/api/v2/alerts?active=true")
        except (urllib.error.URLError, ConnectionError):
            return []
        return [one for one in found if name in (None, one["labels"]["alertname"])]

    def until(self, check: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
        """What `check` finds, as soon as it finds something; what it found last when time is up."""
        return until(check, seconds)

    def log(self) -> str:
        """What both have said."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))


def until(check: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """What `check` finds, as soon as it finds something."""
    end = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def configuration(
    jobs: Mapping[str, Sequence[str]], rules: Sequence[Path], interval: str, alertmanager: str | None
) -> str:
    """A prometheus.yml (JSON is YAML); series keep their own labels, as our ServiceMonitors ask for."""
    text: dict[str, Any] = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [
            {"job_name": job, "honor_labels": True, "static_configs": [{"targets": list(targets)}]}
            for job, targets in jobs.items()
        ],
    }
    if alertmanager is not None:
        target = alertmanager.removeprefix("http://")
        text["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
    return json.dumps(text, indent=1)


def _start(folder: Path, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([program(name), *words], stdout=log, stderr=log, cwd=folder)


def _ready(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=20):  # noqa: S310 (our own)
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.05)
    said = "".join(path.read_text(errors="replace") for path in folder.glob("*.log"))
    raise AssertionError(f"{url} did not start:\n{said}")


def _alertmanager(folder: Path) -> tuple[str, subprocess.Popen[bytes]]:
    (folder / "alertmanager.yml").write_text(ROUTING)
    url = f"http://127.0.0.1:{free_port()}"
    words = [f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts", "--cluster.listen-address="]
    words += [f"--web.listen-address={url.removeprefix('http://')}", "--log.level=warn"]
    return url, _start(folder, "prometheus-alertmanager", words)


def _prometheus(folder: Path) -> tuple[str, subprocess.Popen[bytes]]:
    url = f"http://127.0.0.1:{free_port()}"
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", "--log.level=warn"]
    words += [f"--web.listen-address={url.removeprefix('http://')}"]
    # Notifications go out every 1 s instead of every minute, so that an alert that resolves is seen to.
    return url, _start(folder, "prometheus", [*words, "--rules.alert.resend-delay=1s"])


@contextlib.contextmanager
def stand(
    jobs: Mapping[str, Sequence[str]], *, rules: Sequence[Path] = (), interval: str = "1s", alerting: bool = False
) -> Iterator[Stand]:
    """
    A Prometheus that scrapes `jobs` (name -> host:port) and weighs `rules` every `interval`; gone afterwards.

    With `alerting` an Alertmanager gets what fires, which shows it at once.
    """
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="gpushare-prometheus-") as name:
        folder = Path(name)
        try:
            alertmanager = None
            if alerting:
                alertmanager, process = _alertmanager(folder)
                running.append(process)
                _ready(alertmanager, process, folder)
            (folder / "prometheus.yml").write_text(configuration(jobs, rules, interval, alertmanager))
            url, process = _prometheus(folder)
            running.append(process)
            _ready(url, process, folder)
            yield Stand(url, folder, alertmanager, running)
        finally:
            _stop(running)


@contextlib.contextmanager
def configured(text: str, past: str = "") -> Iterator[Stand]:
    """A Prometheus with this configuration; `past`: what it has measured before, as OpenMetrics. Gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="gpushare-prometheus-") as name:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(text)
        if past:
            (folder / "past").write_text(past)
            command = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", "past", "data"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        url, process = _prometheus(folder)
        try:
            _ready(url, process, folder)
            yield Stand(url, folder, None, [process])
        finally:
            _stop([process])


def _stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=300)
