# SPDX-License-Identifier: Apache-2.0
"""
Who we are to one API server, and by which certificates we know it.

Values, whoever read them. Decides how certificates that stand in a kubeconfig reach OpenSSL: as files that
are gone again at once. Knows nothing of where credentials come from.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from isolation.kube.core.errors import CredentialsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Material = Path | bytes | None
"""A certificate, an authority or a key: a file, what would stand in it, or nothing."""
_SPACE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Identity:
    """One account at one API server."""

    host: str
    authorization: Callable[[], Awaitable[str]]
    """The header's text as it is now; empty: certificates, or nobody."""
    authority: Material = None
    certificate: Material = None
    key: Material = None
    verify: bool = True
    server_name: str = ""
    proxy: str | None = None

    async def headers(self) -> dict[str, str]:
        """What every request says of us; CredentialsError for a token that no header can carry."""
        headers = {"Accept": "application/json"}
        said = (await self.authorization()).strip(_SPACE)
        if said:
            if not said.isascii() or not said.isprintable():
                raise CredentialsError("token has characters that are invalid in HTTP headers: use one ASCII line")
            headers["Authorization"] = said
        return headers

    def tls(self) -> ssl.SSLContext:
        """By what we recognise the server and show ourselves; OSError or ValueError for certificates that are none."""
        with tempfile.TemporaryDirectory(prefix="gpushare-") if self._in_memory() else _Nowhere() as folder:
            made = ssl.create_default_context(cafile=_file(self.authority, folder, "authority"))
            certificate = _file(self.certificate, folder, "certificate")
            if certificate:
                made.load_cert_chain(certificate, keyfile=_file(self.key, folder, "key"))
        if not self.verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        return made

    def _in_memory(self) -> bool:
        return any(isinstance(one, bytes) for one in (self.authority, self.certificate, self.key))


class _Nowhere:
    """Instead of a folder, where nothing is written."""

    def __enter__(self) -> str:
        return ""

    def __exit__(self, *_: object) -> None:
        """Nothing was made."""


def _file(material: Material, folder: str, name: str) -> str | None:
    """Its path; what stands in memory is written into the folder, which is ours alone (0700)."""
    if material is None or isinstance(material, Path):
        return None if material is None else str(material)
    made = Path(folder) / name
    made.write_bytes(material)
    return str(made)


def says(text: str) -> Callable[[], Awaitable[str]]:
    """An `authorization` that never changes."""

    async def same() -> str:
        return text

    return same
