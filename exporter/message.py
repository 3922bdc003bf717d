"""
HTTP/1.1 as far as a scrape needs it: bytes to a request, an answer to bytes.

Pure. Only requests without a body are understood; whatever is larger, stranger or ambiguous is refused with
the status that says so, and ends its connection, so that no rest of it is taken for a next request.

Source: RFC 9112 (message syntax), RFC 9110 (fields and status codes).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_HEAD_BYTES: Final = 16 * 1024
"""Request line and fields together."""
_MOST_LINE_BYTES: Final = 4096
_MOST_FIELDS: Final = 64
_ONE_PIECE_BYTES: Final = 32 * 1024
"""A smaller body goes out with its head in one call."""
_TOKEN: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_END: Final = b"\r\n\r\n"
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class BadRequest(Exception):  # noqa: N818 (an answer, not an accident of ours)
    """Bytes that are no request we answer: a status and a reason for people."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody wants."""

    method: str
    path: str
    fields: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By lower-case name; those that came several times are joined by commas."""
    keeps: bool = True
    """The connection stays open afterwards."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What they get."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = TEXT
    fields: tuple[tuple[str, str], ...] = ()


def plain(status: HTTPStatus, reason: str, *fields: tuple[str, str]) -> Answer:
    """An answer of one line."""
    return Answer(status, f"{reason}\n".encode(), TEXT, fields)


def split(raw: bytes | bytearray) -> tuple[Request, int] | None:
    """The first request of these bytes and how many of them it takes; None while it is not whole."""
    begin = 0
    while raw[begin : begin + 2] == b"\r\n":  # empty lines before a request are passed over
        begin += 2
    end = raw.find(_END, begin, begin + MOST_HEAD_BYTES)
    if end < 0:
        line = raw.find(b"\r\n", begin, begin + _MOST_LINE_BYTES)
        if line < 0 and len(raw) - begin > _MOST_LINE_BYTES:
            raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, "the request line is too long")
        if len(raw) - begin >= MOST_HEAD_BYTES:
            raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the header fields are too large")
        return None
    lines = bytes(raw[begin:end]).split(b"\r\n")
    method, path, version = _line(lines[0])
    fields = _fields(lines[1:])
    if version == "HTTP/1.1" and "host" not in fields:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the Host header field is missing")
    if "transfer-encoding" in fields or fields.get("content-length", "0") != "0":
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request bodies are not supported")
    wishes = {wish.strip().lower() for wish in fields.get("connection", "").split(",")}
    keeps = "close" not in wishes and (version == "HTTP/1.1" or "keep-alive" in wishes)
    return Request(method, path, fields, keeps), end + len(_END)


def _line(line: bytes) -> tuple[str, str, str]:
    parts = line.split(b" ")
    if len(line) > _MOST_LINE_BYTES:
        raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, "the request line is too long")
    if len(parts) != 3 or not parts[0] or not _TOKEN.issuperset(parts[0]):  # noqa: PLR2004 (method, target, version)
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the request line is malformed")
    method, target, version = parts
    if version not in {b"HTTP/1.1", b"HTTP/1.0"}:
        major = version.startswith(b"HTTP/") and version[5:6].isdigit()
        status = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED if major else HTTPStatus.BAD_REQUEST
        raise BadRequest(status, "only HTTP/1.0 and HTTP/1.1 are supported")
    if not all(0x21 <= byte <= 0x7E for byte in target):  # noqa: PLR2004 (printable ASCII)
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the request target has characters that must be percent-encoded")
    text = target.decode("ascii")
    if text.lower().startswith(("http://", "https://")):  # the form that proxies are sent
        text = "/" + text.partition("://")[2].partition("/")[2]
    return method.decode("ascii"), unquote(text.partition("?")[0].partition("#")[0]), version.decode("ascii")


def _fields(lines: list[bytes]) -> Mapping[str, str]:
    if len(lines) > _MOST_FIELDS:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many header fields")
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or not _TOKEN.issuperset(name) or b"\0" in value or b"\r" in value or b"\n" in value:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header field is malformed")
        key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
        if key in found and key in {"host", "content-length", "authorization"}:
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"the {key} header field is repeated")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return MappingProxyType(found)


def write(answer: Answer, *, body: bool = True, keeps: bool = True) -> tuple[bytes, ...]:
    """The answer as it is sent, in as many pieces as save copying; without its body for HEAD."""
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        *(f"{name}: {value}" for name, value in answer.fields),
    ]
    if not keeps:
        lines.append("Connection: close")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    if not body or not answer.body:
        return (head,)
    return (head + answer.body,) if len(answer.body) < _ONE_PIECE_BYTES else (head, answer.body)
