# SPDX-License-Identifier: Apache-2.0
"""
Which dialects that are switched on still belong to the systems that they come from, by what is found in the cluster.

The operator says that a system may stay beside us by naming the namespaces that are left to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.contract.dialects.ownership import find_living

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.dialects import System
    from isolation.contract.dialects.ownership import Signs


def find_owned(systems: Iterable[System], left: Iterable[tuple[str, str]], signs: Signs) -> Mapping[str, str]:
    """Dialects whose own system lives here and was left no namespace, with what shows it."""
    shared = {dialect for dialect, _ in left}
    return find_living((one for one in systems if one.name not in shared), signs)
