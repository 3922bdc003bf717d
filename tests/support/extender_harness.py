# SPDX-License-Identifier: Apache-2.0
"""An API server with some nodes and pods, of which a scheduler learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.scheduler_endpoints import Server, node

if TYPE_CHECKING:
    from collections.abc import Iterable

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"


def cluster(*names: str, pods: Iterable[dict[str, Any]] = (), **rest: int) -> Server:
    """A server with these nodes and pods."""
    return Server({NODES: [node(name, **rest) for name in names], PODS: list(pods)})
