# SPDX-License-Identifier: Apache-2.0
"""
cluster-autoscaler's gRPC expander: names, numbers and types, in both generations at once.

Nodes and pods travel as messages (`nodeMap`, `pod`, up to 1.34) or as bytes (`nodeBytesMap`, `podBytes`, from
1.35 on), which are the same on the wire: here both are bytes. Knows nothing of what is best.

Source: kubernetes/autoscaler, cluster-autoscaler/expander/grpcplugin/protos/expander.proto.
"""

from __future__ import annotations

from typing import Final

from isolation.contract.protobuf import Wire

SERVICE: Final = "grpcplugin.Expander"
_messages: Final = Wire().package(
    "grpcplugin",
    {
        "BestOptionsRequest": {"options": "1 *Option", "nodeMap": "2 {bytes}", "nodeBytesMap": "3 {bytes}"},
        "BestOptionsResponse": {"options": "1 *Option"},
        "Option": {
            "nodeGroupId": "1 string",
            "nodeCount": "2 int32",
            "debug": "3 string",
            "pod": "4 *bytes",
            "podBytes": "5 *bytes",
        },
    },
)
Option: Final = _messages["Option"]
METHODS: Final = {"BestOptions": (_messages["BestOptionsRequest"], _messages["BestOptionsResponse"])}
