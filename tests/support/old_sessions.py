# SPDX-License-Identifier: Apache-2.0
"""Whether a TLS server lets a caller go on with an old session, as a client with a ticket tries."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def resumed(port: int, context: ssl.SSLContext) -> bool:
    """Whether a second connection goes on with the session of the first."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n")
        tls.recv(100)
        session = tls.session
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as tls,
    ):
        return bool(tls.session_reused)
