# SPDX-License-Identifier: Apache-2.0
"""numba-cuda's own driver tests."""

from __future__ import annotations

import json

from cuda_programs.harness import python, python_home, showed

SUITE = """
import json
from numba.testing import run_tests
result = run_tests(["numba", "numba.cuda.tests.cudadrv"], nomultiproc=True)
found = {kind: [test.id() for test, _ in getattr(result, kind)] for kind in ("failures", "errors", "skipped")}
print()
print(json.dumps(found | {"run": result.testsRun}))
"""
"""As `python -m numba.runtests` does, with the results by name."""


def test_the_driver_tests_of_numba_have_the_same_results_with_the_library(machine):
    """
    Each test by its name. Those fail without it too that read what a kernel computed. CUDA_VISIBLE_DEVICES, by which
    `gpushare run` names the cards, is taken out: a test skips itself where it is set.
    """
    command = ("env", "-u", "CUDA_VISIBLE_DEVICES", *python(python_home()), "-c", SUITE)
    plain, shared = (json.loads(text.splitlines()[-1]) for text in machine.both(*command))

    differs = {kind: set(plain[kind]) ^ set(shared[kind]) for kind in plain if kind != "run"}
    assert not any(differs.values()), differs
    assert plain["run"] == shared["run"]
    wrong, skipped = len(plain["failures"]) + len(plain["errors"]), len(plain["skipped"])
    passed = plain["run"] - wrong - skipped
    assert passed > 200, plain
    what = f"{passed} of {plain['run']} pass, {skipped} are skipped, {wrong} read what a kernel computed"
    showed("numba-cuda", "its own driver tests", what, "each test the same")
