# SPDX-License-Identifier: Apache-2.0
"""
The agent's own book: which device IDs it gave to which container of which pod.

Pure. The kubelet may give the same IDs to two pods, and forgets what a force-deleted pod still uses; this
book does neither. Two pods may stand with one ID: the later one waits until the earlier one is released. A
text that is not exactly a book of this format is refused: whoever misreads it gives memory away twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import CDI_KIND, DEVICE_SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from isolation.node.world import Bound, Wanted

FORMAT: Final = 1
MOST_CHARS: Final = 1 << 24
MOST_ID: Final = 63
"""k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto: longest device ID."""
FORMER: Final = "~"
"""No container's name holds it: behind it the number of what that container had before."""
_HASH_CHARS: Final = 32


class BookError(ValueError):
    """Text that is no book of this format; the message says in which way."""


@dataclass(frozen=True, slots=True)
class Entry:
    """IDs that one container was given."""

    ids: frozenset[str]
    uid: str = ""
    """Of the pod; empty: whose they are is not known."""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    init: bool = False
    guessed: bool = False
    """Nobody confirmed the owner yet."""
    made: int = 0
    """Order of allocation."""

    @property
    def key(self) -> tuple[str, str]:
        """One entry for each container; those of nobody stand by their number."""
        return (self.uid, self.container) if self.uid else ("", str(self.made))

    @property
    def whose(self) -> str:
        """The owner, for people."""
        return f"{self.namespace}/{self.pod}" if self.uid else "an unknown pod"


def hash_of(ids: Iterable[str]) -> str:
    """Name of the folder and CDI device of a set of IDs."""
    return sha256("\n".join(sorted(ids)).encode()).hexdigest()[:_HASH_CHARS]


def device_of(ids: Iterable[str]) -> str:
    """The CDI device that Allocate answers."""
    return f"{CDI_KIND}={hash_of(ids)}"


def id_of(card: str, number: int) -> str:
    """The device ID of one unit of a card."""
    return f"{card}{DEVICE_SEPARATOR}{number}"


def card_of(ident: str) -> str:
    """UUID of the card of which a device ID is a unit."""
    return ident.rpartition(DEVICE_SEPARATOR)[0]


def number_of(ident: str) -> int:
    """Which unit of its card it is; -1: none of ours."""
    tail = ident.rpartition(DEVICE_SEPARATOR)[2]
    return int(tail) if tail.isascii() and tail.isdecimal() else -1


def are_ours(ids: Iterable[str]) -> bool:
    """Whether these are device IDs that we may have given: none is empty, or another plugin's."""
    every = tuple(ids)
    return bool(every) and all(map(_is_id, every))


class Book:
    """See the module."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: dict[tuple[str, str], Entry] = {entry.key: entry for entry in entries}
        self._next = 1 + max((entry.made for entry in self._entries.values()), default=0)

    def __iter__(self) -> Iterator[Entry]:
        """In order of allocation."""
        return iter(sorted(self._entries.values(), key=lambda entry: entry.made))

    def __len__(self) -> int:
        return len(self._entries)

    def next(self) -> int:
        """The number of the next allocation."""
        self._next += 1
        return self._next - 1

    def claim(self, entry: Entry) -> None:
        """
        These IDs are that container's from here on.

        What the container had before and this entry does not name stays in the book: the pod may use it still,
        or, where that was a guess, another one does. Who claims nothing, or what is no device of ours, is refused:
        no book on the disk could say so. BookError.
        """
        if not are_ours(entry.ids):
            raise BookError("allocation has no valid device IDs")
        before = self._entries.get(entry.key)
        if before is not None and before.uid and before.ids != entry.ids:
            former = f"{before.container}{FORMER}{before.made}"
            rest = Entry(before.ids, made=before.made) if before.guessed else replace(before, container=former)
            self._entries[rest.key] = rest
        self._entries.pop(("", str(entry.made)), None)
        self._entries[entry.key] = entry

    def release(self, entry: Entry) -> None:
        """These IDs are free."""
        self._entries.pop(entry.key, None)

    def get(self, uid: str, container: str) -> Entry | None:
        """What a container was given."""
        return self._entries.get((uid, container))

    def of(self, uid: str) -> tuple[Entry, ...]:
        """What a pod was given, in order of allocation."""
        return tuple(entry for entry in self if entry.uid == uid)

    def exactly(self, ids: frozenset[str]) -> tuple[Entry, ...]:
        """Entries of exactly these IDs, in order of allocation."""
        return tuple(entry for entry in self if entry.ids == ids)

    def lacking(self, pod: Bound) -> list[Wanted]:
        """Containers of a pod that were given nothing yet, in the kubelet's order."""
        return [one for one in pod.wanted if (pod.uid, one.name) not in self._entries]

    def unknown(self, ids: frozenset[str]) -> list[Entry]:
        """
        Entries of nobody that belong to the pod that has these IDs, in order.

        The kubelet hands an init container's IDs on within its pod and nowhere else, so whoever shares an ID
        with it, or with one that does, is of the same pod.
        """
        known = set(ids)
        found: list[Entry] = []
        rest = [entry for entry in self if not entry.uid]
        while more := [entry for entry in rest if entry not in found and not known.isdisjoint(entry.ids)]:
            found += more
            known |= {ident for entry in more for ident in entry.ids}
        return sorted(found, key=lambda entry: entry.made)

    def touching(self, ids: frozenset[str]) -> tuple[Entry, ...]:
        """Entries that share an ID with these."""
        return tuple(entry for entry in self if not entry.ids.isdisjoint(ids))

    def held(self) -> set[str]:
        """Every ID that somebody has."""
        return {ident for entry in self._entries.values() for ident in entry.ids}

    def hashes(self) -> set[str]:
        """Folders that somebody may use."""
        return {hash_of(entry.ids) for entry in self._entries.values()}


