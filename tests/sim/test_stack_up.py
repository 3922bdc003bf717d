"""
`gpushare up` as the whole stack: what is measured while it runs, what happens when a part dies, how it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.sim.stack import places, stage
from autoscaler.sim.stack.beside import Beside
from autoscaler.sim.stack.cast import ROLES
from autoscaler.sim.stack.stage import RULES
from autoscaler.sim.stack.turns import Turns

pytest.importorskip("pynvml")
pytest.importorskip("bcrypt")
ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
OK = 200
MEMORY = Path("/dev/shm")  # noqa: S108 (where the cards of a stack are)
PATIENCE = 90.0
WATCHED = shutil.which("prometheus") is not None and shutil.which("prometheus-alertmanager") is not None
UNWATCHED = "no Prometheus and Alertmanager: apt-get install prometheus prometheus-alertmanager"


class Run:
    """One `gpushare up` whose processes can be told from everybody else's."""

    def __init__(self, folder, *words, **more):
        self.sign = f"STACK_TEST={uuid.uuid4().hex}"
        name, _, value = self.sign.partition("=")
        self.folder = folder
        self.note = folder / "addresses.json"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpushare", "up", "--port", "0", "--addresses", str(self.note), *words],
            stdout=(folder / "out").open("w"),
            stderr=(folder / "err").open("w"),
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder), name: value} | more,
            start_new_session=True,
        )

    def addresses(self):
        """Where everything listens."""
        assert soon(self.note.exists)
        return json.loads(self.note.read_text())

    def page(self):
        """The real exporter's page: {name: {pod: largest value}}; empty while it does not answer."""
        found = {}
        with contextlib.suppress(OSError, http.client.HTTPException):
            at = urlsplit(self.addresses()["exporter"])
            connection = http.client.HTTPConnection(at.hostname, at.port, timeout=5)
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            for family in text_string_to_metric_families(answer.read().decode() if answer.status == OK else ""):
                for sample in family.samples:
                    of = found.setdefault(sample.name, {})
                    pod = sample.labels.get("pod", "")
                    of[pod] = max(sample.value, of.get(pod, sample.value))
            connection.close()
        return found

    def denied(self):
        """Allocations refused to the greedy one; None: not told."""
        return self.page().get("gpushare_isolation_denied_allocations_total", {}).get("greedy")

    def processes(self):
        """{pid: command line} of every process that came of this run, the run included."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and self.sign.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def pid(self, word):
        """The process whose command line has this word, and no other."""
        found = [pid for pid, line in self.processes().items() if word in line and " run " not in line]
        assert found, self.processes()
        return min(found)

    def end(self, number=signal.SIGTERM):
        """Its status, after this signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def nothing_left(self):
        """No process, no folder, no port."""
        assert soon(lambda: not self.processes()), self.processes()
        assert [] == [path.name for path in self.folder.iterdir() if path.name.startswith("gpushare-up")]
        assert [] == [path for path in MEMORY.glob("gpushare-up-*") if path in self.cards]
        if self.note.exists():
            for url in filter(None, json.loads(self.note.read_text()).values()):
                with pytest.raises(OSError, match="refused"):
                    http.client.HTTPConnection(urlsplit(url).netloc, timeout=5).connect()

    cards: tuple[Path, ...] = ()

    def remember(self):
        """Which folder in memory is this run's."""
        mine = [path for path in MEMORY.glob("gpushare-up-*") if (self.folder / f"{path.name}.d").exists()]
        self.cards = tuple(mine)
        return mine


def soon(check, seconds=PATIENCE):
    """What `check` says as soon as it says something."""
    deadline = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.fixture
def started(tmp_path):
    """Starts runs; none of them outlives the test, whatever happens."""
    runs = []

    def start(*words, **more):
        runs.append(Run(tmp_path, *words, **more))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.end()


