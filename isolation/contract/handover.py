"""
Who scales a pool, gpushare or a cluster-autoscaler, and the pod annotations by which the latter is told.

Decides which annotations a pod carries where gpushare buys or drains, and how they go again. What the pod's owner had
written as `safe-to-evict` stands beside it meanwhile (`codec_pod.safe_to_evict` reads it). Pure; applied twice it
changes nothing more. Which pods it is about is decided elsewhere.

Source: kubernetes/autoscaler, cluster-autoscaler/FAQ.md ("How can I delay the scale-up of pods?", "What types of pods
can prevent CA from removing a node?"); kubernetes.io/docs/reference/labels-annotations-taints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from isolation.contract.names import SAFE_TO_EVICT, SCALE_UP_DELAY, USER_SAFE_TO_EVICT

if TYPE_CHECKING:
    from collections.abc import Mapping

HANDOVER: Final = (SCALE_UP_DELAY, SAFE_TO_EVICT, USER_SAFE_TO_EVICT)
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
    wanted = {SCALE_UP_DELAY: _delay(annotations, ours), **_safe(annotations, ours)}
    return {key: value for key, value in wanted.items() if annotations.get(key) != value}


def _delay(annotations: Mapping[str, str], ours: Ours) -> str | None:
    said = annotations.get(SCALE_UP_DELAY)
    return DELAY if ours.buys else None if said == DELAY else said


def _safe(annotations: Mapping[str, str], ours: Ours) -> dict[str, str | None]:
    """A value other than ours beside the owner's word was written after it: it is the owner's word now."""
    said, word = annotations.get(SAFE_TO_EVICT), annotations.get(USER_SAFE_TO_EVICT)
    if word is None or said not in (_NOT_SAFE, None):
        word = said
    if ours.drains:
        return {SAFE_TO_EVICT: _NOT_SAFE, USER_SAFE_TO_EVICT: word or ""}
    return {SAFE_TO_EVICT: word or None, USER_SAFE_TO_EVICT: None}
