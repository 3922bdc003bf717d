# SPDX-License-Identifier: Apache-2.0
"""
Findings about cards, driver and library, from what was found on a machine.

Pure. Which driver each enforcement backend needs stands here; whether one is chosen is not asked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import GIB
from isolation.doctor.checks.finding import Finding, ok, problem, unknown, warning

if TYPE_CHECKING:
    from isolation.doctor.checks.machine.facts import CardFacts, MachineFacts

LIBRARY_DRIVER: Final = 450
"""Major version with CUDA 11.0, the oldest whose memory calls the library was written against."""
KERNEL_DRIVER: Final = 615
"""Major version from which the driver itself can limit memory (docs/isolation.md)."""
_VERSION: Final = re.compile(r"([0-9]{1,5})(?:\.[0-9]+)*")
_MAX_CARDS: Final = 16


def check_cards(facts: MachineFacts) -> list[Finding]:
    """Cards, driver, division, MPS, library."""
    return [
        _check_present(facts.cards),
        *([] if facts.cards.why else [_check_driver(facts.cards), _check_mig(facts.cards)]),
        _check_mps(facts.mps),
        *_check_library(facts),
    ]


def _check_present(cards: CardFacts) -> Finding:
    check = "machine.cards"
    if cards.why:
        return problem(check, cards.why, "if the driver is there, see its messages in `dmesg | grep NVRM`")
    if not cards.cards:
        return problem(check, "the driver reports no card", "check `nvidia-smi -L` and `dmesg | grep NVRM`")
    unhealthy = [card.index for card in cards.cards if not card.healthy]
    if unhealthy:
        listed = ", ".join(map(str, unhealthy))
        return problem(
            check, f"card {listed} does not respond", "reset it (`nvidia-smi -r -i N`) or reboot the machine"
        )
    small = [card.index for card in cards.cards if not card.allocatable_bytes]
    if small:
        return warning(check, f"card {small[0]} offers less than one unit", "use a smaller unit in this cluster")
    units = [card.allocatable_bytes // card.unit_bytes for card in cards.cards]
    kinds = sorted({card.model for card in cards.cards})
    evidence = f"{len(units)} x {', '.join(kinds)}" if len(kinds) == 1 else f"{len(units)} cards: {', '.join(kinds)}"
    unit = cards.cards[0].unit_bytes / GIB
    rest = f"; {sum(units) * unit:g} GiB can be promised, in units of {unit:g} GiB"
    if len(units) > _MAX_CARDS:
        return warning(check, evidence + rest, f"a container can use at most {_MAX_CARDS} of them; no action is needed")
    return ok(check, evidence + rest + (" (simulated)" if cards.simulated else ""))


def _check_driver(cards: CardFacts) -> Finding:
    check = "machine.driver"
    match = _VERSION.fullmatch(cards.driver or "")
    if match is None:
        evidence = (
            f"the driver reports version {cards.driver!r}" if cards.driver else "the driver does not report its version"
        )
        return unknown(check, evidence, "check /proc/driver/nvidia/version")
    major, evidence = int(match[1]), f"driver {cards.driver}"
    if major < LIBRARY_DRIVER:
        return problem(
            check, f"{evidence} is too old", f"upgrade to {LIBRARY_DRIVER} or newer: the isolation library needs it"
        )
    if major < KERNEL_DRIVER:
        return ok(
            check, f"{evidence}: the isolation library can enforce limits (the driver itself from {KERNEL_DRIVER} on)"
        )
    return ok(check, f"{evidence}: supports every isolation backend")


def _check_mig(cards: CardFacts) -> Finding:
    check = "machine.mig"
    if not cards.divided:
        return ok(check, "MIG is off on all cards")
    listed = ", ".join(map(str, cards.divided))
    return warning(
        check,
        f"card {listed} has MIG enabled: each instance is shared like a separate card, by memory only",
        "do not change MIG instances while pods run; to disable MIG, run `nvidia-smi -mig 0 -i N` on an idle card",
    )


def _check_mps(processes: tuple[str, ...] | None) -> Finding:
    check = "machine.mps"
    if processes is None:
        return unknown(check, "cannot list the processes of this machine", "run as root, with the host's /proc")
    if processes:
        return warning(
            check,
            f"{processes[0]} is running: programs of several pods would share one process on the card",
            "stop it (`echo quit | nvidia-cuda-mps-control`), unless `gpushare mps` keeps it (node mode mps)",
        )
    return ok(check, "no MPS daemon")


def _check_library(facts: MachineFacts) -> list[Finding]:
    check = "machine.library"
    if isinstance(facts.library, str):
        return [
            problem(check, facts.library, "install gpushare from its wheel, or run `python -m isolation.lib.build`")
        ]
    wrong = [f"{one.name}: {one.detail}" for one in facts.library if not one.ok]
    if wrong:
        fix = "reinstall gpushare: the library and this program have different versions, or glibc is too old"
        return [problem(check, "; ".join(wrong), fix)]
    return [ok(check, "the isolation library fits this program, and loads into programs without CUDA")]
