# SPDX-License-Identifier: Apache-2.0
"""
Stand-ins for the published trace variants whose files are not at hand.

Approximations: a variant keeps the published number of pods of each kind (CPU only, shared, one
card, 2, 4, 8 cards) and the published part of GPU pods that name a card model; which pods are
drawn, and which models they name, is drawn at random from the lists that are there. Good for
asking whether a policy holds on such a workload; no replacement for the published file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from isolation.contract.quantity import MIB
from isolation.simulator.sim.replay import classify
from isolation.simulator.traces.openb import make_node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from isolation.contract.model import Node, Request

MIG_MIXES: Final = (
    ("1g.10gb",) * 7,
    ("3g.40gb",) * 2,
    ("4g.40gb", "2g.20gb", "1g.10gb"),
    ("3g.40gb", "2g.20gb", "1g.10gb"),
)
"""Into what the cards of divided nodes are divided, one node after the other."""


@dataclass(frozen=True, slots=True)
class Marginals:
    """Published counts of one variant's pod list, and the part of its GPU pods that name a model."""

    cpu_only: int = 1088
    shared: int = 3078
    one: int = 3911
    two: int = 16
    four: int = 15
    eight: int = 44
    named: float = 0.0


# Counts and ratios: README of the openb trace, cluster-trace-gpu-v2023 in alibaba/clusterdata.
VARIANTS: Final[Mapping[str, Marginals]] = {
    "default": Marginals(),
    "cpu050": Marginals(cpu_only=375),
    "cpu100": Marginals(cpu_only=789),
    "cpu200": Marginals(cpu_only=1768),
    "cpu250": Marginals(cpu_only=2356),
    "gpushare40": Marginals(shared=4001, one=3001, two=12, four=11, eight=39),
    "gpushare60": Marginals(shared=5233, one=1801, two=7, four=9, eight=14),
    "gpushare80": Marginals(shared=6279, one=768, two=2, four=3, eight=12),
    "gpushare100": Marginals(shared=7064, one=0, two=0, four=0, eight=0),
    "gpuspec10": Marginals(named=0.104),
    "gpuspec20": Marginals(named=0.204),
    "gpuspec25": Marginals(named=0.249),
    "gpuspec33": Marginals(named=0.338),
    "multigpu20": Marginals(two=54, four=52, eight=141),
    "multigpu30": Marginals(two=112, four=83, eight=236),
    "multigpu40": Marginals(two=156, four=154, eight=359),
    "multigpu50": Marginals(two=222, four=206, eight=556),
}


def derive(name: str, base: Sequence[Request], donors: Sequence[Request], seed: int = 0) -> tuple[Request, ...]:
    """The pod list of a variant, drawn from a default list; `donors` are pods of lists that name models."""
    wanted = VARIANTS[name]
    random = np.random.Generator(np.random.PCG64(seed))
    counts = (
        ("cpu_only", wanted.cpu_only),
        ("shared", wanted.shared),
        ("1", wanted.one),
        ("2", wanted.two),
        ("4", wanted.four),
        ("8", wanted.eight),
    )
    pools: dict[str, list[Request]] = {}
    for request in base:
        pools.setdefault(_group(request), []).append(request)
    drawn = [request for group, count in counts for request in _drawn(random, pools.get(group, []), count)]
    return tuple(_name_models(random, drawn, donors, wanted.named))


def _group(request: Request) -> str:
    """The kinds that the marginals count."""
    found = classify(request)
    return str(request.cards) if found in {"whole", "multi_card"} else found


def _drawn(random: np.random.Generator, pool: Sequence[Request], count: int) -> list[Request]:
    """`count` pods of a pool: all of it as often as it goes, the rest without replacement."""
    if not count:
        return []
    if not pool:
        raise ValueError("the base list has no pod of a kind that the variant needs")
    rest = random.permutation(len(pool))[: count % len(pool)].tolist()
    return [*pool] * (count // len(pool)) + [pool[i] for i in rest]


def _name_models(
    random: np.random.Generator, drawn: list[Request], donors: Sequence[Request], part: float
) -> list[Request]:
    """Let part of the GPU pods name card models, as often as the donors name them."""
    gpu = [i for i, request in enumerate(drawn) if request.cards]
    if not part:
        return drawn
    rules = [donor.rules for donor in donors if donor.rules.models]
    if not rules:
        raise ValueError("no pod list names card models; a gpuspec variant needs one")
    chosen = random.permutation(len(gpu))[: round(part * len(gpu))].tolist()
    made: dict[Request, Request] = {}
    for i in (gpu[k] for k in chosen):
        named = replace(drawn[i], rules=rules[int(random.integers(len(rules)))])
        drawn[i] = made.setdefault(named, named)
    return drawn


def divide_tenth(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The fleet with the cards of every tenth node divided by MIG, whatever their model could."""
    return tuple(
        _divide(node, MIG_MIXES[at // 10 % len(MIG_MIXES)]) if at % 10 == 0 else node for at, node in enumerate(nodes)
    )


def _divide(node: Node, profiles: Sequence[str]) -> Node:
    model = node.cards[0].model
    return make_node(node.name, node.cpu_milli, node.memory_bytes // MIB, len(node.cards), model, profiles=profiles)
