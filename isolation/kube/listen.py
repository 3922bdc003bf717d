# SPDX-License-Identifier: Apache-2.0
"""
Where a process of ours listens, as its command line says it.

Decides what text is an address and nothing else; whether a place may be listened on is each process's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import click

_HIGHEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address | None:
    """`host:port`, `[v6]:port` or `none`; ValueError for anything else."""
    if text == "none":
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 <= int(port[:6]) <= _HIGHEST_PORT:
        raise ValueError(f"{text!r} is not an address: use 0.0.0.0:9448, [::1]:9448 or none")
    return Address(host, int(port))


class Listen(click.ParamType[Address | None]):
    """Type of an option: host:port, or none."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address | None:
        """As text or as made already."""
        if value is None or isinstance(value, Address):
            return value
        try:
            return address(str(value))
        except ValueError as exc:
            self.fail(str(exc), param, ctx)
