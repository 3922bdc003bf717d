# SPDX-License-Identifier: Apache-2.0
"""
Why the API server did not do what was asked, as exceptions.

    ClusterError
      UnreachableError   no connection, or no whole answer in time: whether a write happened is unknown
        CredentialsError no credentials that could be used: nothing was asked
      MalformedError     an answer that is no Kubernetes, or larger than any real one
      RefusedError       the server said no, with a status; of which
        UnauthorizedError 401, ForbiddenError 403, NotFoundError 404, ConflictError 409, InvalidError 422,
        TooManyRequestsError 429
        GoneError        410: the version asked for is forgotten; list again
        ServerError      500 and above: the server's own trouble

Decides how an answer is read as one of these; what to do about it is the caller's business.
"""

from __future__ import annotations

from typing import Final, Self

import msgspec

from isolation.contract.text import printable

_LONGEST_MESSAGE: Final = 500
_LONGEST_RETRY: Final = 300.0  # seconds: a server that asks for more is not believed
_SERVER_ERROR: Final = 500


class ClusterError(Exception):
    """Anything that can go wrong between us and the API server."""


class UnreachableError(ClusterError):
    """No whole answer in time; a write may or may not have happened."""


class CredentialsError(UnreachableError):
    """There are no credentials, or none that can be read."""


class MalformedError(ClusterError):
    """An answer that cannot be an API server's."""


class RefusedError(ClusterError):
    """
    The server said no; nothing happened. `RefusedError(404, ...)` is a NotFoundError, and so on.

    As OSError(ENOENT) is a FileNotFoundError: whoever raises has a status, whoever catches wants a name.
    """

    def __new__(cls, status: int, *_: object, **__: object) -> Self:
        """The class of the status; a subclass stays what it is."""
        known: type = _BY_STATUS.get(status, ServerError if status >= _SERVER_ERROR else RefusedError)
        return super().__new__(known if cls is RefusedError else cls)

    def __init__(self, status: int, reason: str = "", message: str = "", retry_after: float | None = None) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        """Seconds to wait as the server asks; None where it does not ask."""
        super().__init__(f"{status} {reason}: {message}")


class UnauthorizedError(RefusedError):
    """The credentials are invalid or expired."""


class ForbiddenError(RefusedError):
    """The account lacks the right (RBAC, or an admission plug-in)."""


class NotFoundError(RefusedError):
    """There is no such object, or the cluster does not know the kind."""


class ConflictError(RefusedError):
    """It exists already, has changed since it was read, or is another object of that name."""


class GoneError(RefusedError):
    """The resource version has expired."""


class InvalidError(RefusedError):
    """The object breaks the rules of its kind."""


class TooManyRequestsError(RefusedError):
    """Not now: the server's load, or a disruption budget."""


class ServerError(RefusedError):
    """The server has trouble of its own, or a webhook of its has."""


_BY_STATUS: Final = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}
"""Kubernetes, "API conventions", HTTP status codes."""


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
    return RefusedError(code, _clean(said.reason), _clean(said.message), _seconds(retry_after, inside))


def _seconds(header: str | None, inside: float | None) -> float | None:
    if header is not None and header.isascii() and header.isdigit():
        return min(_LONGEST_RETRY, float(header[:9]))
    return None if inside is None else min(_LONGEST_RETRY, max(0.0, inside))


def _clean(text: str) -> str:
    return printable(text, _LONGEST_MESSAGE, " ")
