# SPDX-License-Identifier: Apache-2.0
"""Following one kind of object: what any server does to the list and the watch, and hostile bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import PATIENCE_SECONDS, soon

from isolation.kube import listwatch as following
from isolation.kube.access import _split
from isolation.kube.core.backoff import Pace
from isolation.kube.core.errors import ClusterError, GoneError, MalformedError, RefusedError, UnreachableError, refusal
from isolation.kube.core.wire import MAX_EVENT_BYTES, event_of, identity_of, page_of
from isolation.kube.listwatch import Reflector, Selection, WatchOptions

FAST = WatchOptions(page=2, pace=Pace(first=0.001, longest=0.002))


def thing(name, version="1"):
    """An object with nothing but an identity."""
    return {"metadata": {"name": name, "resourceVersion": version}}


def page(names, version="5", more=""):
    """One page of a list."""
    meta = {"resourceVersion": version} | ({"continue": more} if more else {})
    return json.dumps({"metadata": meta, "items": [thing(name) for name in names]}).encode()


def event(kind, name, version):
    """One line of a watch."""
    return json.dumps({"type": kind, "object": thing(name, version)}).encode()


GONE = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}).encode()


class Script:
    """A source that answers as written down, then hangs; an exception in place of an answer is raised."""

    def __init__(self, pages, watches):
        self.pages, self.watches = list(pages), list(watches)
        self.asked = []
        self.done = asyncio.Event()

    async def page(self, _, query):
        """The next page."""
        self.asked.append(dict(query))
        return await self._next(self.pages)

    async def lines(self, _, query, _idle):
        """The next watch."""
        self.asked.append(dict(query))
        for line in await self._next(self.watches):
            if isinstance(line, Exception):
                raise line
            yield line

    async def _next(self, answers):
        if not answers:
            self.done.set()
            await asyncio.Event().wait()
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Names:
    """A sink that knows names."""

    def __init__(self):
        self.names, self.calls = set(), []

    def put(self, raw):
        """It is there."""
        name = identity_of(raw).name
        if not name:
            raise MalformedError("no name")
        self.names.add(name)
        self.calls.append(("put", name))
        return name

    def drop(self, raw):
        """It is gone."""
        self.names.discard(identity_of(raw).name)
        self.calls.append(("drop", identity_of(raw).name))

    def only(self, keys):
        """The rest is gone."""
        self.names &= keys


def follow(pages, watches, habits=FAST):
    """Run a follower through a script."""

    async def story():
        source, sink = Script(pages, watches), Names()
        follower = Reflector(source, Selection("/things"), sink, habits, draw=lambda: 0.0)
        running = asyncio.create_task(follower.run())
        await asyncio.wait_for(source.done.wait(), PATIENCE_SECONDS)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return source, sink, follower

    return asyncio.run(story())


def test_pages_are_joined_and_the_watch_begins_at_their_version():
    """
    With bookmarks asked for, so that silence means something.
    """
    source, sink, follower = follow([page("ab", more="x"), page("c")], [])

    assert {"a", "b", "c"} == sink.names
    assert [{"limit": "2"}, {"limit": "2", "continue": "x"}] == source.asked[:2]
    assert ("5", "true") == (source.asked[2]["resourceVersion"], source.asked[2]["allowWatchBookmarks"])
    assert follower.synced.is_set()


def test_a_watch_resumes_where_it_was_cut_and_doubles_are_reported_once():
    """
    After the last event or bookmark, whichever is later; what was told is not told again.
    """
    first = [event("ADDED", "b", "6"), event("BOOKMARK", "", "9"), UnreachableError("cut")]
    second = [event("ADDED", "b", "6"), event("DELETED", "a", "10"), event("DELETED", "a", "10")]
    source, sink, follower = follow([page("a")], [first, second])

    assert ["5", "9", "10"] == [query["resourceVersion"] for query in source.asked[1:]]
    assert [("put", "a"), ("put", "b"), ("drop", "a")] == sink.calls
    assert (1, 3) == (follower.count.lists, follower.count.watches)


@pytest.mark.parametrize("gone", [[GONE], [GoneError(410)], GoneError(410)])
def test_a_forgotten_version_leads_to_a_new_list_that_drops_what_is_gone(gone):
    """
    Told as an event, in mid-stream or as the answer itself.
    """
    _, sink, follower = follow([page("ab"), page("b", "20")], [gone])

    assert ({"b"}, 2) == (sink.names, follower.count.lists)


def test_a_version_forgotten_while_the_server_was_away_is_listed_again_at_once(monkeypatch):
    """
    The server answers again: what it did not answer before does not make anybody wait for half a minute.
    """
    counted = []
    monkeypatch.setattr(following, "delay", lambda failures, *_: counted.append(failures) or 0.0)
    watches = [*[UnreachableError("down")] * 7, GoneError(410)]
    _, sink, _ = follow([page("a"), page("ab", "20")], watches)

    assert ({"a", "b"}, [1, 2, 3, 4, 5, 6, 7, 1]) == (sink.names, counted)


def test_a_list_that_outlives_its_version_twice_is_asked_for_in_one_piece():
    """
    Pages that expire faster than they are read would never end.
    """
    pages = [page("a", more="x"), GoneError(410), page("a", more="x"), GoneError(410), page("ab")]
    source, sink, _ = follow(pages, [])

    assert {"a", "b"} == sink.names
    assert {} == {key: value for key, value in source.asked[4].items() if key == "limit"}


def test_until_a_list_is_whole_nothing_is_forgotten():
    """
    Its first page counts at once; what it may yet name stays.
    """
    _, sink, _ = follow([page("ab"), page("c", more="x"), UnreachableError("down")], [[GONE]])

    assert {"a", "b", "c"} == sink.names


def test_an_object_without_identity_breaks_alone():
    """
    It is counted and said; the others are seen.
    """
    broken = json.dumps({"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {}}, 7, thing("a")]}).encode()
    _, sink, follower = follow([broken], [])

    assert ({"a"}, 2) == (sink.names, follower.count.broken)


def test_versions_that_are_no_numbers_are_taken_as_they_come():
    """
    Only numbers can be compared; nothing is lost over it.
    """
    _, sink, _ = follow([page("a", "opaque")], [[event("ADDED", "b", "other"), event("DELETED", "a", "more")]])

    assert {"b"} == sink.names


def test_a_server_that_refuses_is_asked_when_it_says():
    """
    Retry-After outlasts our own wait.
    """

    async def story():
        source = Script([RefusedError(429, retry_after=0.3)] * 5, [])
        began = time.monotonic()
        running = asyncio.create_task(Reflector(source, Selection("/things"), Names(), FAST).run())
        await soon(lambda: len(source.asked) == 2)
        running.cancel()
        return time.monotonic() - began

    assert asyncio.run(story()) >= 0.3


def test_a_watch_that_ends_at_once_again_and_again_is_no_storm():
    """
    Each end without a second of life counts as a failure.
    """

    async def story():
        source = Script([page("a")], [[]] * 1000)
        habits = WatchOptions(pace=Pace(first=0.05, longest=0.1))
        began = time.monotonic()
        running = asyncio.create_task(Reflector(source, Selection("/things"), Names(), habits).run())
        await soon(lambda: len(source.asked) > 6)  # a list, six watches, five pauses between them
        running.cancel()
        return time.monotonic() - began

    assert asyncio.run(story()) >= 0.025 + 4 * 0.05


@given(st.binary(max_size=200))
def test_whatever_bytes_come_one_kind_of_error_goes_out(text):
    """
    Lists, events, refusals: read, or ClusterError.
    """
    for reader in (page_of, event_of):
        with contextlib.suppress(ClusterError):
            reader(text)
    assert 500 == refusal(500, text).status


@given(st.lists(st.text(min_size=1, max_size=20).filter(lambda s: "\n" not in s and s.strip()), max_size=20), st.data())
def test_lines_are_found_however_the_network_cuts_them(lines, data):
    """
    Chunks end anywhere, in the middle of a letter too.
    """
    stream = "".join(line + "\n" for line in lines).encode()
    rest, found = bytearray(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += _split(rest, stream[:size])
        stream = stream[size:]

    assert lines == [line.decode() for line in found]


def test_a_line_without_end_is_cut_off():
    """
    No honest event is so large.
    """
    with pytest.raises(MalformedError):
        _split(bytearray(MAX_EVENT_BYTES), b"x")


@pytest.mark.parametrize(
    ("header", "inside", "expected"), [("7", None, 7.0), (None, 3, 3.0), ("99999", None, 300.0), ("soon", None, None)]
)
def test_what_the_server_asks_us_to_wait_is_bounded(header, inside, expected):
    """
    By header or by status; nonsense is no wish.
    """
    body = json.dumps({"code": 429, "details": {"retryAfterSeconds": inside}}).encode()

    assert expected == refusal(429, body, header).retry_after


class Quiet(Script):
    """A server that agrees to each watch and then says nothing, for as long as its reader has patience."""

    async def lines(self, _, query, idle):
        """Agreed, and then silence."""
        self.asked.append(dict(query))
        if len(self.asked) > 5:
            self.done.set()
        yield b""
        await asyncio.sleep(idle)
        raise UnreachableError("silent")


def test_a_watch_of_which_nothing_comes_is_no_failure():
    """
    A store that no version moves on sends no bookmarks either: the watch is started again at once, time and again.
    """

    async def story():
        source = Quiet([page(["a"])], [])
        habits = WatchOptions(page=2, pace=Pace(first=60.0, longest=60.0), idle_seconds=0.01)
        follower = Reflector(source, Selection("/things"), Names(), habits, draw=lambda: 1.0)
        running = asyncio.create_task(follower.run())
        await asyncio.wait_for(source.done.wait(), PATIENCE_SECONDS)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return follower.count

    count = asyncio.run(story())
    assert (1, 0) == (count.lists, count.failures)
