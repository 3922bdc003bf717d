# SPDX-License-Identifier: Apache-2.0
"""Evictions: what an answer means, what no answer means, and that nobody goes without a home."""

from __future__ import annotations

import pytest
from support.autoscaler_harness import LIMITS, Machines, a_node, a_pod, drained, home, run, two

from autoscaler.core.plan import Evict, Move
from autoscaler.kube.core.conditions import ConditionKind
from isolation.contract.reservation import RESERVATIONS_PATH
from isolation.kube.core.errors import RefusedError
from isolation.kube.core.errors import UnreachableError as SilentError


async def evicted(stand, answer=None, times=1):
    """Evict the pod of a drained node; what came of it."""
    await stand.world.observe()
    await stand.world.apply(drained())
    await stand.heard()
    if answer is not None:
        stand.api.fails = {"/eviction": answer}
    return [await stand.world.apply(Evict("p1", "n1", "o", "to n2")) for _ in range(times)]


@pytest.mark.parametrize(
    ("answer", "refused", "kind"),
    [
        pytest.param(None, False, None, id="done"),
        pytest.param(RefusedError(404, "NotFound", "gone"), False, None, id="gone already"),
        pytest.param(RefusedError(409, "Conflict", "another UID"), False, None, id="another of that name"),
        pytest.param(
            RefusedError(429, "TooManyRequests", "budget"), True, ConditionKind.CONFLICT, id="a budget says no"
        ),
        pytest.param(RefusedError(500, "Internal", "two budgets"), True, ConditionKind.EVICTION, id="the server fails"),
    ],
)
def test_an_evictions_answer_is_understood(answer, refused, kind):
    """
    Gone is done; a no is a refusal with its kind; the home stays for the next turn.
    """
    api = two()

    async def story(stand):
        (found,) = await evicted(stand, answer)
        return found, {condition.kind for condition in stand.world.conditions()}

    found, kinds = run(api, Machines("n1", "n2"), story)
    assert refused is (found is not None)
    assert ({kind} if kind else set()) == kinds
    assert 1 == len(api.kinds[RESERVATIONS_PATH])


def test_an_eviction_without_an_answer_is_not_a_refusal():
    """
    It may have happened: whoever counts evictions has to count it.
    """
    api = two()

    async def story(stand):
        with pytest.raises(SilentError):
            await evicted(stand, SilentError("no answer"))
        return [condition.kind for condition in stand.world.conditions()]

    assert [ConditionKind.NOT_READ] == run(api, Machines("n1", "n2"), story)


def test_after_a_failure_of_the_server_nobody_is_evicted_for_a_while():
    """
    The second eviction is not even tried; when the time is over it is.
    """
    api = two()

    async def story(stand):
        await evicted(stand, RefusedError(500, "Internal", "two budgets"), times=2)
        stand.api.fails = {}
        before = [path for _, path in api.writes if path.endswith("/eviction")]
        held = await stand.world.apply(Evict("p1", "n1", "o", "to n2"))
        stand.seconds += LIMITS.max_pool_backoff_seconds + 1
        await stand.world.apply(Evict("p1", "n1", "o", "to n2"))
        return before, held, [condition.kind for condition in stand.world.conditions()]

    before, held, kinds = run(api, Machines("n1", "n2"), story)
    assert [] == before
    assert held is not None
    assert ConditionKind.EVICTION in kinds


def test_nobody_is_evicted_without_a_home_that_stands():
    """
    The reservation was deleted, or its card is full by now, or its node is not ready: each is a refusal.
    """

    async def deleted(stand):
        api = stand.api
        api.kinds[RESERVATIONS_PATH].clear()

    async def full(stand):
        stand.api.put("/api/v1/pods", a_pod("late", "n2", units=5, app="late"), "ADDED")

    async def unready(stand):
        node = a_node("n2")
        node["status"]["conditions"][0]["status"] = "False"
        stand.api.put("/api/v1/nodes", node)

    for trouble in (deleted, full, unready):
        api = two()

        async def story(stand, trouble=trouble):
            await stand.world.observe()
            await stand.world.apply(drained())
            await stand.heard()
            await trouble(stand)
            await stand.api.delivered()
            return await stand.world.apply(Evict("p1", "n1", "o", "to n2"))

        refused = run(api, Machines("n1", "n2"), story)
        assert "reserv" in str(refused), trouble.__name__
        assert [] == [path for _, path in api.writes if path.endswith("/eviction")]


def test_a_move_that_is_refused_gives_its_home_back():
    """
    A budget says no: no reservation stays.
    """
    api = two()
    api.fails = {"/eviction": RefusedError(429, "TooManyRequests", "budget")}

    async def story(stand):
        await stand.world.observe()
        return await stand.world.apply(Move("p1", "n1", "o", home("p1", "n2"), "mitigate_hot_card", "hot"))

    assert run(api, Machines("n1", "n2"), story) is not None
    assert {} == api.kinds[RESERVATIONS_PATH]
