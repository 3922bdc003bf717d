# SPDX-License-Identifier: Apache-2.0
"""Pods in the words of other systems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.admission_pods import Pod, main_of, plain

if TYPE_CHECKING:
    from collections.abc import Callable


def asking(amounts: dict[str, Any], *changes: Callable[[Pod], object]) -> Pod:
    """A pod whose first container has these amounts, as the API server shows it: under requests too."""
    made = plain()
    main_of(made)["resources"] = {"limits": dict(amounts), "requests": dict(amounts)}
    for change in changes:
        change(made)
    return made


def hami(*changes: Callable[[Pod], object], **amounts: str | None) -> Pod:
    """A pod of HAMi: 3000 MiB and 30 percent of one card, unless other amounts are given; None: not named."""
    named = {"gpu": "1", "gpumem": "3000", "gpucores": "30"} | amounts
    return asking({f"nvidia.com/{key}": value for key, value in named.items() if value is not None}, *changes)
