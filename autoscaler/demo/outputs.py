# SPDX-License-Identifier: Apache-2.0
"""
The screen and the metrics endpoint of `gpushare up`, as protocols.

The real ones are in dashboards and exporter, which autoscaler may not import; `gpushare.py` passes them in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self, TextIO

    from isolation.contract.metrics import Family
    from isolation.contract.reading import Frame
    from isolation.contract.stack import StackStatus

    Collector = Callable[[Frame], Iterable[Family]]
    """Turns a frame into metrics."""


class Screen(Protocol):
    """Where frames are shown."""

    def __enter__(self) -> Self:
        """Take the terminal, if it is one."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        ...

    def show(self, frame: Frame, notes: Sequence[tuple[str, str]] = (), stack: StackStatus | None = None) -> None:
        """Show this frame with notes (what each is, and what it says), and the real processes where there are any."""
        ...


class MetricsEndpoint(Protocol):
    """Where frames are measured from; raises OSError with advice if the port cannot be had."""

    url: str

    def __enter__(self) -> Self:
        """Begin to serve."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the port."""
        ...

    def publish(self, frame: Frame) -> None:
        """Serve this frame from now on."""
        ...


class Outputs(Protocol):
    """What `gpushare.py` passes in."""

    def screen(self, stream: TextIO, clock: Callable[[], float]) -> Screen:
        """A live screen on a terminal, plain lines elsewhere."""
        ...

    def metrics(self, port: int, more: Mapping[str, Collector]) -> MetricsEndpoint:
        """An endpoint for cards and containers, and for `more` collectors of ours."""
        ...
