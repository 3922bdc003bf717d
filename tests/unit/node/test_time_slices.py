# SPDX-License-Identifier: Apache-2.0
"""The length of time slices by the node's label: set by NVIDIA's program, again now and then, and undone."""

from __future__ import annotations

import pytest

from isolation.node.time_slices import AGAIN_SECONDS, NvidiaDriver, TimeSliceError, TimeSlices

CARDS = ["GPU-a", "GPU-b"]


@pytest.fixture
def program(tmp_path):
    """NVIDIA's program, which notes what it was asked and refuses for one card."""
    made = tmp_path / "nvidia-smi"
    made.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncase "$*" in *GPU-old*) echo "Not  Supported" >&2; exit 3;; esac\n'
    )
    made.chmod(0o755)
    return made


def asked(program):
    """What it was asked since the last time."""
    note = program.with_name("asked")
    lines = note.read_text().splitlines() if note.exists() else []
    note.unlink(missing_ok=True)
    return lines


def test_a_length_is_set_once_for_each_card_and_again_later(program):
    slices = TimeSlices(NvidiaDriver(str(program)))

    slices.keep("short", CARDS, 0.0)
    assert [f"compute-policy -i {card} --set-timeslice=1" for card in CARDS] == asked(program)
    slices.keep("short", [*CARDS, "GPU-c"], 1.0)
    assert ["compute-policy -i GPU-c --set-timeslice=1"] == asked(program)
    slices.keep("long", CARDS, 2.0)
    assert [f"compute-policy -i {card} --set-timeslice=3" for card in CARDS] == asked(program)
    slices.keep("long", CARDS, AGAIN_SECONDS + 1.0)
    assert [] == asked(program)
    slices.keep("long", CARDS, AGAIN_SECONDS + 2.0)
    assert 2 == len(asked(program))


def test_without_a_label_nothing_is_touched_and_what_was_set_is_undone(program):
    slices = TimeSlices(NvidiaDriver(str(program)))

    slices.keep(None, CARDS, 0.0)
    assert [] == asked(program)
    slices.keep("medium", CARDS[:1], 1.0)
    asked(program)
    slices.keep(None, CARDS, 2.0)
    assert ["compute-policy -i GPU-a --set-timeslice=0"] == asked(program)
    slices.keep(None, CARDS, 3.0)
    assert [] == asked(program)


def test_a_card_that_cannot_is_told_and_keeps_no_other_from_its_length(program):
    slices = TimeSlices(NvidiaDriver(str(program)))

    for _ in range(2):  # tried again, as it may have been reset
        with pytest.raises(TimeSliceError, match=r"GPU-old: the driver refuses .* length short: Not Supported"):
            slices.keep("short", ["GPU-old", "GPU-a"], 0.0)
    assert ["GPU-old", "GPU-a", "GPU-old"] == [line.split()[2] for line in asked(program)]


@pytest.mark.parametrize(
    ("wanted", "name", "said"),
    [
        ("quick", "nvidia-smi", "label gpushare.dev/time-slice is 'quick': use one of default, short, medium, long"),
        ("short", "none", r"cannot run .*none \(No such file or directory\)"),
    ],
)
def test_what_cannot_be_done_says_what_to_change(program, wanted, name, said):
    with pytest.raises(TimeSliceError, match=said):
        TimeSlices(NvidiaDriver(str(program.with_name(name)))).keep(wanted, CARDS)
