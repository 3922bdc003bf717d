# SPDX-License-Identifier: Apache-2.0
"""The table of machine states, and what happens to a machine that stays too long."""

from __future__ import annotations

from itertools import product

import pytest

from autoscaler.core.lifecycle import COMING, TRANSITIONS, IllegalTransition, MachineState, PoolMachine, overdue
from autoscaler.core.limits import LimitsError, ScalingLimits


@pytest.mark.parametrize(("before", "after"), list(product(MachineState, MachineState)))
def test_table_is_the_law(before, after):
    """
    Every pair of states: what the table has goes, what it has not is refused.
    """
    machine = PoolMachine("m", "p", before, 1.0)

    if after in TRANSITIONS[before]:
        assert PoolMachine("m", "p", after, 2.0) == machine.to(after, 2.0)
    else:
        with pytest.raises(IllegalTransition, match=f"illegal transition from {before} to {after}"):
            machine.to(after, 2.0)


def test_every_machine_can_end_and_none_comes_back():
    """
    From every state there is a way to GONE, and none out of it.
    """

    def reaches(start):
        found, todo = set(), [start]
        while todo:
            state = todo.pop()
            if state not in found:
                found.add(state)
                todo.extend(TRANSITIONS[state])
        return found

    assert all(MachineState.GONE in reaches(state) for state in MachineState)
    assert frozenset() == TRANSITIONS[MachineState.GONE]


def test_node_is_usable_only_after_its_devices():
    """
    No coming state becomes READY but the one in which cards are registered.
    """
    assert {MachineState.NO_DEVICES} == {state for state in COMING if MachineState.READY in TRANSITIONS[state]}


@pytest.mark.parametrize(
    ("state", "limit", "expected"),
    [
        (MachineState.REQUESTED, 900, MachineState.FAILED),
        (MachineState.BOOTING, 900, MachineState.FAILED),
        (MachineState.NO_DEVICES, 300, MachineState.FAILED),
        (MachineState.DRAINING, 900, MachineState.READY),
    ],
)
def test_machine_that_stays_too_long_is_given_up(state, limit, expected):
    """
    In time it is left alone; at the limit the verdict falls, and it is a legal move.
    """
    machine = PoolMachine("m", "p", state, 100.0)

    assert (None, expected) == (
        overdue(machine, ScalingLimits(), 100 + limit - 1),
        overdue(machine, ScalingLimits(), 100.0 + limit),
    )
    assert expected in TRANSITIONS[state]


def test_settled_machines_are_never_overdue():
    """
    READY lasts for ever.
    """
    assert overdue(PoolMachine("m", "p", MachineState.READY), ScalingLimits(), 1e9) is None


def test_limits_name_everything_that_is_wrong_at_once():
    """
    A period of 0, a negative time and a NaN in one message.
    """
    with pytest.raises(
        LimitsError,
        match=r"action_validation_delay_seconds is -1.*scale_down_unneeded_seconds is nan.*scan_interval_seconds",
    ):
        ScalingLimits(
            action_validation_delay_seconds=-1, scan_interval_seconds=0, scale_down_unneeded_seconds=float("nan")
        )
