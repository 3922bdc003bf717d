# SPDX-License-Identifier: Apache-2.0
"""
Taking a port, and how to say that it cannot be had.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

BACKLOG: Final = 512
"""A burst of connections that the kernel keeps: beyond it clients try again after seconds only."""


class ListenError(OSError):
    """The address cannot be served on; the message says what to change."""


def url(listener: socket.socket, *, secure: bool) -> str:
    """Where the metrics of this listener are."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any that is free. Raises PortError."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(found[0], found[1], found[2])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if found[0] == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host in {"::", ""} else 1)
            listener.bind(found[4])
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OverflowError as exc:
        raise ListenError(f"port {port} is out of range: use 0 (any free port) to 65535") from exc
    except OSError as exc:
        raise ListenError(_advice(host, port, exc)) from exc
    return listener


def _advice(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another port, or 0 for any free port"
    if error.errno == errno.EACCES:
        return f"port {port} requires privileges: choose a port above 1023, or 0 for any free port"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: use 0.0.0.0 for all addresses"
    return f"cannot listen on {host}:{port}: {error.strerror}; choose another port, or 0 for any free port"
