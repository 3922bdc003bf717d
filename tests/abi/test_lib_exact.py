# SPDX-License-Identifier: Apache-2.0
"""
Exact ledgers, at the size of a test: `python -m benchmarks.isolation.exact` does the same for long.
"""

from __future__ import annotations

import platform

import pytest

from benchmarks.isolation import exact
from benchmarks.isolation.exact_runs import Size
from isolation.simgpu import hardware

if not (hardware.LIBRARIES / "libcuda.so.1").is_file():
    pytest.skip("the simulated driver is not built", allow_module_level=True)


def missed(findings):
    """The findings that miss their bar."""
    return [finding for finding in findings if not finding.met]


def test_a_crowd_never_passes_the_promise_and_leaves_nothing(plain_library, budget):
    """
    Processes and threads at random through all families, together past their promise.

    Not a byte over it for direct families and one granule at most with pools and graphs; at rest all
    that is used is charged; when all is given back the ledger is 0.
    """
    size = Size(processes=4, threads=6, seconds=1.5 * budget)

    assert [] == missed(exact.crowd_findings(size, plain_library))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the registers of one machine")
def test_a_kill_at_any_instruction_of_any_family_leaves_ledger_and_records_right(plain_library, budget):
    """Killed on the way through each family's calls: ledger and hardware agree at once, nobody is wedged."""
    assert [] == missed(exact.step_findings(Size(samples=8 * budget), plain_library))


def test_kills_under_contention_over_all_families_wedge_nobody(plain_library, budget):
    """The ledger is the sum of the living while processes die at random, and a newcomer can use every family."""
    assert [] == missed(exact.storm_findings(Size(kills=60 * budget), plain_library))


def test_kills_while_the_ledger_is_corrected(budget):
    """Nothing over the promise, and both ledgers the same at the end: the part `corrected`, small and for a moment."""
    size = Size(kills=40 * budget, processes=4, threads=2)

    assert [] == missed(exact.corrected_findings(size))
