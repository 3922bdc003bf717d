# SPDX-License-Identifier: Apache-2.0
"""
Which dialects that are switched on still belong to the systems that they come from, by the webhooks in the cluster.

Two owners of one name would give a pod two promises, or none. The operator says that a system may stay beside us by
naming the namespaces that are left to it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.contract.dialects import System


def find_owned(
    systems: Iterable[System], left: Iterable[tuple[str, str]], webhooks: Iterable[str]
) -> Mapping[str, str]:
    """Dialects whose own system lives here and was left no namespace, with the webhook that shows it."""
    shared, names = {dialect for dialect, _ in left}, sorted(webhooks)
    found: dict[str, str] = {}
    for system in systems:
        theirs = [name for name in names if name.endswith(system.webhooks)]
        if theirs and system.name not in shared:
            found[system.name] = theirs[0]
    return MappingProxyType(found)
