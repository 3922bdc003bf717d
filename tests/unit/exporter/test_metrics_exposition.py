# SPDX-License-Identifier: Apache-2.0
"""
The page: guarded, rendered once per snapshot, clean to Prometheus' own checks, served over HTTP.
"""

from __future__ import annotations

import gzip
import itertools
import socket
import urllib.error
import urllib.request
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support import golden_files, promtool
from support.frames import frame, node, small_fleet, use
from support.waiting import PATIENCE_SECONDS

from autoscaler.core.metric_families import COLLECTORS
from exporter.fleet import FleetMetrics
from exporter.http import text_format
from exporter.http.listen import ListenError
from exporter.http.pages import Exposition, Form, MetricsPage, Silent, collect
from exporter.http.server import MetricsServer
from exporter.pipeline.families import card_families, container_families
from isolation.contract import metrics
from isolation.contract.metrics import CATALOGUE, Kind, card, family

ALL = {"cards": lambda f: card_families(f.nodes), "containers": lambda f: container_families(f.nodes), **COLLECTORS}


def render(collectors, snapshot=None):
    """The page of a snapshot read at a known time, on a clock that ticks in quarters of a second."""
    ticks = itertools.count()
    families = collect(collectors, snapshot, read_at=1.7e9, clock=lambda: next(ticks) / 4, release="1.2.3")
    return text_format.Renderer().page(families)


def samples(page):
    """{(name, labels as a frozenset): value} of a page in the text format."""
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for f in text_string_to_metric_families(page.decode())
        for s in f.samples
    }


def broken(_):
    """Fails half-way."""
    yield family(metrics.SIMULATED_CLOCK, [((), 1.0)])
    raise RuntimeError("the source is gone")


def test_whole_page_is_golden():
    """The page of a small fleet, to the byte."""
    golden_files.check("metrics.txt", render(ALL, small_fleet()).decode())


def test_promtool_is_content():
    """Prometheus' linter has nothing to say, and parses every line."""
    promtool.check(render(ALL, small_fleet()))


HARDWARE = (card.RECOVERY_ACTION, card.ROW_REMAP_PENDING, card.PROCESSES)
"""What this fleet tells of its cards' hardware; none of them is unhealthy."""


def test_every_metric_of_the_catalogue_is_exposed():
    """What the reference promises, a fleet with a bit of everything shows."""
    names = {name for name, _ in samples(render(ALL, small_fleet()))}

    assert {*CATALOGUE, *(spec.name for spec in HARDWARE)} == names


def test_types_and_help_reach_the_scraper():
    """Counters are counters, the rest gauges (info has no type of its own in the text format)."""
    body = render(ALL, small_fleet()).decode()

    for spec in CATALOGUE.values():
        assert f"# TYPE {spec.name} {'counter' if spec.kind is Kind.COUNTER else 'gauge'}\n" in body
        assert f"# HELP {spec.name} {spec.help}\n" in body


def test_failed_collector_costs_only_its_own_series(caplog):
    """A collector that fails half-way is absent and says so; the others are served."""
    found = samples(render({"bad": broken, "good": COLLECTORS["pending"]}, frame()))

    names = {name for name, _ in found}
    assert "gpushare_simulated_clock_seconds" not in names
    assert "gpushare_pending_pods" in names
    assert 0.0 == found["gpushare_exporter_collector_success", frozenset({("collector", "bad")})]
    assert 1.0 == found["gpushare_exporter_collector_success", frozenset({("collector", "good")})]
    assert "the source is gone" in caplog.text


def test_own_figures():
    """How long collectors took, when the snapshot was read, and which release this is."""
    found = samples(render({"none": lambda _: ()}))

    assert 0.25 == found["gpushare_exporter_collector_duration_seconds", frozenset({("collector", "none")})]
    assert 1.7e9 == found["gpushare_exporter_sample_timestamp_seconds", frozenset()]
    assert 1.0 == found["gpushare_exporter_build_info", frozenset({("version", "1.2.3")})]


@given(st.text(max_size=8), st.text(max_size=8))
def test_hostile_names_keep_the_page_whole(pod, container):
    """Whatever a name contains, the page parses and the value arrives, quotes and newlines included."""
    uses = [use(pod, container=container, used=3)]
    page = render({"c": ALL["containers"]}, frame([node(uses=uses)]))

    used = [v for (name, _), v in samples(page).items() if name == "gpushare_container_memory_used_bytes"]
    assert [3.0 * 2**30] == used


def test_undecodable_name_does_not_fail_the_scrape():
    """A lone surrogate, which UTF-8 cannot write, becomes a question mark."""
    page = render({"c": ALL["containers"]}, frame([node(uses=[use("a\udcff")])]))

    assert b'pod="a?"' in page


def test_rendered_once_per_snapshot():
    """Scrapes of one snapshot share the work; one that nobody asks for costs nothing."""
    runs = []
    exposition = Exposition({"c": lambda f: runs.append(f) or ()}, clock=lambda: 0.0, release="x")
    exposition.publish("first", 1.0)

    pages = [exposition.page() for _ in range(3)]
    exposition.publish("second", 2.0)
    exposition.publish("third", 3.0)
    exposition.page()

    assert ["first", "third"] == runs
    assert pages[0] is pages[1] is pages[2]


def test_openmetrics_for_those_who_ask():
    """The other format, of the same families, ends in a mark of its own."""
    exposition = Exposition(ALL, clock=lambda: 0.0, release="x")
    exposition.publish(small_fleet(), 1.0)

    page = exposition.page(Form(openmetrics=True))

    assert page.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert page.body.endswith(b"# EOF\n")
    assert exposition.page().content_type.startswith("text/plain; version=0.0.4")


