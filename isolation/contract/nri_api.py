# SPDX-License-Identifier: Apache-2.0
"""
What a container runtime and a plugin of its Node Resource Interface (NRI) say to each other.

Knows names, numbers and types of fields (as `protobuf` writes them), the bits of events and the names of methods; the
connection is `isolation.node.nri`. Only fields that are read or written here are listed.

Source: github.com/containerd/nri, pkg/api/api.proto, versions 0.8 (containerd 2.1) to 0.12. Methods of their own for
starting and removing came with 0.12; a runtime before that sends them as StateChange.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from isolation.contract.protobuf import Wire

SOCKET: Final = "/var/run/nri/nri.sock"
"""Recreated whenever the runtime starts: mount the folder, not the socket."""
_PACKAGE: Final = "nri.pkg.api.v1alpha1"
RUNTIME: Final = f"{_PACKAGE}.Runtime"
"""Service of the runtime."""
PLUGIN: Final = f"{_PACKAGE}.Plugin"
"""Service of the plugin."""
VOID: Final = "void"
"""Value of NVIDIA_VISIBLE_DEVICES with which NVIDIA's runtimes add nothing to a container."""


class NriEvent(IntEnum):
    """An event's bit in a subscription is its number less one. A bit that a runtime does not know ends the plugin."""

    CREATE_CONTAINER = 4
    START_CONTAINER = 6
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11


class NriContainerState(IntEnum):
    """Of a container."""

    UNKNOWN = 0
    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4


_messages: Final = Wire().package(
    _PACKAGE,
    {
        "Empty": {},
        "RegisterPluginRequest": {"plugin_name": "1 string", "plugin_idx": "2 string"},
        "ConfigureRequest": {
            "config": "1 string",
            "runtime_name": "2 string",
            "runtime_version": "3 string",
            "registration_timeout": "4 int64",
            "request_timeout": "5 int64",
        },
        "FailurePolicy": {"fail_request": "1 bool", "keep_connected": "2 bool"},
        "ConfigureResponse": {"events": "2 int32", "failure_policy": "3 FailurePolicy"},
        "SynchronizeRequest": {"pods": "1 *PodSandbox", "containers": "2 *Container", "more": "3 bool"},
        "SynchronizeResponse": {"more": "2 bool"},
        "ContainerRequest": {"pod": "1 PodSandbox", "container": "2 Container"},
        "CreateContainerResponse": {"adjust": "1 ContainerAdjustment"},
        "StateChangeEvent": {"event": "1 int32", "pod": "2 PodSandbox", "container": "3 Container"},
        "PodSandbox": {
            "id": "1 string",
            "name": "2 string",
            "uid": "3 string",
            "namespace": "4 string",
            "annotations": "6 {string}",
        },
        "Container": {
            "id": "1 string",
            "pod_sandbox_id": "2 string",
            "name": "3 string",
            "state": "4 int32",
            "annotations": "6 {string}",
            "env": "8 *string",
            "hooks": "10 Hooks",
            "linux": "11 LinuxContainer",
            "pid": "12 int64",
        },
        "Mount": {"destination": "1 string", "type": "2 string", "source": "3 string", "options": "4 *string"},
        "Hooks": {
            "prestart": "1 *Hook",
            "create_runtime": "2 *Hook",
            "create_container": "3 *Hook",
            "start_container": "4 *Hook",
            "poststart": "5 *Hook",
            "poststop": "6 *Hook",
        },
        "Hook": {"path": "1 string", "args": "2 *string", "env": "3 *string", "timeout": "4 OptionalInt"},
        "OptionalInt": {"value": "1 int64"},
        "LinuxContainer": {"devices": "2 *LinuxDevice"},
        "LinuxContainerAdjustment": {"devices": "1 *LinuxDevice"},
        "LinuxDevice": {"path": "1 string", "type": "2 string", "major": "3 int64", "minor": "4 int64"},
        "CDIDevice": {"name": "1 string"},
        "KeyValue": {"key": "1 string", "value": "2 string"},
        "ContainerAdjustment": {
            "annotations": "2 {string}",
            "mounts": "3 *Mount",
            "env": "4 *KeyValue",
            "hooks": "5 Hooks",
            "linux": "6 LinuxContainerAdjustment",
            "CDI_devices": "8 *CDIDevice",
        },
    },
)
Empty: Final = _messages["Empty"]
RegisterPluginRequest: Final = _messages["RegisterPluginRequest"]
ConfigureRequest: Final = _messages["ConfigureRequest"]
ConfigureResponse: Final = _messages["ConfigureResponse"]
SynchronizeRequest: Final = _messages["SynchronizeRequest"]
SynchronizeResponse: Final = _messages["SynchronizeResponse"]
ContainerRequest: Final = _messages["ContainerRequest"]
"""Of CreateContainer, StopContainer and, from 0.12 on, StartContainer and RemoveContainer."""
CreateContainerResponse: Final = _messages["CreateContainerResponse"]
StateChangeEvent: Final = _messages["StateChangeEvent"]
ContainerAdjustment: Final = _messages["ContainerAdjustment"]

METHODS: Final = {
    "StartContainer": NriEvent.START_CONTAINER,
    "RemoveContainer": NriEvent.REMOVE_CONTAINER,
    "StopContainer": NriEvent.STOP_CONTAINER,
}
"""Methods that stand for an event; StateChange names it."""

# ttrpc (github.com/containerd/ttrpc, PROTOCOL.md) and its requests (request.proto).
_ttrpc: Final = Wire().package(
    "ttrpc",
    {
        "Request": {"service": "1 string", "method": "2 string", "payload": "3 bytes", "timeout_nano": "4 int64"},
        "Response": {"status": "1 Status", "payload": "2 bytes"},
        "Status": {"code": "1 int32", "message": "2 string"},
    },
)
Request: Final = _ttrpc["Request"]
Response: Final = _ttrpc["Response"]
FAILED_PRECONDITION: Final = 9
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
"""Codes of google.rpc.Code."""
