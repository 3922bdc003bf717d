# SPDX-License-Identifier: Apache-2.0
"""
The canary as a pod: a manifest that proves a share on a real node, from admission to the library.

Pure. Which image has the program in it is the caller's business.
"""

from __future__ import annotations

from typing import Any, Final

from isolation.contract.names import ACK

NAME: Final = "gpushare-canary"


def canary_manifest(image: str, namespace: str = "default", node: str = "") -> dict[str, Any]:
    """One unit of one card, used up to its end; the pod Succeeds where the library limits, and Fails where not."""
    container = {
        "name": "canary",
        "image": image,
        "command": ["gpushare", "doctor", "inside"],
        "resources": {"limits": {ACK.memory: "1"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": spec,
    }
