# SPDX-License-Identifier: Apache-2.0
"""What the agent and the device plugin tell each other, each of which may be away."""

from __future__ import annotations

import asyncio
import json

import pytest

from isolation.node.core.units import Device
from isolation.node.device_plugin.exchange import LOCK, Exchange, Offer, Report
from isolation.node.lock import alone, is_held
from isolation.node.paths import Paths

OFFER = Offer((Device("1GiB-0", healthy=True), Device("1GiB-1", healthy=False)), "", shares=True, exempt=frozenset("a"))


@pytest.fixture
def ends(tmp_path):
    """The agent's and the device plugin's."""
    return Exchange(tmp_path), Exchange(tmp_path)


async def living(folder, story):
    """While a device plugin lives there."""
    async with alone(Paths(kubelet_dir=folder, run_dir=folder), LOCK, asyncio.Event(), "device plugin"):
        return story()


@pytest.mark.parametrize("offer", [OFFER, Offer(), Offer(obstacle="drain", exempt=frozenset())])
def test_an_offer_arrives_and_stays_while_the_agent_is_away(ends, tmp_path, offer):
    agent, plugin = ends
    assert plugin.offer().obstacle == "the node agent has not said what to offer yet"
    agent.say(offer)
    assert offer == plugin.offer() == Exchange(tmp_path).offer()


def test_the_newest_offer_counts(ends):
    agent, plugin = ends
    for number in range(20):
        devices = tuple(Device(f"1GiB-{one}", healthy=True) for one in range(number))
        agent.say(Offer(devices, ""))
        assert devices == plugin.offer().devices


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"healthy": 3}', "\xff", "[" * 100_000])
def test_what_cannot_be_read_changes_nothing(ends, tmp_path, text):
    """No offer is offered no better by half of one."""
    agent, plugin = ends
    (tmp_path / "offer.json").write_text(text)
    assert plugin.offer() == Offer()
    agent.say(OFFER)
    assert OFFER == plugin.offer()


def test_a_report_counts_only_while_its_writer_lives(ends, tmp_path):
    """A dead one has left its last word behind, which may be of another boot."""
    agent, plugin = ends
    report = Report(registered=True, registrations=2, connected=True, refused=7)
    plugin.report(report)
    assert agent.reported() is None
    assert report == asyncio.run(living(tmp_path, agent.reported))
    assert agent.reported() is None


@pytest.mark.parametrize(
    ("text", "said"), [(None, "has just started"), ("{", "has just started"), ('{"new": 1}', "update it together")]
)
def test_a_report_that_cannot_be_read_is_trouble_with_a_reason(ends, tmp_path, text, said):
    if text is not None:
        (tmp_path / "device-plugin.json").write_text(text)
    found = asyncio.run(living(tmp_path, ends[0].reported))
    assert (False, False, True) == (found.registered, found.connected, said in found.trouble)


def test_looking_at_a_lock_takes_it_from_nobody(tmp_path):
    async def story():
        over = asyncio.Event()
        async with alone(Paths(kubelet_dir=tmp_path, run_dir=tmp_path), LOCK, over, "device plugin"):
            return [is_held(tmp_path / LOCK) for _ in range(3)]

    assert ([True] * 3, False) == (asyncio.run(story()), is_held(tmp_path / LOCK))
    assert json.loads((tmp_path / LOCK).read_text()) > 0
