# SPDX-License-Identifier: Apache-2.0
"""
A fleet and a workload like the openb trace, without its files.

Decides nothing at run time: it draws from marginal distributions published with the trace, so that
`sim` works anywhere. An approximation: card counts by model, pods by kind, the five commonest
shares and the lifetimes' median and 90th percentile are the published ones; CPU and memory by
shape, the rarer shares and every correlation are plausible round figures, not measurements.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.simulator.traces.openb import TracePod, make_node, make_request

if TYPE_CHECKING:
    from isolation.contract.model import Node, Request

LARGEST_SCALE: Final = 100.0

# (model, cards a node, nodes, CPU cores, GiB): counts from the trace's node list; CPU and memory
# are the commonest of each shape.
NODE_SHAPES: Final = (
    ("G2", 8, 549, 96, 384),
    ("T4", 2, 387, 104, 512),
    ("T4", 4, 17, 96, 384),
    ("G3", 8, 39, 128, 768),
    ("P100", 2, 131, 32, 160),
    ("P100", 1, 3, 8, 60),
    ("V100M32", 8, 21, 96, 768),
    ("V100M32", 4, 9, 48, 368),
    ("V100M16", 8, 8, 64, 256),
    ("V100M16", 4, 28, 32, 128),
    ("V100M16", 1, 19, 8, 32),
    ("A10", 1, 2, 128, 1024),
)
# (cards, pods): the trace's default pod list; cards 0 is CPU only, -1 a share of one card.
POD_KINDS: Final = ((0, 1088), (-1, 3078), (1, 3911), (2, 16), (4, 15), (8, 44))
# (milli, pods, CPU cores): the first five are the commonest shares; the rest fill up to the
# published GPU total of the shared pods (about 1,732 cards).
SHARES: Final = (
    (810, 1078, 3.5),
    (470, 750, 10.0),
    (320, 328, 4.0),
    (650, 253, 12.0),
    (230, 140, 4.0),
    (460, 128, 6.5),
    (590, 75, 3.5),
    (160, 80, 4.5),
    (550, 72, 4.0),
    (220, 62, 5.5),
    (370, 47, 4.0),
    (110, 24, 4.0),
    (480, 19, 4.0),
    (50, 22, 4.0),
)
# (CPU cores, weight) of pods that ask for one whole card, for each card of several, and for none.
WHOLE_CPU: Final = ((11.5, 40), (3.0, 14), (12.0, 14), (18.0, 8), (8.0, 6), (16.0, 12), (24.0, 3), (1.0, 3))
CARD_CPU: Final = ((8.0, 60), (11.0, 40))
ONLY_CPU: Final = ((12.5, 36), (32.0, 27), (8.0, 17), (16.0, 20))
MIB_A_CORE: Final = ((2048, 40), (4096, 45), (1024, 15))

LIFETIME_MEDIAN: Final = 540.0
"""Seconds; the 90th percentile is 6,574 s."""
LIFETIME_SIGMA: Final = log(6574 / 540) / 1.2816
"""Of a log-normal through median and 90th percentile (1.2816 is the normal's 90th percentile)."""
SPAN_SECONDS: Final = 149 * 86400.0
"""The trace covers 149 days."""


def nodes(scale: float = 1.0) -> tuple[Node, ...]:
    """The fleet, `scale` times as large; a shape too rare for a small scale is left out."""
    return tuple(
        make_node(f"synthetic-{model.lower()}-{cards}-{i:04d}", cores * 1000, gib * 1024, cards, model)
        for model, cards, count, cores, gib in NODE_SHAPES
        for i in range(max(1 if model == "G2" else 0, round(count * scale)))
    )


def pods(scale: float = 1.0, seed: int = 0) -> tuple[TracePod, ...]:
    """The pod list, `scale` times as long, with arrivals spread evenly over the trace's span."""
    random = np.random.Generator(np.random.PCG64(seed))
    made: dict[Request, Request] = {}
    wanted: list[Request] = []
    for cards, count in POD_KINDS:
        # The commonest kind never vanishes, or a small scale would leave nothing to pack.
        for _ in range(max(int(cards == 1), round(count * scale))):
            request = _request(random, cards)
            wanted.append(made.setdefault(request, request))
    created = np.sort(random.uniform(0.0, SPAN_SECONDS, len(wanted))).tolist()
    lasting = np.exp(random.normal(log(LIFETIME_MEDIAN), LIFETIME_SIGMA, len(wanted))).tolist()
    order = random.permutation(len(wanted)).tolist()
    return tuple(
        TracePod(f"synthetic-pod-{i:05d}", wanted[k], round(at, 3), round(at + seconds, 3))
        for i, (k, at, seconds) in enumerate(zip(order, created, lasting, strict=True))
    )


def _request(random: np.random.Generator, cards: int) -> Request:
    """One pod of a kind."""
    if cards == -1:
        weights = np.array([pods for _milli, pods, _cores in SHARES], dtype=float)
        milli, _pods, cores = SHARES[int(random.choice(len(SHARES), p=weights / weights.sum()))]
        return make_request(round(cores * 1000), round(cores * _one(random, MIB_A_CORE)), 1, milli)
    cores = _one(random, {0: ONLY_CPU, 1: WHOLE_CPU}.get(cards, CARD_CPU)) * max(1, cards)
    return make_request(round(cores * 1000), round(cores * _one(random, MIB_A_CORE)), cards, 1000 if cards else 0)


def _one(random: np.random.Generator, weighted: tuple[tuple[float, int], ...]) -> float:
    """A value drawn by weight."""
    weights = np.array([weight for _value, weight in weighted], dtype=float)
    return weighted[int(random.choice(len(weighted), p=weights / weights.sum()))][0]
