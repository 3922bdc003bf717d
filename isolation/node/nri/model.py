# SPDX-License-Identifier: Apache-2.0
"""
Containers as the runtime names them, and what a plugin adds to one.

Values only, and how they are read from NRI's messages and written to them. Names, labels and environment come from
whoever wrote the pod and its image; the runtime vouches for ids, the pod's UID, its namespace and its annotations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from isolation.contract import nri_api as api
from isolation.node.cdi import Injected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.node.cdi import Mount

RUNS: Final = frozenset({api.NriContainerState.CREATED, api.NriContainerState.PAUSED, api.NriContainerState.RUNNING})
"""States in which a container may have processes, or may get some."""


class NriRefusedError(Exception):
    """The runtime is told no; the text stands in the pod's events, and the kubelet tries again."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod on this node. Annotations are those of the moment when its sandbox was made."""

    id: str
    uid: str
    namespace: str
    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Container:
    """One container; a restart is another one of the same name."""

    id: str
    name: str
    sandbox: Sandbox
    state: int = api.NriContainerState.UNKNOWN
    env: Mapping[str, str] = field(default_factory=dict)
    """Of image, pod and CDI devices that the kubelet asked for."""
    devices: tuple[str, ...] = ()
    """Paths of device nodes."""
    hooks: tuple[str, ...] = ()
    """Programs that run at createRuntime."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0
    """Of its first process, as the host counts; 0: none yet."""

    @property
    def key(self) -> str:
        """`namespace/pod/container`, for people."""
        return f"{self.sandbox.key}/{self.name}"

    @property
    def runs(self) -> bool:
        """Whether it may have processes."""
        return self.state in RUNS


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What is changed of a container before it is created."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    hook: tuple[str, ...] = ()
    """Command line of a createRuntime hook; empty: none."""
    injected: Injected = Injected()  # noqa: RUF009 (a value)
    """What the CDI devices stand for, where the runtime does not look them up."""

    def message(self) -> Any:
        """As the runtime reads it."""
        hooks: dict[str, list[dict[str, Any]]] = {
            "create_runtime": [{"path": self.hook[0], "args": self.hook}] if self.hook else []
        }
        for stage, hook in self.injected.hooks:
            hooks.setdefault(stage, []).append(hook)
        # NRI, api.proto: "-" in front of a destination removes it; the order of two mounts in one place is not defined.
        gone = [{"destination": f"-{one.container}"} for one in self.mounts if one.replaces]
        mounts = [
            {"destination": one.container, "type": "bind", "source": one.host, "options": one.options}
            for one in self.mounts
        ]
        return api.ContainerAdjustment(
            annotations=dict(self.annotations),
            mounts=[*gone, *mounts, *self.injected.mounts],
            env=[{"key": key, "value": value} for key, value in self.env.items()],
            CDI_devices=[{"name": name} for name in self.cdi_devices],
            hooks=hooks,
            linux={"devices": list(self.injected.devices)},
        )


class Handler(Protocol):
    """Whoever decides. `create` and `start` have a deadline and run beside each other; the others return at once."""

    def synchronize(self, sandboxes: Sequence[Sandbox], containers: Sequence[Container]) -> None:
        """All there is, after each connect."""

    def create(self, container: Container) -> Adjustment | None:
        """Before it is created; None: as it is. RefusedError."""

    def start(self, container: Container) -> None:
        """Its mounts are made, its program does not run yet. RefusedError."""

    def gone(self, container: Container, *, removed: bool) -> None:
        """It has ended, or is removed; also one that was refused."""


def sandbox_of(message: Any) -> Sandbox:
    """A sandbox from its message."""
    return Sandbox(message.id, message.uid, message.namespace, message.name, dict(message.annotations))


def container_of(message: Any, sandbox: Sandbox) -> Container:
    """A container from its message."""
    return Container(
        id=message.id,
        name=message.name,
        sandbox=sandbox,
        state=message.state,
        env=dict(text.partition("=")[::2] for text in message.env),
        devices=tuple(device.path for device in message.linux.devices),
        hooks=tuple(hook.path for hook in message.hooks.create_runtime),
        annotations=dict(message.annotations),
        pid=message.pid,
    )
