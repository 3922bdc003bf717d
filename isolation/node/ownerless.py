# SPDX-License-Identifier: Apache-2.0
"""
Pods that may wait for ever because nobody can tell that the devices with which they start are theirs.

The kubelet never lists what it gave to init containers. Where the book was led astray in a moment of doubt, by a
pod that was gone before anybody saw it, a pod may stand with devices that it never had, and those that it has
are nobody's: PreStart refuses them each time. Decides which pods may be such a one. Those are not that run, that
the kubelet has not admitted, or of which our book is sure and that had no leave to start yet: they may be
fetching their image. Does not decide how long is long enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.node.book import are_ours, hash_of
from isolation.node.world import UnreachableError

if TYPE_CHECKING:
    from isolation.node.ledger import Ledger
    from isolation.node.world import Bound, Wanted

LATELY_SECONDS: Final = 30.0
"""The kubelet asks again in some 12 seconds; who has not asked for so long asks no more."""
STARTING_SECONDS: Final = 5.0
"""From our leave to start until the API server must say that it runs."""
ANSWER_SECONDS: Final = 1.0
_TEXT: Final = "the pod has waited too long: the kubelet starts a container with devices that match no known pod"


class Ownerless:
    """See the module."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._world = ledger, ledger.world

    async def why(self, pod: Bound) -> str:
        """Why it must be made anew; empty: nothing is known that speaks for it."""
        if not self.may_be(pod):
            return ""
        try:
            listing = await self._world.resources.get(pod.namespace, pod.name, ANSWER_SECONDS)
        except UnreachableError:
            return ""
        return _TEXT if listing is not None else ""

    def may_be(self, pod: Bound) -> bool:
        """Whether devices that PreStart was asked for lately, and that are nobody's, may be this pod's."""
        now = self._world.clock.now()
        if pod.started or now - self._ledger.started.get(pod.uid, now - STARTING_SECONDS) < STARTING_SECONDS:
            return False
        sizes = {len(ids) for ids, asked in self._ledger.ownerless.items() if self._open(ids, now - asked)}
        return any(one.init and one.units in sizes and self._unsure(pod, one) for one in pod.wanted)

    def only_lately(self, now: float) -> None:
        """Nobody asks for the others any more."""
        for ids, asked in tuple(self._ledger.ownerless.items()):
            if not self._open(ids, now - asked):
                del self._ledger.ownerless[ids]

    def _open(self, ids: frozenset[str], ago: float) -> bool:
        """Whether somebody waits for devices that are ours to give, and nobody's by the book."""
        owned = any(entry.uid for entry in self._ledger.book.exactly(ids))
        return ago <= LATELY_SECONDS and are_ours(ids) and not owned

    def _unsure(self, pod: Bound, one: Wanted) -> bool:
        """Whether it has nothing by the book, or a guess, or what it was let start with and does not run with."""
        entry = self._ledger.book.get(pod.uid, one.name)
        return entry is None or entry.guessed or self._ledger.shown.get(hash_of(entry.ids)) == one.name
