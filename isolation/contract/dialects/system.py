# SPDX-License-Identifier: Apache-2.0
"""
What a dialect is: the table of a system's names, what of a pod it reads, and what it makes of that.

Amounts here are per card: a card's worth of what one container asks, on each of its cards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from isolation.contract.codec.amounts import MAX_BYTES, amount, extended
from isolation.contract.codec.cursor import LARGEST, At, Unacceptable, is_label_name, show
from isolation.contract.model import FULL_CORE
from isolation.contract.quantity import GIB, MIB, parse, show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from isolation.contract.model import Rules

_MAX_DIGITS: Final = 20
PARTS: Final = tuple(Fraction(percent, FULL_CORE) for percent in range(FULL_CORE + 1))
"""Of a card, by percent."""
CONTAINER: Final = "{}"
"""Stands for the name of a container in `System.container_annotations`."""


@lru_cache(maxsize=4096)
def _whole(text: str) -> int | None:
    try:
        value = parse(text)
    except ValueError:
        return None
    return int(value) if value.denominator == 1 and 0 <= value < LARGEST else None


def whole_number(amount: object) -> int | None:
    """A whole amount, in any way of writing it, also as the API server shortens it (3k for 3000); None: look closer."""
    if type(amount) is str:
        return _whole(amount) if len(amount) <= _MAX_DIGITS else None
    return amount if type(amount) is int and 0 <= amount < LARGEST else None


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

    __slots__ = ("_index", "_spec", "kind", "limits", "name", "requests", "value")

    def __init__(self, spec: At, kind: str, index: int, value: object) -> None:
        """`kind`: the field of the spec that lists it. Raises CodecError."""
        self._spec, self.kind, self._index = spec, kind, index
        self.value: dict[str, object] = value if type(value) is dict else At(value, spec[kind], index).mapping()
        name = self.value.get("name")
        self.name = name if type(name) is str and is_label_name(name) else self.at["name"].label_name()
        resources = self.value.get("resources")
        own = resources if type(resources) is dict else self.at["resources"].mapping()
        limits, requests = own.get("limits"), own.get("requests")
        self.limits = limits if type(limits) is dict else self.at["resources"]["limits"].mapping()
        self.requests = requests if type(requests) is dict else self.at["resources"]["requests"].mapping()

    @property
    def at(self) -> At:
        """It and where it stands: made only where somebody must say so."""
        return At(self.value, self._spec[self.kind], self._index)

    @property
    def where(self) -> str:
        """For messages."""
        return f"container {show(self.name)}"

    def amount(self, name: str) -> int | None:
        """A whole amount, 0 or more, stated as limit and as request only if equal; None where it is not named."""
        limit, request = self.limits.get(name), self.requests.get(name)
        if limit is None and request is None:
            return None
        # Nearly every amount is a plain number: no cursor that can say where it stands is needed for one.
        if request is None or request == limit:
            value = whole_number(limit)
            if value is not None:
                return value
        resources = self.at["resources"]
        return extended(resources["requests"], resources["limits"], name, self.where, zero=True)

    def size(self, name: str, unit: int) -> int | None:
        """Bytes of an amount that counts `unit`."""
        count = self.amount(name)
        if count is None:
            return None
        if count * unit >= MAX_BYTES:
            raise Unacceptable(
                f"{self.where}: {name} is {show(self.limits.get(name))}, more than any machine has; it counts "
                f"{show_bytes(unit)} each, so write {2 * GIB // unit} for 2 GiB"
            )
        return count * unit

    def percent(self, name: str) -> int | None:
        """0 to 100."""
        count = self.amount(name)
        if count is not None and count > FULL_CORE:
            raise Unacceptable(f"{self.where}: {name} is {count}; it is a percentage of one card: request at most 100")
        return count


class ForeignPod:
    """What a dialect reads of a pod, and what it has to say about it besides amounts."""

    __slots__ = (
        "annotations",
        "containers",
        "labels",
        "metadata",
        "noted",
        "selector",
        "slices",
        "spec",
        "warnings",
        "written",
    )

    def __init__(
        self,
        metadata: At,
        spec: At,
        containers: tuple[ForeignContainer, ...],
        labels: Mapping[str, object],
        slices: str = "",
    ) -> None:
        """`labels`: of its metadata. Raises CodecError."""
        self.metadata, self.spec, self.labels = metadata, spec, labels
        self.containers = containers
        """Init containers first."""
        self.slices = slices
        """Of its namespace: into how many slices `nvidia.com/gpu` divides a card; empty: it says nothing."""
        self.noted = metadata["annotations"]
        self.written: Mapping[str, object] = self.noted.mapping()
        """The pod's own annotations."""
        self.annotations: dict[str, str] = {}
        """To be added: canonical ones."""
        self.selector: dict[str, str] = {}
        """To be added to its nodeSelector."""
        self.warnings: list[str] = []

    def annotation(self, name: str) -> str:
        """The value; empty where there is none."""
        value = self.written.get(name)
        return "" if value is None else value if type(value) is str else self.noted[name].text()

    def says(self, names: AbstractSet[str]) -> bool:
        """Whether it has any of these annotations; by looking up the fewer ones, however many it has."""
        return not self.written.keys().isdisjoint(names)

    def refuse_env(self, name: str) -> None:
        """Refuse a variable that switches a system's limits off."""
        for container in self.containers:
            listed = container.value.get("env")
            for item in listed if isinstance(listed, list) else ():
                if isinstance(item, dict) and item.get("name") == name:
                    raise Unacceptable(
                        f"{container.where} sets {name}, which would switch limits off; remove it: no pod may do that"
                    )

    def copy(self, names: Mapping[str, str]) -> None:
        """Copy annotations that list names, without empty ones, under their canonical names."""
        for foreign, canonical in names.items():
            if foreign in self.written and (value := self.annotation(foreign)):
                self.annotations[canonical] = ",".join([part for one in value.split(",") if (part := one.strip())])

    def warn(self, reasons: Mapping[str, str]) -> None:
        """Warn of annotations that have no effect."""
        self.warnings += [
            f"annotation {key} has no effect: {why}" for key, why in reasons.items() if key in self.written
        ]


