"""
`gpushare top` on a terminal: keys and readings into frames, until somebody quits.

Joins the reader, the state and the terminal; decides only when a frame is drawn, and where somebody begins.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dashboards.browse.history import History
from dashboards.browse.reader import Reader
from dashboards.browse.state import SORTS, Place, State, pressed
from dashboards.browse.terminal import Terminal
from dashboards.browse.view import Scene, Status, draw
from dashboards.terminal.where import NoSuchError

if TYPE_CHECKING:
    from dashboards.browse.model import Model
    from dashboards.terminal.paint import Paper
    from dashboards.terminal.where import Where

_TICK_SECONDS: Final = 1.0
_MANY_CARDS: Final = 64
"""More than this are listed by node first."""


def browse(where: Where, paper: Paper, begin: tuple[str, str, str], node: str, seconds: float) -> None:
    """
    Until q or Ctrl-C.

    `begin`: list, the node or namespace to which it is limited, order; without a list: cards, or nodes where there are
    many. Raises CannotReadError where not even the first reading succeeds, NoSuchError for a node that is not there.
    """
    by, of, sort = begin
    state = State((Place(by or "card", of),), sort if sort in SORTS else "name")
    history, seen = History(), None
    with Terminal() as terminal:
        namespace = of if by == "pod" else ""
        reader = Reader(where, (namespace, node), seconds, terminal.wake)
        reader.start()
        while not state.done:
            if reader.broken is not None:
                raise reader.broken
            model = reader.model
            if model is None and reader.trouble is not None:
                raise reader.trouble
            if model is not None and model is not seen:
                if seen is None:
                    state = _begun(state, model, by, node)
                seen = model
                history.add(model.reading.usage)
            reader.paused = state.paused
            trouble = reader.trouble.message if reader.trouble else ""
            clock = time.strftime("%H:%M:%S", time.localtime(model.reading.usage.read_at if model else None))
            status = Status(where.shown, clock, trouble, reader.reading)
            drawn = draw(Scene(model, state, history, status, paper), terminal.size())
            terminal.show(drawn.lines)
            for key in terminal.keys(_TICK_SECONDS):
                state = pressed(state, key, drawn.rows, drawn.page)
                drawn = draw(Scene(model, state, history, status, paper), terminal.size())
            reader.want_processes(_node_of(model, state))


def _begun(state: State, model: Model, by: str, node: str) -> State:
    """Where the first reading leads."""
    if node and all(one.name != node for one in model.reading.fleet.nodes):
        raise NoSuchError(f"node {node} is unknown or has no cards")
    if not by and len(model.cards) > _MANY_CARDS:
        return replace(state, places=(Place("node"),))
    return state


def _node_of(model: Model | None, state: State) -> str:
    """Whose processes are to be seen."""
    if model is None:
        return ""
    if state.place.kind == "one card":
        card = model.card(state.place.of)
        return card.node.name if card else ""
    pod = model.pod(state.place.of) if state.place.kind == "one pod" else None
    return pod.pod.node if pod else ""
