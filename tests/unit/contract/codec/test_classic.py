# SPDX-License-Identifier: Apache-2.0
"""Pods that the classic gpushare-scheduler-extender placed, by its annotations."""

from __future__ import annotations

import pytest

from isolation.contract.codec import pod_of
from isolation.contract.model import Card, Mode, Node
from isolation.contract.names import CLASSIC_CARD, CLASSIC_UNITS
from isolation.contract.quantity import GIB

NODE = Node("n", (Card("GPU-a", 0, 16 * GIB), Card("GPU-b", 1, 16 * GIB)), Mode.CGPU)


def placed(units="3", node="n", **notes):
    """Its slices."""
    limits = {"aliyun.com/gpu-mem": units} if units else {}
    pod = {
        "metadata": {"name": "p", "annotations": notes},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    found = pod_of(pod, {"n": NODE})
    return [(part.uuid, part.index, part.bytes // GIB) for part in found.placement.slices] if found.placement else None


def test_its_card_is_counted_with_what_the_pod_asks():
    """
    The amount is the spec's: annotations can be changed.
    """
    assert [("GPU-b", 1, 3)] == placed(**{CLASSIC_CARD: "1", CLASSIC_UNITS: "3", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"})
    assert [("GPU-b", 1, 3)] == placed(**{CLASSIC_CARD: "1", CLASSIC_UNITS: "300"})


@pytest.mark.parametrize(
    "notes", [{CLASSIC_CARD: "-1", CLASSIC_UNITS: "3"}, {CLASSIC_CARD: "1"}, {CLASSIC_CARD: "x", CLASSIC_UNITS: "3"}]
)
def test_what_makes_no_sense_names_no_card(notes):
    """
    Also of a pod that asks for nothing, or is not bound.
    """
    assert [] == placed(**notes)
    assert [] == placed("", **{CLASSIC_CARD: "1", CLASSIC_UNITS: "3"})
    assert placed(node="", **{CLASSIC_CARD: "1", CLASSIC_UNITS: "3"}) is None
