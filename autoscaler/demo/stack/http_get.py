# SPDX-License-Identifier: Apache-2.0
"""
Asks the stack's own endpoints, each with a deadline and a bound on what is taken.

An answer that does not come, or is not what it should be, is None: cannot tell. What it means is
`told`'s decision.
"""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from typing import Final
from urllib.parse import urlsplit

SECONDS: Final = 2.0
MOST_BYTES: Final = 4 << 20
_OK: Final = 200


def get(url: str, path: str) -> bytes | None:
    """What stands at this path; no proxy is asked, whatever the environment says."""
    at = urlsplit(url)
    connection = HTTPConnection(at.hostname or "", at.port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        page = answer.read(MOST_BYTES + 1)
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return page if answer.status == _OK and len(page) <= MOST_BYTES else None
