# SPDX-License-Identifier: Apache-2.0
"""
What enforces promises on a node, as its annotation says it.

    gpushare.dev/isolation: {"version": 1, "backend": "kernel", "memory": "hard", "compute": "exact", "counts": "all",
                             "faults": "own", "text": "..."}

`backend` is empty where nothing that the node's mode promises can be held there; `text` says what is held, or why not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from isolation.contract.backends import BACKENDS
from isolation.contract.codec.cursor import decoded
from isolation.contract.text import printable

if TYPE_CHECKING:
    from isolation.contract.backends import BackendChoice

VERSION: Final = 1
_LONGEST: Final = 500


def encode_isolation(choice: BackendChoice) -> str:
    """The annotation."""
    backend = choice.backend
    record: dict[str, object] = {"version": VERSION, "backend": backend.name if backend else ""}
    if backend is not None:
        held = backend.abilities
        record |= {"memory": held.memory, "compute": held.compute, "counts": held.counts, "faults": held.faults}
    text = backend.sentence if backend else choice.reason
    record["text"] = printable(text, _LONGEST)
    return json.dumps(record)


def decode_isolation(text: str) -> tuple[str, str]:
    """Name of the backend, empty: none, and what it holds or why there is none; CodecError."""
    at = decoded(text)
    if at["version"].integer(0) != VERSION:
        raise at["version"].wrong(f"expected version {VERSION}")
    name = at.text_at("backend")
    if name and name not in BACKENDS:
        raise at["backend"].wrong(f"expected one of {', '.join(BACKENDS)}")
    return name, printable(at.text_at("text"), _LONGEST)
