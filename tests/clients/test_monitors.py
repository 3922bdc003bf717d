"""Programs that show cards: they see the promise as the card."""

from __future__ import annotations

import json

from clients.stand import CARD_MIB, NAME, SHARE_MIB, python_home, showed


def cards(memory: list[int]) -> str:
    """`2 cards of 81,920 MiB`."""
    assert 1 == len(set(memory)), memory
    return f"{len(memory)} cards of {memory[0]:,} MiB"


def test_gpustat_shows_the_promise(machine):
    """Names and sizes of both cards."""
    plain, shared = (json.loads(text)["gpus"] for text in machine.both(python_home() / "gpustat", "--json"))

    assert [NAME] * 2 == [one["name"] for one in plain] == [one["name"] for one in shared]
    sizes = [[one["memory.total"] for one in each] for each in (plain, shared)]
    assert [[CARD_MIB] * 2, [SHARE_MIB] * 2] == sizes
    showed("gpustat", "`gpustat --json`", *map(cards, sizes))
