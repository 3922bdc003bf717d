# SPDX-License-Identifier: Apache-2.0
"""What each backend holds, alone and together, and which one a node uses."""

from __future__ import annotations

import pytest

from isolation.contract.backends import (
    ABILITIES,
    AUTO,
    BACKENDS,
    KERNEL,
    LIBRARY,
    MIG,
    MPS,
    NONE,
    Bypass,
    ComputeLimit,
    Counts,
    Enforcer,
    Faults,
    Memory,
    Need,
    choose,
    need_of,
)
from isolation.contract.model import Mode


def test_the_kernel_and_the_library_together_are_passed_only_by_who_passes_both() -> None:
    held = KERNEL.abilities
    assert (held.memory, held.compute, held.counts) == (Memory.HARD, ComputeLimit.EXACT, Counts.ALL)
    assert held.memory_bypass == {frozenset({Bypass.MANAGED, Bypass.UNLOADED})}
    assert held.compute_bypass == {frozenset({Bypass.UNLOADED})}, "the kernel limits no compute"


def test_a_way_around_both_that_needs_more_than_another_is_left_out() -> None:
    twice = ABILITIES[Enforcer.LIBRARY] + ABILITIES[Enforcer.LIBRARY]
    assert twice == ABILITIES[Enforcer.LIBRARY]


def test_without_a_limit_nothing_has_to_be_passed() -> None:
    assert NONE.abilities.memory_bypass == {frozenset()}
    assert (ABILITIES[Enforcer.LIBRARY] + NONE.abilities) == ABILITIES[Enforcer.LIBRARY]


ALL_WORK = dict.fromkeys(BACKENDS, "")


def test_faults_are_shared_where_one_part_shares_them() -> None:
    assert MPS.abilities.faults is Faults.SHARED
    assert {one.name for one in BACKENDS.values() if one.abilities.faults is Faults.SHARED} == {"mps"}


@pytest.mark.parametrize(
    ("mode", "backend", "lacks"),
    [
        (Mode.SHARE, NONE, ""),
        (Mode.CGPU, NONE, "no hard memory limit"),
        (Mode.CGPU, LIBRARY, ""),
        (Mode.CORE_MEM, LIBRARY, ""),
        (Mode.CORE_MEM, KERNEL, ""),
        (Mode.CGPU, MIG, ""),
        (Mode.CORE_MEM, MIG, "no compute limit"),
    ],
)
def test_a_mode_asks_for_abilities(mode: Mode, backend: object, lacks: str) -> None:
    assert backend in BACKENDS.values()
    found = BACKENDS[backend.name].abilities.lacks(need_of(mode))  # type: ignore[attr-defined]
    assert found.startswith(lacks)
    assert bool(found) == bool(lacks)


def test_the_best_that_works_is_used_and_the_reason_against_a_better_one_is_kept() -> None:
    gone = ALL_WORK | {"mig": "no card is divided"}
    assert choose(AUTO, need_of(Mode.CORE_MEM), gone).backend is KERNEL
    old = choose(AUTO, need_of(Mode.CORE_MEM), gone | {"kernel": "driver 595.45 is older than 615"})
    assert old.backend is LIBRARY
    assert "driver 595.45 is older than 615" in old.reason


def test_what_was_named_is_used_or_refused_and_never_replaced() -> None:
    assert choose("library", need_of(Mode.CGPU), ALL_WORK).backend is LIBRARY
    no = choose("kernel", need_of(Mode.CGPU), {"kernel": "no dmem controller"})
    assert no.backend is None
    assert "no dmem controller" in no.reason
    assert choose("none", need_of(Mode.CGPU), {}).backend is None
    assert choose("none", need_of(Mode.SHARE), {}).backend is NONE


@pytest.mark.parametrize("wanted", [AUTO, *BACKENDS])
@pytest.mark.parametrize("mode", [Mode.CGPU, Mode.CORE_MEM, Mode.MPS])
def test_what_nobody_looked_at_holds_nothing(wanted: str, mode: Mode) -> None:
    no = choose(wanted, need_of(mode), {})
    assert no.backend is None
    assert no.reason
    assert choose(AUTO, need_of(mode), {one: "" for one in BACKENDS if one != "kernel"}).backend is not KERNEL


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    assert "library" in choose("fast", Need(), {}).reason


def test_nothing_is_promised_where_nothing_holds_it() -> None:
    no = choose(AUTO, need_of(Mode.CORE_MEM), {"kernel": "old driver", "library": "not built"})
    assert no.backend is None
    assert "old driver" in no.reason
    assert "not built" in no.reason


def test_mps_is_used_only_where_an_operator_says_so() -> None:
    gone = {"kernel": "old driver", "library": "not built", "mig": "not divided"}
    assert choose(AUTO, need_of(Mode.CGPU), gone).backend is None
    assert choose(AUTO, need_of(Mode.MPS), ALL_WORK).backend is MPS
    assert choose("mps", need_of(Mode.MPS), ALL_WORK | gone).backend is MPS


@pytest.mark.parametrize(("wanted", "mode"), [("mps", Mode.CGPU), ("mps", Mode.SHARE), ("library", Mode.MPS)])
def test_the_mode_and_the_backend_mps_go_with_nothing_else(wanted: str, mode: Mode) -> None:
    """Placement keeps groups and users apart in that mode alone."""
    no = choose(wanted, need_of(mode), ALL_WORK)
    assert no.backend is None
    assert "mps alone" in no.reason


def test_under_mps_compute_is_a_ceiling_and_several_processes_without_the_library_pass_the_total() -> None:
    held = MPS.abilities
    assert held.compute is ComputeLimit.CEILING
    assert held.memory_bypass == {
        frozenset({Bypass.UNLOADED, Bypass.ENVIRONMENT}),
        frozenset({Bypass.UNLOADED, Bypass.PROCESSES}),
    }
    assert held.compute_bypass == {frozenset({Bypass.ENVIRONMENT}), frozenset({Bypass.PROCESSES})}


def test_a_node_that_promises_nothing_enforces_nothing_unless_told() -> None:
    assert choose(AUTO, need_of(Mode.SHARE), {}).backend is NONE


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_says_what_it_holds_in_a_sentence(name: str) -> None:
    text = BACKENDS[name].sentence
    assert text == "nothing is enforced" if name == "none" else "memory hard" in text or name == "mig"
