# SPDX-License-Identifier: Apache-2.0
"""`gpushare recommend`: its table, its documents and its patch."""

from __future__ import annotations

import json

import yaml

from dashboards.terminal.recommend_view import patch_documents, recommend_document, recommend_lines, select
from dashboards.terminal.table import TextOutput
from isolation.contract.codec.recommendations import (
    ProgramRecommendation,
    Recommendations,
    decode_recommendations,
    encode_recommendations,
)
from isolation.contract.quantity import GIB

PIPE = TextOutput()


def program(owner="Deployment/web", gib=6, **more):
    """Two replicas that are promised 16 GiB."""
    given = {
        "namespace": "team",
        "owner": owner,
        "container": "main",
        "model": "T4",
        "replicas": 2,
        "promised_bytes": 16 * GIB,
        "peak_bytes": 5 * GIB,
        "memory_bytes": gib * GIB,
        "reason": "the largest of 9 peaks is 5.0 GiB",
    }
    return ProgramRecommendation(**(given | more))


GREEDY = program("StatefulSet/llm", 0, abstained="fills_promise", reason="its use is constant at 92% of the promise")


def test_the_table_says_what_would_come_back_and_why():
    """
    Most first, with the sum, the money, and the reason where nothing is recommended.
    """
    lines = recommend_lines(select([GREEDY, program()], "", ""), 10.0, PIPE, 4.5)

    assert lines[0].split()[:4] == ["NAMESPACE", "WORKLOAD", "CONTAINER", "PODS"]
    assert "Deployment/web" in lines[1]
    assert "20.0" in lines[1]
    assert "90.00" in lines[1]
    assert "fills" not in lines[2]
    assert "constant at 92%" in lines[2]
    assert "2 workloads: 20.0 GiB would come back (31% of what is promised, 90.00 per month)" in lines


def test_an_old_publication_is_noted():
    """
    The autoscaler may have gone.
    """
    lines = recommend_lines([program()], 3600.0, PIPE)

    assert any(line.startswith("note: published") for line in lines)


def test_rows_alone_without_headers():
    """
    For scripts.
    """
    assert len(recommend_lines([program()], 0.0, TextOutput(headers=False))) == 1


def test_workloads_are_found_by_name_kind_and_namespace():
    """
    As kubectl takes them; what does not run is left out.
    """
    programs = [program(), GREEDY, program("Job/old", replicas=0)]

    assert [one.owner for one in select(programs, "", "")] == ["Deployment/web", "StatefulSet/llm"]
    assert [one.owner for one in select(programs, "", "web")] == ["Deployment/web"]
    assert [one.owner for one in select(programs, "team", "statefulset/llm")] == ["StatefulSet/llm"]
    assert select(programs, "other", "") == ()


def test_the_patch_sets_requests_and_limits_of_what_can_be_changed():
    """
    Totals over the cards of a pod; of two card models the larger amount; a Job's template cannot be changed.
    """
    programs = [
        program(cards=2),
        program(model="A10", gib=7, cards=2),
        program(container="side", gib=3, cards=2),
        program("CronJob/nightly", 4),
        program("Job/once"),
        program("StatefulSet/same", 16),
        GREEDY,
    ]
    text, notes = patch_documents(programs, GIB)
    found = {one["metadata"]["name"]: one for one in yaml.safe_load_all(text)}

    assert set(found) == {"web", "nightly"}
    main, side = found["web"]["spec"]["template"]["spec"]["containers"]
    assert main == {
        "name": "main",
        "resources": {"limits": {"aliyun.com/gpu-mem": "14"}, "requests": {"aliyun.com/gpu-mem": "14"}},
    }
    assert side["resources"]["limits"] == {"aliyun.com/gpu-mem": "6"}
    assert found["nightly"]["apiVersion"] == "batch/v1"
    assert "template" in found["nightly"]["spec"]["jobTemplate"]["spec"]
    assert notes == ["team/Job/once: its template cannot be changed; set the amount where it is made"]


def test_documents_have_null_for_what_is_unknown():
    """
    Never 0.
    """
    published = Recommendations((GREEDY,), 12.0)
    [workload] = recommend_document(published, (GREEDY,))["workloads"]

    assert workload["recommended_bytes"] is None
    assert workload["freed_bytes"] is None
    assert workload["abstained"] == "fills_promise"
    assert json.dumps(workload)


def test_what_is_published_is_read_as_it_was_written():
    """
    What would free most is kept where not all of it fits.
    """
    programs = (program(), GREEDY)
    text = encode_recommendations(programs, 7.0, applied=True)

    assert decode_recommendations(text) == Recommendations(programs, 7.0, applied=True)
    many = [program(container=f"c{number:05}", gib=1 + number % 15) for number in range(5000)]
    kept = decode_recommendations(encode_recommendations(many, 7.0)).programs
    assert 1000 < len(kept) <= 2000
    assert (
        min(one.freed_bytes for one in kept) >= sorted((one.freed_bytes for one in many), reverse=True)[len(kept) - 1]
    )