def amount_bytes(at: At, what: str) -> int:
    """Bytes of a Kubernetes quantity, at least a MiB: less is MiB written as bytes."""
    value = amount(at, what)
    if value < MIB:
        raise Unacceptable(f"{what} is {show(at.value)}, less than a MiB; write a quantity such as 4Gi")
    return -int(-value // 1)


def vgpus(pod: ForeignPod, names: tuple[str, str, str, str], implied: int = 0) -> dict[str, Want]:
    """
    What containers ask that count vGPUs by one resource, with amounts for each.

    As HAMi reads them: MiB go before a percentage, and nothing of either is all of a card; an amount of 0 is nothing.

    `names`: of the count, MiB, percent of memory (may be empty) and percent of compute. `implied`: how many they are
    where amounts stand without a count; 0: that is refused.
    """
    count, memory, percent, cores = names
    wants: dict[str, Want] = {}
    for container in pod.containers:
        number, size = container.amount(count), container.size(memory, MIB)
        part, core = container.percent(percent) if percent else None, container.percent(cores)
        if not number:
            amounts = ((memory, size), (percent, part), (cores, core))
            named = [(name, value) for name, value in amounts if value is not None]
            if not named or (number == 0 and not any(value for _, value in named)):
                continue
            number = _imply(container, count, number, named, implied)
        if part == 0 and not size:
            raise Unacceptable(f"{container.where}: {percent} is 0; request 1 to 100, or remove it")
        wants[container.name] = Want(number, size or 0, None if size else PARTS[part or FULL_CORE], core or 0)
    return wants


def _imply(
    container: ForeignContainer, count: str, number: int | None, named: list[tuple[str, int]], implied: int
) -> int:
    """How many vGPUs they are where amounts stand without a count, or with one of 0."""
    more, value = next((one for one in named if one[1]), named[0])
    if number == 0:
        raise Unacceptable(f"{container.where}: {more} needs {count} of 1 or more; set it, or remove {more}")
    if not implied:
        raise Unacceptable(f"{container.where}: {more} needs {count}; set it to the number of cards")
    if value == 0:
        raise Unacceptable(f"{container.where}: {more} is 0; request 1 or more, or remove it")
    return implied


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
    programs: tuple[str, ...] = ()
    """Names of images of its workloads, likewise."""


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
    """Dialects that are switched on but not ours to serve, with what shows their own system."""
    slices: frozenset[str] | None = None
    """Of a pod in a namespace of time slices: values of `names.TIME_SLICES` on nodes; None: it is in none."""
