# SPDX-License-Identifier: Apache-2.0
"""Figures: what an exposition says, how old it is on a clock that nobody sets, and what a stranger's answer costs."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import PATIENCE_SECONDS

from autoscaler.apis.metrics.core.readings import CardKey
from autoscaler.core.observation import observe_cluster
from autoscaler.kube.right_sizing import RightSizing
from autoscaler.kube.usage import MeasurementAges, Row, spots_of
from autoscaler.kube.usage_http import MAX_BYTES, PAST_HOURS, Exporters, Prometheus, TellError, rows_of, vector_of
from isolation.contract.metrics import (
    CARD_BUSY_SECONDS,
    CONTAINER_COMPUTE_SECONDS,
    CONTAINER_MEMORY_ALLOCATED,
    CONTAINER_MEMORY_USED,
    SAMPLE_TIMESTAMP,
)
from isolation.contract.model import Ask, Card, Cluster, Mode, Node, Placement, Pod, Request, Slice

GIB = 1 << 30


def page(stamp=100.0, used=GIB, core=0.4, heat=0.95, node="n1"):
    """What an exporter shows of one pod on one card, of which it has used these parts since 0."""
    spot = f'namespace="ml",pod="train",container="main",node="{node}",uuid="GPU-1",card="0",mode="shared"'
    busy = heat if isinstance(heat, str) else heat * stamp
    return (
        f"# HELP {SAMPLE_TIMESTAMP.name} when\n{SAMPLE_TIMESTAMP.name} {stamp}\n"
        f"{CONTAINER_MEMORY_USED.name}{{{spot}}} {used}\n{CONTAINER_COMPUTE_SECONDS.name}{{{spot}}} {core * stamp}\n"
        f'{CARD_BUSY_SECONDS.name}{{node="{node}",uuid="GPU-1",card="0"}} {busy}\nup 1\n'
    )


def rows(text):
    """The wanted samples of a page."""
    return rows_of(text.encode())


def test_an_exposition_is_read_for_what_is_wanted():
    """
    One pod's memory and compute, one card's heat, the age; compute and heat from the second reading on.
    """
    ages = MeasurementAges(30.0, 60.0)
    first = ages.joined({"n1": rows(page(stamp=85.0))}, {}, 985.0)
    measured = ages.joined({"n1": rows(page())}, {}, 1000.0)

    sample = measured.samples[CardKey("ml", "train", "main", "GPU-1")]
    assert (GIB, None) == first.samples[CardKey("ml", "train", "main", "GPU-1")][:2]
    assert (GIB, pytest.approx(0.4), 15.0) == sample
    assert ({}, {"GPU-1": pytest.approx(0.95)}) == (first.heat, measured.heat)
    assert {"n1": 1000.0} == measured.measured
    assert {} == measured.failed


def test_figures_that_do_not_change_grow_old_whatever_their_clock_says():
    """
    The same stamp for 31 s: no heat, no use is told of that node any more, and it is named; a new one is fresh.
    """
    ages = MeasurementAges(30.0, 60.0)
    pod = Pod("p", "train", "ml", Request(1, GIB, asks=(Ask("main", GIB),)), Placement("n1", (Slice("GPU-1", 0, GIB),)))
    ages.joined({"n1": rows(page(stamp=85.0))}, {}, -15.0)
    first = ages.joined({"n1": rows(page())}, {}, 0.0)
    still = ages.joined({"n1": rows(page(heat=0.99))}, {}, 31.0)
    again = ages.joined({"n1": rows(page(stamp=110.0))}, {}, 32.0)

    used, heat = pytest.approx(0.4), {"GPU-1": pytest.approx(0.95)}
    assert [used, None, used] == [one.used("n1", spots_of(pod)) for one in (first, still, again)]
    assert [heat, {}, heat] == [one.heat for one in (first, still, again)]
    assert "31 s old" in still.failed["n1"]


@pytest.mark.parametrize("off", [pytest.param(3600.0, id="an hour ago"), pytest.param(-3600.0, id="in an hour")])
def test_what_is_heard_first_is_as_old_as_the_wall_clock_says_until_it_changes(off):
    """
    An exporter that has hung for an hour is not fresh because we have just been started; one whose clock is wrong is
    taken at its word from its next measurement on.
    """
    ages = MeasurementAges(30.0, 60.0)
    first = ages.joined({"n1": rows(page(stamp=5000.0))}, {}, 7.0, 5000.0 + off)
    again = ages.joined({"n1": rows(page(stamp=5010.0))}, {}, 17.0, 5010.0 + off)

    assert ({}, {"n1"}) == (first.heat, first.stale)
    assert ({"GPU-1": pytest.approx(0.95)}, set()) == (again.heat, again.stale)
    assert {"n1": 17.0} == again.measured


def test_a_nodes_word_about_another_is_not_taken():
    """
    Its exporter says that it is n2: nothing of it counts for n1.
    """
    measured = MeasurementAges(30.0, 60.0).joined({"n1": rows(page(node="n2"))}, {}, 0.0)

    assert ({}, {}) == (measured.samples, measured.heat)


def test_without_a_time_nothing_is_believed():
    """
    An exporter that does not say when it measured has not told.
    """
    text = "\n".join(line for line in page().splitlines() if SAMPLE_TIMESTAMP.name not in line)

    measured = MeasurementAges(30.0, 60.0).joined({"n1": rows(text)}, {}, 0.0)

    assert {"n1"} == measured.failed.keys()
    assert {} == measured.heat


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "x", "1e999", "1_0"])
def test_heat_that_is_no_part_of_a_whole_is_none(value):
    """
    Absent, never a number that somebody might act upon.
    """
    ages = MeasurementAges(30.0, 60.0)
    ages.joined({"n1": rows(page(stamp=85.0, heat=value))}, {}, 0.0)
    assert {} == ages.joined({"n1": rows(page(heat=value))}, {}, 15.0).heat


@given(st.text(max_size=400))
def test_no_text_breaks_the_reader(text):
    """
    Whatever an exporter sends.
    """
    found = rows(text + f"\n{SAMPLE_TIMESTAMP.name} 5\n" + text)

    assert all(isinstance(row, Row) for row in found)


@given(
    st.recursive(st.none() | st.floats() | st.text(max_size=5), lambda s: st.lists(s) | st.dictionaries(st.text(), s))
)
def test_no_answer_breaks_the_reader_of_vectors(thing):
    """
    A refusal is an error with words, everything else rows.
    """
    with contextlib.suppress(TellError):
        vector_of(json.dumps(thing).encode(), "x")
    body = {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [1, "2"]}]},
    }
    assert [Row("x", {"a": "b"}, 2.0)] == vector_of(json.dumps(body).encode(), "x")


@contextlib.asynccontextmanager
async def served(host="127.0.0.1", **answers):
    """A server; its port."""
    app = web.Application()
    for path, answer in answers.items():
        app.router.add_get("/" + path.replace("_", "/"), answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def test_exporters_are_read_and_whoever_does_not_answer_is_named():
    """
    One answers, one sends for ever, one is not there: the other two cost nothing but their own figures.
    """

    async def story():
        async def good(_):
            return web.Response(text=page())

        async def endless(request):
            answer = web.StreamResponse()
            await answer.prepare(request)
            with contextlib.suppress(ConnectionError):
                for _ in range(MAX_BYTES // 65536 + 4):
                    await answer.write(b"gpushare_x 1\n" * 5042)
            return answer

        async with served(metrics=good) as port, Exporters(port, 15.0, wall=lambda: 100.0) as one:
            fine = await one.read({"n1": "127.0.0.1", "gone": "127.0.0.2"})
        async with served(metrics=endless) as port, Exporters(port, 15.0) as other:
            return fine, await other.read({"n1": "127.0.0.1"})

    fine, endless = asyncio.run(story())
    assert [GIB] == [sample.used_bytes for sample in fine.samples.values()]
    assert {"gone"} == fine.failed.keys()
    assert "more than" in endless.failed["n1"]


def test_nodes_that_never_answer_hold_nobody_up():
    """
    Two hundred hang, one answers: the reading ends at its own deadline, with the one.
    """

    async def story():
        async def answer(request):
            if request.headers["Host"].startswith("127.0.0.1"):
                return web.Response(text=page())
            await asyncio.sleep(3600)
            return web.Response()

        nodes = {"n1": "127.0.0.1"} | {f"hang{number}": f"127.0.1.{number}" for number in range(200)}
        every = "0.0.0.0"  # noqa: S104 (all of 127.0.0.0/8 is this machine)
        async with (
            served(every, metrics=answer) as port,
            Exporters(port, 15.0, whole_seconds=6.0, wall=lambda: 100.0) as one,
        ):
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await one.read(nodes)

    measured = asyncio.run(story())
    assert [GIB] == [sample.used_bytes for sample in measured.samples.values()]
    assert 200 == len(measured.failed)


def test_prometheus_is_asked_once_for_all_nodes_and_its_trouble_is_named():
    """
    Answers by the node's label; a refusal costs all figures, with its words.
    """

    async def story():
        async def answer(request):
            wanted = [row for row in rows(page()) if row.metric == request.query["query"]]
            result = [{"metric": {"node": "n1", **row.labels}, "value": [1, str(row.value)]} for row in wanted]
            return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

        async def refuse(_):
            return web.json_response({"status": "error", "error": "too many samples"}, status=200)

        async with (
            served(api_v1_query=answer) as port,
            Prometheus(f"http://127.0.0.1:{port}/", 15.0, wall=lambda: 100.0) as one,
        ):
            fine = await one.read({"n1": "x", "n2": "y"})
        async with served(api_v1_query=refuse) as port, Prometheus(f"http://127.0.0.1:{port}", 15.0) as other:
            return fine, await other.read({"n1": "x"})

    fine, refused = asyncio.run(story())
    assert [GIB] == [sample.used_bytes for sample in fine.samples.values()]
    assert {"n2": "Prometheus has no measurements of it"} == fine.failed
    assert "too many samples" in refused.failed["n1"]


NOW = 1_800_000_000.0


def past_of(used, since=NOW - 4 * 86_400):
    """What a Prometheus says of pod `web-0` that has run since then, by hour: the maximum of use is asked for."""
    asked = []

    async def answer(request):
        query, at = request.query["query"], float(request.query["time"])
        asked.append(query)
        labels = {"namespace": "team", "pod": "web-0", "container": "main", "uuid": "GPU-a"}
        values = {
            f"max_over_time({CONTAINER_MEMORY_USED.name}[1h])": used(at),
            f"last_over_time({CONTAINER_MEMORY_ALLOCATED.name}[1h])": 12 * GIB,
        }
        known = query in values and at >= since
        result = [{"metric": labels, "value": [at, str(values[query])]}] if known else []
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    return answer, asked


def seen_of(created):
    """The cluster with that pod, promised 8 GiB now."""
    card = Card("GPU-a", 0, 16 * GIB, model="T4")
    node = Node("n", (card,), Mode.CGPU)
    request = Request(1, 8 * GIB, owner="StatefulSet/team/web", asks=(Ask("main", 8 * GIB),))
    pod = Pod("u", "web-0", "team", request, Placement("n", (Slice("GPU-a", 0, 8 * GIB),)), created=created)
    return observe_cluster(Cluster((node,), (pod,)), [], at=NOW), (node,)


def backfilled(answer, created=NOW - 4 * 86_400):
    """What is recommended after it."""

    async def story():
        sizing = RightSizing(None, "gpushare-system")
        seen, nodes = seen_of(created)
        async with (
            served(api_v1_query=answer) as port,
            Prometheus(f"http://127.0.0.1:{port}", 15.0) as prometheus,
        ):
            await sizing.backfill(seen, prometheus.past(NOW), nodes)
        sizing.observe(seen, None, nodes)
        return sizing

    return asyncio.run(story())


def test_on_a_first_start_what_prometheus_knows_of_running_pods_counts():
    """Four days of use of at most 3 GiB: a recommendation at once, by what was promised then."""
    answer, asked = past_of(lambda at: (2 + (at // 3600) % 2) * GIB)
    sizing = backfilled(answer)
    [one] = sizing.programs
    assert ("StatefulSet/web", 3 * GIB, 12 * GIB) == (one.owner, one.peak_bytes, one.promised_bytes)
    assert 3 * GIB < one.memory_bytes < 8 * GIB
    assert 5 * PAST_HOURS == len(asked)


def test_what_was_before_the_pod_was_another_pods():
    """A StatefulSet's pod has the name of the one before it."""
    answer, _ = past_of(lambda _: 3 * GIB)
    [one] = backfilled(answer, created=NOW - 3600.0 * 5).programs
    [history] = backfilled(answer, created=NOW - 3600.0 * 5).histories.values()
    assert (0, "few_lives") == (one.memory_bytes, one.abstained)
    assert [NOW - 3600.0 * 5] == [life.started for life in history.running.values()]


def test_a_prometheus_that_refuses_costs_the_past_alone():
    """With its words in the log."""

    async def refuse(_):
        return web.json_response({"status": "error", "error": "too many samples"}, status=200)

    assert {} == backfilled(refuse).histories
