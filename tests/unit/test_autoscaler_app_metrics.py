"""What the autoscaler tells Prometheus: every series of the catalogue, no other, each in the handbook."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from builders import ask
from pools_builder import pod, pool, seen
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.decide import decide
from autoscaler.kube.options import Address
from autoscaler.kube.telemetry import Telemetry
from autoscaler.kube.telemetry_rows import Reading, rows_of
from autoscaler.kube.wiring_doors import measured_app, serving
from autoscaler.limits import Limits
from autoscaler.memory import Backoff, Memory
from autoscaler.metrics_api.pressure import rooms_of, waiting_of
from autoscaler.metrics_api.readings import Picture
from autoscaler.plan import Buy, Delete, Discard, Evict, Move
from isolation.contract import metrics
from isolation.contract.metrics import Kind, Unit
from isolation.contract.metrics_autoscaler import CATALOGUE, LABELS

ROOT = Path(__file__).resolve().parents[2]
SHARED = (
    metrics.POOL_NODES,
    metrics.POOL_SMALLEST,
    metrics.POOL_LARGEST,
    metrics.PENDING,
    metrics.PENDING_LONGEST,
    metrics.PHANTOMS,
    metrics.EVENTS,
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


def everything(telemetry):
    """Each counter and histogram once, each gauge with some value."""
    reading = seen_with()
    for step in (Buy(POOL, (), "x"), Delete("ready-0", "x"), Discard("m", POOL, "x"), Evict("u", "n", "o", "x")):
        telemetry.stepped(step, "done", reading)
    telemetry.turned("done")
    telemetry.took("observe", 0.1)
    telemetry.wrote("done")
    telemetry.answered("Refresh", "OK", 0.1)
    gauges = (spec for spec in (*CATALOGUE.values(), *SHARED) if spec.kind is Kind.GAUGE)
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
    assert set() == {name for name in found if not name.endswith("_created")}


def test_the_catalogue_keeps_its_rules():
    """
    Units and kinds in the names, every label explained and used, every series in the handbook with its help.
    """
    handbook = (ROOT / "docs" / "autoscaler.md").read_text()
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
    Sizes by state with their zeros, what each waiting pod was told, back-off left, what is lost.
    """
    turn = seen_with(waiting=(8, 8, 20))
    _, memory = decide(turn, Limits(), Memory(closed={POOL: Backoff(turn.at + 40, 300.0)}))
    picture = Picture(0.0, {}, rooms_of(turn), waiting_of(turn))
    rows = rows_of(Reading(turn, memory, Limits(), picture, targets={POOL: 3}, left=7))
    by_name = {spec.name: values for spec, values in rows.items()}

    assert 1.0 == by_name["gpushare_pool_nodes"][POOL, "ready"]
    assert 0.0 == by_name["gpushare_pool_nodes"][POOL, "failed"]
    assert {(POOL,): 40.0} == by_name["gpushare_pool_backoff_seconds"]
    answers = by_name["gpushare_autoscaler_pending_answers"]
    assert (2.0, 1.0) == (answers["fits",] + answers["capped",], answers["hopeless",])
    assert 1.0 == by_name["gpushare_pending_pods"]["card_too_small",]
    assert {(): 7.0} == by_name["gpushare_autoscaler_moves_left"]


@pytest.mark.parametrize(
    ("later", "expected"), [(3599.0, 1.0), (3601.0, 0.0)], ids=["within-the-hour", "after-the-hour"]
)
def test_bought_where_one_was_given_back_within_the_hour_is_a_flap(later, expected):
    """
    Counted for the alarm that it is.
    """
    telemetry, first = Telemetry(), seen_with()
    telemetry.stepped(Delete("ready-0", "empty"), "done", first)
    telemetry.stepped(Buy(POOL, (), "x"), "done", seen_with(at=first.at + later))

    flaps = families(telemetry)["gpushare_autoscaler_flaps"].samples
    assert expected == sum(sample.value for sample in flaps if sample.name.endswith("_total"))


def test_steps_are_counted_by_what_became_of_them():
    """
    A single move by its kind; what was refused is no event.
    """
    telemetry = Telemetry()
    telemetry.stepped(Move("u", "n", "o", None, "rescue", "x"), "refused")
    samples = families(telemetry)["gpushare_autoscaler_steps"].samples

    assert [{"step": "rescue", "outcome": "refused"}] == [s.labels for s in samples if s.name.endswith("_total")]
    assert [] == families(telemetry)["gpushare_autoscaler_events"].samples


def test_the_metrics_port_answers_probes_and_nothing_else():
    """
    Readiness says what is missing; a body that is sent along is not read.
    """

    async def story():
        wrong = ["not read yet: pods"]
        app = measured_app(lambda: b"page", lambda: wrong[0])
        async with serving(app, Address("127.0.0.1", 0)) as port, aiohttp.ClientSession() as session:

            async def asked(path, method="GET"):
                async with session.request(method, f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, (await answer.text()).strip()

            first = [await asked(path) for path in ("/metrics", "/healthz", "/readyz", "/")]
            wrong[0] = ""
            return first, await asked("/readyz"), await asked("/metrics", "POST")

    first, ready, posted = asyncio.run(story())
    assert [(200, "page"), (200, "ok"), (503, "not read yet: pods")] == first[:3]
    assert (404, (200, "ok"), 405) == (first[3][0], ready, posted[0])
