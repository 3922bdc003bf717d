# SPDX-License-Identifier: Apache-2.0
"""
Breaches as exporters tell of them (`/breaches`), as values.

Pure. What an exporter says is another process' word, partly a tenant's: every field is bounded and checked,
a record that is none is left out. Figures alone (used over promised) make a record where no exporter keeps any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from dashboards.terminal.read.aggregation import over_promise
from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dashboards.terminal.read.usage import Usage

_MAX_RECORDS: Final = 4096
_MAX_TEXT: Final = 400
MEASURED: Final = "over_limit"


class BreachError(ValueError):
    """A document that tells of no breaches."""


@dataclass(frozen=True, slots=True)
class BreachRow:
    """One breach."""

    node: str
    kind: str
    namespace: str
    pod: str
    container: str
    process: str
    card: int
    uuid: str
    begun: float | None
    """Seconds since the epoch; None: nobody noted when."""
    last: float | None
    open: bool
    source: str
    """Whose word it is: nvml, accounting, library, limits."""
    text: str
    used: int | None = None
    promised: int | None = None
    times: int = 1
    promise: str = ""

    @property
    def who(self) -> str:
        """`namespace/pod`, a command of `gpushare run`, or a process of the host."""
        if self.namespace:
            return f"{self.namespace}/{self.pod}"
        return self.pod or (f"process {self.process}" if self.process else "?")


class _Record(msgspec.Struct):
    kind: str
    uuid: str
    card: int
    started: float
    last_seen: float
    open: bool
    namespace: str = ""
    pod: str = ""
    container: str = ""
    promise: str = ""
    source: str = ""
    message: str = ""
    process: str = ""
    used_bytes: int | None = None
    allocated_bytes: int | None = None
    count: int = 1


class _Document(msgspec.Struct):
    version: int
    breaches: list[msgspec.Raw]


_DOCUMENT: Final = msgspec.json.Decoder(_Document)
_RECORD: Final = msgspec.json.Decoder(_Record)
_BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def parse_breaches(body: bytes, node: str) -> tuple[BreachRow, ...]:
    """The records of one node's exporter."""
    try:
        document = _DOCUMENT.decode(body)
    except _BROKEN:
        raise BreachError("the answer is not a list of breaches") from None
    if document.version != 1:
        raise BreachError(f"the list of breaches has version {document.version}; only version 1 is supported")
    found = (_breached(raw, node) for raw in document.breaches[:_MAX_RECORDS])
    return tuple(one for one in found if one is not None)


def _breached(raw: msgspec.Raw, node: str) -> BreachRow | None:
    try:
        one = _RECORD.decode(raw)
    except _BROKEN:
        return None
    words = (
        one.kind,
        one.namespace,
        one.pod,
        one.container,
        one.process,
        one.uuid,
        one.source,
        one.message,
        one.promise,
    )
    if any(len(word) > _MAX_TEXT for word in words):
        return None
    return BreachRow(
        node=node,
        kind=one.kind,
        namespace=one.namespace,
        pod=one.pod,
        container=one.container,
        process=one.process,
        card=one.card,
        uuid=one.uuid,
        begun=one.started,
        last=one.last_seen,
        open=one.open,
        source=one.source,
        text=one.message,
        used=one.used_bytes,
        promised=one.allocated_bytes,
        times=one.count,
        promise=one.promise,
    )


def measured(usage: Usage, known: Iterable[BreachRow]) -> tuple[BreachRow, ...]:
    """Containers over their promise now by the figures, that no record mentions."""
    recorded = {(one.node, one.uuid, one.namespace, one.pod, one.container) for one in known if one.kind == MEASURED}
    found = []
    for one in usage.tenants:
        over, used, promised = over_promise(one), one.bytes("used"), one.bytes("allocated")
        if not over or (one.node, one.uuid, one.namespace, one.pod, one.container) in recorded:
            continue
        text = f"uses {show_bytes(used or 0)} of the card, its promise is {show_bytes(promised or 0)}"
        found.append(
            BreachRow(
                node=one.node,
                kind=MEASURED,
                namespace=one.namespace,
                pod=one.pod,
                container=one.container,
                process="",
                card=one.index,
                uuid=one.uuid,
                begun=None,
                last=usage.read_at,
                open=True,
                source="metrics",
                text=text,
                used=used,
                promised=promised,
                promise=one.promise,
            )
        )
    return tuple(found)
