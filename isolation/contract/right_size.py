# SPDX-License-Identifier: Apache-2.0
"""What the owner of a workload lets be done with recommendations for it: annotations of the pod template. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from isolation.contract.names import RIGHT_SIZE, RIGHT_SIZE_LEAST, RIGHT_SIZE_MOST

if TYPE_CHECKING:
    from collections.abc import Mapping

AMOUNT: Final = re.compile(r"[1-9][0-9]{0,8}")
"""A number of units."""


class RightSize(StrEnum):
    """What is done with recommendations for a pod."""

    OFF = "off"
    """It is not even recommended for."""
    RECOMMEND = "recommend"
    INITIAL = "initial"
    """New pods get what is recommended."""
    LIVE = "live"
    """Running ones too."""


@dataclass(frozen=True, slots=True)
class RightSizeWish:
    """What a pod's annotations say."""

    mode: RightSize = RightSize.RECOMMEND
    least_units: int = 1
    """Of one card, for a container."""
    most_units: int = 0
    """0: what the container requests."""


def sized_units(asked: int, cards: int, next_bytes: int, wish: RightSizeWish, unit_bytes: int) -> int:
    """Units over all its cards that a new container gets instead of those that it asks for: never more."""
    each = max(wish.least_units, -(-next_bytes // unit_bytes))
    return min(asked, (min(each, wish.most_units) if wish.most_units else each) * cards)


def read_wish(annotations: Mapping[str, str]) -> RightSizeWish | None:
    """None: they mean nothing, and nothing is done."""
    mode = annotations.get(RIGHT_SIZE, RightSize.RECOMMEND.value)
    least, most = annotations.get(RIGHT_SIZE_LEAST, "1"), annotations.get(RIGHT_SIZE_MOST, "")
    if mode not in frozenset(RightSize) or not AMOUNT.fullmatch(least) or (most and not AMOUNT.fullmatch(most)):
        return None
    if most and int(least) > int(most):
        return None
    return RightSizeWish(RightSize(mode), int(least), int(most or 0))
