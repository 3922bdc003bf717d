# SPDX-License-Identifier: Apache-2.0
"""Whatever exporters, API servers and tenants say: nothing moves the cursor, nothing grows without end."""

from __future__ import annotations

import gzip
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.views_harness import (
    api,
    exporter,
    fleet_of_cards,
    inside,
    kubeconfig,
    node_json,
    page_of,
    pod_json,
    serving,
)

from dashboards.terminal.read import api_server
from dashboards.terminal.read import http as fetching
from dashboards.terminal.read.breaches import BreachError, parse_breaches
from dashboards.terminal.read.http import FetchError, checked, fetch
from dashboards.terminal.read.usage import FAMILIES, build_usage
from dashboards.terminal.table import Column, TextOutput, sentence, table
from isolation.contract.exposition import ExpositionError, parse_page, parse_query_answer

EVIL = "\x1b]0;owned\x07\x1b[2J\r\n\t\u202e\u200b\x9b31m"
LABELS = 'node="n",uuid="GPU-1",card="0"'


@given(st.text(), st.sampled_from([None, 10, 80]))
def test_no_text_from_outside_brings_control_characters(text, width):
    """
    Whatever a name is, every line of a table and of a sentence is printable, and the table keeps its lines.
    """
    output = TextOutput(width)
    lines = table(output, [Column("NAME", cut=True), Column("N", right=True)], [[text, (text, "yellow")], ["x", "1"]])
    assert 3 == len(lines)
    assert [] == [line for line in [*lines, *sentence(output, text)] if not line.isprintable()]


@given(st.binary())
def test_any_bytes_are_a_page_an_answer_and_a_document_or_an_error(body):
    """
    Nothing but ExpositionError and BreachError ever comes of them.
    """
    assert [] == [one for one in parse_page(body, FAMILIES) if one.name not in FAMILIES]
    with pytest.raises(ExpositionError):
        list(parse_query_answer(body))
    with pytest.raises(BreachError):
        parse_breaches(body, "n")


@pytest.mark.parametrize(
    "line",
    [
        f"gpushare_card_memory_used_bytes{{{LABELS}}} NaN",
        f"gpushare_card_memory_used_bytes{{{LABELS}}} +Inf",
        f"gpushare_card_memory_used_bytes{{{LABELS}}} -1",
        f"gpushare_card_memory_used_bytes{{{LABELS}}} 1e40",
        f"gpushare_card_memory_used_bytes{{{LABELS}}} 1 2 3",
        f"gpushare_card_memory_used_bytes{{{LABELS} 1",
        'gpushare_card_memory_used_bytes{node="n",uuid="GPU-1",card="-1"} 1',
        'gpushare_card_memory_used_bytes{node="n",uuid="GPU-1",card="99999999"} 1',
        'gpushare_card_memory_used_bytes{node="n",uuid="",card="0"} 1',
        'gpushare_card_memory_used_bytes{node="n",uuid="' + "x" * 600 + '",card="0"} 1',
        "gpushare_card_memory_used_bytes{" + "x" * 9000 + "} 1",
        "gpushare_card_memory_used_bytes 1",
        "gpushare_other_bytes{" + LABELS + "} 1",
    ],
    ids=lambda line: line[:70],
)
def test_a_line_that_is_no_sensible_sample_tells_nothing(line):
    """
    It is left out: no card, no figure, and never a 0 in its place.
    """
    assert ((), ()) == (build_usage(parse_page(line.encode(), FAMILIES)).cards, build_usage([]).tenants)


def test_an_exporter_speaks_of_its_own_machine_only():
    """
    A page that says it is about another node is about the node that was asked.
    """
    page = f"gpushare_card_memory_used_bytes{{{LABELS}}} 5\n".replace('node="n"', 'node="victim"')
    usage = build_usage(parse_page(page.encode(), FAMILIES), "liar")
    assert (["liar"], frozenset({"liar"})) == ([card.node for card in usage.cards], usage.heard)


def test_breaches_by_a_hostile_exporter_stay_on_their_lines():
    """
    Control characters in every field: the view shows none of them; broken and endless records are left out.
    """
    _, usage = fleet_of_cards(1)
    record = {"kind": EVIL, "uuid": "GPU-1", "card": 0, "started": 5.0, "last_seen": 6.0, "open": True, "pod": EVIL}
    record |= {"namespace": EVIL, "message": EVIL, "source": EVIL, "process": EVIL}
    records = [record, record | {"card": "x"}, record | {"message": "y" * 1000}, 7, record | {"started": 1e300}]
    with serving(exporter(page_of(usage), {"version": 1, "node": "n", "breaches": records})) as (url, _):
        for output in ([], ["-o", "wide"]):
            done = inside("breaches", "--local", url, *output)
            assert (0, "") == (done.returncode, done.stderr)
            assert [] == [line for line in done.stdout.split("\n") if not line.isprintable()]
        assert 2 == len(json.loads(inside("breaches", "--local", url, "-o", "json").stdout)["items"])


