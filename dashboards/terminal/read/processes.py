# SPDX-License-Identifier: Apache-2.0
"""
Processes on a node's cards as its exporter tells of them (`/processes`), as values.

Pure. Every field is another process' word, partly a tenant's: bounded and checked, a record that is none is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

_MAX_PROCESSES: Final = 4096
_MAX_TEXT: Final = 400


@dataclass(frozen=True, slots=True)
class ProcessOnCard:
    """One process on one card."""

    uuid: str
    pid: int
    name: str
    bytes: int | None
    compute: float | None
    namespace: str
    pod: str
    container: str
    attributed: str
    """claim, between, nobody or unknown."""

    @property
    def pod_key(self) -> str:
        """`namespace/name`; a command of `gpushare run` has no namespace."""
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod


@dataclass(frozen=True, slots=True)
class Processes:
    """Those of one node."""

    node: str
    all: tuple[ProcessOnCard, ...] = ()
    why: str = ""
    """Why they are not known; empty: they are."""


class _Record(msgspec.Struct):
    uuid: str
    pid: int
    name: str | None = None
    memory_bytes: int | None = None
    compute_ratio: float | None = None
    namespace: str = ""
    pod: str = ""
    container: str = ""
    attributed: str = ""


class _Document(msgspec.Struct):
    version: int
    processes: list[msgspec.Raw] | None


_DOCUMENT: Final = msgspec.json.Decoder(_Document)
_RECORD: Final = msgspec.json.Decoder(_Record)
_BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def parse_processes(body: bytes, node: str) -> Processes:
    """Out of one exporter's answer."""
    try:
        document = _DOCUMENT.decode(body)
    except _BROKEN:
        return Processes(node, why="its exporter is older than this program, and tells no processes")
    if document.version != 1 or document.processes is None:
        return Processes(node, why="its exporter cannot tell now")
    found = (_process(raw) for raw in document.processes[:_MAX_PROCESSES])
    return Processes(node, tuple(one for one in found if one is not None))


def _process(raw: msgspec.Raw) -> ProcessOnCard | None:
    try:
        one = _RECORD.decode(raw)
    except _BROKEN:
        return None
    name = one.name or "(ended)"
    if any(len(word) > _MAX_TEXT for word in (one.uuid, name, one.namespace, one.pod, one.container, one.attributed)):
        return None
    return ProcessOnCard(
        one.uuid,
        one.pid,
        name,
        one.memory_bytes,
        one.compute_ratio,
        one.namespace,
        one.pod,
        one.container,
        one.attributed,
    )
