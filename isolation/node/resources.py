# SPDX-License-Identifier: Apache-2.0
"""
The kubelet's word of who has which devices: pod-resources, by Get and never by List.

A List while an Allocate is under way makes the kubelet give the same IDs twice, so there is none in here.
Knows the protocol's manners: one limit for all callers of the node, words instead of codes for a pod that is
not there. What follows from an answer is the agent's business.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from isolation.contract import kubelet_api as api
from isolation.node.world import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PAUSE_SECONDS: Final = 0.012
"""The kubelet grants 100 calls a second to all together."""
_MOST_BYTES: Final = 16 << 20
URGENT_SECONDS: Final = 0.5
"""Whoever gives less time holds up a kubelet that admits a pod: it goes before all others."""
_UNHURRIED_A_SECOND: Final = 25.0
_UNHURRIED_AT_ONCE: Final = 3.0
"""The rest of what the kubelet grants is left to admission, and to exporters."""
_PROBE: Final = ("kube-system", "gpushare-probe-0000000000")
"""A pod that there is not."""
_PROBE_SECONDS: Final = 5.0
OFF: Final = (
    "the kubelet's pod-resources Get is disabled: enable its feature gate KubeletPodResourcesGet (default since "
    "Kubernetes 1.34); without it, pods that start at the same time may have to be deleted and recreated"
)


class PodResourcesClient:
    """See the module; fulfils `world.PodResources`."""

    def __init__(self, socket: Path, resource: str) -> None:
        self._resource = resource
        self._channel = grpc.aio.insecure_channel(
            f"unix:{socket}",
            options=[
                ("grpc.max_receive_message_length", _MOST_BYTES),
                # A kubelet that was away is found again at once, not after gRPC's usual minutes.
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 500),
            ],
        )
        self._call = self._channel.unary_unary(
            api.GET, lambda message: message.SerializeToString(), api.GetPodResourcesResponse.FromString
        )
        self._tokens, self._filled = _UNHURRIED_AT_ONCE, time.monotonic()
        self.trouble = ""
        """What the last probe found, for people; empty: all is well."""

    async def close(self) -> None:
        """Let the connection go."""
        await self._channel.close()

    async def get(self, namespace: str, name: str, seconds: float) -> Mapping[str, frozenset[str]] | None:
        """Our device IDs by container; None: the kubelet knows no such pod. UnreachableError."""
        request = api.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        end = time.monotonic() + seconds
        if seconds > URGENT_SECONDS:
            await self._turn(end)
        while True:
            try:
                told = await self._call(request, timeout=max(0.001, end - time.monotonic()))
            except grpc.aio.AioRpcError as exc:
                if _is_none(exc):
                    return None
                if exc.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() + _PAUSE_SECONDS >= end:
                    raise UnreachableError(f"pod-resources: {exc.code().name}: {exc.details()}") from None
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return {box.name: self._ours(box) for box in told.pod_resources.containers}

    async def _turn(self, end: float) -> None:
        """Wait until it is an unhurried caller's turn. UnreachableError where that is too late."""
        while True:
            now = time.monotonic()
            self._tokens = min(_UNHURRIED_AT_ONCE, self._tokens + (now - self._filled) * _UNHURRIED_A_SECOND)
            self._filled = now
            if self._tokens >= 1.0:
                self._tokens -= 1.0
                return
            wait = (1.0 - self._tokens) / _UNHURRIED_A_SECOND
            if now + wait >= end:
                raise UnreachableError("pod-resources: too many requests at once")
            await asyncio.sleep(wait)

    async def probe(self) -> str:
        """Ask for a pod that there is not: what is wrong with Get, for people; empty: nothing."""
        try:
            await self.get(*_PROBE, _PROBE_SECONDS)
        except UnreachableError as exc:
            self.trouble = OFF if "disabled" in str(exc) or "UNIMPLEMENTED" in str(exc) else str(exc)
        else:
            self.trouble = ""
        return self.trouble

    def _ours(self, box: Any) -> frozenset[str]:
        return frozenset(one for held in box.devices if held.resource_name == self._resource for one in held.device_ids)


def _is_none(exc: grpc.aio.AioRpcError) -> bool:
    """Kubelets leave the code UNKNOWN and say it in words."""
    if exc.code() is grpc.StatusCode.NOT_FOUND:
        return True
    return exc.code() is grpc.StatusCode.UNKNOWN and (exc.details() or "").endswith("not found")
