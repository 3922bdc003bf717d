"""
The catalogue of what the node agent exposes about itself, in the manner of `metrics`.

A chapter of its own, since no exporter of card figures serves it: docs/node.md is checked against it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from isolation.contract.metrics import PREFIX, Group, Kind, MetricSpec, Unit

LABELS: Final = MappingProxyType(
    {
        "health": "healthy or unhealthy, as the kubelet is told.",
        "method": "What the kubelet asked: GetPreferredAllocation, Allocate or PreStartContainer.",
        "reason": "Why a card gets no newcomers: xid; ecc (an error that could not be corrected); driver (it wants "
        "something done with the card); lost (NVML does not tell of it).",
        "outcome": "What it heard: ok; refused (the container may not start yet, with the reason); late or broken (for "
        "GetPreferredAllocation and Allocate an answer without the agent's knowledge, to be checked at the start).",
    }
)


def _agent(name: str, unit: Unit, text: str, *labels: str, kind: Kind = Kind.GAUGE) -> MetricSpec:
    return MetricSpec(f"{PREFIX}node_agent_{name}", kind, labels, unit, text, Group.NODE)


DURATION: Final = _agent(
    "answer_duration_seconds", Unit.SECONDS, "How long the kubelet waited.", "method", kind=Kind.HISTOGRAM
)
ANSWERS: Final = _agent(
    "answers_total", Unit.NONE, "Answers to the kubelet, by outcome.", "method", "outcome", kind=Kind.COUNTER
)
FAILED_TURNS: Final = _agent(
    "failed_turns_total", Unit.NONE, "Turns of the agent's own loop that failed.", kind=Kind.COUNTER
)
READY: Final = _agent("ready", Unit.NONE, "Whether pods may be bound to this node: 1 yes, 0 no.")
REGISTERED: Final = _agent("registered", Unit.NONE, "Whether the kubelet knows the device plugin: 1 yes, 0 no.")
REGISTRATIONS: Final = _agent("registrations", Unit.NONE, "Registrations with the kubelet since the agent started.")
DEVICES: Final = _agent("devices", Unit.NONE, "Units of shared memory as the kubelet is told.", "health")
HELD: Final = _agent("held_devices", Unit.NONE, "Units that the agent's book gives to containers.")
HOLDERS: Final = _agent("holders", Unit.NONE, "Entries of the agent's book: containers, and units of nobody known.")
SICK: Final = _agent("sick_cards", Unit.NONE, "Cards that get no newcomers, by why.", "reason")
LISTENED: Final = _agent(
    "cards_listened_to", Unit.NONE, "Cards whose XIDs and ECC errors the driver tells the agent of."
)
WRITES: Final = _agent("node_writes", Unit.NONE, "Writes to the node's object since the agent started.")
SILENCE: Final = _agent(
    "api_silence_seconds",
    Unit.SECONDS,
    "Time since the API server last said anything about this node's pods; a healthy watch is below 90.",
)

CATALOGUE: Final = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            DURATION,
            ANSWERS,
            FAILED_TURNS,
            READY,
            REGISTERED,
            REGISTRATIONS,
            DEVICES,
            HELD,
            HOLDERS,
            SICK,
            LISTENED,
            WRITES,
            SILENCE,
        )
    }
)
