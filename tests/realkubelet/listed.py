# SPDX-License-Identifier: Apache-2.0
"""
What a real kubelet says about the devices of one pod, asked as the node agent does: by Get, in the agent's words.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc

from isolation.contract import kubelet_api as api

if TYPE_CHECKING:
    from pathlib import Path

_TRIES = 100


def devices_of(socket: Path, pod: dict[str, Any], resource: str) -> dict[str, list[str]]:
    """IDs of this resource by container; plain init containers are not listed."""
    meta = pod["metadata"]
    asked = api.GetPodResourcesRequest(pod_name=meta["name"], pod_namespace=meta["namespace"])
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(api.GET, _serialize, api.GetPodResourcesResponse.FromString)
        told = _patiently(lambda: call(asked, timeout=60))
    return {
        box.name: sorted(one for held in box.devices if held.resource_name == resource for one in held.device_ids)
        for box in told.pod_resources.containers
    }


def _patiently(ask: Any) -> Any:
    """The kubelet grants all who ask about pods 100 calls a second together."""
    for left in reversed(range(_TRIES)):
        try:
            return ask()
        except grpc.RpcError as exc:
            if exc.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or not left:
                raise
            time.sleep(0.05)
    raise AssertionError("not reached")


def _serialize(message: Any) -> bytes:
    return message.SerializeToString()
