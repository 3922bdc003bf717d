# SPDX-License-Identifier: Apache-2.0
"""
`gpushare top` at a real terminal: keys, sizes, colours, and a terminal that is given back however it ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.terminal_screen import TerminalScreen
from support.views_harness import COMMAND, ROOT, environment, exporter, fleet_of_cards, on_terminal, page_of, serving
from support.waiting import until

pytestmark = pytest.mark.processes
FLEET, USAGE = fleet_of_cards(8)
PAGE = page_of(USAGE)
ESCAPE = "\x1b"


def answers(path, query):
    """An exporter with one process on each card."""
    if path != "/processes":
        return exporter(PAGE)(path, query)
    found = [
        {"uuid": card.uuid, "pid": 4000 + card.index, "name": "python", "memory_bytes": 1 << 30, "pod": "app-0-2-0"}
        | {"namespace": "team", "container": "main", "attributed": "claim"}
        for card in USAGE.cards
    ]
    return 200, json.dumps({"version": 1, "processes": found}).encode()


def top(url, *words, columns=80, lines=24, **env):
    """The command at a terminal."""
    command = [sys.executable, "-c", COMMAND, "top", "--local", url, *words]
    return TerminalScreen(*command, columns=columns, lines=lines, cwd=ROOT, env=environment(**env))


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50)])
def test_somebody_looks_around(columns, lines):
    """Cards, then one of them with its processes, its pod, back, pods by a filter, help, and out."""
    with serving(answers) as (url, _), top(url, columns=columns, lines=lines) as screen:
        shown = screen.shows("[c]ards 8", "gpu-node-00", "used", "? help", "q quit")
        assert lines == shown.count("\n") + 1
        screen.press("jj\r")
        screen.shows("gpu-node-00 card 2", "team/app-0-2-0", "4002", "python")
        screen.press("\r")
        screen.shows("> team/app-0-2-0", "on node gpu-node-00")
        screen.press(ESCAPE)
        screen.shows("CONTAINER", without=["> team/app-0-2-0"])
        screen.press("p/3-1")
        screen.shows("filter: 3-1_", "team/app-0-3-1", without=["app-0-2-0"])
        screen.press("\r")
        screen.shows("filter: 3-1", without=["3-1_"])
        screen.press("?")
        screen.shows("move the cursor")
        screen.press("xs")
        screen.shows("sort: allocated")
        screen.press("q")
        assert 0 == screen.ends()
        assert screen.restored()
        assert "Traceback" not in screen.before


def test_the_window_changes_its_size():
    """Larger and smaller, also below what anything fits in, and the screen follows at once."""
    with serving(answers) as (url, _), top(url) as screen:
        screen.shows("[c]ards 8", without=["POWER"])
        screen.resize(200, 50)
        screen.shows("POWER", "STRANDED")
        screen.resize(40, 8)
        screen.shows("terminal too small")
        screen.resize(80, 24)
        assert 24 == screen.shows("[c]ards 8", "q quit").count("\n") + 1
        screen.press("q")
        assert 0 == screen.ends()
        assert screen.restored()


@pytest.mark.parametrize(
    ("how", "status"),
    [("\x03", 0), ("q", 0), (signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 129)],
)
def test_however_it_ends_the_terminal_is_given_back(how, status):
    """Modes, cursor, and what stood on it."""
    with serving(answers) as (url, _), top(url) as screen:
        screen.shows("[c]ards 8")
        assert not screen.restored()
        if isinstance(how, str):
            screen.press(how)
        else:
            os.kill(screen.process.pid, how)
        assert status == screen.ends()
        assert screen.restored()
        assert "Traceback" not in screen.before


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again():
    """As a shell's job control wants it."""

    def state(pid):
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]

    with serving(answers) as (url, _), top(url) as screen:
        screen.shows("[c]ards 8")
        screen.press("\x1a")
        until(lambda: state(screen.process.pid) == "T")
        until(lambda: (screen._more(0.05), screen.restored())[1])
        os.kill(screen.process.pid, signal.SIGCONT)
        screen.shows("[c]ards 8")
        assert not screen.restored()
        screen.press("q")
        assert 0 == screen.ends()


def test_without_colour():
    """NO_COLOR and --no-color: the cursor's row stands out by its sign and by reverse video, nothing has a colour."""
    for words, env in (([], {"NO_COLOR": "1"}), (["--no-color"], {})):
        with serving(answers) as (url, _), top(url, *words, **env) as screen:
            shown = screen.shows("[c]ards 8")
            assert re.search(r"^▸ gpu-node-00", shown, re.MULTILINE)
            assert screen.styles <= {"0", "7"}
            screen.press("q")
            assert 0 == screen.ends()


def test_a_terminal_without_unicode():
    """ASCII signs alone."""
    with serving(answers) as (url, _), top(url, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0") as screen:
        assert screen.shows("[c]ards 8", "> gpu-node-00").isascii()
        screen.press("q")
        assert 0 == screen.ends()


@pytest.mark.parametrize(
    ("words", "env"), [(["--once"], {}), (["--all"], {}), ([], {"TERM": "dumb"}), (["-o", "json"], {})]
)
def test_who_wants_no_screen_gets_the_table_once(words, env):
    """`--once`, `--all`, `-o` and terminals that cannot be drawn on."""
    with serving(answers) as (url, _):
        status, shown = on_terminal("top", "--local", url, *words, **env)
    assert 0 == status
    assert "\x1b[?1049h" not in shown
    assert "gpu-node-00" in shown


def test_the_exporter_goes_away_and_comes_back():
    """The last figures stay, with the reason; then new ones come."""
    gone = []

    def sometimes(path, query):
        return (503, b"") if gone else answers(path, query)

    with serving(sometimes) as (url, _), top(url, "-w", "0.5", columns=120) as screen:
        screen.shows("[c]ards 8")
        gone.append(True)
        screen.shows("refresh failed", "answers 503", "gpu-node-00")
        gone.clear()
        screen.shows("[c]ards 8", without=["refresh failed"])
        screen.press("q")
        assert 0 == screen.ends()


def test_nothing_can_be_read_from_the_start():
    """Status 3 and the reason on a terminal that is given back, as without a screen."""
    with top("http://127.0.0.1:9") as screen:
        assert 3 == screen.ends()
        assert screen.restored()
        assert "cannot connect to http://127.0.0.1:9/metrics" in screen.before


def test_begin_where_the_options_say():
    """`--by`, `--sort`, `-n`, `--node`; a node that is not there is status 4."""
    with serving(answers) as (url, _):
        with top(url, "--by", "pod", "--sort", "used") as screen:
            screen.shows("sort: used", "USED%")
            screen.press("q")
            assert 0 == screen.ends()
        with top(url, "--node", "nobody") as screen:
            assert 4 == screen.ends()
            assert "node nobody is unknown or has no cards" in screen.before


def test_a_pipe_loads_nothing_of_the_screen():
    """Who wants a table does not pay for it."""
    script = "import sys; from gpushare import kubectl\ntry: kubectl()\nfinally: print(*sys.modules, file=sys.stderr)"
    with serving(answers) as (url, _):
        command = [sys.executable, "-c", script, "top", "--local", url]
        more = {"capture_output": True, "text": True, "cwd": ROOT, "env": environment(), "timeout": 60}
        done = subprocess.run(command, check=False, **more)
    assert 0 == done.returncode
    assert not {f"dashboards.terminal.interactive.{name}" for name in ("loop", "view", "terminal")} & set(
        done.stderr.split()
    )
