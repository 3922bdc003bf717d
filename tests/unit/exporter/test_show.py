# SPDX-License-Identifier: Apache-2.0
"""
What `--once` prints of a reading, for people and for programs.
"""

from __future__ import annotations

import json
from dataclasses import replace

from support.frames import card, node, use

from exporter.evaluate import CycleResult
from exporter.pipeline.allocations import NodeAllocations
from exporter.pipeline.attribution import NodeLabels, attribute
from exporter.pipeline.snapshot import KernelSample, MachineSample, PromiseSample, Snapshot, SourceOutcome
from exporter.show import as_json, errors, table


def result_of(reading, **outcomes):
    """One turn's result with this reading."""
    fared = {
        "machine": SourceOutcome(MachineSample(())),
        "kernel": SourceOutcome(KernelSample({}, True)),
        "promises": SourceOutcome(PromiseSample(())),
        "kubelet": None,
        "identities": None,
    }
    snapshot = Snapshot(at=1.0, epoch=1.7e9, **(fared | outcomes))
    found = attribute(snapshot, NodeAllocations((), complete=True), NodeLabels("n"))
    return CycleResult(snapshot, None if reading is None else replace(found, reading=reading))


def small():
    """Two cards; one container on each, one of them with figures that is unknown."""
    uses = [use("bert", used=3.5, gib=5, core=0.3), use("resnet", index=1, used=None)]
    dark = replace(card(1, uses=uses, power_watts=None), total_bytes=0, unknown=frozenset({"total_bytes"}))
    return node(cards=[card(0, uses=uses), dark], uses=uses)


def test_the_table():
    """A line for each card and container; what is unknown is a dash."""
    lines = [line.split() for line in table(result_of(small())).splitlines() if line]

    assert ["0", "T4", "4.0", "GiB", "16.0", "GiB", "5.0", "GiB"] == lines[2][:8]
    assert ["1", "T4", "-", "-"] == lines[3][:4]
    assert ["team/bert/main", "0", "shared", "3.5", "GiB", "5.0", "GiB", "25", "%", "30", "%", "simulation"] == lines[5]
    assert ["team/resnet/main", "1", "shared", "-", "4.0", "GiB", "-", "-", "simulation"] == lines[6]


def test_names_stay_in_their_column():
    """Neither control characters nor a name of any length breaks the table."""
    uses = [use("a\n\x1b[31m" + "x" * 200)]
    shown = table(result_of(node(uses=uses, cards=1)))

    assert shown.replace("\n", "").isprintable()
    assert max(map(len, shown.splitlines())) < 160


def test_nothing_promised():
    """Said in words."""
    assert table(result_of(node(cards=1))).endswith("no promises")


def test_the_reading_for_programs():
    """Everything; placeholders of figures that is unknown are null; how each source fared."""
    failed = SourceOutcome(None, "the socket is gone", 0.5)
    record = json.loads(as_json(result_of(small(), kubelet=failed)))

    assert (1, 1.7e9) == (record["format"], record["read_at"])
    assert [16 << 30, None] == [one["total_bytes"] for one in record["reading"]["cards"]]
    assert [int(3.5 * 2**30), None] == [one["used_bytes"] for one in record["reading"]["containers"]]
    expected = {"success": False, "error": "the socket is gone", "seconds": 0.5}
    assert expected == record["collectors"]["kubelet"]
    assert "identities" not in record["collectors"]
    assert record["collectors"]["nvml"]["success"]


def test_without_a_judgement():
    """Our own failure shows nothing rather than something half right."""
    assert "no reading: the attribution failed, see the log" == table(result_of(None))
    assert json.loads(as_json(result_of(None)))["reading"] is None


def test_errors():
    """Each failed source with its reason."""
    assert ["nvml: no driver"] == errors(result_of(None, machine=SourceOutcome(None, "no driver")))
