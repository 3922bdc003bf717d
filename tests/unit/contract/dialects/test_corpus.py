# SPDX-License-Identifier: Apache-2.0
"""The vendors' own examples become what the table says: by translation, and by `gpushare place`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.dialect_corpus import CARD_GIB, CORPUS, Refused, Share, Untouched, Whole, as_stored

from gpushare import main
from isolation.contract.codec import request_of
from isolation.contract.dialects import SYSTEMS, Offered, translate
from isolation.contract.model import Request
from isolation.contract.names import CORE_STEPS, DIALECT, USE_MODELS, USE_UUIDS
from isolation.contract.quantity import GIB

OFFERED = Offered(frozenset(CORE_STEPS), lambda _rules, **_compute: frozenset({CARD_GIB * GIB}))
EACH = pytest.mark.parametrize("row", CORPUS, ids=lambda row: row.name)
UUID = "GPU-123456"


@EACH
def test_an_example_is_translated_as_its_own_system_reads_it(row):
    """As written, and as the API server completes it: cards, GiB and percent of each, and what has no amount."""
    for pod in (row.pod, as_stored(row.pod)):
        found = translate(pod, OFFERED)
        expected = row.becomes
        if isinstance(expected, Refused):
            assert found.refusal is not None
            assert expected.words in found.refusal.reason
            continue
        assert found.refusal is None
        assert row.dialect == found.dialect
        request = request_of(found.metadata.value, found.spec.value)
        assert isinstance(request, Request)
        if isinstance(expected, Untouched):
            assert pod["spec"] == found.spec.value
            continue
        if isinstance(expected, Whole):
            assert (expected.cards, True) == (request.cards, request.whole)
            continue
        got = (request.cards, request.card_bytes // GIB, request.card_core, request.whole)
        assert (expected.cards, expected.gib, expected.percent, False) == got
        notes = found.metadata.value["annotations"]
        assert expected.notes == {key: notes[key] for key in notes if key in expected.notes}
        asking = [
            one["name"]
            for kind in ("initContainers", "containers")
            for one in found.spec.value.get(kind, ())
            if one.get("resources")
        ]
        assert [expected.container] == asking
        assert any(expected.warns in text for text in found.warnings) or not expected.warns


def placed(pod):
    """Exit status, and what `gpushare place` answers."""
    node = f"name=n1,cards=4,gib={CARD_GIB},mode=MODE,model=A100"
    notes = pod["metadata"].get("annotations", {})
    if "A10" in notes.values():
        node = node.replace("A100", "A10")
    for key, value in pod["spec"].get("nodeSelector", {}).items():
        node += f",label.{key}={value}"
    answers = []
    for mode in ("core_mem", "cgpu", "share", "default", "core_mem,policy=priority", "mps"):
        words = ["place", "-f", "-", "--node", node.replace("MODE", mode), "-o", "json"]
        done = CliRunner().invoke(main, words, input=json.dumps(pod), catch_exceptions=False)
        answers.append((done.exit_code, json.loads(done.stdout), done.stderr))
        if done.exit_code == 0:
            break
    return answers[-1] if answers[-1][0] == 0 else answers[0]


@EACH
def test_place_knows_an_example_without_being_told(row):
    """On nodes with cards of 80 GiB, of whichever mode and policy can take the pod."""
    status, answer, _ = placed(row.pod)
    if isinstance(row.becomes, Refused):
        assert 1 == status
        assert row.becomes.words in answer["refusals"][0]["reason"]
        return
    if isinstance(row.becomes, Untouched):  # whole instances, as NVIDIA's plugin counts them: none is on these nodes
        assert 1 == status
        assert "whole card" in answer["refusals"][0]["reason"]
        return
    if row.name == "hami/uuid_to_use_shared":  # no node on a command line has a card with that UUID
        assert 1 == status
        return
    assert 0 == status, answer
    (landed,) = answer["placements"]
    share = row.becomes if isinstance(row.becomes, Share) else None
    gib, percent = (share.gib, share.percent) if share else (CARD_GIB, 100)
    assert (share.container if share else "main") == landed["container"]
    got = [(card["memory_gib"], card["core_percent"]) for card in landed["cards"]]
    assert [(gib, percent)] * row.becomes.cards == got


def test_every_dialect_has_rows_of_each_outcome_that_it_can_have():
    """A dialect without examples is one that nobody checked."""
    assert set(SYSTEMS) == {row.name.partition("/")[0] for row in CORPUS}
    assert len(CORPUS) == len({row.name for row in CORPUS})
    assert len([row for row in CORPUS if row.source.startswith("Project-HAMi/HAMi examples/nvidia/")]) >= 20
    assert {DIALECT, USE_MODELS, USE_UUIDS}
