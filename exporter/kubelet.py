# SPDX-License-Identifier: Apache-2.0
"""
What to ask the kubelet in one cycle: device assignments (`sources.pod_resources`) and names (`sources.identities`).

On a node with a node agent of ours, also a former one, the kubelet is asked for one pod at a time: a list of all pods
can make it assign the same devices twice while it admits a pod. While it is unknown whether there was an agent,
nothing is asked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exporter.cycle import IDENTITIES, KUBELET
from exporter.sources.errors import SourceError
from exporter.sources.identities import IdentitySource
from exporter.sources.pod_resources import KubeletSource, NoSinglePodsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from exporter.pipeline.snapshot import IdentitySample, KernelSample, KubeletSample, PromiseSample
    from exporter.settings import ExporterSettings

_CALL_SHARE: Final = 0.25
"""Part of a period that one call to the kubelet may take."""


class KubeletReads:
    """Its sockets and its log links."""

    def __init__(self, chosen: ExporterSettings) -> None:
        deadline = _CALL_SHARE * chosen.period
        self._grants = KubeletSource(chosen.kubelet_socket, deadline)
        self._identities = IdentitySource(chosen.log_dir, chosen.pods_socket, deadline)
        self._agent: bool | None = None
        self._names: Mapping[str, tuple[str, str]] = {}

    def reads(
        self, now: float, promises: PromiseSample | None, kernel: KernelSample | None
    ) -> Mapping[str, Callable[[], Any]]:
        """What is to be asked this time."""
        if promises is not None:
            self._agent = promises.agent
        tenants = (found.hold.tenant for found in promises.holds) if promises else ()
        shares = frozenset((tenant.namespace, tenant.pod, tenant.uid) for tenant in tenants if tenant is not None)
        live = (kernel.live_pods if kernel else None) or frozenset()
        named = frozenset((*self._names[uid], uid) for uid in live if uid in self._names)
        processes = kernel.processes.values() if kernel else ()
        wanted = frozenset(process.container_id for process in processes if process.container_id)
        return {
            KUBELET: partial(self._read_grants, now, shares, named),
            IDENTITIES: partial(self._read_identities, now, wanted, live),
        }

    def _read_identities(self, now: float, wanted: frozenset[str], live: frozenset[str]) -> IdentitySample:
        found = self._identities.read(now, wanted, live)
        self._names = found.pods
        return found

    def _read_grants(
        self, now: float, shares: frozenset[tuple[str, str, str]], named: frozenset[tuple[str, str, str]]
    ) -> KubeletSample:
        if self._agent is None:
            raise SourceError(
                "not queried, because it is unknown whether a node agent manages this node (see source promises)"
            )
        if not self._agent:
            return self._grants.read(now)
        try:
            return self._grants.read(now, shares | named)
        except NoSinglePodsError:
            if shares:
                raise
            return self._grants.read(now)  # nobody has a share that could be handed out twice

    def close(self) -> None:
        """Let the connections go."""
        self._grants.close()
        self._identities.close()
