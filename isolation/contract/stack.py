# SPDX-License-Identifier: Apache-2.0
"""
What `gpushare up` shows of the real processes on this machine: tenants, services, alerts.

The seam between who runs and watches them (autoscaler) and who draws them (dashboards). Cards and
memory are a `NodeReading` as the real exporter tells it. `None` means cannot tell, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from isolation.contract.reading import NodeReading

STARTING: Final = "starting"
UP: Final = "up"
DOWN: Final = "down"
"""Ended, and will be started again or not: the remark says which."""

FIRING: Final = "firing"
PENDING: Final = "pending"


@dataclass(frozen=True, slots=True)
class StackProcess:
    """One process that belongs to the stack."""

    name: str
    state: str
    url: str = ""
    """Where to look at it; empty: nowhere."""
    remark: str = ""
    """What went wrong last, or why it is not here."""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """One tenant as it was sent on: what was promised, and how it behaves."""

    name: str
    description: str
    """In a few words, for people."""
    promised_bytes: int
    promised_core_ratio: float | None
    enforced: bool
    """Whether it runs under the isolation library."""
    process: StackProcess


@dataclass(frozen=True, slots=True)
class StackAlert:
    """One alert as Prometheus or Alertmanager tells it."""

    name: str
    severity: str
    state: str
    subject: str
    """Pod, card or whatever else its labels speak of."""
    summary: str
    since: str
    """RFC 3339."""
    node: str = ""


@dataclass(frozen=True, slots=True)
class StackStatus:
    """Everything of this machine at one moment."""

    tenants: tuple[TenantStatus, ...]
    processes: tuple[StackProcess, ...]
    node: NodeReading | None
    """As the exporter tells it; None: it does not answer."""
    alerts: tuple[StackAlert, ...] | None
    """Pending and firing ones; None: nobody here watches, or it does not answer."""
    remarks: tuple[str, ...] = ()
    """What a person should know, such as which program could be installed."""
    events: tuple[str, ...] = ()
    """What was done with processes, oldest first: the latest of them."""
