# SPDX-License-Identifier: Apache-2.0
"""
Whether devices that the book gives to a pod that is gone are those of the pod that came under its name.

The kubelet knows pods by name. It may have admitted the newcomer while the watch still told of the one before, or
it may be starting the one before while the API server already has the newcomer: at one moment the two look the
same. Decides by waiting: a kubelet that has not admitted the newcomer will ask for its devices, and then the book
knows of them. Does not decide whether the newcomer may start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from isolation.node.book import Entry
    from isolation.node.ledger import Ledger
    from isolation.node.world import Bound

ANSWER_SECONDS: Final = 1.0
ADMISSION_SECONDS: Final = 3.0
"""
From the moment that the newcomer is seen bound until a kubelet that has no devices for it has asked for some.

It hears of both pods on one watch, and admits within a second of it unless this node stands still.
"""
MOST: Final = 256
"""Newcomers that are remembered: a node runs no more pods."""


class Namesakes:
    """See the module."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._world = ledger, ledger.world
        self._seen: dict[str, float] = {}
        """When each newcomer was first thought of, by UID."""

    async def heir(self, entry: Entry, uid: str) -> tuple[Bound, float] | None:
        """
        The newcomer of this UID, and for how many seconds more the kubelet may say that it gets devices of its own.

        None: it is not on this node, has ended, or has other devices. UnreachableError.
        """
        pod = next((one for one in await self._world.pods.fetch(ANSWER_SECONDS) if one.uid == uid), None)
        if pod is None or pod.ended or pod.container(entry.container) is None:
            return None
        has = self._ledger.book.get(uid, entry.container)
        if has is not None and has.ids != entry.ids:
            return None
        now = self._world.clock.now()
        while len(self._seen) >= MOST:
            self._seen.pop(next(iter(self._seen)))
        return pod, self._seen.setdefault(uid, now) + ADMISSION_SECONDS - now

    def inherit(self, entry: Entry, pod: Bound) -> Entry:
        """
        The devices are the newcomer's from here on, and so is what else of that admission was taken for the other's.

        That is a guess until the kubelet's list says so. What stands in the other's name is given back in the usual
        way: none of it may live.
        """
        book = self._ledger.book
        mine = self._of(entry, pod, guessed=False)
        self._ledger.claim(mine)
        for other in book.of(entry.uid):
            wanted = pod.container(other.container)
            if wanted is not None and wanted.units == len(other.ids) and book.get(pod.uid, other.container) is None:
                self._ledger.claim(self._of(other, pod, guessed=True))
        return mine

    def _of(self, entry: Entry, pod: Bound, *, guessed: bool) -> Entry:
        wanted = pod.container(entry.container)
        init = wanted is not None and wanted.init
        return replace(entry, uid=pod.uid, init=init, guessed=guessed, made=self._ledger.book.next())
