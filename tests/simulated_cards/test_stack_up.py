# SPDX-License-Identifier: Apache-2.0
"""`gpushare up` as the whole stack: what is measured while it runs, and what happens when a part dies."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
from urllib.parse import urlsplit

import pytest
from support.stack_run import Run, runs_in
from support.waiting import PATIENCE_SECONDS, until

from autoscaler.demo.stack.demo_stack import RULES
from autoscaler.demo.stack.workloads import TENANTS

pytest.importorskip("pynvml")
pytest.importorskip("bcrypt")


GIB = 1 << 30
WATCHED = shutil.which("prometheus") is not None and shutil.which("prometheus-alertmanager") is not None
UNWATCHED = "no Prometheus and Alertmanager: apt-get install prometheus prometheus-alertmanager"


@pytest.fixture
def started(tmp_path):
    """Starts runs."""
    with runs_in(tmp_path) as start:
        yield start


def test_what_was_promised_is_measured_and_what_goes_past_it_is_refused_or_seen(started):
    """
    Five real processes: three within their promise, one whose requests beyond it are refused and counted, and one
    without the library that takes more than it was promised, which the real exporter calls a breach.
    """
    run = started("--for", "120", "--json")
    assert until(lambda: (run.denied() or 0) >= 2)
    page = until(
        lambda: (
            (p := run.page()).get("gpushare_isolation_over_limit_seconds_total", {}).get("stray", 0) > 1
            and all(
                p.get("gpushare_container_compute_seconds_total", {}).get(name, 0) > 0
                for name in ("serve", "greedy", "train")
            )
            and len(p.get("gpushare_container_memory_used_bytes", {})) == len(TENANTS)
            and p
        )
    )

    assert run.remember()
    assert 1 <= page["gpushare_isolation_breaches_total"][""]
    used, promised = page["gpushare_container_memory_used_bytes"], page["gpushare_container_memory_allocated_bytes"]
    assert {role.name: role.promised_bytes for role in TENANTS} == promised
    assert ["stray"] == [name for name in used if used[name] > promised[name]]
    lines = run.folder / "err"
    line = (
        r"^this machine: .*greedy 3\.2 of 4\.0 GiB, ([2-9]|\d\d+) denied; stray .* GiB OVER its promise"
        r"; train \d.* of 6\.0 GiB; notebook \d.* of 3\.0 GiB"
    )
    heard = [rf"^{part} http://" for part in ("exporter", *(("prometheus", "alertmanager") if WATCHED else ()))]
    for words in (line, *heard):
        assert until(lambda words=words: re.search(words, lines.read_text(), re.MULTILINE)), lines.read_text()
    assert 0 == run.end()
    stack = json.loads((run.folder / "out").read_text())["stack"]
    tenants = {one["name"]: one for one in stack["tenants"]}
    assert [role.name for role in TENANTS] == list(tenants)
    assert {"up"} == {one["state"] for one in [*tenants.values(), *stack["processes"]]}
    assert ["stray"] == [name for name, one in tenants.items() if one["over_bytes"]]
    assert tenants["stray"]["over_bytes"] == tenants["stray"]["used_bytes"] - 4 * GIB
    assert tenants["greedy"]["denied"] >= 2
    assert [0, 0, 0] == [tenants[name]["denied"] for name in ("serve", "train", "notebook")]
    assert tenants["stray"]["denied"] is None
    for name in ("serve", "greedy", "train"):
        assert tenants[name]["used_core_ratio"] is not None  # of one second, in which it may not have run
    assert json.loads(run.note.read_text()) == stack["addresses"]
    run.nothing_left()


def test_a_part_that_dies_is_said_and_started_again(started):
    """A killed exporter answers again at the same address; a killed tenant has its promise again."""
    run = started()
    assert until(lambda: run.page().get("gpushare_container_memory_used_bytes", {}).get("train"))

    os.kill(run.pid("gpushare.py exporter"), signal.SIGKILL)
    os.kill(run.pid("cuda_workload.py 5000"), signal.SIGKILL)

    for end in ("exporter exited with signal 9", "train exited with status 137"):
        assert until(lambda end=end: re.search(rf"{end}(: .*)?; restart in \d+ s", (run.folder / "out").read_text()))
    assert until(lambda: run.page().get("gpushare_container_memory_used_bytes", {}).get("train"))
    run.remember()
    assert 0 == run.end()
    run.nothing_left()


def test_two_at_once_do_not_meet(started, tmp_path):
    """Each has ports, cards and processes of its own, and the end of one is not the end of the other."""
    first = started()
    (tmp_path / "second").mkdir()
    second = Run(tmp_path / "second")
    try:
        assert until(lambda: first.denied() and second.denied())
        first.remember()
        second.remember()
        assert set() == set(first.addresses().values()) & set(second.addresses().values()) - {None}
        assert 0 == first.end()
        first.nothing_left()
        before = until(second.denied)
        assert until(lambda: (second.denied() or 0) > before)
    finally:
        assert 0 == second.end()
    second.nothing_left()


@pytest.mark.skipif(not WATCHED and os.environ.get("CI") != "true", reason=UNWATCHED)
def test_the_breach_is_an_alert_in_a_real_alertmanager(started):
    """From the process that takes too much to the alert on the screen, through Prometheus, our rules, Alertmanager."""
    assert WATCHED, UNWATCHED
    assert RULES.is_file()
    run = started("--for", "3600", "--json")
    over = until(lambda: run.page().get("gpushare_isolation_over_limit_seconds_total", {}).get("stray", 0) > 0)

    def firing():
        at = urlsplit(run.addresses()["alertmanager"])
        connection = http.client.HTTPConnection(at.hostname, at.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", "/api/v2/alerts")
            found = json.loads(connection.getresponse().read())
        except OSError:
            return []
        finally:
            connection.close()
        return [one for one in found if one["labels"].get("pod") == "stray" and one["status"]["state"] == "active"]

    assert over
    assert until(firing)
    assert until(lambda: "alert firing: " in (run.folder / "err").read_text())
    run.remember()
    assert 0 == run.end()
    alerts = json.loads((run.folder / "out").read_text())["stack"]["alerts"]
    assert "stray" in {one["subject"] for one in alerts if one["state"] == "firing"}
    run.nothing_left()
