# SPDX-License-Identifier: Apache-2.0
"""
Whether the stack runs beside the embedded cluster, and on which ports; the cluster runs in any case.

A machine that lacks what the stack needs hears so in a sentence. A port that somebody has ends the
command before anything is started.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autoscaler.demo.stack import addresses
from autoscaler.demo.stack.autoscaler_metrics import PageServer
from autoscaler.demo.stack.demo_stack import StackError, Stage
from isolation.contract.stack import FIRING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Self

    from autoscaler.demo.embedded.embedded_cluster import Embedded
    from autoscaler.demo.stack.addresses import Addresses
    from autoscaler.demo.stack.autoscaler_metrics import Turns
    from isolation.contract.reading import ContainerReading
    from isolation.contract.stack import Stack, StackWorkload


class Beside:
    """A context manager: the stack, if it is wanted and can be."""

    def __init__(
        self, first: int | None, *, turns: Turns | None, note: Path | None, say: Callable[[str], None]
    ) -> None:
        self.port = first
        """Of the embedded cluster's own endpoint; None: it has none."""
        self._turns = turns
        self._note = note
        self._say = say
        self._stage: Stage | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        """Raises OSError for a port that is taken, or a file that cannot be written."""
        if self._turns is None or self.port is None:
            return self
        tools = addresses.tools()
        ports = addresses.ports(self.port)
        stage = Stage(ports, tools)
        try:
            self._held.enter_context(stage)
        except StackError as exc:
            self._say(f"running only the simulated cluster: {exc}")
            return self
        try:
            self._held.enter_context(PageServer(ports.autoscaler, self._turns.page))
            if self._note is not None:
                addresses.write(self._note, stage.addresses)
        except BaseException:
            self._held.close()
            raise
        self._stage, self.port = stage, ports.cluster
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def look(self, world: Embedded, now: float) -> None:
        """Take the figures of the embedded cluster's autoscaler."""
        if self._turns is not None and self._stage is not None:
            self._turns.look(world, now)

    @property
    def now(self) -> Stack | None:
        """How the machine's processes stand; None: there are none."""
        return None if self._stage is None else self._stage.now

    def document(self) -> dict[str, Any] | None:
        """The last of it, for programs."""
        return None if self._stage is None else document(self._stage.now, self._stage.addresses)

    def words(self) -> str | None:
        """The last of it, for people."""
        return None if self._stage is None else words(self._stage.now)


def document(stack: Stack, where: Addresses) -> dict[str, Any]:
    """As JSON takes it; what cannot be told is null."""
    return {
        "addresses": asdict(where),
        "tenants": [_tenant(workload, measured(stack, workload)) for workload in stack.workloads],
        "cards": [asdict(card) for card in stack.node.cards] if stack.node is not None else None,
        "processes": [asdict(part) for part in stack.parts],
        "alerts": None if stack.alerts is None else [asdict(alert) for alert in stack.alerts],
        "remarks": list(stack.remarks),
        "happened": list(stack.happened),
    }


def measured(stack: Stack, workload: StackWorkload) -> ContainerReading | None:
    """What the exporter tells of this tenant: a run's pod is its name."""
    found = stack.node.containers if stack.node is not None else ()
    return next((one for one in found if one.pod == workload.name), None)


def _tenant(workload: StackWorkload, one: ContainerReading | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": workload.name,
        "does": workload.does,
        "enforced": workload.enforced,
        "promised_bytes": workload.promised_bytes,
        "promised_core_ratio": workload.promised_core_ratio,
        "state": workload.part.state,
        "restarts": workload.part.restarts,
        "remark": workload.part.remark,
    }
    names = ("promise", "index", "used_bytes", "used_core_ratio", "denied", "over_limit_seconds")
    told |= {name: None if one is None else getattr(one, name) for name in names}
    used = None if one is None else one.used_bytes
    return {**told, "over_bytes": None if used is None else max(0, used - workload.promised_bytes)}


def words(stack: Stack) -> str:
    """Two lines for people."""
    found = [(workload, measured(stack, workload)) for workload in stack.workloads]
    refused = sum(one.denied or 0 for _, one in found if one is not None)
    over = [p.name for p, one in found if one is not None and (one.used_bytes or 0) > p.promised_bytes]
    firing = sorted({f"{one.name} {one.subject}".strip() for one in stack.alerts or () if one.state == FIRING})
    told = f"this machine: {refused:,} allocations beyond a promise refused; over promise: {', '.join(over) or 'none'}"
    return told if stack.alerts is None else f"{told}; firing alerts: {', '.join(firing) or 'none'}"
