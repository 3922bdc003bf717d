# SPDX-License-Identifier: Apache-2.0
"""
The latest snapshot as pages: guarded collectors, run once, rendered once for each format.

A collector that fails takes only its own series away and says so in a series of its own; it never
fails the scrape. What the values mean is the catalogue's business (`isolation.contract.metrics`), how they
are written `exporter.http.text_format`'s, who asks `exporter.http`'s.
"""

from __future__ import annotations

import gzip
import logging
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from exporter.http import text_format
from isolation.contract import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from isolation.contract.metrics import Family

_log: Final = logging.getLogger(__name__)
_LEVEL: Final = 1
"""Of gzip: a tenth of the time of the usual level 9 and, for this kind of text, hardly more bytes."""
FORGOTTEN_SECONDS: Final = 60.0
"""After which a form of the page that nobody has asked for is no longer rendered in advance."""

Snapshot = TypeVar("Snapshot")


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """What a scrape gets."""

    body: bytes
    content_type: str
    encoding: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """In which way somebody wants the page."""

    openmetrics: bool = False
    gzip: bool = False


class Silent(Exception):  # noqa: N818 (no error: the answer is that there is no answer)
    """There is nothing to show; the message says why."""


def collect(
    collectors: Mapping[str, Callable[[Snapshot], Iterable[Family]]],
    snapshot: Snapshot,
    *,
    read_at: float,
    clock: Callable[[], float],
    release: str,
) -> tuple[Family, ...]:
    """Every family with samples, then how the collectors fared, when was read, and which release this is."""
    found: list[Family] = []
    success: list[tuple[tuple[str, ...], float]] = []
    duration: list[tuple[tuple[str, ...], float]] = []
    for name, run in collectors.items():
        begun = clock()
        try:
            mine = [family for family in run(snapshot) if family.samples]
        except Exception:  # noqa: BLE001 (any failure must cost this collector's series only)
            _log.warning("collector %s failed: its series are absent", name, exc_info=True)
            worked = 0.0
        else:
            found += mine
            worked = 1.0
        success.append(((name,), worked))
        duration.append(((name,), clock() - begun))
    return (
        *found,
        metrics.family(metrics.COLLECTOR_SUCCESS, success),
        metrics.family(metrics.COLLECTOR_DURATION, duration),
        metrics.family(metrics.SAMPLE_TIMESTAMP, [((), read_at)]),
        metrics.family(metrics.BUILD_INFO, [((release,), 1)]),
    )


class _Latest:
    """One snapshot's families and the pages made of them so far."""

    __slots__ = ("_make", "_renderer", "families", "pages")

    def __init__(self, make: Callable[[], tuple[Family, ...]], renderer: text_format.Renderer) -> None:
        self._make = make
        self._renderer = renderer
        self.families: tuple[Family, ...] | None = None
        self.pages: dict[Form, MetricsPage] = {}

    def collected(self) -> tuple[Family, ...]:
        """Collected when they are first needed; for whoever has the lock."""
        if self.families is None:
            self.families = self._make()
        return self.families

    def page(self, form: Form) -> MetricsPage:
        """Rendered when it is first asked for; for whoever has the lock."""
        known = self.pages.get(form)
        if known is not None:
            return known
        families = self.collected()
        plain = self.pages.get(Form(form.openmetrics))
        if plain is None:
            kind = text_format.OPENMETRICS if form.openmetrics else text_format.PLAIN
            plain = MetricsPage(self._renderer.page(families, openmetrics=form.openmetrics), kind)
            self.pages[Form(form.openmetrics)] = plain
        if not form.gzip:
            return plain
        packed = MetricsPage(gzip.compress(plain.body, _LEVEL, mtime=0), plain.content_type, "gzip")
        self.pages[form] = packed
        return packed


class Exposition(Generic[Snapshot]):
    """
    The latest snapshot, and its pages.

    `publish` alone is cheap, so that a world may publish several times a second to nobody: the page is made
    when it is first asked for. A node's own exporter publishes `ready`: collected at once, and written in every
    form that somebody has asked for lately, so that a scrape finds its page made.
    """

    def __init__(
        self,
        collectors: Mapping[str, Callable[[Snapshot], Iterable[Family]]],
        *,
        clock: Callable[[], float],
        release: str,
    ) -> None:
        self._collectors = collectors
        self._clock = clock
        self._release = release
        self._renderer = text_format.Renderer()
        self._rendering = Lock()
        self._latest: _Latest | None = None
        self._asked: dict[Form, float] = {}

    def publish(self, snapshot: Snapshot, read_at: float, *, ready: bool = False) -> None:
        """Serve this snapshot from now on; `read_at` is when it was read, in seconds since the epoch."""
        latest = _Latest(lambda: self._collect(snapshot, read_at), self._renderer)
        if ready:
            with self._rendering:
                latest.collected()
                since = self._clock() - FORGOTTEN_SECONDS
                for form in [form for form, asked in list(self._asked.items()) if asked >= since]:
                    latest.page(form)
        self._latest = latest

    def made(self, form: Form) -> MetricsPage | None:
        """The page in that form where it is rendered, at once; Silent before the first snapshot."""
        latest = self._latest
        if latest is None:
            raise Silent("no reading yet")
        self._asked[form] = self._clock()
        return latest.pages.get(form)

    @property
    def pages(self) -> dict[Form, MetricsPage]:
        """What is rendered of the latest snapshot."""
        return dict(self._latest.pages) if self._latest is not None else {}

    def page(self, form: Form = Form()) -> MetricsPage:
        """The page in the form that is wanted; Silent before the first snapshot."""
        made = self.made(form)
        if made is not None:
            return made
        latest = self._latest
        assert latest is not None  # noqa: S101 (for types: there was one)
        with self._rendering:
            return latest.page(form)

    def _collect(self, snapshot: Snapshot, read_at: float) -> tuple[Family, ...]:
        return collect(self._collectors, snapshot, read_at=read_at, clock=self._clock, release=self._release)


class Pages(Protocol):
    """Where a scrape's page comes from."""

    def made(self, form: Form) -> MetricsPage | None:
        """The page, where it is there; never waits. Silent, with the reason, while there is nothing to show."""
        ...

    def page(self, form: Form = ...) -> MetricsPage:
        """The page, which may take its time; Silent as above."""
        ...


class FreshPages:
    """
    Pages that are shown for as long as somebody renews them.

    A reading that nobody has renewed for too long would be taken for the present by whoever scrapes it.
    """

    def __init__(self, pages: Pages, limit: float, clock: Callable[[], float]) -> None:
        self._pages, self._limit, self._clock = pages, limit, clock
        self._renewed = clock()

    def renew(self) -> None:
        """The page is of now."""
        self._renewed = self._clock()

    def made(self, form: Form) -> MetricsPage | None:
        """The page where it is rendered; Silent where it is too old."""
        self._present()
        return self._pages.made(form)

    def page(self, form: Form = Form()) -> MetricsPage:
        """The page; Silent where it is too old."""
        self._present()
        return self._pages.page(form)

    def _present(self) -> None:
        age = self._clock() - self._renewed
        if age > self._limit:
            raise Silent(f"the last reading is {age:.0f} s old")
