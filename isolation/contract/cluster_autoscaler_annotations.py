# SPDX-License-Identifier: Apache-2.0
"""
Who scales a pool, gpushare or a cluster-autoscaler, and the pod annotations that tell the latter.

Decides which annotations a pod carries where gpushare buys or drains, and how they go again. What the pod's owner had
written there stands beside it meanwhile (`codec.pod.safe_to_evict` reads it). Pure; applied twice it changes nothing
more. Which pods it is about is decided elsewhere.

Source: kubernetes/autoscaler, cluster-autoscaler/FAQ.md ("How can I delay the scale-up of pods?", "What types of pods
can prevent CA from removing a node?"); kubernetes.io/docs/reference/labels-annotations-taints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from isolation.contract.names import SAFE_TO_EVICT, SCALE_UP_DELAY, USER_SAFE_TO_EVICT, USER_SCALE_UP_DELAY

if TYPE_CHECKING:
    from collections.abc import Mapping

HANDOVER: Final = (SCALE_UP_DELAY, USER_SCALE_UP_DELAY, SAFE_TO_EVICT, USER_SAFE_TO_EVICT)
"""The pod annotations that are written for it; the autoscaler's account may change no others."""
DELAY: Final = "8760h"
"""A year, as a Go duration: cluster-autoscaler passes by a pending pod that is younger."""
_NOT_SAFE: Final = "false"


class Scaler(StrEnum):
    """Who buys a pool's nodes, or drains and removes them."""

    GPUSHARE = "gpushare"
    CLUSTER_AUTOSCALER = "cluster-autoscaler"


@dataclass(frozen=True, slots=True)
class Ours:
    """What gpushare does for a pod in cluster-autoscaler's place."""

    buys: bool = False
    drains: bool = False


def changes(annotations: Mapping[str, str], ours: Ours) -> dict[str, str | None]:
    """What to write so that a pod's annotations say this; None: remove it. Empty: they do."""
    wanted = {
        **_said(annotations, SCALE_UP_DELAY, USER_SCALE_UP_DELAY, DELAY, ours=ours.buys),
        **_said(annotations, SAFE_TO_EVICT, USER_SAFE_TO_EVICT, _NOT_SAFE, ours=ours.drains),
    }
    return {key: value for key, value in wanted.items() if annotations.get(key) != value}


def _said(annotations: Mapping[str, str], key: str, beside: str, value: str, *, ours: bool) -> dict[str, str | None]:
    """A value other than ours where the owner's word stands beside it was written after it: it is the word now."""
    said, word = annotations.get(key), annotations.get(beside)
    if word is None or said not in (value, None):
        word = said
    return {key: value, beside: word or ""} if ours else {key: word or None, beside: None}
