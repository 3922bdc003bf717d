# SPDX-License-Identifier: Apache-2.0
"""
Why the API server did not do what was asked, as exceptions.

    ClusterError
      UnreachableError   no connection, or no whole answer in time: whether a write happened is unknown
        CredentialsError no credentials that could be used: nothing was asked
      MalformedError     an answer that is no Kubernetes, or larger than any honest one
      RefusedError       the server said no, with a status
        GoneError        410: the version asked for is forgotten; list anew

Decides how an answer is read as one of these; what to do about it is the caller's business.
"""

from __future__ import annotations

from typing import Final

import msgspec

_LONGEST_MESSAGE: Final = 500
_LONGEST_RETRY: Final = 300.0  # seconds: a server that asks for more is not believed
GONE: Final = 410


class ClusterError(Exception):
    """Anything that can go wrong between us and the API server."""


class UnreachableError(ClusterError):
    """No whole answer in time; a write may or may not have happened."""


class CredentialsError(UnreachableError):
    """There are no credentials, or none that can be read."""


class MalformedError(ClusterError):
    """An answer that cannot be an API server's."""


class RefusedError(ClusterError):
    """The server said no; nothing happened."""

    def __init__(self, status: int, reason: str = "", message: str = "", retry_after: float | None = None) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        """Seconds to wait as the server asks; None where it does not ask."""
        super().__init__(f"{status} {reason}: {message}")


class GoneError(RefusedError):
    """The resource version is forgotten."""


class _Details(msgspec.Struct):
    retryAfterSeconds: float | None = None  # noqa: N815 (Kubernetes' spelling)


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_STATUS: Final = msgspec.json.Decoder(_Status)


def refusal(status: int, body: bytes | msgspec.Raw, retry_after: str | None = None) -> RefusedError:
    """The error of an answer that is not 2xx, or of an ERROR event (its status is then inside)."""
    try:
        said = _STATUS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = _Status(message=bytes(body)[:_LONGEST_MESSAGE].decode(errors="replace"))
    code = status or said.code
    inside = said.details.retryAfterSeconds if said.details else None
    kind = GoneError if code == GONE else RefusedError
    return kind(code, _clean(said.reason), _clean(said.message), _seconds(retry_after, inside))


def _seconds(header: str | None, inside: float | None) -> float | None:
    if header is not None and header.isascii() and header.isdigit():
        return min(_LONGEST_RETRY, float(header[:9]))
    return None if inside is None else min(_LONGEST_RETRY, max(0.0, inside))


def _clean(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:_LONGEST_MESSAGE])
