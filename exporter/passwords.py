"""
Passwords: each is checked once, beside the server, and what came out is remembered.

A check takes as long as the hash's cost wants (a tenth of a second), so that it runs in a thread of its own,
one at a time for each client: who guesses waits, the others do not notice. Results are kept under a keyed
digest that dies with the process, right and wrong ones apart, so that guesses push out no scraper's.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from collections import OrderedDict, deque
from http import HTTPStatus
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final

import bcrypt

from exporter.connection import Later
from exporter.message import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporter.message import Answer

MOST_KNOWN: Final = 256
"""Results that are kept, of right and of wrong ones."""
MOST_WAITING: Final = 16
"""Clients whose password waits to be checked; more are told to come again."""
LONGEST: Final = 72
"""bcrypt looks at no more bytes; longer passwords are refused rather than cut."""
_NOBODY: Final = b"$2b$10$h5c6e/b7nOQwIp9dmmPLKugPbfKYvaOifA01O9DJqii91jbSEbVe2"
"""Checked for names that do not exist, so that time does not tell them."""
_ASK: Final = ("WWW-Authenticate", 'Basic realm="gpushare"')


def refusal() -> Answer:
    """Once more, with a password."""
    return plain(HTTPStatus.UNAUTHORIZED, "user name and password are required", _ASK)


class Passwords:
    """See the module."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: deque[tuple[str, bytes, bytes, bytes | None, Callable[[Answer | None], None]]] = deque()
        self._busy: set[str] = set()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False

    def judge(
        self, address: str, given: tuple[str, bytes, bytes | None], done: Callable[[Answer | None], None]
    ) -> Answer | Later | None:
        """What is known of (name, password, hash or None) at once; else LATER, and `done` is told."""
        name, secret, wanted = given
        with self._changed:
            # the hash is part of it: once the file has another one, or none, what was right is forgotten
            digest = hmac.digest(self._key, b"\0".join((name.encode(), wanted or b"", secret)), "sha256")
            if digest in self._right:
                self._right.move_to_end(digest)
                return None
            if digest in self._wrong:
                return refusal()
            if address in self._busy or len(self._busy) >= MOST_WAITING:
                return plain(
                    HTTPStatus.TOO_MANY_REQUESTS, "too many password checks at the same time", ("Retry-After", "1")
                )
            self._busy.add(address)
            self._waiting.append((address, digest, secret, wanted, done))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="passwords", daemon=True)
                self._thread.start()
            self._changed.notify()
        return Later.LATER

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                address, digest, secret, wanted, done = self._waiting.popleft()
            right = False
            with contextlib.suppress(ValueError):  # a hash that bcrypt does not take
                right = bcrypt.checkpw(secret, wanted or _NOBODY) and wanted is not None
            with self._changed:
                self._busy.discard(address)
                known = self._right if right else self._wrong
                known[digest] = None
                if len(known) > MOST_KNOWN:
                    known.popitem(last=False)
            done(None if right else refusal())
