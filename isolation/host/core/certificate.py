# SPDX-License-Identifier: Apache-2.0
"""
From when, and until when, a certificate is valid, read from its bytes.

Pure, and no judge of signatures: the API server judges those when it calls a webhook. Bytes that are no
certificate are None.

Source: RFC 5280 section 4.1 (TBSCertificate), ITU-T X.690 (DER lengths).
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from typing import Final

_MAX_BYTES: Final = 1 << 20
_MAX_CERTIFICATES: Final = 64
_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_UTC, _GENERAL, _VERSION = 0x17, 0x18, 0xA0
_PIVOT: Final = 50  # RFC 5280: two-digit years below this are 20xx


def ends(pem: bytes) -> list[float | None]:
    """Seconds since the epoch at which each certificate of a file ends."""
    blocks = _BLOCK.findall(pem[:_MAX_BYTES])[:_MAX_CERTIFICATES]
    return [_end(block) for block in blocks]


def first_end(pem: bytes) -> float | None:
    """When the first certificate of a file, or one of its chain, ends; None: unknown."""
    found = ends(pem)
    known = [end for end in found if end is not None]
    return min(known) if known and len(known) == len(found) else None


def begins(pem: bytes) -> float | None:
    """Seconds since the epoch from which the first certificate of a file is valid; None: unknown."""
    block = _BLOCK.search(pem[:_MAX_BYTES])
    span = _span(block[1]) if block else None
    return span and span[0]


def _end(block: bytes) -> float | None:
    span = _span(block)
    return span and span[1]


def _span(block: bytes) -> tuple[float, float] | None:
    try:
        der = base64.b64decode(b"".join(block.split()), validate=True)
        _, outer, _ = _part(der, 0)
        _, body, _ = _part(outer, 0)
        at = 0
        kind, _, after = _part(body, at)
        at = after if kind == _VERSION else at
        for _ in range(3):  # serial number, signature algorithm, issuer
            _, _, at = _part(body, at)
        _, validity, _ = _part(body, at)
        kind, text, at = _part(validity, 0)
        begin = _seconds(kind, text.decode("ascii"))
        kind, text, _ = _part(validity, at)
        return begin, _seconds(kind, text.decode("ascii"))
    except (ValueError, IndexError, binascii.Error):
        return None


def _part(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag, content and the place behind it."""
    kind, size, at = data[at], data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        if not 0 < count <= 4:  # noqa: PLR2004 (4 GiB)
            raise ValueError("invalid DER length")
        size = int.from_bytes(data[at : at + count], "big")
        at += count
    if at + size > len(data):
        raise ValueError("truncated DER")
    return kind, data[at : at + size], at + size


def _seconds(kind: int, text: str) -> float:
    if kind == _UTC:
        century = "20" if int(text[:2]) < _PIVOT else "19"
        text = century + text
    elif kind != _GENERAL:
        raise ValueError("not a DER time")
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()
