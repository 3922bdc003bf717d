# SPDX-License-Identifier: Apache-2.0
"""The vendors' own examples through a real API server, webhook and policies: stored as the table says, or refused."""

from __future__ import annotations

import asyncio

import pytest
from e2e.admission_harness import PODS
from e2e.apiclient import RefusedError
from e2e.test_admission_dialects import serving
from support.dialect_corpus import CARD_GIB, CORPUS, Refused, Share, Untouched, Whole

from isolation.contract.codec import request_of
from isolation.contract.codec.cursor import At
from isolation.contract.dialects import SYSTEMS, Offered
from isolation.contract.model import Request
from isolation.contract.names import ACK, DIALECT
from isolation.contract.quantity import GIB
from isolation.scheduler.admission.core.serving import parse_serving
from isolation.simulator.migrate.changes import change

ALL = parse_serving(",".join((ACK.name, *SYSTEMS)), [])
OFFERED = Offered(ALL.dialects, lambda _rules, **_compute: frozenset({CARD_GIB * GIB}))


@pytest.fixture(scope="module")
def answers(plane):
    """What the API server would store of each row, or why it would not."""

    async def story():
        said = {}
        async with serving(plane, ALL, OFFERED) as (client, _):
            for row in CORPUS:
                try:
                    said[row.name] = await client.call("POST", PODS, row.pod, dryRun="All")
                    written = change(At(row.pod), OFFERED).value
                    said[f"{row.name} written"] = await client.call("POST", PODS, written, dryRun="All")
                except RefusedError as exc:
                    said[row.name] = str(exc)
        return said

    return asyncio.run(story())


@pytest.mark.parametrize("row", CORPUS, ids=lambda row: row.name)
def test_an_example_is_stored_as_the_table_says(answers, row):
    """Every dialect on, cards of 80 GiB: the stored pod asks for the row's cards in our words and in no others."""
    answer, expected = answers[row.name], row.becomes
    if isinstance(expected, Refused):
        assert expected.words in answer
        return
    assert isinstance(answer, dict), answer
    metadata, spec = answer["metadata"], answer["spec"]
    named = {
        name
        for kind in ("initContainers", "containers")
        for one in spec.get(kind, ())
        for part in ("limits", "requests")
        for name in one["resources"].get(part, ())
    }
    if isinstance(expected, Untouched):
        assert {expected.resource} <= named
        return
    assert not named & {name for one in SYSTEMS.values() for name in one.resources}
    assert row.dialect == metadata.get("annotations", {}).get(DIALECT, "")
    request = request_of(metadata, spec)
    assert isinstance(request, Request)
    if isinstance(expected, Whole):
        assert (expected.cards, True, "default-scheduler") == (request.cards, request.whole, spec["schedulerName"])
        return
    assert isinstance(expected, Share)
    got = (request.cards, request.card_bytes // GIB, request.card_core, request.whole)
    assert (expected.cards, expected.gib, expected.percent, False) == got
    assert expected.notes == {key: metadata["annotations"].get(key) for key in expected.notes}
    assert "gpushare-scheduler" == spec["schedulerName"]
    written = answers[f"{row.name} written"]  # by gpushare migrate -o yaml: the same pod
    assert request == request_of(written["metadata"], written["spec"])
