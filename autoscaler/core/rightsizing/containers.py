# SPDX-License-Identifier: Apache-2.0
"""Containers of running pods that may be resized, and those that were: amounts and what they have used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LivePod:
    """One container of a running pod that its owner allows to be resized; amounts of each of its cards."""

    uid: str
    container: str
    owner: str
    """Namespace and workload."""
    promised_bytes: int
    recommended_bytes: int
    """0: no recommendation."""
    pod_bytes: int
    """Promised to all containers of the pod together."""
    asked_bytes: int = 0
    """By its spec."""
    node: str = ""
    cards: int = 1
    reserved_bytes: int = 0
    """What its annotation keeps booked for the pod as a whole; 0: nothing."""
    resized: bool = False
    """Other amounts than its spec's were asked for."""
    pending: bool = False
    """A resize is not in force yet."""
    deferred: bool = False
    """It waits for room on its cards."""
    used_bytes: int = 0
    peak_bytes: int = 0
    denied: int | None = None
    """Requests denied since the container started; None: not measured."""
    restarts: int = 0

    @property
    def key(self) -> str:
        """Identity of a trial."""
        return f"{self.uid}/{self.container}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A container that was made smaller; amounts of each of its cards."""

    uid: str
    container: str
    owner: str
    from_bytes: int
    to_bytes: int
    reserved_bytes: int
    """For the pod as a whole."""
    began: float
    until: float
    denied: int = 0
    """As it was when it began; the three below too."""
    restarts: int = 0
    peak_bytes: int = 0
    node: str = ""
    cards: int = 1

    @property
    def freed_bytes(self) -> int:
        """What becomes free after the trial, of all its cards."""
        return self.cards * (self.from_bytes - self.to_bytes)

    @property
    def key(self) -> str:
        """As `LivePod.key`."""
        return f"{self.uid}/{self.container}"
