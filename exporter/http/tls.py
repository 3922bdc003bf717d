# SPDX-License-Identifier: Apache-2.0
"""
A TLS context as the web configuration describes it.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from typing import TYPE_CHECKING, Final

from exporter.http.webconfig import WebConfigError

if TYPE_CHECKING:
    from exporter.http.webconfig import Tls

_VERSIONS: Final = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(tls: Tls) -> ssl.SSLContext:
    """A context as the configuration asks for it, its certificates being contents. Raises WebConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    # without tickets no session outlives the authority that let its client in
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        if tls.ciphers:
            context.set_ciphers(":".join(tls.ciphers))
        with contextlib.ExitStack() as open_files:
            certificate, key = (_path(text, open_files) for text in (tls.cert, tls.key))
            context.load_cert_chain(certificate, key, password="")
        if tls.client_ca:
            context.load_verify_locations(cadata=tls.client_ca)
    except (OSError, ValueError) as exc:
        names = ", ".join(tls.files) or "cert, key"
        reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or exc
        raise WebConfigError(f"tls_server_config: cannot load {names}: {reason}") from None
    context.verify_mode = _VERIFY[tls.verify]
    return context


def _path(text: str, open_files: contextlib.ExitStack) -> str:
    """A path for OpenSSL, which reads files only: that of memory which holds the text."""
    fd = os.memfd_create("web-config", os.MFD_CLOEXEC)
    open_files.callback(os.close, fd)
    os.write(fd, text.encode())
    return f"/proc/self/fd/{fd}"