def entry_record(entry: Entry) -> dict[str, Any]:
    """An entry as JSON."""
    return {
        "ids": sorted(entry.ids),
        "pod": [entry.namespace, entry.pod, entry.uid, entry.container],
        "init": entry.init,
        "guessed": entry.guessed,
        "made": entry.made,
    }


def dump(book: Book, beside: Mapping[str, Any] | None = None) -> str:
    """The book as it lies on the disk; `beside` it may lie what `load` does not read."""
    record = {"format": FORMAT, "entries": [entry_record(entry) for entry in book], **(beside or {})}
    return json.dumps(record, separators=(",", ":")) + "\n"


def load(text: str) -> Book:
    """The book that `dump` wrote."""
    if len(text) > MOST_CHARS:
        raise BookError("file is too large")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise BookError("invalid JSON: truncated or overwritten") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise BookError(f"not an allocation store of format {FORMAT}")
    entries = record.get("entries")
    if not isinstance(entries, list):
        raise BookError("field entries is missing or not a list")
    read = [entry_of(entry) for entry in entries]
    if len({entry.key for entry in read}) != len(read):
        raise BookError("two entries for one container")
    return Book(read)


def entry_from(text: str) -> Entry:
    """The entry whose `entry_record` this is; BookError."""
    if len(text) > MOST_CHARS:
        raise BookError("entry is too large")
    try:
        return entry_of(json.loads(text))
    except (ValueError, RecursionError):
        raise BookError("invalid JSON, or not an entry") from None


def entry_of(record: object) -> Entry:
    """An entry from JSON; BookError."""
    if not isinstance(record, dict):
        raise BookError("entry is not a JSON object")
    ids, words, made = record.get("ids"), record.get("pod"), record.get("made")
    if not isinstance(ids, list) or not ids or not all(_is_id(one) for one in ids):
        raise BookError("entry has no valid device IDs")
    if not isinstance(words, list) or [type(word) for word in words] != [str] * 4 or bool(words[2]) != bool(words[3]):
        raise BookError("entry has no valid pod")
    if not isinstance(made, int) or isinstance(made, bool) or made < 0:
        raise BookError("entry has no valid number")
    flags = record.get("init"), record.get("guessed")
    if not all(isinstance(flag, bool) for flag in flags):
        raise BookError("entry has no valid flags init and guessed")
    namespace, pod, uid, container = words
    return Entry(frozenset(ids), uid, namespace, pod, container, bool(flags[0]), bool(flags[1]), made)


def _is_id(thing: object) -> bool:
    return isinstance(thing, str) and 0 < len(thing) <= MOST_ID and bool(card_of(thing)) and number_of(thing) >= 0
