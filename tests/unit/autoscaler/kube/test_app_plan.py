# SPDX-License-Identifier: Apache-2.0
"""What `gpushare autoscaler plan` shows: steps with reasons, pending pods, conditions; foreign text stays text."""

from __future__ import annotations

import io
import json

from support.builders import ask
from support.pools_builder import pod, pool, seen

from autoscaler.apis.metrics.core.readings import MetricsSnapshot
from autoscaler.core.decide import decide
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.state import AutoscalerState, Backoff
from autoscaler.kube.core.telemetry_rows import TelemetryReading
from autoscaler.kube.plan_view import Beside, as_json, make_prospect, show


def prospect(*pods, memory=None, unanswered=None, **beside):
    """Of a pool of two cards of 15 GiB a node, from zero."""
    turn = seen([pool("gpu-a", 2)], list(pods), at=1000.0)
    plan, after = decide(turn, ScalingLimits(), memory or AutoscalerState())
    reading = TelemetryReading(turn, after, ScalingLimits(), MetricsSnapshot(), unanswered=unanswered or {})
    return make_prospect(reading, plan.steps, Beside(**beside))


def shown(found):
    """As it stands on a terminal that is none."""
    stream = io.StringIO()
    show(found, stream)
    return stream.getvalue()


def test_steps_pods_and_pools_with_their_reasons():
    """
    One node for the pod that some pool can host, the reason for the one that none can.
    """
    found = prospect(pod(ask(12), "fits-on-a-new-one", created=900.0), pod(ask(40), "too-large"))

    assert [("scale_up", "gpu-a")] == [(line.action, line.target) for line in found.actions]
    assert {"nominated": "no_nodes", "unsatisfiable": "card_too_small"} == {
        line.status: line.reason for line in found.pods
    }
    assert [("gpu-a", 0, 0, 0.0)] == [(one.pool, one.nodes, one.starting, one.backoff_seconds) for one in found.pools]
    text = shown(found)
    for part in ("scale_up", "gpu-a", "default/fits-on-a-new-one", "100 s", "unsatisfiable", "0 to 100"):
        assert part in text


def test_what_keeps_it_from_acting_stands_first():
    """
    Before the table: a dry run, a switch, a condition; and a pool that rests.
    """
    rests = AutoscalerState(backoffs={"gpu-a": Backoff(1040.0, 300.0)})
    text = shown(
        prospect(pod(ask(12)), memory=rests, conditions=("node n is not well",), inhibited_by=("switched off",))
    )

    assert ["the running autoscaler does not take these actions: switched off", "condition: node n is not well"] == (
        text.splitlines()[:2]
    )
    assert "no actions to take now" in text
    assert "pool_limited" in text
    assert "40 s" in text


def test_untrusted_text_neither_colours_nor_breaks_the_table():
    """
    Mark-up and control characters in a reason are shown as they are, or as a space.
    """
    odd = pod(ask(12), "odd")
    strange = "[red]x[/red]\x1b[2J\nnext"
    text = shown(prospect(odd, unanswered={odd.uid: strange}, conditions=(strange,)))

    assert 2 == text.count("[red]x[/red]")
    assert "\x1b" not in text
    assert "unsupported" in text


def test_a_pool_that_is_unknown_has_no_bounds():
    """
    Neither one whose nodes are known nor one of which nothing was ever seen is shown as bound to 0 nodes.
    """
    found = prospect(silent={"gpu-a": 'machinedeployments "gpu-a" not found', "gpu-b": "no answer"})

    bounds = {one.pool: (one.min_nodes, one.max_nodes) for one in found.pools}
    assert {"gpu-a": (None, None), "gpu-b": (None, None)} == bounds
    text = shown(found)
    assert 2 == text.count("unknown")
    assert ['machinedeployments "gpu-a" not found', "no answer"] == [
        line["error"] for line in json.loads(as_json(found))["pools"]
    ]
    assert " to " not in text.splitlines()[-1]


def test_the_document_for_programs_is_whole():
    """
    The same as the tables; nothing but finite numbers.
    """
    found = json.loads(as_json(prospect(pod(ask(12), "a"))))

    assert {"actions", "pods", "pools", "conditions", "inhibited_by"} == found.keys()
    assert "default/a" == found["pods"][0]["pod"]
