# SPDX-License-Identifier: Apache-2.0
"""
What a dialect is: the table of a system's names, what of a pod it reads, and what it makes of that.

Amounts here are per card: a card's worth of what one container asks, on each of its cards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from isolation.contract.codec.amounts import amount, extended
from isolation.contract.codec.cursor import Unacceptable, show
from isolation.contract.model import FULL_CORE
from isolation.contract.quantity import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from isolation.contract.codec.cursor import At
    from isolation.contract.model import Rules

_WHOLE: Final = re.compile(r"([1-9][0-9]{0,8})(k?)")
CONTAINER: Final = "{}"
"""Stands for the name of a container in `System.container_annotations`."""


def whole_number(amount: object) -> int | None:
    """An amount of the plainest form, also as the API server shortens it (3k for 3000); None: look closer."""
    if type(amount) is int:
        return amount if 0 < amount < 10**9 else None
    match = _WHOLE.fullmatch(amount) if type(amount) is str else None
    return int(match[1]) * (1000 if match[2] else 1) if match is not None else None


class Want(NamedTuple):
    """What one container asks of each of its cards."""

    cards: int = 1
    bytes: int = 0
    part: Fraction | None = None
    """Of a card's memory, 0 < part <= 1; in the place of `bytes`."""
    core: int = 0
    """Percent."""
    whole: bool = False
    """Exclusive cards: `cards` of them."""


class ForeignContainer:
    """One container as its owner wrote it."""

    __slots__ = ("at", "limits", "name", "requests")

    def __init__(self, at: At) -> None:
        resources = at["resources"]
        self.at, self.name = at, at["name"].label_name()
        self.limits, self.requests = resources["limits"].mapping(), resources["requests"].mapping()

    @property
    def where(self) -> str:
        """For messages."""
        return f"container {show(self.name)}"

    def names(self, resource: str) -> bool:
        """Whether it says anything about a resource."""
        return self.limits.get(resource) is not None or self.requests.get(resource) is not None

    def amount(self, name: str, *, zero: bool = False) -> int | None:
        """A whole amount, stated as limit and as request only if equal; None where it is not named."""
        limit, request = self.limits.get(name), self.requests.get(name)
        if limit is None and request is None:
            return None
        # Nearly every amount is a plain number: no cursor that can say where it stands is needed for one.
        if request is None or request == limit:
            value = whole_number(limit)
            if value:
                return value
        resources = self.at["resources"]
        return extended(resources["requests"], resources["limits"], name, self.where, zero=zero)

    def mib(self, name: str) -> int | None:
        """An amount of MiB, in bytes."""
        count = self.amount(name)
        return None if count is None else count * MIB

    def percent(self, name: str) -> int | None:
        """0 to 100."""
        count = self.amount(name, zero=True)
        if count is not None and count > FULL_CORE:
            raise Unacceptable(f"{self.where}: {name} is {count}; it is a percentage of one card: request at most 100")
        return count

    def part(self, name: str) -> Fraction | None:
        """A percentage of a card's memory, as a part of it."""
        percent = self.percent(name)
        if percent == 0:
            raise Unacceptable(f"{self.where}: {name} is 0; request 1 to 100, or remove it")
        return None if percent is None else Fraction(percent, FULL_CORE)


@dataclass(slots=True)
class ForeignPod:
    """What a dialect reads of a pod, and what it has to say about it besides amounts."""

    metadata: At
    spec: At
    containers: tuple[ForeignContainer, ...]
    """Init containers first."""
    annotations: dict[str, str] = field(default_factory=dict)
    """To be added: canonical ones."""
    selector: dict[str, str] = field(default_factory=dict)
    """To be added to its nodeSelector."""
    warnings: list[str] = field(default_factory=list)
    slices: str = ""
    """Of its namespace: into how many slices `nvidia.com/gpu` divides a card; empty: it says nothing."""

    written: Mapping[str, object] = field(default_factory=dict)
    """The pod's own annotations."""

    def annotation(self, name: str) -> str:
        """The value; empty where there is none."""
        value = self.written.get(name)
        return "" if value is None else value if type(value) is str else self.metadata["annotations"][name].text()

    def refuse_env(self, name: str) -> None:
        """Refuse a variable that switches a system's limits off."""
        for container in self.containers:
            listed = container.at.mapping().get("env")
            for item in listed if isinstance(listed, list) else ():
                if isinstance(item, dict) and item.get("name") == name:
                    raise Unacceptable(
                        f"{container.where} sets {name}, which would switch limits off; remove it: no pod may do that"
                    )

    def copy(self, names: Mapping[str, str]) -> None:
        """Copy annotations under their canonical names."""
        if self.written.keys().isdisjoint(names):
            return
        for foreign, canonical in names.items():
            if value := self.annotation(foreign):
                self.annotations[canonical] = value


