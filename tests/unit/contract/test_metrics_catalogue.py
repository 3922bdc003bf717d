# SPDX-License-Identifier: Apache-2.0
"""
The catalogue keeps its own rules, and families never turn the unknown into a number.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.reference import reference
from isolation.contract import metrics
from isolation.contract.metrics import LABELS, PREFIX, Group, Kind, Unit, card, family

REPOSITORY = Path(__file__).resolve().parents[3]
CATALOGUE = {**metrics.CATALOGUE, **card.CATALOGUE}
NAMES = sorted(CATALOGUE)
COLLECTED = {spec.name for specs in card.COLLECTED.values() for spec in specs}


@pytest.mark.parametrize("name", NAMES)
def test_name_says_prefix_unit_and_kind(name):
    """A reader tells unit and type from the name, as Prometheus' naming rules ask."""
    spec = CATALOGUE[name]

    assert re.fullmatch(rf"{PREFIX}[a-z]+(_[a-z]+)*", name)
    assert (spec.kind is Kind.COUNTER) == name.endswith("_total")
    assert (spec.kind is Kind.INFO) == name.endswith("_info")
    bare = name.removesuffix("_total")
    suffixes = {unit for unit in Unit if unit and bare.endswith(f"_{unit}")}
    assert suffixes == ({spec.unit} if spec.unit else set())


@pytest.mark.parametrize("name", NAMES)
def test_help_is_a_sentence(name):
    """Help starts with a capital, ends with a full stop and fits one line of a table."""
    assert re.fullmatch(r"[A-Z][^\n|]*\.", CATALOGUE[name].help)


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_known_and_few(name):
    """Every label is explained once, none twice, and no series has fifteen (NVIDIA/dcgm-exporter issue 585)."""
    labels = CATALOGUE[name].labels

    assert set(labels) <= set(LABELS)
    assert len(set(labels)) == len(labels) < 15


def test_every_label_is_used():
    """The table of labels explains nothing that no metric has."""
    assert set(LABELS) == {label for spec in CATALOGUE.values() for label in spec.labels}


def test_device_series_carry_no_pod_labels():
    """A card's series keep their identity when pods come and go."""
    cards = [spec for spec in CATALOGUE.values() if spec.group is Group.CARD]

    assert cards
    assert all(not {"pod", "namespace", "container", "promise"} & set(spec.labels) for spec in cards)
    assert all(spec.labels[:3] == ("node", "uuid", "card") for spec in cards)


def test_a_container_has_few_samples():
    """At most 13 per container and card; what a card has at most is counted on a real page."""
    every = [name for name, spec in CATALOGUE.items() if "pod" in spec.labels and name not in COLLECTED]

    assert 13 >= len(every)


def test_allocated_and_used_divide():
    """Allocated and used carry identical labels, so that a query can divide them without on()."""
    assert metrics.CONTAINER_MEMORY_ALLOCATED.labels == metrics.CONTAINER_MEMORY_USED.labels
    assert metrics.CONTAINER_COMPUTE_ALLOCATED.labels == metrics.CONTAINER_COMPUTE_USED.labels
    assert (
        metrics.CONTAINER_MEMORY_ALLOCATED.labels
        == metrics.CONTAINER_COMPUTE_ALLOCATED.labels
        == metrics.OVER_LIMIT.labels
    )


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_unknown_is_absent(unknown):
    """What is unknown, or is no number, has no sample."""
    rows = [(("n", "u", "0"), unknown), (("n", "u", "1"), 0)]

    assert ((("n", "u", "1"), 0.0),) == family(metrics.CARD_MEMORY_USED, rows).samples


def test_same_labels_add_up():
    """Two parts of one series become one sample; with an unknown part the sum is unknown."""
    rows = [(("n", "u", "0"), 3), (("n", "u", "0"), 4), (("n", "u", "1"), 3), (("n", "u", "1"), None)]

    assert ((("n", "u", "0"), 7.0),) == family(metrics.CARD_MEMORY_USED, rows).samples


def test_info_stays_one():
    """The same info twice still says 1."""
    rows = [(("1.0",), 1), (("1.0",), 1)]

    assert ((("1.0",), 1.0),) == family(metrics.BUILD_INFO, rows).samples


def test_wrong_number_of_labels_is_a_mistake():
    """A collector that forgets a label is told so instead of shifting the others."""
    with pytest.raises(ValueError, match="gpushare_card_memory_used_bytes has labels"):
        family(metrics.CARD_MEMORY_USED, [(("n", "u"), 1)])


@given(st.lists(st.tuples(st.tuples(st.sampled_from("ab"), st.just("u"), st.sampled_from("01")), st.integers(0, 9))))
def test_every_series_once_and_nothing_lost(rows):
    """However often labels repeat, each series stands once and the total stays."""
    samples = family(metrics.CARD_MEMORY_USED, rows).samples

    assert len({labels for labels, _ in samples}) == len(samples)
    assert sum(value for _, value in rows) == sum(value for _, value in samples)


def test_reference_is_printed_from_the_catalogue():
    """docs/metrics.md is what the catalogue says; if not: python -m exporter.reference > docs/metrics.md."""
    assert (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8") == reference()


def test_reference_names_every_metric():
    """No group is left out of the reference."""
    text = reference()

    assert [] == [name for name in NAMES if f"`{name}`" not in text]
