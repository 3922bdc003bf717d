# SPDX-License-Identifier: Apache-2.0
"""
Nodes and pods from the openb trace format, as model values.

Decides how a trace row becomes a `Node` or a `Request`: a card is normalised to 1000 milli, held
as 1000 MiB of shareable memory, because the format has no card memory and published comparisons
count milli; a whole card is then a share of 1000 milli and may stand beside shared pods on a node.
Refuses to guess: a row that contradicts itself is an error that names file, line and fix.
Knows nothing of replaying, policies or time beyond what the columns say.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from isolation.contract.model import Card, Instance, Mode, Node, Request, Rules
from isolation.contract.names import ACK
from isolation.contract.quantity import MIB
from isolation.simulator.traces.csvfile import CsvRow, make_unique, parse_rows, quote, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MILLI: Final = 1000
"""Milli of one card."""
MILLI_BYTES: Final = MIB
"""Memory that stands for one milli of a card in the trace world."""
CARD_BYTES: Final = MILLI * MILLI_BYTES
UNLIMITED_PODS: Final = 10**6
"""The format has no pod limit per node; this is beyond what CPU lets in."""

MAX_CARDS: Final = 64
"""Cards in one machine; the largest servers have 16."""
MAX_CPU_MILLI: Final = 10**8
MAX_MEMORY_MIB: Final = 10**9
MAX_SECONDS: Final = 10**12

SLICES: Final = 7
"""Slices of compute into which MIG divides a card at most."""
_PROFILE: Final = re.compile(r"[1-7]g\.[1-9][0-9]{0,3}gb(\+me)?")

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")

_NO_MODELS: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class TracePod:
    """One row of a pod list; rows that ask for the same share one `Request`."""

    name: str
    request: Request
    created: float | None = None
    deleted: float | None = None
    """Seconds on the trace's clock; None where the file does not say."""


class TraceArrival(NamedTuple):
    """A pod of a dated list: when it comes, how long it stays, what it asks, who it is."""

    at: float
    seconds: float
    request: Request
    name: str


def read_nodes(path: str | Path) -> tuple[Node, ...]:
    """The nodes of a node list, in the file's order."""
    return parse_nodes(read(Path(path)), str(path))


def read_pods(path: str | Path) -> tuple[TracePod, ...]:
    """The pods of a pod list, in the file's order."""
    return parse_pods(read(Path(path)), str(path))


def parse_nodes(content: str, file: str = "nodes") -> tuple[Node, ...]:
    """The nodes in the text of a node list."""
    return make_unique(parse_rows(content, file, NODE_COLUMNS), "sn", _node)


def parse_pods(content: str, file: str = "pods") -> tuple[TracePod, ...]:
    """The pods in the text of a pod list; pods alike share one `Request`, requests alike one `Rules`."""
    requests: dict[tuple[int, int, int, int, frozenset[str]], Request] = {}
    rules: dict[frozenset[str], Rules] = {_NO_MODELS: Rules()}
    seen = Counter[str]()

    def pod(row: CsvRow) -> TracePod:
        name, shape = row.name("name"), _shape(row)
        if shape not in requests:
            allowed = rules.setdefault(shape[4], Rules(models=shape[4]))
            requests[shape] = make_request(*shape[:4], allowed)
        created, deleted = row.maybe("creation_time", MAX_SECONDS), row.maybe("deletion_time", MAX_SECONDS)
        if created is not None and deleted is not None and deleted < created:
            row.fail(f"deletion_time {deleted} is before creation_time {created}; swap or correct them")
        seen[name] += 1
        # Lists that were filled up by drawing again hold a pod more than once: each is a pod of its own.
        name = name if seen[name] == 1 else f"{name}.{seen[name]}"
        return TracePod(name, requests[shape], created, deleted)

    return tuple(pod(row) for row in parse_rows(content, file, POD_COLUMNS))


