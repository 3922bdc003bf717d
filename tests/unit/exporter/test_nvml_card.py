# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of a card, put into order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.pipeline.snapshot import CardProcess
from exporter.sources.nvml.card import throttle_reasons
from exporter.sources.nvml.events import count_xid
from exporter.sources.nvml.processes import merge_processes

PROCESSES = st.builds(
    CardProcess,
    st.integers(1, 5),
    st.none() | st.integers(0, 1 << 40),
    st.sampled_from(["compute", "graphics", "mps"]),
)


def test_a_process_in_two_lists_is_reported_once():
    """
    One that computes and draws has its bytes once; a client of MPS is that first; unknown bytes are
    filled in by the other list.
    """
    found = [
        CardProcess(3, 100, "graphics"),
        CardProcess(2, 50, "compute"),
        CardProcess(3, 100, "compute"),
        CardProcess(4, None, "mps"),
        CardProcess(4, 70, "compute"),
        CardProcess(1, None, "graphics"),
    ]

    assert (
        CardProcess(1, None, "graphics"),
        CardProcess(2, 50, "compute"),
        CardProcess(3, 100, "compute"),
        CardProcess(4, 70, "mps"),
    ) == merge_processes(found)


@given(st.lists(PROCESSES), st.randoms())
def test_the_order_of_lists_changes_nothing(found, chance):
    """
    Every pid once, with the most that any list says, however the driver orders them.
    """
    shuffled = list(found)
    chance.shuffle(shuffled)
    merged = merge_processes(found)

    assert merge_processes(shuffled) == merged
    assert {one.pid for one in found} == {one.pid for one in merged}
    assert len({one.pid for one in merged}) == len(merged)
    for one in merged:
        sizes = [other.bytes for other in found if other.pid == one.pid and other.bytes is not None]
        assert max(sizes, default=None) == one.bytes


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (None, None),
        (0, ()),
        (1, ()),
        (1 | 0x4, ("power_cap",)),
        (0x20 | 0x8, ("hardware_slowdown", "thermal")),
        (
            0x1EF,
            (
                "application_clocks",
                "power_cap",
                "hardware_slowdown",
                "thermal",
                "hardware_thermal",
                "power_brake",
                "display_clocks",
            ),
        ),
        (1 << 40, ("other",)),
    ],
)
def test_reasons_for_throttling_have_names(bits, expected):
    """
    An idle card's low clock is no reason, and what is not known yet is "other".
    """
    assert expected == throttle_reasons(bits)


def test_numbers_of_errors_are_bounded():
    """
    Known numbers go on counting, while no driver can make us keep more than 64 different ones.
    """
    kept = {}
    for xid in range(1000):
        kept = count_xid(kept, xid)
    kept = count_xid(kept, 5)

    assert 64 == len(kept)
    assert 2 == kept[5]