def amount_bytes(at: At, what: str) -> int:
    """Bytes of a Kubernetes quantity, at least a MiB: less is MiB written as bytes."""
    value = amount(at, what)
    if value < MIB:
        raise Unacceptable(f"{what} is {show(at.value)}, less than a MiB; write a quantity such as 4Gi")
    return -int(-value // 1)


def memory_of(container: ForeignContainer, mib: str, percent: str) -> tuple[int, Fraction | None]:
    """Bytes, or a part of a card: HAMi's rule, by which MiB go before a percentage, and nothing is all of a card."""
    size = container.mib(mib)
    part = container.part(percent) if percent else None
    if size is not None:
        return size, None
    return 0, part if part is not None else Fraction(1)


def vgpus(pod: ForeignPod, names: tuple[str, str, str, str], implied: int = 0) -> dict[str, Want]:
    """
    What containers ask that count vGPUs by one resource, with amounts for each.

    `names`: of the count, MiB, percent of memory (may be empty) and percent of compute. `implied`: how many they are
    where amounts stand without a count; 0: that is refused.
    """
    count, memory, percent, cores = names
    wants: dict[str, Want] = {}
    for container in pod.containers:
        number = container.amount(count)
        more = next((name for name in (memory, percent, cores) if name and container.names(name)), None)
        if number is None and more is None:
            continue
        if number is None and not implied:
            raise Unacceptable(f"{container.where}: {more} needs {count}; set it to the number of cards")
        size, part = memory_of(container, memory, percent)
        wants[container.name] = Want(number or implied, size, part, core=container.percent(cores) or 0)
    return wants


@dataclass(frozen=True, slots=True)
class Words:
    """How a system's users write an amount, for advice about a pod of theirs."""

    memory: str
    unit: int
    """Bytes of one."""
    compute: str = ""
    """Empty: it cannot be asked for."""
    count: str = ""
    """The number of cards; empty: always one."""
    total: bool = False
    """Whether amounts are those of all cards together, and not of each."""

    def show_memory(self, card_bytes: int, cards: int) -> str:
        """An amount on each of so many cards, rounded down to what can be written."""
        return f"{self.memory}: {card_bytes * (cards if self.total else 1) // self.unit}"

    def show_compute(self, card_core: int, cards: int) -> str:
        """Percent of each of so many cards."""
        return f"{self.compute}: {card_core * (cards if self.total else 1)}"


@dataclass(frozen=True, slots=True)
class System:
    """One system's words."""

    name: str
    """As in `--dialects`."""
    title: str
    """For people."""
    read: Callable[[ForeignPod], dict[str, Want]]
    """What each container asks, by name; raises Unacceptable, CodecError."""
    words: Words
    better: str
    """An amount to write where a percentage of a card cannot be resolved."""
    resources: tuple[str, ...] = ()
    """Any of them makes a pod one of this dialect; all are removed from the pod."""
    implied: tuple[str, ...] = ()
    """Removed too, but alone they are somebody else's."""
    annotations: tuple[str, ...] = ()
    """Pod annotations that make a pod one of this dialect; removed."""
    container_annotations: tuple[str, ...] = ()
    """Likewise, with the name of one of the pod's containers in them."""
    selector: str = ""
    """A label that makes a pod one of this dialect where its nodeSelector has it and it names one of `selected`."""
    selected: tuple[str, ...] = ()
    also_removed: tuple[str, ...] = ()
    """Annotations that say more about those."""
    schedulers: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    """Ends of the names of its webhooks, by which a cluster shows that the system lives there."""
    node_resources: tuple[str, ...] = ()
    """What its device plugin offers on nodes, likewise."""


class Sizes(Protocol):
    """Bytes that cards of the nodes offer which could take a pod with such rules; None: not known."""

    def __call__(self, rules: Rules, *, compute: bool) -> frozenset[int] | None:
        """`compute`: the pod asks for a share of compute too."""


def _unknown(rules: Rules, *, compute: bool) -> None:
    del rules, compute


@dataclass(frozen=True, slots=True)
class Offered:
    """What translation knows of the cluster."""

    dialects: frozenset[str]
    """Switched on."""
    card_sizes: Sizes = _unknown
    unit_bytes: int = GIB
    left: frozenset[tuple[str, str]] = frozenset()
    """(dialect, namespace) that is left to the system itself."""
    owned: Mapping[str, str] = field(default_factory=dict)
    """Dialects that are switched on but not ours to serve, with the webhook that shows their own system."""
    slices: frozenset[str] | None = None
    """Of a pod in a namespace of time slices: values of `names.TIME_SLICES` on nodes; None: it is in none."""
