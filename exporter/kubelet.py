"""
The kubelet's part in a turn: whom to ask, and in which way.

Where a node agent of ours keeps the node the kubelet is asked pod by pod, for the pods that the agent wrote
down: asked for all of them at once, a kubelet can hand the same devices out twice while it admits a pod. As long
as it is not known whether there is such an agent, it is not asked at all. What its answers mean is decided
elsewhere.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exporter.cycle import IDENTITIES, KUBELET
from exporter.sources.errors import SourceError
from exporter.sources.identities import IdentitySource
from exporter.sources.kubelet import KubeletSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exporter.facts import KernelFacts, KubeletFacts, PromiseFacts
    from exporter.settings import Settings

_CALL_SHARE: Final = 0.25
"""Part of a period that one call to the kubelet may take."""


class Kubelet:
    """Its sockets and its log links."""

    def __init__(self, chosen: Settings) -> None:
        deadline = _CALL_SHARE * chosen.period
        self._grants = KubeletSource(chosen.kubelet_socket, deadline)
        self._identities = IdentitySource(chosen.log_dir, chosen.pods_socket, deadline)
        self._agent: bool | None = None

    def reads(
        self, now: float, promises: PromiseFacts | None, kernel: KernelFacts | None
    ) -> Mapping[str, Callable[[], Any]]:
        """What is to be asked this time."""
        if promises is not None:
            self._agent = promises.agent
        tenants = (found.hold.tenant for found in promises.holds) if promises else ()
        pods = frozenset((tenant.namespace, tenant.pod, tenant.uid) for tenant in tenants if tenant is not None)
        processes = kernel.processes.values() if kernel else ()
        wanted = frozenset(process.container_id for process in processes if process.container_id)
        return {
            KUBELET: partial(self._granted, now, pods),
            IDENTITIES: partial(self._identities.read, now, wanted),
        }

    def _granted(self, now: float, pods: frozenset[tuple[str, str, str]]) -> KubeletFacts:
        if self._agent is None:
            raise SourceError(
                "not queried, because it is unknown whether a node agent manages this node (see source promises)"
            )
        return self._grants.read(now, pods if self._agent else None)

    def close(self) -> None:
        """Let the connections go."""
        self._grants.close()
        self._identities.close()
