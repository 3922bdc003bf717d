# SPDX-License-Identifier: Apache-2.0
"""
How holds look: for people on a terminal, in a pipe, and for programs.
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.builders import card

from isolation.contract.host_allocation import HostAllocation, Process
from isolation.contract.model import Slice
from isolation.contract.quantity import gib
from isolation.run import listing

TWO = (
    HostAllocation(
        *("run-1", "train", "b", 100.0, 7, Process(41, 1), ("python", "train.py")),
        (Slice("GPU-n-0", 0, gib(5), 30),),
        "burst",
    ),
    HostAllocation(
        *("run-2", "w\x1b[31meb", "b", 3600.0, 7, Process(42, 1), ("sh", "-c", "x" * 99)),
        tuple(Slice(f"GPU-n-{i}", i, gib(2)) for i in range(4)),
        "fixed",
    ),
)


def test_a_pipe_gets_plain_fields_divided_by_tabs():
    """
    One line per hold under a line of headings; nothing in a name or command steers a terminal.
    """
    console = Console(file=io.StringIO(), width=40)
    long = "sh -c " + "x" * 51 + "..."
    expected = [
        "NAME\tID\tCARDS\tGIB\tCORE\tPOLICY\tPID\tAGE\tCOMMAND",
        "train\trun-1\t0\t5\t30 %\tburst\t41\t1h\tpython train.py",
        f"w?[31meb\trun-2\t0,1,2,3\t2 each\t-\tfixed\t42\t2m\t{long}",
    ]
    assert expected == listing.render_table(TWO, 3720.0, console).splitlines()
    assert "" == listing.render_table((), 0.0, console)


def test_a_terminal_gets_a_table():
    """
    Columns under their headings, commands cut to the width.
    """
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    lines = listing.render_table(TWO, 3720.0, console).splitlines()
    assert ["NAME", "train", "w?[31meb"] == [line.split()[0] for line in lines]
    assert {True} == {len(line.rstrip()) <= 100 for line in lines}


def test_each_card_says_who_holds_it():
    """
    Amounts in GiB, takers in order; an empty card says so.
    """
    cards = [card(0), card(1), card(4)]
    expected = [
        "card 0: 7 of 15 GiB allocated: train 5, w?[31meb 2",
        "card 1: 2 of 15 GiB allocated: w?[31meb 2",
        "card 4: 0 of 15 GiB allocated: free",
    ]
    assert expected == listing.describe_cards(cards, TWO)


def test_the_waiting_line_names_who_is_in_the_way():
    """
    Only holders of cards that are in question.
    """
    assert "waiting 1m: no room; in use by train 5 GiB, w?[31meb 8 GiB" == listing.describe_wait(
        "no room", [card(0)], TWO, 61.0
    )
    assert "waiting 0s: no room" == listing.describe_wait("no room", [card(9)], TWO, 0.2)


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0s"), (59.9, "59s"), (60, "1m"), (7200, "2h"), (200000, "2d")])
def test_spans_are_reported_in_their_largest_unit(seconds, text):
    """
    A clock that was set back shows 0.
    """
    assert text == listing.format_age(seconds)


def test_programs_get_whole_gib_and_percent():
    """
    The whole command, and per card what was promised.
    """
    first = listing.as_json(TWO)["allocations"][0]
    assert [{"uuid": "GPU-n-0", "index": 0, "memory_gib": 5, "core_percent": 30}] == first["cards"]
    assert ("run-1", 41, ["python", "train.py"]) == (first["id"], first["pid"], first["command"])