def test_what_was_promised_is_measured_and_what_goes_past_it_is_refused_or_seen(started):
    """
    Five real processes: three within their promise, one whose requests beyond it are refused and counted, and one
    without the library that takes more than it was promised, which the real exporter calls a breach.
    """
    run = started("--for", "120", "--json")
    assert soon(lambda: (run.denied() or 0) >= 2)
    page = soon(
        lambda: (p := run.page()).get("gpushare_isolation_over_limit_seconds_total", {}).get("stray", 0) > 1 and p
    )

    assert run.remember()
    assert 1 <= page["gpushare_isolation_breaches_total"][""]
    used, promised = page["gpushare_container_memory_used_bytes"], page["gpushare_container_memory_allocated_bytes"]
    assert {role.name: role.promised_bytes for role in ROLES} == promised
    assert ["stray"] == [name for name in used if used[name] > promised[name]]
    lines = run.folder / "err"
    line = r"^this machine: .*greedy 3\.2 of 4\.0 GiB, ([2-9]|\d\d+) refused; stray .* GiB OVER its promise"
    assert soon(lambda: re.search(line, lines.read_text(), re.MULTILINE)), lines.read_text()
    assert 0 == run.end()
    stack = json.loads((run.folder / "out").read_text())["stack"]
    tenants = {one["name"]: one for one in stack["tenants"]}
    assert [role.name for role in ROLES] == list(tenants)
    assert {"up"} == {one["state"] for one in [*tenants.values(), *stack["processes"]]}
    assert ["stray"] == [name for name, one in tenants.items() if one["over_bytes"]]
    assert tenants["stray"]["over_bytes"] == tenants["stray"]["used_bytes"] - 4 * GIB
    assert tenants["greedy"]["denied"] >= 2
    assert [0, 0, 0] == [tenants[name]["denied"] for name in ("serve", "train", "notebook")]
    assert tenants["stray"]["denied"] is None
    for name in ("serve", "greedy", "train"):
        assert tenants[name]["used_core_ratio"] > 0
    assert json.loads(run.note.read_text()) == stack["addresses"]
    run.nothing_left()


@pytest.mark.parametrize(
    ("number", "status", "seconds"),
    [
        pytest.param(signal.SIGINT, 0, 6.0, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, 0, 6.0, id="SIGTERM"),
        pytest.param(signal.SIGTERM, 0, 0.0, id="SIGTERM while it starts"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, 6.0, id="SIGKILL"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, 0.0, id="SIGKILL while it starts"),
    ],
)
def test_nothing_is_left_however_it_ends(started, number, status, seconds):
    """
    Tenants, keepers, services, folders and ports are gone a few seconds after any end, also when nobody could tidy.
    """
    run = started()
    assert soon(run.remember)
    run.addresses()
    time.sleep(seconds)

    assert status == run.end(number)

    run.nothing_left()


def test_two_interrupts_end_at_once_and_leave_nothing(started):
    """The second Ctrl-C does not wait for an orderly end; somebody else sweeps."""
    run = started()
    run.addresses()
    assert soon(run.remember)
    assert soon(run.page)

    run.process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    run.end(signal.SIGINT)

    run.nothing_left()


def test_a_part_that_dies_is_said_and_started_again(started):
    """A killed exporter answers again at the same address; a killed tenant has its promise again."""
    run = started()
    assert soon(lambda: run.page().get("gpushare_container_memory_used_bytes", {}).get("train"))

    os.kill(run.pid("gpushare.py exporter"), signal.SIGKILL)
    os.kill(run.pid("client.py 5000"), signal.SIGKILL)

    assert soon(lambda: "exporter ended with signal 9; again in 1 s" in (run.folder / "out").read_text())
    assert soon(lambda: "train ended with status 137; again in 1 s" in (run.folder / "out").read_text())
    assert soon(lambda: run.page().get("gpushare_container_memory_used_bytes", {}).get("train"))
    run.remember()
    assert 0 == run.end()
    run.nothing_left()


def test_two_at_once_do_not_meet(started, tmp_path):
    """Each has ports, cards and processes of its own, and the end of one is not the end of the other."""
    first = started()
    (tmp_path / "second").mkdir()
    second = Run(tmp_path / "second")
    try:
        assert soon(lambda: first.denied() and second.denied())
        first.remember()
        second.remember()
        assert set() == set(first.addresses().values()) & set(second.addresses().values()) - {None}
        assert 0 == first.end()
        first.nothing_left()
        before = second.denied()
        assert soon(lambda: second.denied() > before)
    finally:
        assert 0 == second.end()
    second.nothing_left()


def row_of_ports():
    """The first of a row that is free; others take ports at the same time, so it is tried anew where one is not."""
    for _ in range(100):
        first = places.ports(0).exporter
        with contextlib.suppress(OSError):
            return places.ports(first).exporter
    raise AssertionError("no free row of ports")


def test_without_the_simulated_driver_it_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    """No compiler when it was installed: the reason as the simulator gives it, no folder and no process."""
    reason = "_hardware.so was not built: run `make test`"
    program = f"import sys; sys.exit('Error: {reason}')"
    monkeypatch.setattr(stage, "GPUSHARE", (sys.executable, "-c", program))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = []
    first = row_of_ports()

    with Beside(first, turns=Turns(), note=None, say=told.append) as beside:
        assert None is beside.now
        assert None is beside.document()
        assert first == beside.port

    assert [f"the embedded cluster alone: no simulated cards: {reason}"] == told
    assert [] == list(tmp_path.iterdir())


