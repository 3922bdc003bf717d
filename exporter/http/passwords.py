# SPDX-License-Identifier: Apache-2.0
"""
PasswordChecker: each is checked once, beside the server, and what came out is remembered.

A check takes as long as the hash's cost wants (a tenth of a second), so that it runs in a thread of its own,
one at a time for each client: who guesses waits, the others do not notice. Results are kept under a keyed
digest that dies with the process, right and wrong ones apart, so that guesses push out no scraper's.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import bcrypt

from exporter.http.router import plain

if TYPE_CHECKING:
    from aiohttp import web

MAX_KNOWN: Final = 256
"""Results that are kept, of right and of wrong ones."""
MAX_WAITING: Final = 16
"""Clients whose password waits to be checked; more get 429."""
LONGEST: Final = 72
"""bcrypt looks at no more bytes; longer passwords are refused rather than cut."""
_NOBODY: Final = b"$2b$10$h5c6e/b7nOQwIp9dmmPLKugPbfKYvaOifA01O9DJqii91jbSEbVe2"
"""Checked for names that do not exist, so that time does not tell them."""
_ASK: Final = ("WWW-Authenticate", 'Basic realm="gpushare"')


def refusal() -> web.Response:
    """Once more, with a password."""
    return plain(HTTPStatus.UNAUTHORIZED, "user name and password are required", _ASK)


class PasswordChecker:
    """See the module. For one event loop."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._busy: set[str] = set()
        self._checker = ThreadPoolExecutor(1, "passwords")

    async def check(self, address: str, name: str, secret: bytes, wanted: bytes | None) -> web.Response | None:
        """A refusal, or None to let them in; `wanted`: the hash of that name, None where there is none."""
        # the hash is part of it: once the file has another one, or none, what was right is forgotten
        digest = hmac.digest(self._key, b"\0".join((name.encode(), wanted or b"", secret)), "sha256")
        if digest in self._right:
            self._right.move_to_end(digest)
            return None
        if digest in self._wrong:
            return refusal()
        if address in self._busy or len(self._busy) >= MAX_WAITING:
            return plain(
                HTTPStatus.TOO_MANY_REQUESTS, "too many password checks at the same time", ("Retry-After", "1")
            )
        self._busy.add(address)
        try:
            right = await asyncio.get_running_loop().run_in_executor(self._checker, _fits, secret, wanted)
        finally:
            self._busy.discard(address)
        known = self._right if right else self._wrong
        known[digest] = None
        if len(known) > MAX_KNOWN:
            known.popitem(last=False)
        return None if right else refusal()


def _fits(secret: bytes, wanted: bytes | None) -> bool:
    try:
        return bcrypt.checkpw(secret, wanted or _NOBODY) and wanted is not None
    except ValueError:  # a hash that bcrypt does not take
        return False
