# SPDX-License-Identifier: Apache-2.0
"""
The demo stack as `gpushare up` uses it: on the given ports, or not at all where the machine lacks what it needs.

A missing program is a remark and the embedded cluster runs alone; a port in use ends the command before anything is
started. Also what is reported of the processes at the end of a run.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autoscaler.demo.stack import addresses
from autoscaler.demo.stack.autoscaler_metrics import LoopMetricsServer
from autoscaler.demo.stack.demo_stack import DemoStack, StackError
from isolation.contract.stack import FIRING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Self

    from autoscaler.demo.embedded.embedded_cluster import EmbeddedCluster
    from autoscaler.demo.stack.addresses import Addresses
    from autoscaler.demo.stack.autoscaler_metrics import LoopMetrics
    from isolation.contract.reading import ContainerReading
    from isolation.contract.stack import StackStatus, TenantStatus


class OptionalStack:
    """A context manager: the stack, if it is wanted and can be."""

    def __init__(
        self,
        first: int | None,
        *,
        loop_metrics: LoopMetrics | None,
        addresses_file: Path | None,
        report: Callable[[str], None],
    ) -> None:
        self.port = first
        """Of the embedded cluster's own endpoint; None: it has none."""
        self._loop_metrics = loop_metrics
        self._addresses_file = addresses_file
        self._report = report
        self._stack: DemoStack | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        """Raises OSError for a port that is taken, or a file that cannot be written."""
        if self._loop_metrics is None or self.port is None:
            return self
        tools = addresses.find_tools()
        ports = addresses.choose_ports(self.port)
        stack = DemoStack(ports, tools)
        try:
            self._held.enter_context(stack)
        except StackError as exc:
            self._report(f"running only the simulated cluster: {exc}")
            return self
        try:
            self._held.enter_context(LoopMetricsServer(ports.autoscaler, self._loop_metrics.render))
            if self._addresses_file is not None:
                addresses.write_addresses(self._addresses_file, stack.addresses)
        except BaseException:
            self._held.close()
            raise
        self._stack, self.port = stack, ports.cluster
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def sample(self, cluster: EmbeddedCluster, now: float) -> None:
        """Take the figures of the embedded cluster's autoscaler."""
        if self._loop_metrics is not None and self._stack is not None:
            self._loop_metrics.sample(cluster, now)

    @property
    def status(self) -> StackStatus | None:
        """How the machine's processes stand; None: there are none."""
        return None if self._stack is None else self._stack.status

    def build_document(self) -> dict[str, Any] | None:
        """The last of it, for programs."""
        return None if self._stack is None else build_document(self._stack.status, self._stack.addresses)

    def render_summary(self) -> str | None:
        """The last of it, for people."""
        return None if self._stack is None else render_summary(self._stack.status)


def build_document(stack: StackStatus, where: Addresses) -> dict[str, Any]:
    """As JSON takes it; what cannot be fields is null."""
    return {
        "addresses": asdict(where),
        "tenants": [_describe_tenant(tenant, find_reading(stack, tenant)) for tenant in stack.tenants],
        "cards": [asdict(card) for card in stack.node.cards] if stack.node is not None else None,
        "processes": [asdict(part) for part in stack.processes],
        "alerts": None if stack.alerts is None else [asdict(alert) for alert in stack.alerts],
        "remarks": list(stack.remarks),
        "events": list(stack.events),
    }


def find_reading(stack: StackStatus, tenant: TenantStatus) -> ContainerReading | None:
    """What the exporter tells of this tenant: a run's pod is its name."""
    found = stack.node.containers if stack.node is not None else ()
    return next((reading for reading in found if reading.pod == tenant.name), None)


def _describe_tenant(tenant: TenantStatus, reading: ContainerReading | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": tenant.name,
        "does": tenant.description,
        "enforced": tenant.enforced,
        "promised_bytes": tenant.promised_bytes,
        "promised_core_ratio": tenant.promised_core_ratio,
        "state": tenant.process.state,
        "restarts": tenant.process.restarts,
        "remark": tenant.process.remark,
    }
    names = ("promise", "index", "used_bytes", "used_core_ratio", "denied", "over_limit_seconds")
    fields |= {name: None if reading is None else getattr(reading, name) for name in names}
    used = None if reading is None else reading.used_bytes
    return {**fields, "over_bytes": None if used is None else max(0, used - tenant.promised_bytes)}


def render_summary(stack: StackStatus) -> str:
    """Two lines for people."""
    found = [(tenant, find_reading(stack, tenant)) for tenant in stack.tenants]
    refused = sum(reading.denied or 0 for _, reading in found if reading is not None)
    over = [p.name for p, reading in found if reading is not None and (reading.used_bytes or 0) > p.promised_bytes]
    firing = sorted(
        {f"{reading.name} {reading.subject}".strip() for reading in stack.alerts or () if reading.state == FIRING}
    )
    fields = (
        f"this machine: {refused:,} allocations beyond a promise refused; over promise: {', '.join(over) or 'none'}"
    )
    return fields if stack.alerts is None else f"{fields}; firing alerts: {', '.join(firing) or 'none'}"
