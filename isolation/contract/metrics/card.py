# SPDX-License-Identifier: Apache-2.0
"""
The catalogue's chapter of the card's hardware: health, links, engines, memory errors.

Beside `metrics`, whose list would become too long. What `COLLECTED` names is exposed only where `--collect` asks for
its group: it costs the driver more, or few people need it. docs/metrics.md is printed from here as well.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from isolation.contract.metrics import CARD_LABELS, CONTAINER_LABELS, PREFIX, Group, Kind, MetricSpec, Unit


def _card(name: str, unit: Unit, text: str, *more: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}card_{name}", kind, (*CARD_LABELS, *more), unit, text, Group.CARD)


def _container(name: str, text: str) -> MetricSpec:
    return MetricSpec(f"{PREFIX}container_{name}", Kind.GAUGE, CONTAINER_LABELS, Unit.RATIO, text, Group.CONTAINER)


UNHEALTHY: Final = _card(
    "unhealthy_info",
    Unit.NONE,
    "Why the card is unhealthy; absent for a healthy card; always 1.",
    "reason",
    kind=Kind.INFO,
)
RECOVERY_ACTION: Final = _card(
    "recovery_action",
    Unit.NONE,
    "Recovery action that the driver requests: 0 none, 1 reset, 2 node reboot, 3 drain peer-to-peer traffic, 4 drain "
    "and reset, 5 recover the IMEX domain, 6 bus reset, 7 system reboot.",
)
ROW_REMAP_PENDING: Final = _card(
    "row_remap_pending", Unit.NONE, "Whether remapping of a broken memory row awaits a reset: 1 yes, 0 no."
)
PROCESSES: Final = _card("processes", Unit.NONE, "Number of processes that use the card.")

ENCODER: Final = _card("encoder_utilisation_ratio", Unit.RATIO, "Utilisation of the card's video encoders.")
DECODER: Final = _card("decoder_utilisation_ratio", Unit.RATIO, "Utilisation of the card's video decoders.")
CONTAINER_ENCODER: Final = _container("encoder_utilisation_ratio", "Video encoder capacity used by the container.")
CONTAINER_DECODER: Final = _container("decoder_utilisation_ratio", "Video decoder capacity used by the container.")

PCIE_GENERATION: Final = _card("pcie_generation", Unit.NONE, "Current PCI Express generation of the card's link.")
PCIE_WIDTH: Final = _card("pcie_width", Unit.NONE, "Current number of PCI Express lanes of the card's link.")
PCIE_TRANSMIT: Final = _card(
    "pcie_transmit_bytes_total", Unit.BYTES, "Bytes that the card sent over PCI Express.", kind=Kind.COUNTER
)
PCIE_RECEIVE: Final = _card(
    "pcie_receive_bytes_total", Unit.BYTES, "Bytes that the card received over PCI Express.", kind=Kind.COUNTER
)
PCIE_ERRORS: Final = _card(
    "pcie_errors_total", Unit.NONE, "PCI Express errors of the card, by kind.", "kind", kind=Kind.COUNTER
)

NVLINK_ACTIVE_LINKS: Final = _card("nvlink_active_links", Unit.NONE, "Number of active NVLink links of the card.")
NVLINK_TRANSMIT: Final = _card(
    "nvlink_transmit_bytes_total", Unit.BYTES, "Data bytes that the card sent over NVLink.", kind=Kind.COUNTER
)
NVLINK_RECEIVE: Final = _card(
    "nvlink_receive_bytes_total", Unit.BYTES, "Data bytes that the card received over NVLink.", kind=Kind.COUNTER
)

MEMORY_TEMPERATURE: Final = _card("memory_temperature_celsius", Unit.CELSIUS, "Temperature of the card's memory.")
REMAPPED_ROWS: Final = _card(
    "remapped_rows_total", Unit.NONE, "Memory rows that were remapped, by kind of error.", "kind", kind=Kind.COUNTER
)
ROW_REMAP_FAILED: Final = _card(
    "row_remap_failed", Unit.NONE, "Whether a broken memory row could not be remapped: 1 yes, 0 no."
)
RETIRED_PAGES: Final = _card(
    "retired_pages_total", Unit.NONE, "Memory pages that were retired, by kind of error.", "kind", kind=Kind.COUNTER
)

SM_ACTIVITY: Final = _card(
    "sm_activity_ratio", Unit.RATIO, "Fraction of time in which a warp was active, averaged over all multiprocessors."
)
SM_OCCUPANCY: Final = _card(
    "sm_occupancy_ratio", Unit.RATIO, "Active warps as a fraction of the maximum, averaged over all multiprocessors."
)
TENSOR_ACTIVITY: Final = _card(
    "tensor_activity_ratio", Unit.RATIO, "Fraction of time in which tensor cores were active."
)
MEMORY_BANDWIDTH: Final = _card("memory_bandwidth_ratio", Unit.RATIO, "Fraction of the memory bandwidth in use.")

COLLECTED: Final = MappingProxyType(
    {
        "engines": (ENCODER, DECODER, CONTAINER_ENCODER, CONTAINER_DECODER),
        "pcie": (PCIE_GENERATION, PCIE_WIDTH, PCIE_TRANSMIT, PCIE_RECEIVE, PCIE_ERRORS),
        "nvlink": (NVLINK_ACTIVE_LINKS, NVLINK_TRANSMIT, NVLINK_RECEIVE),
        "memory": (MEMORY_TEMPERATURE, REMAPPED_ROWS, ROW_REMAP_FAILED, RETIRED_PAGES),
        "gpm": (SM_ACTIVITY, SM_OCCUPANCY, TENSOR_ACTIVITY, MEMORY_BANDWIDTH),
    }
)
"""Metrics by the group that `--collect` names."""
CATALOGUE: Final = MappingProxyType(
    {spec.name: spec for spec in list(globals().values()) if isinstance(spec, MetricSpec)}
)
