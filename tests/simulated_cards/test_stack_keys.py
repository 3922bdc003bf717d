# SPDX-License-Identifier: Apache-2.0
"""
`gpushare up` at a terminal: this machine's cards at 80 x 24, both exporters to browse, the terminal as it was.
"""

from __future__ import annotations

import os
import re
import sys

import pytest
from support.terminal_screen import TerminalScreen
from support.waiting import until

pytest.importorskip("pynvml")
pytestmark = pytest.mark.processes
_CARD = re.compile(r"^\S+ +[01] .* 16\.0 ", re.MULTILINE)


def test_keys(tmp_path):
    """The overview shows the cards; 2 and 3 browse this machine and the simulated cluster; q ends all of it."""
    env = os.environ | {"TERM": "xterm-256color", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "gpushare", "up", "--port", "0"]
    with TerminalScreen(*command, columns=80, lines=24, env=env) as screen:
        screen.shows("TENANT", "2 this machine", "q quit", without=("starting",))
        until(lambda: (screen._more(0.2), 2 == len(_CARD.findall(screen.text())))[1], screen.text)
        screen.press("2")
        screen.shows("[c]ards 2", "on ", "card 0", "CONTAINER")
        screen.press("\r")
        screen.shows("PID", "python", "power", "temperature")
        screen.press("p/stray\r")
        screen.shows("filter: stray", "stray")
        screen.press("3")
        screen.shows("[n]odes", without=["filter: stray"])
        screen.resize(120, 40)
        screen.press("1")
        screen.shows("TENANT", "EMBEDDED CLUSTER")
        screen.press("q")
        assert 0 == screen.ends()
        assert screen.restored()
        assert "ended after" in screen.before
        assert "Traceback" not in screen.before
