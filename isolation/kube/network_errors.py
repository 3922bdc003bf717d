# SPDX-License-Identifier: Apache-2.0
"""
What went wrong on the way to a server, in words that say what to do; errors of sockets, TLS and HTTP clients.

Pure, and knows no client: errors are recognized by their standard library type, which clients keep inside of theirs.
"""

from __future__ import annotations

import errno
import socket
import ssl
from types import MappingProxyType
from typing import Final

_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"})
_NUMBERS: Final = MappingProxyType(
    {
        errno.ECONNREFUSED: "connection refused: nothing listens there; check host and port",
        errno.EHOSTUNREACH: "no route to the host: check the address and the network",
        errno.ENETUNREACH: "no route to the network: check the address and the network",
        errno.ETIMEDOUT: "the host does not answer: check the address, and firewalls between",
        errno.ECONNRESET: "the server ends the connection without an answer: if it serves TLS, use https://",
        errno.EPIPE: "the server ends the connection without an answer: if it serves TLS, use https://",
    }
)
_ENDED: Final = frozenset({"ServerDisconnectedError", "RemoteDisconnected", "IncompleteRead", "ClientPayloadError"})
_NO_HTTP: Final = frozenset({"BadStatusLine", "BadHttpMessage", "ClientResponseError", "ClientConnectionResetError"})
_NO_URL: Final = frozenset({"InvalidURL", "InvalidUrlClientError", "NonHttpUrlClientError"})
_EXPIRED, _NAME_DIFFERS, _ADDRESS_DIFFERS = 10, 62, 64
"""X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH of openssl/x509_vfy.h."""


def network_error(exc: BaseException) -> str:
    """One sentence; what is not known here keeps its own words."""
    for one in _chain(exc):
        if words := _words(one):
            return words
    return f"{type(exc).__name__}: {exc}"


def _chain(exc: BaseException) -> list[BaseException]:
    """The error and those within it, the innermost first."""
    found, left = list[BaseException](), [exc]
    while left and len(found) < 16:  # noqa: PLR2004 (errors may hold each other)
        one = left.pop()
        if one in found:
            continue
        found.append(one)
        inner = [getattr(one, name, None) for name in ("os_error", "certificate_error", "reason", "__cause__")]
        left += [each for each in inner if isinstance(each, BaseException)]
    return found[::-1]


def _words(exc: BaseException) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return _certificate(exc)
    if isinstance(exc, ssl.SSLError):
        if exc.reason in _NO_TLS:
            return "the server does not speak TLS on this port: use http://, or another port"
        return f"TLS fails ({exc.reason or 'no reason given'}): check the certificates on both sides"
    if isinstance(exc, socket.gaierror):
        return "the host name cannot be resolved: check its spelling and DNS"
    if isinstance(exc, TimeoutError):
        return "timed out: check the address, and firewalls between"
    if isinstance(exc, OSError) and (known := _NUMBERS.get(exc.errno or 0)):
        return known
    names = {each.__name__ for each in type(exc).__mro__}
    if names & _ENDED:
        return _NUMBERS[errno.ECONNRESET]
    if names & _NO_HTTP:
        return "the answer is not HTTP: check the port; if the server speaks TLS, use https://"
    return "the address is not a URL of http or https: correct it" if names & _NO_URL else ""


def _certificate(exc: ssl.SSLCertVerificationError) -> str:
    why = exc.verify_message.rstrip(".")
    if exc.verify_code == _EXPIRED:
        return f"the server's certificate is expired ({why}): renew it, and check this machine's clock"
    if exc.verify_code in (_NAME_DIFFERS, _ADDRESS_DIFFERS):
        return f"the server's certificate is for another name ({why}): use a name that it has"
    return (
        f"the server's certificate is not trusted ({why}): use the CA that signed it, and check that this is the server"
    )


def certificate_error(exc: Exception) -> str:
    """What is wrong with certificates of our own."""
    reason = exc.reason if isinstance(exc, ssl.SSLError) else None
    known = {
        "NO_CERTIFICATE_OR_CRL_FOUND": "certificate-authority contains no certificate",
        "KEY_VALUES_MISMATCH": "the client key does not belong to the client certificate",
    }
    if reason in known:
        return known[reason]
    if isinstance(exc, ssl.SSLError):
        return "the client certificate or its key is not valid PEM"
    return str(exc)
