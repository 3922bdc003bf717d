# SPDX-License-Identifier: Apache-2.0
"""
The invented fleet and workload keep the published marginals.
"""

from __future__ import annotations

from collections import Counter
from statistics import median

import pytest

from isolation.simulator.sim.replay import KINDS, classify
from isolation.simulator.traces import synthetic
from isolation.simulator.traces.openb import CARD_BYTES, list_arrivals


def test_the_fleet_has_the_published_cards_by_model():
    """
    1,213 nodes and 6,212 cards of seven models.
    """
    nodes = synthetic.nodes()

    cards = Counter(card.model for node in nodes for card in node.cards)
    assert 1213 == len(nodes) == len({node.name for node in nodes})
    assert {"G2": 4392, "T4": 842, "G3": 312, "P100": 265, "V100M32": 204, "V100M16": 195, "A10": 2} == cards


def test_the_workload_has_the_published_kinds_and_asks_for_about_the_published_gpu():
    """
    8,152 pods; GPU demand within 1 % of 6,086.8 cards.
    """
    pods = synthetic.pods()

    kinds = Counter(classify(pod.request) for pod in pods)
    asked = sum(pod.request.cards * pod.request.card_bytes for pod in pods) / CARD_BYTES
    assert (1088, 3078, 3911, 75) == tuple(kinds[k] for k in KINDS)
    assert asked == pytest.approx(6086.8, rel=0.01)


def test_the_commonest_shares_are_the_published_ones_in_order():
    """
    810, 470, 320, 650, 230 milli.
    """
    shares = Counter(
        pod.request.card_bytes * 1000 // CARD_BYTES for pod in synthetic.pods() if classify(pod.request) == "shared"
    )

    assert [810, 470, 320, 650] == [milli for milli, _count in shares.most_common(4)]
    assert 230 in [milli for milli, _count in shares.most_common(6)]


def test_lifetimes_have_the_published_median():
    """
    540 s at the median, within the noise of 8,152 draws.
    """
    seconds = [arrival.seconds for arrival in list_arrivals(synthetic.pods())]

    assert median(seconds) == pytest.approx(540, rel=0.1)


def test_the_same_seed_gives_the_same_workload_and_scale_scales():
    """
    Deterministic per seed; a tenth of the scale is about a tenth of the pods and nodes.
    """
    assert synthetic.pods(0.1, seed=3) == synthetic.pods(0.1, seed=3)
    assert synthetic.pods(0.1, seed=3) != synthetic.pods(0.1, seed=4)
    assert len(synthetic.pods(0.1)) == pytest.approx(815, abs=3)
    assert len(synthetic.nodes(0.1)) == pytest.approx(121, abs=4)


def test_the_smallest_fleet_still_has_cards_and_a_pod_that_asks_for_them():
    """
    A tiny scale must not silently leave nothing to pack.
    """
    assert sum(len(node.cards) for node in synthetic.nodes(1e-6)) == 8
    assert any(pod.request.cards for pod in synthetic.pods(1e-6))
