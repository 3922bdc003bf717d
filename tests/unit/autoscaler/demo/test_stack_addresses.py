# SPDX-License-Identifier: Apache-2.0
"""
Where the stack listens, how its tools are set up, and who its tenants are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from support.waiting import PATIENCE_SECONDS

from autoscaler.demo.stack import addresses, prometheus_config
from autoscaler.demo.stack.workloads import CARDS, TENANTS
from isolation.contract import metrics

PORTS = addresses.Ports(1001, 1002, 1003, 1004, 1005)
TOOLS = addresses.Tools("/usr/bin/prometheus", "/usr/bin/prometheus-alertmanager")


def quiet():
    """A first port with free ones behind it."""
    for first in range(21000, 29000, 10):
        with contextlib.suppress(OSError):
            addresses.choose_ports(first)
            return first
    pytest.fail("no free ports on this machine")


def test_ports_follow_from_the_first():
    """The exporter has the first, the autoscaler its usual distance from it."""
    first = quiet()

    found = addresses.choose_ports(first)

    expected = (first, first + 3, first + 4, first + 5, first + 6)
    assert expected == tuple(getattr(found, name) for name in addresses.Ports.__slots__)


def test_any_free_ports_are_different_ones():
    """Port 0 never gives the same twice."""
    found = addresses.choose_ports(0)

    assert len(addresses.OFFSETS) == len({getattr(found, name) for name in addresses.Ports.__slots__})


@pytest.mark.parametrize("offset", addresses.OFFSETS)
def test_a_port_that_is_taken_is_named(offset):
    """Whichever of them it is."""
    first = quiet()
    port = first + offset
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(OSError, match=f"port {port} of 127.0.0.1 is in use"),
    ):
        addresses.choose_ports(first)


def test_ports_beyond_the_last_are_refused():
    """The first fits, the last would not."""
    with pytest.raises(OSError, match="ports 65533 to 65539 are needed, but the last port is 65535"):
        addresses.choose_ports(65533)


@pytest.mark.parametrize(
    ("prometheus", "alertmanager", "expected"),
    [
        pytest.param("/p", "/a", ("http://127.0.0.1:1003", "http://127.0.0.1:1004"), id="both"),
        pytest.param("/p", None, ("http://127.0.0.1:1003", None), id="prometheus alone"),
        pytest.param(None, "/a", (None, None), id="nobody to tell alertmanager"),
        pytest.param(None, None, (None, None), id="neither"),
    ],
)
def test_addresses_name_what_runs(prometheus, alertmanager, expected):
    """None where nothing listens."""
    found = addresses.build_addresses(PORTS, addresses.Tools(prometheus, alertmanager))

    assert expected == (found.prometheus, found.alertmanager)


def test_addresses_are_written_whole(tmp_path):
    """What stood there is replaced by one rename, and nothing else is left."""
    note = tmp_path / "a.json"
    note.write_text("old")

    addresses.write_addresses(note, addresses.build_addresses(PORTS, TOOLS))

    assert {
        "exporter": "http://127.0.0.1:1001",
        "autoscaler": "http://127.0.0.1:1002",
        "prometheus": "http://127.0.0.1:1003",
        "alertmanager": "http://127.0.0.1:1004",
        "cluster": "http://127.0.0.1:1005",
    } == json.loads(note.read_text())
    assert [note] == list(tmp_path.iterdir())


def test_a_note_that_cannot_be_written_leaves_nothing(tmp_path):
    """A folder that is not there is told with its name."""
    with pytest.raises(OSError, match=r"nowhere/a\.json"):
        addresses.write_addresses(tmp_path / "nowhere" / "a.json", addresses.build_addresses(PORTS, TOOLS))


def checked(*words):
    """The tool's own word on a file; skipped where it is not installed."""
    tool = shutil.which(words[0])
    if tool is None:
        message = f"{words[0]} is missing: apt-get install prometheus prometheus-alertmanager"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    done = subprocess.run([tool, *words[1:]], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("alerting", [True, False], ids=["alerting", "alone"])
def test_prometheus_likes_its_file(tmp_path, alerting):
    """Checked by promtool, with rules and without."""
    rules = tmp_path / "r.yaml"
    rules.write_text("groups: []\n")
    for given in (rules, None):
        path = tmp_path / "prometheus.yml"
        path.write_text(prometheus_config.prometheus_file(PORTS, given, alerting=alerting))
        checked("promtool", "check", "config", str(path))
        assert alerting == ("alerting" in json.loads(path.read_text()))


def test_alertmanager_likes_its_file(tmp_path):
    """Checked by amtool."""
    path = tmp_path / "alertmanager.yml"
    path.write_text(prometheus_config.alertmanager_file())
    checked("amtool", "check-config", str(path))


def test_every_figure_is_scraped_once():
    """The cluster's page is read for two jobs; no name of the catalogue comes from two targets of one cluster."""
    jobs = json.loads(prometheus_config.prometheus_file(PORTS, None, alerting=False))["scrape_configs"]
    rules = [job["metric_relabel_configs"][0] for job in jobs if "metric_relabel_configs" in job]
    names = [
        metrics.CARD_MEMORY_USED,
        metrics.CONTAINER_MEMORY_USED,
        metrics.DENIED_ALLOCATIONS,
        metrics.SAMPLE_TIMESTAMP,
        metrics.AUTOSCALER_EVENTS,
    ]
    names += [metrics.SIMULATED_CLOCK, metrics.POOL_NODES, metrics.PENDING_PODS]

    def taken(rule, name):
        return (re.fullmatch(rule["regex"], name) is not None) == (rule["action"] == "keep")

    assert ["gpushare-exporter", "gpushare-exporter", "gpushare-autoscaler", "gpushare-autoscaler"] == [
        job["static_configs"][0]["labels"]["job"] for job in jobs
    ]
    assert len(jobs) == len({job["job_name"] for job in jobs})
    measured, of_the_fleet, own = ([spec.name for spec in names if taken(rule, spec.name)] for rule in rules)
    assert [spec.name for spec in names[:4]] == measured
    assert [metrics.AUTOSCALER_EVENTS.name, metrics.SIMULATED_CLOCK.name] == of_the_fleet
    assert set() == {metrics.AUTOSCALER_EVENTS.name} & set(own)
    assert {metrics.POOL_NODES.name, metrics.PENDING_PODS.name} <= set(own)


def test_the_tenants_fit_on_the_cards():
    """Those with a compute limit share one card, those without the other: 15 GiB and 100 % each."""
    limited = [role for role in TENANTS if role.core_percent is not None]
    free = [role for role in TENANTS if role.core_percent is None]

    assert 2 == CARDS
    assert sum(role.core_percent for role in limited) <= 100
    assert max(sum(role.promised_gib for role in part) for part in (limited, free)) <= 15
    assert len(TENANTS) == len({role.name for role in TENANTS})


def test_each_tenant_is_started_with_its_promise():
    """As a person would type it; only one of them is not held to it."""
    lines = {role.name: role.command(("gpushare",), "python", Path("c.py"), Path("/b")) for role in TENANTS}

    greedy = "gpushare run --simgpu /b --gpu-mem 4 --gpu-core 20 --name greedy -- python -I -S c.py 3000 1024 1048576"
    assert f"{greedy} 40 50" == " ".join(lines["greedy"])
    assert ["stray"] == [name for name, words in lines.items() if "none" in words]
