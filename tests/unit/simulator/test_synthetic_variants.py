# SPDX-License-Identifier: Apache-2.0
"""
Derived trace variants keep the published marginals.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.trace_variants import VARIANTS, derive
from isolation.contract.model import Rules
from isolation.simulator.traces import synthetic
from isolation.simulator.traces.openb import CARD_BYTES

BASE = tuple(pod.request for pod in synthetic.pods())
DONORS = tuple(replace(request, rules=Rules(models=frozenset({"T4"}))) for request in BASE[:2000] if request.cards)


def asked(requests):
    """GPU in cards."""
    return sum(request.cards * request.card_bytes for request in requests) / CARD_BYTES


@pytest.mark.parametrize(
    ("name", "pods", "cards"),
    [
        ("default", 8152, 6086.8),
        ("cpu050", 7439, 6086.8),
        ("cpu250", 9420, 6086.8),
        ("gpushare40", 8152, 5641),
        ("gpushare60", 8152, 4908),
        ("gpushare80", 8152, 4408),
        ("gpushare100", 8152, 3953),
        ("gpuspec33", 8152, 6086.8),
        ("multigpu20", 8324, 7087),
        ("multigpu30", 8508, 8087),
        ("multigpu40", 8746, 9443),
        ("multigpu50", 9061, 11359),
    ],
)
def test_a_variant_has_the_published_pods_and_about_the_published_demand(name, pods, cards):
    """
    Pod counts exactly; GPU demand within 1.5 %, although only the pods of each kind are set.
    """
    made = derive(name, BASE, DONORS)

    assert pods == len(made)
    assert cards == pytest.approx(asked(made), rel=0.015)


def test_multi_card_pods_come_in_the_published_sizes():
    """
    multigpu50: 222 pods of two cards, 206 of four, 556 of eight.
    """
    sizes = Counter(request.cards for request in derive("multigpu50", BASE, DONORS))

    assert (222, 206, 556) == (sizes[2], sizes[4], sizes[8])


@pytest.mark.parametrize("name", ["gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33"])
def test_the_published_part_of_gpu_pods_names_models(name):
    """
    Only pods with cards name any, and only models that the donors name.
    """
    made = derive(name, BASE, DONORS)

    named = [request for request in made if request.rules.models]
    assert VARIANTS[name].named == pytest.approx(len(named) / sum(1 for r in made if r.cards), abs=0.001)
    assert {frozenset({"T4"})} == {request.rules.models for request in named}
    assert all(request.cards for request in named)


def test_a_variant_is_the_same_every_time_and_differs_by_seed():
    """
    Benchmarks of two versions must replay the same list.
    """
    assert derive("gpuspec33", BASE, DONORS) == derive("gpuspec33", BASE, DONORS)
    assert derive("gpuspec33", BASE, DONORS) != derive("gpuspec33", BASE, DONORS, seed=1)


def test_model_lists_without_donors_are_refused():
    """
    Inventing models would be no approximation of anything.
    """
    with pytest.raises(ValueError, match="needs one"):
        derive("gpuspec33", BASE, BASE)
