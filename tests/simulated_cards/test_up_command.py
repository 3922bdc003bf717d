# SPDX-License-Identifier: Apache-2.0
"""`gpushare up` as a user has it: piped, on a terminal, scraped, interrupted, and given bad input."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import promtool
from support.up_command import invoke
from support.waiting import PATIENCE_SECONDS

from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
from autoscaler.demo.embedded.node_pools import demo_fleet, demo_limits
from autoscaler.demo.embedded.workload import demo_workload
from autoscaler.demo.pace import run_paced

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-u", "-m", "gpushare", "up"]


@contextmanager
def start(*arguments, **more):
    """The command as a process of its own, which a test that fails does not wait for."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *arguments], cwd=REPOSITORY, **(pipes | more)) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_to(process, pattern):
    """Lines of the process up to the one that matches, and the match."""
    lines, patience = [], threading.Timer(PATIENCE_SECONDS, process.kill)
    patience.start()
    try:
        for line in process.stdout:
            lines.append(line)
            if match := re.search(pattern, line):
                return lines, match
    finally:
        patience.cancel()
    pytest.fail(f"ended without {pattern}: {lines} {process.stderr.read()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_scraped_while_it_runs_and_ended_by_a_signal(number):
    """Piped: plain lines, a page that promtool likes and that reconciles, and after the signal a summary and 0."""
    with start("--no-stack", "--port", "0", "--speed", "100") as process:
        lines, match = lines_to(process, r"(http://127\.0\.0\.1:\d+)/metrics$")
        lines += lines_to(process, r" place demo/welcome-1: on shared-1 card ")[0]
        lines += lines_to(process, r" pods on cards, ")[0]
        with urllib.request.urlopen(f"{match[1]}/metrics", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (our own)
            page = answer.read()
        with urllib.request.urlopen(f"{match[1]}/healthz", timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
            assert b"ok\n" == answer.read()
        process.send_signal(number)
        rest, errors = process.communicate(timeout=PATIENCE_SECONDS)

    assert (0, "") == (process.returncode, errors)
    assert re.search(
        r"^ended after .* s; the simulated cluster ran for [0-9,]+ s(, [0-9,]+ s less than requested)?$",
        rest,
        re.MULTILINE,
    )
    assert re.search(r"^  pods placed +\d+$", rest, re.MULTILINE)
    assert "\x1b" not in "".join(lines) + rest
    promtool.check(page)
    reconcile(page)


def reconcile(page):
    """On every card: used = containers + unattributed + reserved, and compute is counted; something was promised."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = tuple(sample.labels.get(label) for label in ("node", "uuid", "card"))
            of = found.setdefault(sample.name.removeprefix("gpushare_"), {})
            of[key] = of.get(key, 0.0) + sample.value
    cards = found["card_memory_used_bytes"]
    for key, used in cards.items():
        parts = found["card_memory_unattributed_bytes"][key] + found["card_memory_reserved_bytes"][key]
        assert used == parts + found["container_memory_used_bytes"].get(key, 0.0)
        assert found["container_memory_allocated_bytes"].get(key, 0.0) == found["card_memory_allocated_bytes"][key]
    assert sum(found["card_memory_allocated_bytes"].values()) > 0
    assert cards.keys() == found["card_busy_seconds_total"].keys()
    assert found["container_memory_used_bytes"].keys() == found["container_compute_seconds_total"].keys()


def test_json_is_alone_on_stdout():
    """With -o json stdout is one line of JSON; what happens meanwhile goes to stderr."""
    result = invoke("--for", "1", "--speed", "60", "--no-metrics", "-o", "json", "--seed", "7")

    assert 0 == result.exit_code
    assert 1 == result.stdout.count("\n")
    found = json.loads(result.stdout)
    assert (7, 60) == (found["seed"], found["speed"])
    assert found["simulated_seconds"] + found["lag_seconds"] == pytest.approx(60)
    assert found["frame"]["at"] == found["simulated_seconds"] == found["summary"]["seconds"]
    assert {"nodes", "pools", "waiting", "events", "counts"} <= set(found["frame"])
    assert found["summary"]["pods_placed"] >= 2
    assert "place demo/welcome-0" in result.stderr


def test_ends_by_itself():
    """--for ends the run after so much of the caller's time."""
    begun = time.monotonic()

    result = invoke("--for", "0.5", "--no-metrics")

    assert 0 == result.exit_code
    assert time.monotonic() - begun >= 0.5
    assert 0.5 <= float(re.search(r"^ended after ([0-9.]+) s; ", result.stdout, re.MULTILINE)[1])


def test_pace_does_not_change_events():
    """The same seed gives the same events, whether the fleet is advanced in large steps or in small ones."""

    def events(frame_seconds):
        world = EmbeddedCluster(demo_fleet(), demo_workload(5), seed=5, limits=demo_limits())
        wall = [0.0]

        def wait(_):
            wall[0] += frame_seconds
            return False

        log = {}
        run_paced(
            world,
            lambda _: log.update({(e.at, e.kind, e.subject): e.reason for e in world.frame().events}),
            speed=60,
            seconds=6,
            clock=lambda: wall[0],
            wait=wait,
        )
        return dict(world.summary()), log

    coarse, fine = events(0.25), events(0.01)

    assert coarse[0] == pytest.approx(fine[0])
    assert coarse[1].items() <= fine[1].items()


def test_live_screen_on_a_terminal():
    """On a terminal: the alternate screen, drawn in place; after Ctrl-C the terminal is as before, then the summary."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with start("--no-metrics", stdin=theirs, stdout=theirs, stderr=theirs, text=False, env=environment) as process:
        os.close(theirs)
        seen = read_until(ours, b"AUTOSCALER")
        process.send_signal(signal.SIGINT)
        seen += read_until(ours, b"unserved pods")
        assert 0 == process.wait(timeout=PATIENCE_SECONDS)
    os.close(ours)

    entered, left = seen.index(b"\x1b[?1049h"), seen.index(b"\x1b[?1049l")
    assert entered < seen.index(b"gpushare ") < left < seen.index(b"ended after")
    assert b"\x1b[?25h" in seen


def read_until(terminal, word):
    """What the terminal shows up to and with this word."""
    seen, deadline = b"", time.monotonic() + PATIENCE_SECONDS
    while word not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            pytest.fail(f"no {word} on the terminal: {seen[-300:]}")
        seen += os.read(terminal, 65536)
    return seen


def test_reader_that_leaves_is_no_error():
    """`gpushare up | head -1` ends quietly."""
    with start("--no-metrics", "--speed", "600") as process:
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=PATIENCE_SECONDS)
        errors = process.stderr.read()

    assert (0, "") == (process.returncode, errors)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_full_disk_is_reported_in_a_sentence():
    """Output that cannot be written ends the run with status 1 and without a traceback."""
    with Path("/dev/full").open("w") as full, start("--no-metrics", "--for", "5", stdout=full) as process:
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)

    assert (1, "Error: cannot write the output: No space left on device\n") == (process.returncode, errors)


def test_busy_port_is_reported_with_the_way_out():
    """A port that is in use ends the command with status 1, as it does other servers, before anything runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        result = invoke("--for", "1", "--port", str(port))

    assert 1 == result.exit_code
    assert f"port {port} of 127.0.0.1 is in use" in result.stderr
    assert 'use --port N (make up ARGS="--port N"), or --no-metrics' in result.stderr
    assert "" == result.stdout


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--speed", "nan"], "nan is not a number"),
        (["--speed", "0"], "--speed"),
        (["--for", "-1"], "--for"),
        (["--for", "inf"], "--for"),
        (["--port", "70000"], "--port"),
        (["--seed", "-1"], "--seed"),
        (["--nodes-csv", "n.csv"], "a trace needs both --nodes-csv and --pods-csv"),
        (["--nodes-csv", "n", "--pods-csv", "p", "--manifest", "m"], "cannot be combined with a trace"),
        (["--manifest", "/does/not/exist.yaml"], "/does/not/exist.yaml"),
        (["--nodes-csv", "/does/not/n.csv", "--pods-csv", "p.csv"], "/does/not/n.csv"),
        (["--manifest", "-", "--manifest", "-"], "read only once"),
    ],
)
def test_bad_input_ends_with_2_and_advice(arguments, advice):
    """Whatever is wrong is told in a sentence, never as a traceback."""
    result = invoke("--no-metrics", "--for", "0", *arguments)

    assert 2 == result.exit_code
    assert advice in result.stderr
    assert "Traceback" not in result.output


def test_help_explains_every_option():
    """The help names what a user can turn."""
    result = invoke("--help")

    for option in ("--manifest", "--nodes-csv", "--speed", "--for", "--port", "--seed", "--output", "--no-metrics"):
        assert option in result.stdout
