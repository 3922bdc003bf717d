# SPDX-License-Identifier: Apache-2.0
"""
Which screen the interactive view shows, and where each key leads.

Pure: (state, key, rows) -> state. Knows no figure: rows are their keys, in the order in which they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from dashboards.terminal.interactive import keys

if TYPE_CHECKING:
    from collections.abc import Sequence

LISTS: Final = ("node", "card", "pod", "namespace")
TABS: Final = MappingProxyType({"n": "node", "c": "card", "p": "pod", "m": "namespace"})
SORTS: Final = ("name", "allocated", "used", "free", "stranded", "utilisation")
_LONGEST_FILTER: Final = 60
_DEEPEST: Final = 16
WITHIN: Final = "\n"
"""In a row's key, before what only tells it from others of the same thing."""


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """One screen: a list, or one card or pod."""

    kind: str = "card"
    """node, card, pod, namespace: a list; `one card`, `one pod`: all about it."""
    of: str = ""
    """A card's UUID or a pod's `namespace/name`; of a list the node or namespace to which it is limited."""
    chosen: str = ""
    """Key of the row with the cursor; empty: the first."""
    top: int = 0
    """Rows above the first one shown."""
    filter: str = ""
    """Only rows that have this in them."""


@dataclass(frozen=True, slots=True)
class Navigation:
    """Everything that keys change."""

    places: tuple[NavigationEntry, ...] = (NavigationEntry(),)
    """The last one is shown; Esc leads back."""
    sort: str = "name"
    reverse: bool = False
    typing: bool = False
    """Keys are the text of the place's filter."""
    help: bool = False
    paused: bool = False
    done: bool = False

    @property
    def place(self) -> NavigationEntry:
        """What is shown."""
        return self.places[-1]


def press_key(state: Navigation, key: str, rows: Sequence[str], page: int) -> Navigation:
    """The state after a key; `rows` are keys of the rows of this place, `page` how many are shown at once."""
    if key == keys.INTERRUPT:
        return replace(state, done=True)
    if state.typing:
        return _typed(state, key)
    if state.help:
        return replace(state, help=False, done=key == "q")
    if key in _MOVES:
        return _moved(state, key, rows, page)
    if key in (keys.ENTER, keys.RIGHT):
        return _opened(state, rows)
    return _commanded(state, key)


def _typed(state: Navigation, key: str) -> Navigation:
    if key == keys.ENTER:
        return replace(state, typing=False)
    if key == keys.ESCAPE:
        return _there(replace(state, typing=False), filter="", chosen="", top=0)
    text = state.place.filter
    text = text[:-1] if key == keys.BACKSPACE else text + key if len(key) == 1 else text
    return _there(state, filter=text[:_LONGEST_FILTER], chosen="", top=0)


def _commanded(state: Navigation, key: str) -> Navigation:
    if key in TABS or key in (keys.TAB, keys.BACK_TAB):
        at = LISTS.index(state.places[0].kind)
        step = 1 if key == keys.TAB else -1
        kind = TABS.get(key) or LISTS[(at + step) % len(LISTS)]
        return replace(state, places=(NavigationEntry(kind, filter=state.place.filter),))
    if key in (keys.ESCAPE, keys.LEFT, keys.BACKSPACE):
        if len(state.places) > 1:
            return replace(state, places=state.places[:-1])
        return _there(state, filter="", top=0)
    if key == "s":
        return replace(state, sort=SORTS[(SORTS.index(state.sort) + 1) % len(SORTS)], reverse=False)
    toggled = {"q": "done", "?": "help", "h": "help", "/": "typing", "r": "reverse", " ": "paused"}.get(key, "")
    return replace(state, **{toggled: not getattr(state, toggled)}) if toggled else state  # type: ignore[arg-type]


_MOVES: Final = MappingProxyType(
    {keys.UP: -1, "k": -1, keys.DOWN: 1, "j": 1}
    | dict.fromkeys((keys.PAGE_UP, keys.PAGE_DOWN, keys.HOME, keys.END, "g", "G"), 0)
)


def at(place: NavigationEntry, rows: Sequence[str]) -> int:
    """Where the cursor is; the first row where its own has gone."""
    try:
        return rows.index(place.chosen)
    except ValueError:
        return 0


def shown_from(place: NavigationEntry, rows: Sequence[str], page: int) -> int:
    """The first row to show: as far as possible where it was, with the cursor on the screen."""
    cursor, most = at(place, rows), max(0, len(rows) - page)
    return max(0, min(max(min(place.top, cursor), cursor - page + 1), most))


def _moved(state: Navigation, key: str, rows: Sequence[str], page: int) -> Navigation:
    if not rows:
        return state
    now = at(state.place, rows)
    match key:
        case keys.PAGE_UP:
            then = now - page
        case keys.PAGE_DOWN:
            then = now + page
        case keys.HOME | "g":
            then = 0
        case keys.END | "G":
            then = len(rows) - 1
        case _:
            then = now + _MOVES[key]
    moved = _there(state, chosen=rows[max(0, min(then, len(rows) - 1))])
    return _there(moved, top=shown_from(moved.place, rows, page))


def _opened(state: Navigation, rows: Sequence[str]) -> Navigation:
    place = state.place
    if not rows:
        return state
    chosen = rows[at(place, rows)]
    of = chosen.partition(WITHIN)[0]
    kind = {"node": "card", "namespace": "pod", "card": "one card", "pod": "one pod"}.get(place.kind)
    if kind is None:  # within one card stand pods, within one pod its cards
        kind = "one pod" if place.kind == "one card" else "one card"
    here = replace(place, chosen=chosen)
    return replace(state, places=(*state.places[:-1], here, NavigationEntry(kind, of))[-_DEEPEST:])


def _there(state: Navigation, **changes: object) -> Navigation:
    return replace(state, places=(*state.places[:-1], replace(state.place, **changes)))  # type: ignore[arg-type]
