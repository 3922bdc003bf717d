# SPDX-License-Identifier: Apache-2.0
"""
Whether the stack runs beside the embedded cluster, and on which ports; the cluster runs in any case.

A machine that lacks what the stack needs hears so in a sentence. A port that somebody has ends the
command before anything is started.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from autoscaler.demo.stack import addresses, report
from autoscaler.demo.stack.demo_stack import StackError, Stage
from autoscaler.demo.stack.metrics_page import PageServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Self

    from autoscaler.demo.embedded.embedded_cluster import Embedded
    from autoscaler.demo.stack.autoscaler_metrics import Turns
    from isolation.contract.stack import Stack


class Beside:
    """A context manager: the stack, if it is wanted and can be."""

    def __init__(
        self, first: int | None, *, turns: Turns | None, note: Path | None, say: Callable[[str], None]
    ) -> None:
        self.port = first
        """Of the embedded cluster's own endpoint; None: it has none."""
        self._turns = turns
        self._note = note
        self._say = say
        self._stage: Stage | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        """Raises OSError for a port that is taken, or a file that cannot be written."""
        if self._turns is None or self.port is None:
            return self
        tools = addresses.tools()
        ports = addresses.ports(self.port)
        stage = Stage(ports, tools)
        try:
            self._held.enter_context(stage)
        except StackError as exc:
            self._say(f"running only the simulated cluster: {exc}")
            return self
        try:
            self._held.enter_context(PageServer(ports.autoscaler, self._turns.page))
            if self._note is not None:
                addresses.write(self._note, stage.addresses)
        except BaseException:
            self._held.close()
            raise
        self._stage, self.port = stage, ports.cluster
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def look(self, world: Embedded, now: float) -> None:
        """Take the figures of the embedded cluster's autoscaler."""
        if self._turns is not None and self._stage is not None:
            self._turns.look(world, now)

    @property
    def now(self) -> Stack | None:
        """How the machine's processes stand; None: there are none."""
        return None if self._stage is None else self._stage.now

    def document(self) -> dict[str, Any] | None:
        """The last of it, for programs."""
        return None if self._stage is None else report.document(self._stage.now, self._stage.addresses)

    def words(self) -> str | None:
        """The last of it, for people."""
        return None if self._stage is None else report.words(self._stage.now)