def test_annotations_and_events_of_a_tenant_stay_on_their_lines(tmp_path):
    """
    A record, an Event and a condition full of control characters, in `explain` and `top`.
    """
    one = pod_json("p", "", 400)
    one["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": EVIL}]
    one["spec"] |= {"schedulerName": EVIL, "schedulingGates": [{"name": EVIL}]}
    other = pod_json("q", "n-0", 4)
    other["metadata"]["annotations"] = {
        "gpushare.dev/allocation": f'{{"version": "{EVIL}"}}'.replace("\x1b", "\\u001b")
    }
    event = {"metadata": {"uid": "e"}, "involvedObject": {"uid": "uid-p"}, "reason": EVIL, "message": EVIL * 100}
    objects = {
        "/api/v1/nodes": [node_json("n-0")],
        "/api/v1/nodes/n-0": node_json("n-0"),
        "/api/v1/pods": [one, other],
        "/api/v1/namespaces/team/pods/p": one,
        "/api/v1/namespaces/team/pods/q": other,
        "/api/v1/namespaces/team/events": [event, {"metadata": {}}, 7],
    }
    with serving(api(objects)) as (url, _):
        config = kubeconfig(url, tmp_path)
        for words in (["explain", "team/p"], ["explain", "team/q"], ["top"], ["top", "--by", "pod"], ["inspect", "-d"]):
            done = inside(*words, "--kubeconfig", config)
            assert (0, "") == (done.returncode, done.stderr)
            assert [] == [line for line in done.stdout.split("\n") if not line.isprintable()]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/", "file:///etc/passwd", "http://", "http://h:0x", "http://h:99999", "h:9445", "http://h/?q=1", "",
        "http://h/#f",
    ],
)  # fmt: skip
def test_what_is_no_address_is_usage(url):
    """
    Refused before anything is asked.
    """
    with pytest.raises(ValueError, match=r".+"):
        checked(url)


def test_an_answer_without_end_is_cut(monkeypatch):
    """
    By size, packed or not, and by time, however slowly it drips.
    """
    monkeypatch.setattr(fetching, "MAX_BYTES", 1 << 20)
    packed = gzip.compress(b"x" * (3 << 20))
    answers = {
        "/long": (200, b"x" * (3 << 20)),
        "/packed": (200, packed, [("Content-Encoding", "gzip")]),
        "/broken": (200, packed[:100], [("Content-Encoding", "gzip")]),
        "/moved": (302, b"", [("Location", "/secret")]),
    }
    with serving(lambda path, _: answers.get(path, (404, b""))) as (url, asked):
        for path, why in (("/long", "MiB"), ("/packed", "MiB"), ("/broken", "incomplete"), ("/moved", "302")):
            with pytest.raises(FetchError, match=why):
                fetch(url + path)
        assert [] == [path for path, _ in asked if path == "/secret"]


def test_a_silent_server_ends_by_the_deadline():
    """
    One sentence and status 3, though it never answers.
    """
    over = threading.Event()

    def answers(_path, _query):
        over.wait()
        return 200, b""

    with serving(answers) as (url, _):
        done = inside("top", "--local", url, "--timeout", "0.3")
        over.set()
    assert (3, "") == (done.returncode, done.stdout)
    assert "Traceback" not in done.stderr


def test_no_credentials_go_to_an_exporter_or_prometheus(tmp_path):
    """
    The kubeconfig's token stays with the API server; credentials of a URL go to it and are not shown.
    """
    answer = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()
    objects = {"/api/v1/nodes": [node_json("n-0")], "/api/v1/pods": []}
    with serving(lambda *_: (200, answer)) as (prometheus, asked), serving(api(objects)) as (url, document):
        config = kubeconfig(url, tmp_path)
        said = json.loads(config.read_text())
        said["users"][0]["user"] = {"token": "sesame"}
        config.write_text(json.dumps(said))
        done = inside("top", "--kubeconfig", config, "--prometheus", prometheus.replace("http://", "http://me:pass@"))
    assert (0, "") == (done.returncode, done.stderr)
    assert {"Bearer sesame"} == {headers.get("Authorization") for _, headers in document}
    assert ["Basic bWU6cGFzcw=="] == [headers.get("Authorization") for _, headers in asked]
    assert "pass" not in done.stdout


def test_exporters_that_hang_keep_nothing_back(tmp_path, monkeypatch):
    """
    What the API server said is shown, what is used on those nodes is not known, and a note says why.
    """
    monkeypatch.setattr(api_server, "_ALL_SECONDS", 0.3)
    exporters = [{"metadata": {"name": f"exp-{i}"}, "spec": {"nodeName": f"n-{i}"}} for i in range(20)]
    lists = api(
        {
            "/api/v1/nodes": [node_json(f"n-{i}", 1) for i in range(20)],
            "/api/v1/pods": [],
            "/api/v1/namespaces/gpushare-system/pods": exporters,
        }
    )

    over = threading.Event()

    def answers(path, query):
        if "proxy" in path:
            over.wait()
        return lists(path, query)

    with serving(answers) as (url, _):
        done = inside("top", "-o", "json", "--kubeconfig", kubeconfig(url, tmp_path))
        over.set()
    document = json.loads(done.stdout)
    assert [None] * 20 == [card["used_bytes"] for card in document["items"]]
    assert ["memory in use on n-0, n-1, n-10 and 17 more is unknown: no answer within 0 s"] == document["notes"]
