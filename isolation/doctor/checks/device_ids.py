# SPDX-License-Identifier: Apache-2.0
"""
Device IDs of the node agent, as kubelets keep and report them.

Pure. An ID is a unit's size and a number, such as `1GiB-17` (`isolation.node.core.units`); earlier versions put the
card's UUID into it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable

_ID: Final = re.compile(rf"({'|'.join(UNITS)})-(0|[1-9][0-9]*)")


def of_another_release(ids: Iterable[str]) -> list[str]:
    """Those that no agent of this version offers, in their order."""
    return [one for one in ids if not _ID.fullmatch(one)]