def make_node(
    name: str, cpu_milli: int, memory_mib: int, cards: int, model: str, *, profiles: Sequence[str] = ()
) -> Node:
    """
    A node of normalised cards; one without cards serves CPU only.

    `profiles`: MIG divides each card into these, and a slice of compute stands for a seventh of the card's milli.
    """
    made = tuple(Card(f"{name}-gpu{i}", i, CARD_BYTES, 0, MILLI_BYTES, model) for i in range(cards))
    if profiles:
        parts = [(card.uuid, profile, int(profile[0])) for card in made for profile in profiles]
        made = tuple(
            Card(
                f"{parent}-mig{at}",
                at,
                MILLI * slices // SLICES * MILLI_BYTES,
                0,
                MILLI_BYTES,
                model,
                instance=Instance(parent, profile, slices=slices),
            )
            for at, (parent, profile, slices) in enumerate(parts)
        )
    return Node(
        name=name,
        cards=made,
        mode=Mode.SHARE if cards else Mode.NONE,
        cpu_milli=cpu_milli,
        memory_bytes=memory_mib * MIB,
        pods=UNLIMITED_PODS,
        # A plain dict: a read-only proxy cannot be sent to worker processes.
        labels={ACK.model_labels[0]: model} if model else {},
    )


def make_request(cpu_milli: int, memory_mib: int, cards: int, milli: int, rules: Rules | None = None) -> Request:
    """What a row of `cards` x `milli` asks for."""
    return Request(
        cards=cards,
        card_bytes=milli * MILLI_BYTES,
        cpu_milli=cpu_milli,
        memory_bytes=memory_mib * MIB,
        rules=rules if rules is not None else Rules(),
    )


def list_arrivals(pods: Iterable[TracePod]) -> Iterator[TraceArrival]:
    """The pods whose rows say when they came and went, by arrival, ties by name."""
    dated = (
        TraceArrival(pod.created, pod.deleted - pod.created, pod.request, pod.name)
        for pod in pods
        if pod.created is not None and pod.deleted is not None
    )
    yield from sorted(dated, key=lambda arrival: (arrival.at, arrival.name))


def _node(row: CsvRow) -> Node:
    """One row of a node list."""
    cards = row.whole("gpu", MAX_CARDS)
    models = row.names("model")
    if models and not cards:
        row.fail(f"model {quote(row.cells['model'])} on a node with gpu 0; clear model or set gpu")
    model, profiles = next(iter(models), ""), _profiles(row, cards)
    return make_node(
        row.cells["sn"],
        row.whole("cpu_milli", MAX_CPU_MILLI),
        row.whole("memory_mib", MAX_MEMORY_MIB),
        cards,
        model,
        profiles=profiles,
    )


def _profiles(row: CsvRow, cards: int) -> tuple[str, ...]:
    """The MIG profiles into which each card of a node is divided; empty: none is."""
    text = row.cells.get("mig", "").strip()
    profiles = tuple(text.split("|")) if text else ()
    wrong = next((each for each in profiles if not _PROFILE.fullmatch(each)), None)
    if wrong is not None:
        row.fail(f"mig has {quote(wrong)}; write profiles such as 3g.40gb|2g.20gb|1g.10gb")
    if profiles and not cards:
        row.fail("mig is set on a node with gpu 0; clear mig or set gpu")
    if sum(int(each[0]) for each in profiles) > SLICES:
        row.fail(f"mig {quote(text)} has more than the {SLICES} slices of compute of one card")
    if len(profiles) * cards > MAX_CARDS:
        row.fail(f"mig makes {len(profiles) * cards} instances of {cards} cards; at most {MAX_CARDS} are supported")
    return profiles


def _shape(row: CsvRow) -> tuple[int, int, int, int, frozenset[str]]:
    """CPU, memory, cards, milli per card, models: what a row asks for, once it makes sense."""
    cards, milli = row.whole("num_gpu", MAX_CARDS), row.whole("gpu_milli", 10**15)
    if milli > MILLI:
        row.fail(f"gpu_milli is {milli}, more than one card; write 1..1000 and use num_gpu for more cards")
    if cards == 0 and milli:
        row.fail(f"gpu_milli is {milli} but num_gpu is 0; set num_gpu to 1, or gpu_milli to 0")
    if cards and not milli:
        row.fail(f"num_gpu is {cards} but gpu_milli is 0; write a share of 1..1000, or set num_gpu to 0")
    if cards > 1 and milli != MILLI:
        row.fail(f"num_gpu is {cards} with gpu_milli {milli}; several cards must be whole cards: set gpu_milli to 1000")
    cpu, memory = row.whole("cpu_milli", MAX_CPU_MILLI), row.whole("memory_mib", MAX_MEMORY_MIB)
    # The list names card models: a pod without cards may run beside any of them.
    models = row.names("gpu_spec", "|")
    return cpu, memory, cards, milli, models if cards else _NO_MODELS