def test_what_breaks_the_looking_is_not_looked_over(tmp_path, monkeypatch):
    """Old figures are not shown for new ones: the next who asks is told what broke, and nothing is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    impossible = places.Tools("/no\0program", None)

    with stage.Stage(places.ports(0), impossible) as standing:

        def broken():
            with contextlib.suppress(stage.StackError):
                return not standing.now
            return True

        assert soon(broken)
        with pytest.raises(stage.StackError, match="cannot be watched any more: embedded null byte"):
            assert standing.now
    assert [] == list(tmp_path.iterdir())


def test_a_note_that_cannot_be_written_ends_it_before_anything_is_left(started, tmp_path):
    """Status 2, the file by name, and no process."""
    run = started("--addresses", str(tmp_path / "nowhere" / "a.json"))

    assert 2 == run.process.wait(PATIENCE)

    assert f"Error: {tmp_path}/nowhere/a.json: No such file or directory\n" == (tmp_path / "err").read_text()
    run.nothing_left()


def test_on_a_terminal_keys_reach_the_command_alone(tmp_path):
    """Ctrl-C typed at a terminal of 80 x 24: before it the screen shows the breach, after it all of it ends."""
    sign = f"STACK_TEST={uuid.uuid4().hex}"
    name, _, value = sign.partition("=")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({name: value, "TERM": "xterm-256color", "TMPDIR": str(tmp_path)})
        command = [sys.executable, "-m", "gpushare", "up", "--port", "0"]
        os.execv(sys.executable, command)  # noqa: S606 (the command under test, on a terminal of its own)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen = b""

    def shows(word):
        nonlocal seen
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                seen += os.read(terminal, 65536)
        return word in seen

    assert soon(lambda: shows(b"stray     1"))
    assert soon(lambda: shows(b"!!"))
    os.write(terminal, b"\x03")

    assert soon(lambda: shows(b"on this machine: "))
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    assert b"TENANT" in seen
    assert seen.rindex(b"\x1b[?1049l") < seen.rindex(b"ended after")
    assert soon(lambda: not list(tmp_path.iterdir()))


WITHOUT = "import sys; sys.modules['{name}'] = None; from gpushare import main; main()"


def test_without_what_the_tenants_need_the_embedded_cluster_runs_alone_and_says_so():
    """What is missing, and how it is had, in one line; the rest works, and the document says that there is no stack."""
    program = WITHOUT.format(name="pynvml")
    done = subprocess.run(
        [sys.executable, "-c", program, "up", "--for", "1", "--port", "0", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=PATIENCE,
    )

    assert 0 == done.returncode
    told = (
        "the embedded cluster alone: tenants and exporter need more: "
        "in gpushare's source tree, pip install '.[exporter,run]'"
    )
    assert told in done.stderr.splitlines()
    document = json.loads(done.stdout)
    assert document["stack"] is None
    assert document["frame"]["nodes"]


def test_without_prometheus_alerts_are_unknown_and_it_says_what_to_install(started):
    """No alert is not the same as nobody who could tell."""
    run = started("--for", "6", "--json", PATH="/nonexistent")
    run.process.wait(PATIENCE)

    stack = json.loads((run.folder / "out").read_text())["stack"]
    assert stack["alerts"] is None
    assert ["exporter", "autoscaler"] == [part["name"] for part in stack["processes"]]
    assert (None, None) == (stack["addresses"]["prometheus"], stack["addresses"]["alertmanager"])
    (told,) = stack["remarks"]
    assert "no prometheus and prometheus-alertmanager here" in told
    assert "apt-get install prometheus prometheus-alertmanager" in told


@pytest.mark.skipif(not WATCHED and os.environ.get("CI") != "true", reason=UNWATCHED)
def test_the_breach_is_an_alert_in_a_real_alertmanager_within_a_minute(started):
    """From the process that takes too much to the alert on the screen, through Prometheus, our rules, Alertmanager."""
    assert WATCHED, UNWATCHED
    assert RULES.is_file()
    run = started("--for", "75", "--json")
    over = soon(lambda: run.page().get("gpushare_isolation_over_limit_seconds_total", {}).get("stray", 0) > 0)
    begun = time.monotonic()

    def firing():
        at = urlsplit(run.addresses()["alertmanager"])
        connection = http.client.HTTPConnection(at.hostname, at.port, timeout=5)
        try:
            connection.request("GET", "/api/v2/alerts")
            found = json.loads(connection.getresponse().read())
        except OSError:
            return []
        finally:
            connection.close()
        return [one for one in found if one["labels"].get("pod") == "stray" and one["status"]["state"] == "active"]

    assert over
    assert soon(firing, 60.0)
    assert time.monotonic() - begun < 60
    assert soon(lambda: "alert firing: " in (run.folder / "err").read_text())
    run.remember()
    assert 0 == run.end()
    told = json.loads((run.folder / "out").read_text())["stack"]["alerts"]
    assert "stray" in {one["subject"] for one in told if one["state"] == "firing"}
    run.nothing_left()
