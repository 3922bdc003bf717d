# SPDX-License-Identifier: Apache-2.0
"""The switch, and every other reason not to act: what cannot be followed stops everything, and says so."""

from __future__ import annotations

import asyncio
import json

import pytest

from autoscaler.kube.core.inhibition import Authority, Cause, find_inhibition
from autoscaler.kube.switch import OLD_SECONDS, Position, Switch, position_of
from isolation.kube.core.errors import RefusedError, UnreachableError


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, Position()),
        ({"enabled": "false"}, Position(enabled=False)),
        ({"enabled": " True\n", "dryRun": "false"}, Position(enabled=True, dry_run=False)),
        ({"config.yaml": "pools: []", "dryRun": "true"}, Position(dry_run=True)),
    ],
    ids=["nothing", "off", "on", "beside-a-file"],
)
def test_words_that_are_understood(data, expected):
    """
    The words true and false; a key that is a file's name is none of the switch's.
    """
    assert expected == position_of(data)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"enabled": "no"}, 'write "true" or "false"'),
        ({"enabled": 1}, 'write "true" or "false"'),
        ({"enable": "false"}, 'unknown key "enable"; known keys: enabled, dryRun'),
        ({"dryrun": "true"}, "unknown key"),
        ({"enabled": ""}, 'write "true" or "false"'),
    ],
    ids=["no", "number", "misspelt", "case", "empty"],
)
def test_words_that_are_not_understood_are_a_problem(data, part):
    """
    Whoever wrote them wanted something, most likely that it stops.
    """
    assert part in position_of(data).problem


class Answers:
    """An API server that answers as it is reported, one answer after the other; the last one stays."""

    def __init__(self, *answers):
        self._answers = list(answers)

    async def send(self, method, path, body=None, kind="json", seconds=None):  # noqa: ARG002 (Access's signature)
        """As `Access.send`."""
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def positions(*answers, times=(0.0,)):
    """What the switch says after each look, `times` later."""

    async def story():
        clock = iter(times)
        at = [0.0]
        switch = Switch(Answers(*answers), "s", lambda: at[0])
        found = [switch.position()]
        for moment in clock:
            at[0] = moment
            await switch.look()
            found.append(switch.position())
        return found

    return asyncio.run(story())


def test_before_the_first_look_nothing_may_be_done():
    """
    Off might be written there.
    """
    assert positions(b"{}")[0].problem


def test_no_config_map_is_no_word():
    """
    As the options say.
    """
    assert Position() == positions(RefusedError(404, "NotFound"))[1]


def test_what_was_read_holds_through_a_short_silence_and_not_through_a_long_one():
    """
    A switch that nobody can read for a while stops everything.
    """
    on = json.dumps({"data": {"enabled": "true"}}).encode()
    gone = UnreachableError("no route")
    _, first, short, long = positions(on, gone, gone, times=(0.0, OLD_SECONDS - 1, OLD_SECONDS + 1))

    assert (Position(enabled=True), Position(enabled=True)) == (first, short)
    assert "unreadable for 16 s" in long.problem


@pytest.mark.parametrize(
    "answer",
    [RefusedError(403, "Forbidden"), b"no JSON", b"[]", b'{"data": [1]}'],
    ids=["rights", "text", "list", "data"],
)
def test_a_switch_that_cannot_be_read_is_off(answer):
    """
    For want of rights, or because it is none.
    """
    assert positions(answer)[1].problem


def facts(**more):
    """Of a leader that may act."""
    given = {
        "stopping": False,
        "epoch": 3,
        "holder": "me",
        "position": Position(),
        "where": "ConfigMap s/c",
        "dry_run": False,
        "loaded": 3,
    }
    return Authority(**(given | more))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"stopping": True}, Cause.STOPPING),
        ({"epoch": None}, Cause.STANDBY),
        ({"position": Position(problem="no")}, Cause.SWITCH),
        ({"position": Position(enabled=False)}, Cause.SWITCH),
        ({"position": Position(enabled=True)}, None),
        ({"dry_run": True}, Cause.DRY_RUN),
        ({"dry_run": True, "position": Position(dry_run=False)}, None),
        ({"position": Position(dry_run=True)}, Cause.DRY_RUN),
        ({"loaded": 2}, Cause.STATE),
        ({"loaded": None}, Cause.STATE),
        ({"trouble": "lost"}, Cause.STATE),
        ({"position": Position(enabled=False, dry_run=True)}, Cause.SWITCH),
    ],
    ids=range(13),
)
def test_the_first_reason_that_stands_is_reported(given, expected):
    """
    The switch overrules the option; whoever does not lead, or has not read what was remembered, does nothing.
    """
    hold = find_inhibition(facts(**given))
    assert expected == (None if hold is None else hold.cause)
