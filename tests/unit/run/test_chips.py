# SPDX-License-Identifier: Apache-2.0
"""
What a CUDA context takes, by product name.
"""

from __future__ import annotations

import pytest

from isolation.contract.quantity import MIB
from isolation.host.core.context_memory import CONTEXT_MIB, context_bytes
from isolation.simgpu.models import MODELS


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_simulated_cards_are_known_and_charged_what_they_take(model):
    """
    A context on a simulated card takes what its promise was charged, MIG instances included.
    """
    assert model.context_mib * MIB == context_bytes(model.name)
    assert model.context_mib * MIB == context_bytes(f"{model.name} MIG 1g.10gb")


def test_an_unknown_card_leaves_the_estimate_to_the_library():
    """
    0, not a guess; and of two names that fit the longer one speaks.
    """
    assert 0 == context_bytes("NVIDIA GeForce RTX 4090")
    assert CONTEXT_MIB["NVIDIA A100"] * MIB == context_bytes("NVIDIA A100 80GB PCIe")
