# SPDX-License-Identifier: Apache-2.0
"""
Pages as text: what Prometheus' own client would write, to the byte, in both formats.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString
from support.frames import small_fleet

from exporter.http.text_format import Renderer, number
from exporter.pipeline.families import card_families, container_families
from isolation.contract.metrics import CATALOGUE, Family, Group, Kind, MetricSpec, Unit

MAKERS = {Kind.COUNTER: CounterMetricFamily, Kind.INFO: InfoMetricFamily, Kind.GAUGE: GaugeMetricFamily}


class Oracle(Collector):
    """The same families as the client library's own values."""

    def __init__(self, families):
        self.families = families

    def describe(self):
        """Nothing: names are the catalogue's to keep apart."""
        return iter(())

    def collect(self):
        """One value of the library per family; it knows units by the end of the name."""
        for family in self.families:
            spec = family.spec
            name = spec.name.removesuffix("_info") if spec.kind is Kind.INFO else spec.name
            unit = "" if spec.kind is Kind.INFO else str(spec.unit)
            made = (
                InfoMetricFamily(name, spec.help)
                if spec.kind is Kind.INFO
                else MAKERS[spec.kind](name, spec.help, unit=unit)
            )
            for values, value in family.samples:
                made.add_sample(spec.name, dict(zip(spec.labels, values, strict=True)), value)
            yield made


def oracle(families, *, openmetrics=False):
    """The page as the client library writes it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Oracle(families))
    return (generate_openmetrics if openmetrics else generate_latest)(registry)


def fleet():
    """Families of a fleet with a bit of everything."""
    nodes = small_fleet().nodes
    return [f for f in (*card_families(nodes), *container_families(nodes)) if f.samples]


def spec(name="gpushare_x_bytes", kind=Kind.GAUGE, labels=("pod", "card"), unit=Unit.BYTES, text="Help."):
    """A metric that is in no catalogue."""
    return MetricSpec(name, kind, labels, unit, text, Group.CARD)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_page_is_what_the_client_library_writes(openmetrics):
    """A whole fleet, to the byte, on a first page and on a second one made from memory."""
    renderer = Renderer()
    expected = oracle(fleet(), openmetrics=openmetrics)

    assert [expected] * 2 == [renderer.page(fleet(), openmetrics=openmetrics) for _ in range(2)]


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_metric_of_the_catalogue_is_written_alike(openmetrics):
    """Counters, infos and gauges with every unit there is."""
    every = [Family(one, ((tuple("a" for _ in one.labels), 1.5),)) for one in CATALOGUE.values()]

    assert oracle(every, openmetrics=openmetrics) == Renderer().page(every, openmetrics=openmetrics)


@given(st.floats())
@example(0.0)
@example(-0.0)
@example(1e6)
@example(999999.9999999999)
@example(1234567.0)
@example(1e15)
@example(1e16)
@example(1.5e300)
@example(-1e7)
@example(100000000.0)
def test_numbers_are_written_as_go_writes_them(value):
    """Any double whatever; and it reads back as itself."""
    assert floatToGoString(value) == number(value)
    assert math.isnan(value) or value == float(number(value))


hostile = st.text(alphabet=st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "\\", "\n", '"', "}", "# EOF", 'x"} 1\ny{a="', "\r", "\u2028", "é" * 40]
)
samples = st.lists(st.tuples(st.tuples(hostile, hostile), st.floats(allow_nan=False)), max_size=6).map(
    lambda rows: tuple(dict(rows).items())
)


@given(samples, hostile)
def test_hostile_labels_and_help_stay_inside_their_quotes(rows, text):
    """Whatever stands in a name, both formats are the library's, and its parsers find the same samples."""
    if not rows:
        return
    families = [Family(spec(text=text), rows)]
    plain, openmetrics = Renderer().page(families), Renderer().page(families, openmetrics=True)

    assert oracle(families) == plain
    assert oracle(families, openmetrics=True) == openmetrics
    expected = {(labels, value) for labels, value in rows}
    for parse, page in ((parse_plain, plain), (parse_openmetrics, openmetrics)):
        if "\r" in "".join(a + b for (a, b), _ in rows) + text:
            continue  # the library's own parsers split lines there
        found = [s for f in parse(page.decode()) for s in f.samples]
        assert expected == {((s.labels["pod"], s.labels["card"]), s.value) for s in found}


def test_negative_zero_and_zero_on_one_page():
    """They are equal numbers and different words."""
    families = [Family(spec(), ((("a", "0"), 0.0), (("b", "0"), -0.0), (("c", "0"), 0.0)))]

    assert oracle(families) == Renderer().page(families)


def test_undecodable_name_becomes_a_question_mark():
    """A lone surrogate cannot be written in UTF-8; the page is not lost for it."""
    assert b'pod="a?"' in Renderer().page([Family(spec(), ((("a\udcff", "0"), 1.0),))])


def test_families_without_samples_are_left_out():
    """Absence is the whole family's, its help included; an empty page is an empty page."""
    renderer = Renderer()

    assert b"" == renderer.page([Family(spec(), ())])
    assert b"# EOF\n" == renderer.page([], openmetrics=True)


def test_a_name_that_comes_twice_stands_once():
    """Two collectors of one metric: one block, and of two samples of one series the first."""
    families = [
        Family(spec(), ((("a", "0"), 1.0),)),
        Family(spec("gpushare_y"), ((("a", "0"), 7.0),)),
        Family(spec(), ((("a", "0"), 2.0), (("b", "0"), 3.0))),
    ]
    lines = Renderer().page(families).decode().splitlines()

    assert 1 == sum(line.startswith("# TYPE gpushare_x_bytes ") for line in lines)
    shown = [line for line in lines if line.startswith("gpushare_x_bytes")]
    assert ['gpushare_x_bytes{card="0",pod="a"} 1.0', 'gpushare_x_bytes{card="0",pod="b"} 3.0'] == shown


def test_only_series_of_the_last_page_are_remembered():
    """Pods that are gone cost nothing: ten thousand come and go, one page's worth is kept."""
    renderer = Renderer()
    for at in range(1000):
        renderer.page([Family(spec(), tuple(((f"pod-{at}-{n}", "0"), 1.0) for n in range(10)))])

    assert 10 == renderer.remembered


def test_containers_labels_are_written_once_for_all_their_families():
    """Families with the same label names share what was written: ten figures, one text."""
    rows = tuple(((f"pod-{n}", "0"), 1.0) for n in range(10))
    renderer = Renderer()
    renderer.page([Family(spec(f"gpushare_{n}"), rows) for n in range(10)])

    assert 10 == renderer.remembered
