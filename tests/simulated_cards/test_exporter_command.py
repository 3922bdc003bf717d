# SPDX-License-Identifier: Apache-2.0
"""
`gpushare exporter` as a person or a DaemonSet starts it, on simulated cards: what it says, serves and how it ends.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import time

import pytest
from support import promtool
from support.exporter_served import ROOT, Served, samples, words
from support.simbox import HOLD, boxes, programs
from support.waiting import PATIENCE_SECONDS, until

pytest.importorskip("pynvml")
MIB = 1 << 20


@pytest.fixture
def box():
    """Two T4."""
    with boxes("t4", "t4") as made:
        yield made


def go(box, *more, **options):
    """Run to the end."""
    plain = {"capture_output": True, "text": True, "timeout": PATIENCE_SECONDS, "cwd": ROOT}
    return subprocess.run(words(box, "--interval", "60s", *more), check=False, **(plain | options))


def test_once_prints_the_metrics(box):
    """In a pipe the whole page, to Prometheus' own taste; a process without a promise is unattributed."""
    with programs() as started:
        started.append(box_program(box, 1000 * MIB))
        done = go(box, "--once")

    assert (0, "") == (done.returncode, done.stderr)
    promtool.check(done.stdout.encode())
    found = samples(done.stdout)
    (labels, value) = next(one for one in found["gpushare_card_memory_unattributed_bytes"] if one[0]["card"] == "0")
    assert "n" == labels["node"]
    assert 1000 * MIB <= value <= 1200 * MIB
    assert {1.0} == {value for _, value in found["gpushare_exporter_collector_success"]}


def box_program(box, size, **more):
    """A process with so much memory."""
    from support.simbox import Program  # noqa: PLC0415

    program = Program(box.path, HOLD, BYTES=size, **more)
    assert "up" == program.line()
    return program


def test_once_as_json(box):
    """The reading for programs: figures that is unknown are null."""
    record = json.loads(go(box, "--once", "--json").stdout)

    assert [0, 1] == [card["index"] for card in record["reading"]["cards"]]
    assert record["collectors"]["nvml"]["success"]
    assert 15360 * MIB == record["reading"]["cards"][0]["total_bytes"]


def test_once_on_a_terminal(box):
    """A table for people."""
    ours, theirs = pty.openpty()
    done = go(box, "--once", stdout=theirs, stderr=subprocess.PIPE, capture_output=False)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)

    assert 0 == done.returncode
    assert "Tesla T4" in shown
    assert "UNATTRIB." in shown
    assert "gpushare_" not in shown


def test_once_without_cards_says_why(tmp_path):
    """Status 3, the reason and what to do on standard error; what is known is printed all the same."""

    class Nothing:
        path = tmp_path / "none"

    done = go(Nothing, "--once")

    assert 3 == done.returncode
    assert "nvml" in done.stderr
    assert f"gpushare simgpu create {tmp_path / 'none'}" in done.stderr
    assert ({"collector": "nvml"}, 0.0) in samples(done.stdout)["gpushare_exporter_collector_success"]


def test_it_starts_without_cards_and_finds_them_later(tmp_path):
    """No driver is no reason not to start: the metrics say so, and a driver that comes is found without a restart."""

    class Later:
        path = tmp_path / "hardware"

    with Served(Later) as served:
        assert until(lambda: served.get()[0] == 200)
        found = served.samples()
        assert ({"collector": "nvml"}, 0.0) in found["gpushare_exporter_collector_success"]
        assert "gpushare_card_info" not in found
        with boxes("t4") as made:
            Later.path.symlink_to(made.path)
            assert until(lambda: "gpushare_card_info" in served.samples())
        assert 200 == served.get("/healthz")[0]


def test_everything_it_serves(box):
    """Metrics, liveness, readiness, breaches, an index."""
    with Served(box) as served:
        assert until(lambda: served.get("/readyz")[0] == 200)
        assert 200 == served.get("/healthz")[0]
        breaches = json.loads(served.get("/breaches")[1])
        assert ("n", []) == (breaches["node"], breaches["breaches"])
        assert b"/breaches" in served.get("/")[1]
        assert 404 == served.get("/nothing")[0]
        promtool.check(served.get()[1])


def test_its_own_figures(box):
    """Memory, CPU, descriptors, beginning, release; and when the values were read."""
    began = time.time()
    with Served(box) as served:
        assert until(lambda: served.get()[0] == 200)
        before = served.samples()
        sampled = "gpushare_exporter_sample_timestamp_seconds"
        found = until(lambda: (now := served.samples())[sampled] != before[sampled] and now)
    ended = time.time()

    def one(name, page=found):
        ((_, value),) = page[name]
        return value

    assert 10 * MIB < one("process_resident_memory_bytes") < 200 * MIB
    assert 0 < one("process_cpu_seconds_total") <= (ended - began) * os.cpu_count()
    assert one("process_cpu_seconds_total", before) <= one("process_cpu_seconds_total")
    assert 3 < one("process_open_fds") < one("process_max_fds")
    assert began - 1 <= one("process_start_time_seconds") <= ended
    assert one("process_start_time_seconds", before) == one("process_start_time_seconds")
    assert one("gpushare_exporter_sample_timestamp_seconds", before) < one("gpushare_exporter_sample_timestamp_seconds")
    assert began <= one("gpushare_exporter_sample_timestamp_seconds") <= ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once(box, number):
    """Status 0, also with connections open and a turn under way; the port is free."""
    with Served(box, "--interval", "100ms") as served:
        host, port = served.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"GET /met")
            assert until(lambda: served.get()[0] == 200)
            served.process.send_signal(number)
            assert 0 == served.process.wait(PATIENCE_SECONDS)
        socket.create_server((host, int(port))).close()


def test_it_ends_at_once_while_the_driver_hangs(box):
    """A call that does not come back keeps nobody from leaving."""
    with Served(box) as served:
        assert until(lambda: served.get()[0] == 200)
        box.set("nvml_hang", 1)
        try:
            assert until(
                lambda: ({"collector": "nvml"}, 0.0) in served.samples()["gpushare_exporter_collector_success"]
            )
            served.process.terminate()
            assert 0 == served.process.wait(PATIENCE_SECONDS)
        finally:
            box.set("nvml_hang", 0)


def test_a_port_in_use(box):
    """One line with the way out, before any card is touched."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = go(box, "--listen", f"127.0.0.1:{port}")

    assert (1, "") == (done.returncode, done.stdout)
    assert f"Error: port {port} on 127.0.0.1 is in use: choose another port, or 0 for any free port\n" == done.stderr


def test_a_web_configuration_that_cannot_be_used(box, tmp_path):
    """Neither started without TLS nor with a stack trace."""
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: x}")
    done = go(box, "--web-config", str(tmp_path / "web.yml"))

    assert 1 == done.returncode
    assert done.stderr.startswith(f"Error: {tmp_path / 'web.yml'}: tls_server_config.key_file: set exactly one of")


def test_other_peoples_names(box):
    """With --compat-metrics ack, and only then, cards stand under ACK's names as well."""
    assert "DCGM_" not in go(box, "--once").stdout
    found = samples(go(box, "--once", "--compat-metrics", "ack").stdout)

    assert 2 == found["DCGM_FI_DEV_COUNT"][0][1]
    assert 15360.0 == found["DCGM_CUSTOM_DEV_FB_TOTAL"][0][1]
    assert "nvidia_gpu_num_devices" in found
