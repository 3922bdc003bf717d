# SPDX-License-Identifier: Apache-2.0
"""
From a process that takes more than was promised to an alert in an Alertmanager.

Simulated cards; `gpushare run`, `gpushare exporter`, Prometheus with our rules and Alertmanager are the real ones and
know nothing of being tested.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.prometheus_harness import stand, until
from support.simbox import HOLD, Program, boxes, programs

pytest.importorskip("pynvml")
ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards/rules/out/gpushare.rules.yaml"
FRONT = "import sys; sys.argv[0] = 'gpushare'; from gpushare import main; main()"
JOB = "gpushare-exporter"
TAKES = """
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
cu.cuInit(0)
cu.cuDeviceGet(ctypes.byref(device), 0)
cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cu.cuCtxSetCurrent(context)
def take(gib):
    return cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(gib << 30))
print(take(4), flush=True)
sys.stdin.readline()
print(take(3), flush=True)
sys.stdin.readline()
"""
SCRAPE = "15s"
"""As our ServiceMonitor asks; in tests that count no scrapes it is 1 s."""


class Tenant:
    """A command of `gpushare run` with 5 GiB: it takes 4 at once, and 3 more when told to."""

    def __init__(self, box, book, name, policy, *before):
        words = ["run", "--simgpu", str(box.path), "--state-dir", str(book), "--name", name, "--gpu-mem", "5"]
        words += ["--policy", policy, "--", *before, sys.executable, "-c", TAKES]
        self.process = subprocess.Popen(
            [sys.executable, "-c", FRONT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert "0" == self.process.stdout.readline().strip()

    def take_more(self):
        """What the driver said to 3 GiB more: 0 is a yes."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        """Let it go."""
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


@contextlib.contextmanager
def exporting(box, book):
    """An exporter of that box; its address."""
    book.mkdir(mode=0o700, exist_ok=True)
    words = ["exporter", "--simgpu", str(box.path), "--state-dir", str(book), "--node", "n", "--no-kubernetes"]
    words += ["--listen", "127.0.0.1:0", "--interval", "1s", "--log-format", "json"]
    process = subprocess.Popen([sys.executable, "-c", FRONT, *words], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        said = ""
        while "metrics of" not in said:
            line = process.stderr.readline()
            assert line, said
            said = json.loads(line)["message"]
        yield said.split("http://")[1].split("/")[0]
    finally:
        process.kill()
        process.wait(timeout=300)
        process.stderr.close()


@contextlib.contextmanager
def scene(tmp_path, interval, policies=(("good", "fixed"), ("bad", "none"))):
    """A card with tenants who keep their promises, seen by a Prometheus: (box, tenants by name, Prometheus)."""
    with boxes("t4") as box, exporting(box, tmp_path / "book") as address, contextlib.ExitStack() as stack:
        tenants = {}
        for name, policy in policies:
            tenants[name] = Tenant(box, tmp_path / "book", name, policy)
            stack.callback(tenants[name].end)
        watch = stand({JOB: [address]}, rules=[RULES], interval=interval, alerting=True)
        prometheus = stack.enter_context(watch)
        assert until(lambda: len(prometheus.series("gpushare_container_memory_used_bytes")) == len(policies)), (
            prometheus.log()
        )
        yield box, tenants, prometheus


def test_a_breach_becomes_an_alert_and_its_end_resolves_it(tmp_path):
    """
    The one who takes too much has an alert of its own in the Alertmanager, with who, where and how much; a neighbour
    who tries the same under the library is refused and has none. The alert goes when the process does.
    """
    with scene(tmp_path, "1s") as (_, tenants, prometheus):
        assert 2 == tenants["good"].take_more()
        assert [] == prometheus.firing("GpushareContainerMemoryOverLimit")
        assert 0 == tenants["bad"].take_more()
        (alert,) = until(lambda: prometheus.firing("GpushareContainerMemoryOverLimit"))

        assert ("bad", "n", "0") == tuple(alert["labels"][name] for name in ("pod", "node", "card"))
        assert "warning" == alert["labels"]["severity"]
        assert "uses more GPU memory than promised" in alert["annotations"]["summary"]
        assert "of bad uses" in alert["annotations"]["summary"]
        assert "GiB more than its promise on card 0 of node n" in alert["annotations"]["description"]
        assert alert["annotations"]["runbook_url"].endswith("/GpushareContainerMemoryOverLimit.md")
        page = ROOT / "docs/runbooks/GpushareContainerMemoryOverLimit.md"
        assert page.is_file()

        tenants["bad"].end()
        assert until(
            lambda: (
                not prometheus.firing("GpushareContainerMemoryOverLimit")
                and prometheus.series("gpushare_card_memory_used_bytes")
            )
        )


def test_who_goes_around_the_library_or_has_no_promise_is_an_alert(tmp_path):
    """
    A tenant of whose processes none went through the library, and a process of nobody: each is told by its kind.
    """
    policies = (("good", "fixed"),)
    with (
        scene(tmp_path, "1s", policies) as (box, _, prometheus),
        programs() as started,
        contextlib.ExitStack() as stack,
    ):
        assert [] == prometheus.firing()
        sly = Tenant(box, tmp_path / "book", "sly", "fixed", "env", "-u", "LD_PRELOAD")
        stack.callback(sly.end)
        (alert,) = until(lambda: prometheus.firing("GpushareUninstrumentedProcess"))
        assert ("n", "missing_library") == (alert["labels"]["node"], alert["labels"]["kind"])
        assert 0 == sly.take_more()
        (alert,) = until(lambda: prometheus.firing("GpushareContainerMemoryOverLimit"))
        assert "sly" == alert["labels"]["pod"]

        assert [] == prometheus.firing("GpushareUnallocatedProcess")
        started.append(Program(box.path, HOLD, BYTES=1 << 30))
        (alert,) = until(lambda: prometheus.firing("GpushareUnallocatedProcess"))
        assert ("n", "unallocated") == (alert["labels"]["node"], alert["labels"]["kind"])


def test_a_card_that_breaks_is_an_alert(tmp_path):
    """An XID error after which a card needs a reset: its number at once, its illness soon after."""
    with scene(tmp_path, "1s") as (box, _, prometheus):
        assert until(lambda: prometheus.value("gpushare_card_healthy") == 1)
        words = ["simgpu", "inject", str(box.path), "xid", "48"]
        subprocess.run([sys.executable, "-c", FRONT, *words], check=True, timeout=60, cwd=ROOT)
        (alert,) = until(lambda: prometheus.firing("GpushareXidErrors"))

        assert ("n", "48") == (alert["labels"]["node"], alert["labels"]["xid"])
        assert until(lambda: _named(prometheus.pending_or_firing(), "GpushareCardUnhealthy"))


def _named(alerts, name):
    return [alert for alert in alerts if alert["labels"]["alertname"] == name]


def test_every_rule_is_weighed_without_an_error(tmp_path):
    """Also those of components that are not there; nothing is critical but what is: no alert about parts not in use."""
    with scene(tmp_path, "1s") as (_, _, prometheus):
        assert until(lambda: {"ok"} == {rule["health"] for rule in prometheus.rules()})
        assert [] == [rule["name"] for rule in prometheus.rules() if rule.get("lastError")]
        assert until(lambda: prometheus.series("node:gpushare_cards:count"))
        time.sleep(5)
        assert [] == [alert["labels"] for alert in prometheus.firing()]


def test_an_exporter_that_ends_is_missed(tmp_path):
    """Its target is down, no figure of it remains, and the alerts that nobody measures are on their way."""
    with boxes("t4") as box, contextlib.ExitStack() as exporter:
        address = exporter.enter_context(exporting(box, tmp_path / "book"))
        with stand({JOB: [address]}, rules=[RULES]) as prometheus:
            assert until(lambda: prometheus.series("gpushare_card_info"))
            assert until(lambda: not prometheus.pending_or_firing())
            exporter.close()
            missed = {"GpushareExportersAbsent", "GpushareExporterDown"}
            assert until(lambda: missed <= {alert["labels"]["alertname"] for alert in prometheus.pending_or_firing()})
            assert [] == prometheus.series("gpushare_card_info")


def test_a_breach_is_an_alert_within_a_minute(tmp_path):
    """
    With scrapes and rules every 15 s, as our manifests have them: fewer than four of either, so a minute is enough.

    Counted in Prometheus' own samples from the breach to the first one of the alert that fires, however late this
    machine lets any of them be.
    """
    with scene(tmp_path, SCRAPE) as (_, tenants, prometheus):
        begun = time.time()
        assert 0 == tenants["bad"].take_more()
        assert until(lambda: prometheus.firing("GpushareContainerMemoryOverLimit"), 240)
        fires = 'ALERTS{alertname="GpushareContainerMemoryOverLimit",alertstate="firing"}'
        fired = min(until(lambda: moments(prometheus, fires, begun)))
        scraped = [at for at in moments(prometheus, f'up{{job="{JOB}"}}', begun) if at <= fired]
        weighed = [at for at in moments(prometheus, "node:gpushare_cards:count", begun) if at < fired]

        assert 1 <= len(scraped) < 4, (begun, scraped, fired)
        assert len(weighed) < 4, (begun, weighed, fired)


def moments(prometheus, query, begun):
    """When a series has samples of its own, other than 0, since then; in seconds since the epoch."""
    found = prometheus.span(f"timestamp({query}) and {query} > 0", time.time() - begun, step=1)
    return sorted({at for _, values in found for _, at in values if at >= begun})
