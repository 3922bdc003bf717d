# SPDX-License-Identifier: Apache-2.0
"""What the autoscaler tells Prometheus: every series of the catalogue, no other, each in the handbook."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.builders import ask
from support.pools_builder import pod, pool, seen

from autoscaler.apis.metrics.core.pressure import list_pending, summarize_pools
from autoscaler.apis.metrics.core.readings import MetricsSnapshot
from autoscaler.core.decide import decide
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.plan import CancelDrain, Drain, Evict, Move, Plan, RemoveFailedNode, RemoveNode, ScaleUp
from autoscaler.core.state import AutoscalerState, Backoff
from autoscaler.kube.core.telemetry_rows import TelemetryReading, rows_of
from autoscaler.kube.metrics_server import measured_app, serving
from autoscaler.kube.telemetry.metrics import Telemetry
from isolation.contract import metrics
from isolation.contract.metrics import Kind, Unit
from isolation.contract.metrics.autoscaler import CATALOGUE, LABELS, TASK_FAILURES
from isolation.kube.options import Address

ROOT = Path(__file__).resolve().parents[4]
SHARED = (
    metrics.POOL_NODES,
    metrics.POOL_MIN_NODES,
    metrics.POOL_MAX_NODES,
    metrics.PENDING_PODS,
    metrics.PENDING_MAX_AGE,
    metrics.PENDING_FRAGMENTED_PODS,
    metrics.AUTOSCALER_EVENTS,
)
"""What the embedded cluster shows under the same names."""


POOL = "gpu-a"


def seen_with(waiting=(), at=1000.0):
    """One ready node of the pool, and pods that wait for so many GiB."""
    ours = pool(POOL, 2)
    node = ours.node("ready-0")
    return seen([ours], [pod(ask(size)) for size in waiting], [node], at=at)


def families(telemetry):
    """The page, by family."""
    return {family.name: family for family in text_string_to_metric_families(telemetry.page().decode())}


def flaps(telemetry):
    """Those counted, by pool."""
    samples = families(telemetry)["gpushare_autoscaler_flaps"].samples
    return {tuple(each.labels.values()): each.value for each in samples if each.name.endswith("_total")}


def everything(telemetry):
    """Each counter and histogram once, each gauge with some value."""
    reading = seen_with()
    undone = (Drain("ready-0", (), "x"), CancelDrain("ready-0", "x"))
    done = (
        ScaleUp(POOL, (), "x"),
        RemoveNode("ready-0", "x"),
        RemoveFailedNode("m", POOL, "x"),
        Evict("u", "n", "o", "x"),
        *undone,
    )
    telemetry.decided(reading, Plan(reading.at, done), ScalingLimits())
    for step in done:
        telemetry.stepped(step, "done", reading)
    telemetry.reconciled("done")
    telemetry.took("observe", 0.1)
    telemetry.wrote("done")
    telemetry.answered("Refresh", "OK", 0.1)
    gauges = (spec for spec in (*CATALOGUE.values(), *SHARED) if spec.kind is Kind.GAUGE or spec is TASK_FAILURES)
    values = {spec: {tuple("x" for _ in spec.labels): 1.0} for spec in gauges}
    telemetry.watch(lambda: values)


def test_metrics_are_those_of_the_catalogue():
    """
    Types, labels and help, and nothing that is not in it.
    """
    telemetry = Telemetry()
    everything(telemetry)
    found = families(telemetry)

    for spec in (*CATALOGUE.values(), *SHARED):
        family = found.pop(spec.name.removesuffix("_total"))
        assert (spec.kind.value, spec.help) == (family.type, family.documentation)
        assert set(spec.labels) <= set(family.samples[0].labels)
    assert set() == {name for name in found if not name.endswith("_created") and not name.startswith("process_")}


def test_the_catalogue_keeps_its_rules():
    """
    Units and kinds in the names, every label explained and used, every series in the handbook with its help.
    """
    handbook = (ROOT / "docs" / "metrics.md").read_text()
    for name, spec in CATALOGUE.items():
        assert (spec.kind is Kind.COUNTER) == name.endswith("_total")
        assert not spec.unit or name.endswith(spec.unit)
        assert spec.unit in (Unit.NONE, Unit.SECONDS, Unit.BYTES, Unit.RATIO)
        assert f"| `{name}` | {spec.kind.value} |" in handbook
        assert spec.help in handbook
    assert set(LABELS) == {label for spec in CATALOGUE.values() for label in spec.labels}


def test_no_name_stands_in_two_chapters():
    """
    What the embedded cluster shows is not given a second name.
    """
    assert set() == CATALOGUE.keys() & metrics.CATALOGUE.keys()


def test_one_reading_as_gauges():
    """
    Sizes by state with their zeros, what each waiting pod was reported, back-off left, what is lost.
    """
    turn = seen_with(waiting=(8, 8, 20))
    _, memory = decide(turn, ScalingLimits(), AutoscalerState(backoffs={POOL: Backoff(turn.at + 40, 300.0)}))
    picture = MetricsSnapshot(0.0, {}, summarize_pools(turn), list_pending(turn))
    rows = rows_of(TelemetryReading(turn, memory, ScalingLimits(), picture, targets={POOL: 3}, left=7))
    by_name = {spec.name: values for spec, values in rows.items()}

    assert 1.0 == by_name["gpushare_pool_nodes"][POOL, "ready"]
    assert 0.0 == by_name["gpushare_pool_nodes"][POOL, "failed"]
    assert {(POOL,): 40.0} == by_name["gpushare_pool_backoff_seconds"]
    answers = by_name["gpushare_autoscaler_pending_pods"]
    assert (2.0, 1.0) == (answers["fits",] + answers["pool_limited",], answers["unsatisfiable",])
    assert 1.0 == by_name["gpushare_pending_pods"]["card_too_small",]
    assert {(): 7.0} == by_name["gpushare_autoscaler_move_budget_remaining"]


@pytest.mark.parametrize(
    ("tempo", "later", "expected"),
    [(1.0, 3599.0, {(POOL,): 1.0}), (1.0, 3601.0, {}), (0.1, 359.0, {(POOL,): 1.0}), (0.1, 361.0, {})],
    ids=["within-the-hour", "after-the-hour", "within-a-demonstrations", "after-a-demonstrations"],
)
def test_a_fresh_node_that_is_emptied_is_a_flap_as_long_as_the_limits_say(tempo, later, expected):
    """
    Counted for the alarm that it is, once, and not in a demonstration whose hour is shorter.
    """
    telemetry, limits = Telemetry(), ScalingLimits().scaled(tempo)
    drain = Drain("ready-0", (), "x")
    telemetry.decided(seen([pool(POOL, 2)], [], at=990.0), Plan(990.0), limits)
    telemetry.decided(seen_with(), Plan(1000.0), limits)
    late = seen_with(at=1000.0 + later)
    telemetry.decided(late, Plan(late.at, (drain,)), limits)
    telemetry.stepped(drain, "done", late)

    assert expected == flaps(telemetry)


def test_buying_and_giving_back_in_one_pool_is_no_flap():
    """
    Pods come and go: a pool follows them, both ways within the hour.
    """
    telemetry, limits = Telemetry(), ScalingLimits()
    for at, step in (
        (1000.0, RemoveNode("ready-0", "empty")),
        (1600.0, ScaleUp(POOL, (), "x")),
        (2000.0, RemoveNode("ready-0", "")),
    ):
        then = seen_with(at=at)
        telemetry.decided(then, Plan(at, (step,)), limits)
        telemetry.stepped(step, "done", then)

    assert {} == flaps(telemetry)


def test_what_was_not_done_is_no_flap():
    """
    Withheld, refused or only said.
    """
    telemetry, limits, drain = Telemetry(), ScalingLimits(), Drain("ready-0", (), "x")
    telemetry.decided(seen([pool(POOL, 2)], [], at=990.0), Plan(990.0), limits)
    late = seen_with()
    telemetry.decided(late, Plan(late.at, (drain,)), limits)
    telemetry.stepped(drain, "inhibited")

    assert {} == flaps(telemetry)


def test_what_the_process_costs_is_reported():
    """
    Under the names that dashboards for any process know.
    """
    found = families(Telemetry())

    assert found["process_cpu_seconds"].samples[0].value >= 0
    assert found["process_resident_memory_bytes"].samples[0].value > 1 << 20


def test_steps_are_counted_by_what_became_of_them():
    """
    A single move by its kind; what was refused is no event.
    """
    telemetry = Telemetry()
    telemetry.stepped(Move("u", "n", "o", None, "make_room", "x"), "refused")
    samples = families(telemetry)["gpushare_autoscaler_actions"].samples

    assert [{"action": "make_room", "outcome": "refused"}] == [s.labels for s in samples if s.name.endswith("_total")]
    assert [] == families(telemetry)["gpushare_autoscaler_events"].samples


def test_the_metrics_port_answers_probes_and_nothing_else():
    """
    Readiness says what is missing; a body that is sent along is not read.
    """

    async def story():
        wrong = ["not read yet: pods"]
        app = measured_app(lambda: b"page", lambda: dead[0], lambda: wrong[0])
        async with serving(app, Address("127.0.0.1", 0)) as port, aiohttp.ClientSession() as session:

            async def asked(path, method="GET"):
                async with session.request(method, f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, (await answer.text()).strip()

            first = [await asked(path) for path in ("/metrics", "/healthz", "/readyz", "/")]
            wrong[0], dead[0] = "", "task switch has ended"
            return first, await asked("/readyz"), await asked("/metrics", "POST"), await asked("/healthz")

    dead = [""]
    first, ready, posted, last = asyncio.run(story())
    assert (503, "task switch has ended") == last
    assert [(200, "page"), (200, "ok"), (503, "not read yet: pods")] == first[:3]
    assert (404, (200, "ok"), 405) == (first[3][0], ready, posted[0])
