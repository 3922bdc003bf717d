# SPDX-License-Identifier: Apache-2.0
"""
Which pods the kubelet let through, or can start no more, because it has no devices for them, or others than we know.

A kubelet that has never heard of our resource runs whoever asks for it, with no card and no limit; one that
lost its checkpoint starts nothing again that crashes; and a container whose devices stand under another name in
our book never passes PreStart. None of it heals. Decides that from the kubelet's own list,
seen twice some seconds apart, for it may be reading its checkpoint; what it does not answer counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.node.book import are_ours
from isolation.node.world import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.node.ledger import Ledger
    from isolation.node.world import Bound, Wanted

SURE_SECONDS: Final = 10.0
"""Between the first look and the one that counts."""
LOOK_SECONDS: Final = 3.0
"""Between two looks at one pod: many may be crash-looping."""
ANSWER_SECONDS: Final = 1.0
_OTHERS: Final = "container {} cannot start: the kubelet reports other devices for it than the node agent recorded"
_TEXT: Final = "container {} has started, but the kubelet has no devices for it: it has no limits and cannot restart"


class Bare:
    """See the module."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._world = ledger, ledger.world
        self._since: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._shown: dict[str, Mapping[str, frozenset[str]]] = {}
        """What the kubelet said at the look that counted."""

    async def why(self, pod: Bound, now: float) -> str:
        """Why it must be made anew; empty: nothing is known that speaks for it."""
        suspects = self.suspects(pod)
        if not suspects and not self._idle(pod):
            self._since.pop(pod.uid, None)
            return ""
        if now < self._looked.get(pod.uid, -LOOK_SECONDS) + LOOK_SECONDS:
            return ""
        self._looked[pod.uid] = now
        try:
            listing = await self._world.resources.get(pod.namespace, pod.name, ANSWER_SECONDS)
        except UnreachableError:
            return ""
        bare = [] if listing is None else [one for one in suspects if not listing.get(one.name)]
        others = [] if listing is None else self._others(pod, listing)
        if listing is None or not (bare or others):
            self._since.pop(pod.uid, None)
            return ""
        since = self._since.setdefault(pod.uid, now)
        if now - since < SURE_SECONDS:
            return ""
        self._shown[pod.uid] = listing
        return _TEXT.format(bare[0].name) if bare else _OTHERS.format(others[0].name)

    def still(self, pod: Bound) -> bool:
        """Whether what was wrong is wrong by the pod's status and the book of this moment."""
        return bool(self.suspects(pod) or self._others(pod, self._shown.get(pod.uid, {})))

    def _idle(self, pod: Bound) -> list[Wanted]:
        """Containers that the kubelet lists, and that do not run though they should."""
        return [one for one in pod.wanted if not (one.init or one.over or one.id)]

    def _others(self, pod: Bound, listing: Mapping[str, frozenset[str]]) -> list[Wanted]:
        """Of these such as have other devices by the kubelet's list than by our book."""
        have = {entry.container: entry.ids for entry in self._ledger.book.of(pod.uid)}
        shown = [(one, listing.get(one.name, frozenset())) for one in self._idle(pod)]
        return [one for one, ids in shown if are_ours(ids) and ids != have.get(one.name)]

    def suspects(self, pod: Bound) -> list[Wanted]:
        """
        Containers of an admitted pod that may have nothing.

        Such as run without an entry in our book, and such as do not run though they should. Plain init containers
        the kubelet never lists; one that runs without an entry has passed no PreStart.
        """
        if not pod.started:
            return []
        missing = {one.name for one in self._ledger.book.lacking(pod)}
        found = [one for one in pod.wanted if not (one.init or one.over) and (one.name in missing or not one.id)]
        return found + [one for one in pod.wanted if one.init and one.id and one.name in missing]

    def only(self, uids: set[str]) -> None:
        """Nobody else is here any more."""
        self._since = {uid: when for uid, when in self._since.items() if uid in uids}
        self._looked = {uid: when for uid, when in self._looked.items() if uid in uids}
        self._shown = {uid: said for uid, said in self._shown.items() if uid in uids}