def test_compressed_once_for_all_who_ask():
    """Gzip of the same bytes, made once per snapshot and format."""
    exposition = Exposition(ALL, clock=lambda: 0.0, release="x")
    exposition.publish(small_fleet(), 1.0)

    pages = [exposition.page(Form(gzip=True)) for _ in range(2)]

    assert pages[0] is pages[1]
    assert "gzip" == pages[0].encoding
    assert exposition.page().body == gzip.decompress(pages[0].body)


def test_a_ready_page_is_made_before_it_is_asked_for():
    """Published ready, a snapshot is rendered in the forms that scrapers ask for, and collected only once."""
    runs = []
    exposition = Exposition({"c": lambda f: runs.append(f) or ()}, clock=lambda: 0.0, release="x")
    exposition.publish("first", 1.0, ready=True)
    assert ["first"] == runs

    form = Form(openmetrics=True, gzip=True)
    exposition.page(form)
    exposition.publish("second", 2.0, ready=True)
    latest = exposition._latest
    assert {Form(openmetrics=True), form} == set(latest.pages)
    assert exposition.page(form) is latest.pages[form]
    assert ["first", "second"] == runs


def test_a_form_that_nobody_asks_for_any_more_is_not_made_in_advance():
    """A person who looked once with curl costs a minute of cycles, not every one from then on."""
    now = [0.0]
    exposition = Exposition({}, clock=lambda: now[0], release="x")
    exposition.publish("first", 1.0, ready=True)
    exposition.page(Form(openmetrics=True))
    for now[0], forms in ((59.0, {Form(openmetrics=True)}), (61.0, set())):
        exposition.publish(now[0], 2.0, ready=True)
        assert forms == set(exposition.pages)


def test_scrapes_while_snapshots_change_are_whole():
    """Whoever scrapes while the next snapshot is published gets one of them, never a mixture."""

    def families(number):
        yield family(metrics.PENDING_PODS, [((str(n),), number) for n in range(200)])

    exposition = Exposition({"c": families}, clock=lambda: 0.0, release="x")
    exposition.publish(0, 0.0, ready=True)
    mixed = []

    def scrape():
        for at in range(300):
            form = Form(openmetrics=at % 2 == 0, gzip=at % 3 == 0)
            body = exposition.page(form).body
            body = gzip.decompress(body) if form.gzip else body
            values = {line.split()[-1] for line in body.splitlines() if line.startswith(b"gpushare_pending_pods{")}
            if len(values) != 1:
                mixed.append(values)

    threads = [Thread(target=scrape) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(300):
        exposition.publish(number, 0.0, ready=number % 2 == 0)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert [] == mixed


def get(url, **headers):
    """Status, content type and body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.headers["Content-Type"], exc.read()


def test_served_over_http():
    """/metrics is the page, /healthz is alive, anything else is not found but says where to look."""
    with FleetMetrics(0, COLLECTORS) as endpoint:
        assert 503 == get(endpoint.url)[0]
        endpoint.publish(small_fleet())
        root = endpoint.url.removesuffix("/metrics")

        status, content_type, body = get(endpoint.url)
        assert (200, True) == (status, content_type.startswith("text/plain; version=0.0.4"))
        assert b'pod="bert-1"' in body
        assert (200, b"ok\n") == get(f"{root}/healthz")[::2]
        assert (404, True) == (get(f"{root}/other")[0], b"/metrics" in get(f"{root}/other")[2])


def test_port_is_free_afterwards():
    """Leaving the context frees the port for the next one."""
    with FleetMetrics(0, {}) as first:
        port = int(first.url.rsplit(":", 1)[1].split("/")[0])

    with FleetMetrics(port, {}) as second:
        assert first.url == second.url


def test_busy_port_says_what_to_do():
    """A port that somebody else has is an error with the way out in it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(ListenError, match=rf"port {port} on 127\.0\.0\.1 is in use: choose another port, or 0"):
            MetricsServer(Exposition({}, clock=lambda: 0.0, release="x"), port)


def test_silent_connection_does_not_block_others():
    """Somebody who connects and says nothing keeps nobody else from the page."""
    with FleetMetrics(0, {}) as endpoint:
        endpoint.publish(frame())
        host, port = endpoint.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port))):
            assert 200 == get(endpoint.url)[0]


def test_failing_page_is_an_error_and_not_the_end(caplog):
    """If rendering itself fails the scraper gets 500, and the next request is served."""

    class Broken:
        def page(self, form=None):
            if form.openmetrics:
                raise RuntimeError("no page")
            return MetricsPage(b"x 1\n", "text/plain")

        made = page

    with MetricsServer(Broken(), 0) as server:
        assert 500 == get(server.url, Accept="application/openmetrics-text")[0]
        assert 200 == get(server.url)[0]
    assert "no page" in caplog.text


def test_nothing_to_show_says_why():
    """Before the first snapshot there is no page; a page that has gone stale is none either."""

    class Stale:
        def page(self, _form=None):
            raise Silent("the last reading is 60 s old")

        made = page

    with MetricsServer(Stale(), 0) as server:
        assert (503, b"the last reading is 60 s old\n") == get(server.url)[::2]
        assert (503, b"the last reading is 60 s old\n") == get(server.url.replace("metrics", "readyz"))[::2]
        assert 200 == get(server.url.replace("metrics", "healthz"))[0]
