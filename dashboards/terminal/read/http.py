# SPDX-License-Identifier: Apache-2.0
"""
One HTTP question to an exporter or a Prometheus that was named: bounded in size and in time.

Follows no redirect, uses no proxy, sends no credentials but those in the URL itself: whoever answers is not
trusted with more than the question. Decides nothing about the answer.
"""

from __future__ import annotations

import base64
import gzip
import io
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from isolation.contract.exposition import MAX_BYTES
from isolation.contract.text import printable
from isolation.kube.network_errors import network_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from http.client import HTTPResponse

_CHUNK: Final = 1 << 16
_LONGEST_WHY: Final = 200


class FetchError(Exception):
    """No whole answer; the message is for people."""


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """A redirect is an answer like any other that is not 200."""


_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay())


def checked(url: str) -> str:
    """The URL without a slash at its end; ValueError where it is none."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("use http://HOST:PORT or https://HOST:PORT, optionally with a path")
    if not 0 < (parts.port or 1) < 1 << 16:  # raises ValueError itself where it is no number
        raise ValueError("the port is invalid")
    return url.rstrip("/")


def fetch(url: str, query: Mapping[str, str] | None = None, seconds: float = 10.0) -> bytes:
    """The body of a 200 answer; FetchError."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    headers = {"Accept": "*/*", "Accept-Encoding": "gzip", "User-Agent": "gpushare"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    plain = urlunsplit((parts.scheme, host, quote(parts.path, safe="/%"), urlencode(query or {}), ""))
    ends = time.monotonic() + seconds
    shown = printable(urlunsplit((parts.scheme, host, parts.path, "", "")))
    try:
        request = urllib.request.Request(plain, headers=headers)  # noqa: S310 (`checked` allows http and https only)
        with _OPENER.open(request, timeout=seconds) as answer:
            body = _bounded(answer, ends)
            packed = answer.headers.get("Content-Encoding") == "gzip"
        return _unpacked(body) if packed else body
    except urllib.error.HTTPError as exc:
        raise FetchError(f"{shown} answers {exc.code} {_short(exc.reason)}") from None
    except urllib.error.URLError as exc:
        raise FetchError(f"cannot connect to {shown}: {_short(network_error(exc))}") from None
    except (OSError, EOFError, ValueError, HTTPException) as exc:
        why = str(exc) if isinstance(exc, ValueError) else network_error(exc)
        raise FetchError(f"incomplete answer from {shown}: {_short(why)}") from None


def _bounded(answer: HTTPResponse, ends: float) -> bytes:
    body = io.BytesIO()
    while chunk := answer.read1(_CHUNK):
        body.write(chunk)
        if body.tell() > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > ends:
            raise TimeoutError("timed out")
    return body.getvalue()


def _unpacked(body: bytes) -> bytes:
    """What was packed, if it is no larger than it may be."""
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
        plain = packed.read(MAX_BYTES + 1)
    if len(plain) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
    return plain


def _short(reason: object) -> str:
    return printable(str(reason))[:_LONGEST_WHY]
