# SPDX-License-Identifier: Apache-2.0
"""
The exporter's two processes: one has the port and nothing else, the other reads and has no network.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
import urllib.request
from pathlib import Path

import pytest
from support.exporter_served import Served
from support.simbox import boxes
from support.waiting import PATIENCE_SECONDS, until

pytest.importorskip("pynvml")


@pytest.fixture
def box():
    """One T4."""
    with boxes("t4") as made:
        yield made


def status(pid):
    """/proc/<pid>/status by name."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def front_of(served):
    """The pid of the process with the port."""
    (pid,) = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    return int(pid)


def listeners(pid):
    """Inodes of a process's sockets that listen on TCP."""
    tcp = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {words[9] for words in tcp if words[3] == "0A"}
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since; what listens stays
            at = re.fullmatch(r"socket:\[(\d+)\]", str(fd.readlink()))
            if at:
                found.add(at[1])
    return found & listening


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which one of the processes gives up")
def test_the_process_with_the_port_is_nobody_and_the_one_that_reads_has_no_network(box):
    """
    Credentials, capabilities, filters and descriptors of both, while pages are served.

    What these credentials cannot do is tried in test_confine.
    """
    with Served(box) as served:
        assert until(lambda: served.get()[0] == 200)
        front, reader = front_of(served), served.process.pid
        status_of = status(front)
        assert ["65534"] * 4 == status_of["Uid"] == status_of["Gid"]
        assert [] == status_of["Groups"]
        assert {"0" * 16} == {status_of[name][0] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")}
        assert ["1"] == status_of["NoNewPrivs"]
        assert 1 == len(listeners(front))

        status_of = status(reader)
        assert ["0"] * 4 == status_of["Uid"]
        assert (["1"], ["2"]) == (status_of["NoNewPrivs"], status_of["Seccomp"])
        assert set() == listeners(reader)


def test_the_one_that_serves_is_not_missed_in_silence(box):
    """It ends, and so does the exporter, with a status that has it restarted."""
    with Served(box) as served:
        os.kill(front_of(served), signal.SIGKILL)
        assert 1 == served.process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGSTOP])
def test_the_one_that_serves_does_not_outlive_the_other(box, number):
    """The port is free at once, also where the one that serves hears nothing more."""
    with Served(box) as served:
        assert until(lambda: served.get()[0] == 200)
        front = front_of(served)
        os.kill(front, number)
        served.process.kill()
        served.process.wait(timeout=300)
        try:
            assert until(lambda: not Path(f"/proc/{front}").exists())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(front, signal.SIGKILL)


def test_a_reader_that_stands_still_is_not_hidden(box):
    """Its last figures are shown for as long as they are of now; liveness goes on saying that the port is served."""
    with Served(box) as served:
        assert until(lambda: served.get()[0] == 200)
        os.kill(served.process.pid, signal.SIGSTOP)
        try:
            assert until(lambda: served.get()[0] == 503)
            assert b"the last reading is" in served.get("/readyz")[1]
            assert 200 == served.get("/healthz")[0]
        finally:
            os.kill(served.process.pid, signal.SIGCONT)
        assert until(lambda: served.get()[0] == 200)


def test_every_form_is_rendered_when_somebody_asks_for_it(box):
    """And from then on in advance: OpenMetrics or not, compressed or not."""
    with Served(box) as served:
        assert until(lambda: served.get()[0] == 200)
        for accept in ("text/plain", "application/openmetrics-text;version=1.0.0"):
            for encoding in ("identity", "gzip"):
                asked = urllib.request.Request(served.url, headers={"Accept": accept, "Accept-Encoding": encoding})  # noqa: S310
                with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 (our own)
                    assert answer.headers["Content-Type"].startswith(accept.partition(";")[0])
                    assert (encoding if encoding == "gzip" else None) == answer.headers["Content-Encoding"]
                    assert answer.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the file is readable for root only")
def test_the_web_configuration_may_be_readable_for_root_only(box, tmp_path):
    """Read, and read again, by the process that may; the one that serves gets what it says."""
    path = tmp_path / "web.yml"
    path.write_text("http_server_config: {headers: {X-Frame-Options: deny}}\n")
    path.chmod(stat.S_IRUSR)

    def shown():
        with urllib.request.urlopen(served.url.replace("/metrics", "/healthz"), timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
            return answer.headers["X-Frame-Options"]

    with Served(box, "--web-config", str(path)) as served:
        assert "deny" == shown()
        time.sleep(1.1)
        path.write_text("http_server_config: {headers: {X-Frame-Options: sameorigin}}\n")
        assert until(lambda: shown() == "sameorigin")
