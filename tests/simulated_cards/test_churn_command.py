# SPDX-License-Identifier: Apache-2.0
"""
`python -m benchmarks.churn`: what moves free, and two autoscalers on the same pods.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.builders import ask, node
from support.pools_builder import on_card, pod, pool, seen

from autoscaler.core.lifecycle import MachineState
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.observation import SuccessorReservation
from autoscaler.core.plan import Drain, Evict, RemoveNode, ScaleUp
from autoscaler.core.scale_down import Removal
from autoscaler.core.state import AutoscalerState
from benchmarks.churn import freed_cards as churning
from benchmarks.churn.__main__ import main
from benchmarks.churn.comparison import DaySetup, build_workload, choose_pool, compare_autoscalers
from benchmarks.churn.first_fit_count import needed_nodes
from benchmarks.churn.freed_cards import ChurnError, ChurnSetup, after_churn, churn
from benchmarks.churn.node_sums import decide_by_sums
from isolation.simulator.sim.replay import Trace
from isolation.simulator.traces import openb, synthetic

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
DAY = DaySetup(hours=6, pods=400)


@pytest.fixture(scope="module")
def trace():
    """The published trace."""
    lists = TRACES / "openb_node_list_gpu_node.csv", TRACES / "openb_pod_list_default.csv"
    if not all(path.is_file() for path in lists):
        pytest.skip("the openb trace is not in ../shared/traces")
    nodes, pods = openb.read_nodes(lists[0]), openb.read_pods(lists[1])
    return Trace(nodes, tuple(each.request for each in pods)), pods


def small():
    """An invented fleet and its pods."""
    pods = synthetic.pods(0.05)
    return Trace(synthetic.nodes(0.05), tuple(each.request for each in pods)), pods


def test_moves_free_at_least_three_cards_each_at_two_percent_and_two_at_ten(trace):
    """
    The bars, on one seed; the command gives the mean of five.
    """
    two, ten = churn(trace[0], ChurnSetup(), 1, (0.02, 0.1))

    assert two.moves <= 0.02 * two.pods
    assert ten.moves <= 0.1 * ten.pods
    assert two.per_move >= 3.0
    assert ten.per_move >= 2.0


def test_nodes_that_were_empty_before_are_not_counted_as_freed():
    """
    Freed cards, those that were empty, and those that still serve are all cards there are.
    """
    found = small()[0]
    observation = after_churn(found, ChurnSetup(), 3)
    (freed,) = churn(found, ChurnSetup(), 3, (0.2,))
    cards = {name: len(each.cards) for name, each in observation.engine.nodes.items()}

    empty = sum(cards[name] for name, pods in observation.on.items() if not pods)

    assert (empty, True) == (freed.empty_cards, freed.cards > 0)
    assert freed.cards + empty <= sum(cards.values())
    assert churn(found, ChurnSetup(), 3, (0.2,)) == [freed]
    assert 0 == churn(found, ChurnSetup(), 3, (0.0,))[0].cards


def test_a_plan_that_moves_a_pod_to_where_it_has_no_room_is_an_error():
    """
    The second book is asked, not the planner.
    """
    full, light = (openb.make_node(name, 8000, 8000, 1, "T4") for name in ("full", "light"))
    big = openb.make_request(1000, 10, 1, 900)
    pods = [
        pod(big, on=replace(churning.Engine((each,)).place(big), node=each.name), owner_uid="")
        for each in (full, light)
    ]
    observation = seen([pool()], pods, [replace(each, pool="p") for each in (full, light)])
    wrong = Removal("light", (SuccessorReservation(pods[1].uid, big, pods[0].placement),))

    with pytest.raises(ChurnError, match="overcommitted"):
        churning._check(observation, [wrong])


@pytest.mark.slow
def test_a_day_per_card_leaves_no_fragmented_pod_buys_neither_more_nor_less_and_undoes_nothing():
    """
    On the same pods the autoscaler that adds up nodes falls short, and undoes what it did.
    """
    found, pods = small()

    ours, quick, theirs = compare_autoscalers(found.nodes, pods, DAY, 1)

    assert (0, 0, 0, 0) == (ours.fragmented, ours.short, ours.over, ours.flaps)
    assert (0, 0, 0, 0) == (quick.fragmented, quick.short, quick.over, quick.flaps)
    assert theirs.short > 0
    assert theirs.pending_pod_hours > ours.pending_pod_hours
    assert [ours] == compare_autoscalers(found.nodes, pods, DAY, 1, ["per card"])


def test_every_pod_of_the_course_comes_within_its_hours_and_can_be_hosted():
    """
    More by day than by night, in the order in which they came in the trace.
    """
    found, pods = small()
    kind = choose_pool(found.nodes)

    made = list(build_workload(kind, pods, replace(DAY, hours=24), 1))

    by_day = sum(6 * 3600 <= each.at < 18 * 3600 for each in made)
    assert len(made) <= DAY.pods
    assert all(0 <= before.at <= after.at <= 24 * 3600 for before, after in pairwise(made))
    assert by_day > len(made) / 2


def fragmented():
    """Two cards with 6 GiB free each: a sum of 12 that is no room for 8."""
    full = node("n", 2, 15, pool="p")
    held = [pod(ask(9, owner=f"R/{index}"), on=on_card(full, index, 9)) for index in range(2)]
    return full, held


def test_sums_take_a_fragmented_pod_for_placeable_and_cards_do_not():
    """
    The decider that is compared with behaves as such an autoscaler does; the second count sees the node it owes.
    """
    full, held = fragmented()
    observation = seen([pool("p", 2)], [*held, pod(ask(8))], [full])
    beyond = seen([pool("p", 2)], [*held, pod(ask(13))], [full])

    assert () == decide_by_sums(observation, ScalingLimits(), AutoscalerState())[0].steps
    assert 1 == needed_nodes(observation, pool("p", 2))
    assert [ScaleUp] == [type(step) for step in decide_by_sums(beyond, ScalingLimits(), AutoscalerState())[0].steps]


def test_sums_drain_a_half_empty_node_evict_all_of_it_and_give_it_back():
    """
    Ten minutes unneeded, no home reserved.
    """
    busy, light = node("busy", 1, 15, pool="p"), node("light", 1, 15, pool="p")
    pods = [pod(ask(8, owner="R/b"), on=on_card(busy, 0, 8)), pod(ask(2, owner="R/l"), on=on_card(light, 0, 2))]
    observation = seen([pool()], pods, [busy, light], at=1000)

    early, memory = decide_by_sums(observation, ScalingLimits(), AutoscalerState())
    due, _ = decide_by_sums(replace(observation, at=1600), ScalingLimits(), memory)
    going = {**observation.machines, "light": replace(observation.machines["light"], state=MachineState.DRAINING)}
    evicted, _ = decide_by_sums(replace(observation, machines=going), ScalingLimits(), memory)
    gone, _ = decide_by_sums(
        replace(observation, machines=going, on={**observation.on, "light": {}}), ScalingLimits(), memory
    )

    assert ((), [("light", ())]) == (early.steps, [(step.node, step.reservations) for step in due.steps])
    assert [Drain] == [type(step) for step in due.steps]
    assert [Evict] == [type(step) for step in evicted.steps]
    assert [RemoveNode] == [type(step) for step in gone.steps]


@pytest.fixture
def short_day(monkeypatch):
    """The command on a short day, so that it ends soon."""
    monkeypatch.setattr("benchmarks.churn.__main__.DaySetup", lambda: DAY)


def command(*words):
    """The command, in this process."""
    return CliRunner().invoke(main, ["--synthetic", "--fleet-scale", "0.05", *words])


@pytest.mark.slow
@pytest.mark.usefixtures("short_day")
def test_the_command_shows_both_tables_and_writes_both_files(tmp_path):
    """
    JSON has every run, the picture is well-formed.
    """
    done = command("--seeds", "1,2", "--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg"))

    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    picture = ET.fromstring((tmp_path / "a.svg").read_text(encoding="utf-8"))  # noqa: S314 (our own file)
    assert 0 == done.exit_code, done.output
    assert all(
        word in done.output for word in ("cards per move", "node sums", "pods pending, fit only by sum", "flaps")
    )
    assert (8, 6) == (len(document["churn"]["runs"]), len(document["contest"]))
    assert {"per card", "per card, 10 %/h", "node sums"} == {score["name"] for score in document["contest"]}
    assert picture.tag.endswith("svg")


def test_only_one_policy_fills_the_cluster():
    """
    Status 2, and what to write instead.
    """
    done = command("--policy", "fgd,potential")

    assert (2, True) == (done.exit_code, "--policy takes only one policy" in done.output)
