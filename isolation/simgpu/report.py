# SPDX-License-Identifier: Apache-2.0
"""
The simulator's books as a document and as lines to read. Pure, apart from asking the box.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from isolation.simgpu.hardware import KINDS, STATES, CardBook, ClientBook
from isolation.simgpu.models import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from isolation.simgpu.hardware import Box

SECOND: Final = 1_000_000_000


def card_uuid(card: CardBook) -> str:
    """The UUID as CUDA and NVML write it."""
    return f"{'MIG' if card.model.parent else 'GPU'}-{UUID(bytes=bytes(card.model.uuid))}"


def _client(book: ClientBook) -> dict[str, Any]:
    return {
        "pid": book.pid,
        "start_time": book.start_time,
        "name": book.name.decode(errors="replace"),
        "cgroup": book.cgroup.decode(errors="replace"),
        "state": STATES[book.state],
        "contexts": book.contexts,
        "bytes": {kind: book.bytes[i] for i, kind in enumerate(KINDS)},
        "total_bytes": book.total_bytes,
        "peak_bytes": book.peak_bytes,
        "managed_bytes": book.managed_bytes,
        "denied": book.denied,
        "gpu_seconds": book.own_ns / SECOND,
        "gpu_ns": book.own_ns,
        "filled_ns": book.space_ns,
        "launches": book.launches,
        "copies": book.copies,
        "slices": book.slices,
        "queued": book.queued,
        "error": book.fault,
    }


def _card(index: int, card: CardBook, clients: list[ClientBook]) -> dict[str, Any]:
    model = card.model
    return {
        "index": index,
        "uuid": card_uuid(card),
        "name": model.name.decode(),
        "profile": model.profile.decode(),
        "parent": model.parent - 1 if model.parent else None,
        "divided": bool(model.mig),
        "sms": model.sms,
        "total_bytes": model.total_bytes,
        "reserved_bytes": model.reserved_bytes,
        "used_bytes": card.used_bytes,
        "unattributed_bytes": card.unowned_bytes,
        "peak_bytes": card.peak_bytes,
        "clock_ns": card.clock_ns,
        "busy_seconds": card.busy_ns / SECOND,
        "busy_ns": card.busy_ns,
        "utilisation_percent": card.utilisation_percent,
        "temperature_celsius": card.temperature_mc / 1000,
        "energy_joules": card.energy_uj / 1e6,
        "lost": bool(card.fault),
        "ecc_corrected": card.ecc_corrected,
        "ecc_uncorrected": card.ecc_uncorrected,
        "xids": card.xids,
        "last_xid": card.last_xid or None,
        "processes": [_client(client) for client in clients],
    }


def build_document(box: Box) -> dict[str, Any]:
    """Everything the box knows."""
    return {
        "path": str(box.path),
        "driver": box.driver,
        "parameters": box.settings(),
        "cards": [_card(i, card, box.clients(i)) for i, card in enumerate(box.cards())],
    }


def render_lines(books: Mapping[str, Any], *, everybody: bool) -> Iterator[str]:
    """One line for each card and each process on it."""
    for card in books["cards"]:
        kind = f" MIG {card['profile']}" if card["parent"] is not None else ""
        state = "lost" if card["lost"] else f"{card['utilisation_percent']} %"
        yield (
            f"card {card['index']}  {card['name']}{kind}  {card['uuid']}  "
            f"{card['used_bytes'] // MIB} of {(card['total_bytes'] - card['reserved_bytes']) // MIB} MiB  {state}"
        )
        for process in card["processes"]:
            if process["state"] == "gone" and not everybody:
                continue
            parts = ", ".join(f"{kind} {size // MIB}" for kind, size in process["bytes"].items() if size)
            denied = f"  denied {process['denied']}" if process["denied"] else ""
            yield (
                f"  {process['pid']:>8} {process['name']:16} {process['state']:8} "
                f"{process['total_bytes'] // MIB:>7} MiB ({parts or 'none'})  "
                f"{process['gpu_seconds']:.3f} s GPU time, {process['launches']} launches{denied}"
            )
