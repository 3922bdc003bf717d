# SPDX-License-Identifier: Apache-2.0
"""
`gpushare sim` from the command line: results where they belong, bad input distinguished.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.waiting import PATIENCE_SECONDS, until

from isolation.simulator.sim import plot, report
from isolation.simulator.sim.cli import sim
from isolation.simulator.sim.replay import ReplayJob, Run

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,4,T4\nn2,64000,262144,4,G2\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,10,1,470\nb,1000,10,1,1000\nc,1000,10,0,0\nd,1000,10,2,1000\n"
)


def gpushare_sim(*words):
    """The command, in this process and with one worker."""
    return CliRunner().invoke(sim, [*words, "--workers", "1"])


@pytest.fixture
def files(tmp_path):
    """A fleet of eight cards and four pods, as flags."""
    (tmp_path / "nodes.csv").write_text(NODES, encoding="utf-8")
    (tmp_path / "pods.csv").write_text(PODS, encoding="utf-8")
    return "--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")


def run(policy="potential", seed=1, allocated=900, **more):
    """One run of a fleet of one card."""
    figures = {
        "job": ReplayJob(policy, seed, 1.3),
        "total_milli": 1000,
        "allocated_milli": allocated,
        "fragment_ratio": 0.5,
        "arrived": (2, 4, 0, 0),
        "accepted": (2, 3, 0, 0),
        "failed_by": (("cards", 1),),
        "seconds": 0.25,
        "curve": ((0.0, 0.0), (0.65, 0.65), (1.3, allocated / 1000)),
    }
    return Run(**(figures | more))


def test_json_to_stdout_is_the_whole_of_stdout_and_has_the_documented_keys(files):
    """
    The table goes to stderr then; every run and every policy is there, in the order asked.
    """
    done = gpushare_sim(*files, "--policy", "best-fit,potential", "--seeds", "7-8,3", "--json")

    document = json.loads(done.stdout)
    assert 0 == done.exit_code
    assert {"runs", "summary"} == set(document)
    keys = "policy seed demand allocated_ratio unallocated_cards placed failed accepted seconds"
    assert set(keys.split()) == set(document["runs"][0])
    assert {"cpu_only", "shared", "whole", "multi_card"} == set(document["runs"][0]["accepted"])
    assert {"policy", "allocated_ratio_mean", "allocated_ratio_std", "seconds_median"} == set(document["summary"][0])
    order = [(policy, seed) for policy in ("best-fit", "potential") for seed in (7, 8, 3)]
    assert order == [(r["policy"], r["seed"]) for r in document["runs"]]
    assert "allocated %" in done.stderr


def test_details_add_reasons_fragments_and_the_curve(files, tmp_path):
    """
    Only when asked for, so that the plain document stays as documented.
    """
    out = tmp_path / "out.json"

    done = gpushare_sim(*files, "--seeds", "1", "--demand", "3", "--json", str(out), "--details")

    (got,) = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert 0 == done.exit_code
    assert got["failed"] == sum(got["failed_by"].values()) > 0
    assert got["curve"][0] == [0.0, 0.0]
    assert 0 <= got["fragment_ratio"] <= 1


def test_the_table_is_for_people(files):
    """
    Headings, the policy and the fleet on stdout, within 80 columns.
    """
    done = gpushare_sim(*files, "--seeds", "1-3", "--demand", "3")

    assert 0 == done.exit_code
    assert "2 nodes, 8 cards; demand 3; mean of 3 runs per policy" in done.stdout
    assert "potential" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_pipe_gets_whole_tables_in_letters_it_can_take(files):
    """
    COLUMNS of some other window cut nothing, and ASCII is enough.
    """
    command = [sys.executable, "-c", "from isolation.simulator.sim.cli import sim; sim()", *files, "--seeds", "1,2"]
    env = {"PYTHONIOENCODING": "ascii", "COLUMNS": "20", "PATH": ""}

    done = subprocess.run(
        [*command, "--workers", "1"], capture_output=True, text=True, check=False, env=env, timeout=300
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert "mean of 2 runs per policy" in done.stdout
    assert " +- " in done.stdout
    assert "unallocated" in done.stdout


def test_synthetic_needs_no_files_and_draws_a_picture(tmp_path):
    """
    A well-formed SVG that names every policy.
    """
    out = tmp_path / "out.svg"

    done = gpushare_sim(
        "--synthetic", "--fleet-scale", "0.01", "--policy", "potential,random", "--seeds", "1,2", "--plot", str(out)
    )

    words = [element.text for element in ET.parse(out).iter() if element.tag.endswith("text")]  # noqa: S314 (ours)
    assert 0 == done.exit_code
    assert any(str(word).startswith("potential ") for word in words)
    assert any(str(word).startswith("random ") for word in words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give --nodes NODES.csv and --pods PODS.csv, or --synthetic"),
        (("--synthetic", "--nodes", "x"), "drop --nodes and --pods, or drop --synthetic"),
        (("--nodes", "x", "--pods", "y", "--fleet-scale", "1"), "--fleet-scale needs --synthetic"),
        (("--nodes", "/no/such.csv", "--pods", "y"), "/no/such.csv: No such file or directory; check the path"),
        (("--synthetic", "--policy", "magic"), "unknown policy 'magic'; choose from"),
        (("--synthetic", "--policy", ""), "unknown policy ''; choose from"),
        (("--synthetic", "--seeds", "51-42"), "write 42-51"),
        (("--synthetic", "--seeds", "1,,2"), "is not a seed"),
        (("--synthetic", "--seeds", "0-9999999999"), "larger than"),
        (("--synthetic", "--seeds", "1-20000"), "more than 10000 seeds"),
        (("--synthetic", "--seeds", "1-6000", "--policy", "fgd,random"), "too many runs: 12000, at most 10000"),
        (("--synthetic", "--demand", "nan"), "nan is not a number"),
        (("--synthetic", "--demand", "0"), "not in the range"),
        (("--synthetic", "--fleet-scale", "inf"), "not in the range"),
        (("--synthetic", "--details"), "add --json OUT"),
        (("--synthetic", "--json", "/no/such/out.json"), "cannot write /no/such/out.json: no such directory"),
        (("--synthetic", "--plot", "/"), "cannot write /: it is a directory"),
        (("--synthetic", "--demand", "lots"), "'lots' is not a valid number"),
        (("--synthetic", "--json", "-", "--plot", "-"), "cannot both write to stdout; give one of them another file"),
        (("--synthetic", "--json", "a", "--plot", "a"), "cannot both write to a; give one of them another file"),
    ],
)
def test_bad_flags_end_with_status_two_and_the_fix(words, message):
    """
    Before any run starts.
    """
    done = gpushare_sim(*words)

    assert 2 == done.exit_code
    assert message in done.stderr
    assert "" == done.stdout


def test_a_bad_row_ends_with_status_two_file_line_and_fix(files, tmp_path):
    """
    No traceback, no usage text: the line to correct.
    """
    (tmp_path / "pods.csv").write_text(PODS + "e,1,1,2,500\n", encoding="utf-8")

    done = gpushare_sim(*files)

    message = "num_gpu is 2 with gpu_milli 500; several cards must be whole cards: set gpu_milli to 1000"
    assert 2 == done.exit_code
    assert f"Error: {tmp_path}/pods.csv:6: {message}\n" == done.stderr


def test_a_demand_that_nothing_meets_ends_with_status_two(files):
    """
    What only the run itself can find is told the same way.
    """
    done = gpushare_sim(*files, "--demand", "0.000001")

    assert (2, "") == (done.exit_code, done.stdout)
    assert "raise the demand" in done.stderr


def test_worker_processes_give_the_same_document(files):
    """
    Through the installed interpreter, with real worker processes.
    """
    command = [
        sys.executable,
        "-c",
        "from isolation.simulator.sim.cli import sim; sim()",
        *files,
        "--seeds",
        "1-4",
        "--json",
        "-",
    ]

    one, two = (
        json.loads(subprocess.run([*command, "--workers", n], check=True, capture_output=True, timeout=300).stdout)[
            "runs"
        ]
        for n in ("1", "2")
    )

    assert [r | {"seconds": 0} for r in one] == [r | {"seconds": 0} for r in two]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_worker_outlives_the_command(number, status):
    """
    Ctrl-C goes to all, even while workers start, and only the command speaks; a kill reaches it alone.
    """
    command = [
        sys.executable,
        "-c",
        "from isolation.simulator.sim.cli import sim; sim()",
        "--synthetic",
        "--seeds",
        "1-40",
    ]
    with subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.PIPE, text=True, process_group=0) as running:
        # Workers hold the other end of stderr: it ends when the last of them has.
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        try:
            until(lambda: len(children.read_text().split()) > 1)
            if number == signal.SIGINT:
                os.killpg(running.pid, number)
            else:
                running.send_signal(number)
            _, complaint = running.communicate(timeout=PATIENCE_SECONDS)
        finally:
            running.kill()

    assert status == running.returncode
    if number == signal.SIGINT:
        assert complaint == "interrupted; nothing was written\n"


def test_summary_is_mean_and_spread_over_the_seeds():
    """
    0.8 and 0.9: mean 0.85, spread 0.05; medians of seconds; reasons in pods a run.
    """
    (found,) = report.summarise([run(allocated=800, seconds=1.0), run(seed=2, failed_by=(("cpu", 3),), seconds=2.0)])

    assert (0.85, 0.05) == pytest.approx((found.allocated_ratio_mean, found.allocated_ratio_std))
    assert (150 / 1000, 1.5, 2) == pytest.approx((found.unallocated_cards, found.seconds_median, found.runs))
    assert (("cpu", 1.5), ("cards", 0.5)) == found.failed_by


def test_a_kind_that_never_arrived_is_unknown_not_zero():
    """
    None in JSON, a dash for people.
    """
    (found,) = report.summarise([run()])

    assert (1.0, 0.75, None, None) == found.accepted
    assert {"cpu_only": 1.0, "shared": 0.75, "whole": None, "multi_card": None} == report.as_json([run()])["runs"][0][
        "accepted"
    ]
    assert ("100.0", "75.0", "-", "-") == report.accepted_row(found)[1:5]


def test_a_fragment_share_that_no_run_knows_is_a_dash():
    """
    A full fleet has no idle GPU to be fragmented.
    """
    (found,) = report.summarise([run(fragment_ratio=None)])

    assert "-" == report.packing_row(found)[3]


def test_lines_are_mean_lowest_and_highest_of_the_seeds():
    """
    At the end of the demand axis: 800 and 900 of 1000.
    """
    (line,) = plot.lines([run(allocated=800), run(seed=2, allocated=900)])

    assert (1.3, 0.85, 0.8, 0.9) == pytest.approx((line.demand[-1], line.mean[-1], line.low[-1], line.high[-1]))


@pytest.mark.parametrize(
    ("reach", "allocated", "inset"), [(1.3, 0.9, True), (0.75, 0.75, True), (0.2, 0.2, True), (4.0, 0.3, False)]
)
def test_the_inset_stands_where_no_line_is(reach, allocated, inset):
    """
    Second frame or none: a policy that gives out little leaves no room under its line.
    """
    curves = [((0.0, 0.0), (end, end), (reach, end)) for end in (allocated, min(reach, 0.9))]

    picture = plot.draw(plot.lines([run(f"p{i}", curve=curve) for i, curve in enumerate(curves)]), "title")

    frames = [frame.attrib for frame in ET.fromstring(picture).iter() if frame.tag.endswith("rect")][1:]  # noqa: S314
    assert inset == bool(frames)
    paths = [path.attrib["d"] for path in ET.fromstring(picture).iter() if path.attrib.get("stroke-width") == "2"]  # noqa: S314
    for frame in frames:
        left, top = float(frame["x"]), float(frame["y"])
        points = [map(float, point.split()) for path in paths[:2] for point in path[1:].split("L")]
        assert all(y <= top for x, y in points if x >= left)


def test_names_in_the_picture_are_escaped():
    """
    Text from outside cannot become markup.
    """
    picture = plot.draw(plot.lines([run(policy="<script>&'")]), "a & <b>'")

    assert "<script>" not in picture
    assert ET.fromstring(picture) is not None  # noqa: S314 (our own text)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1.3, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)), (0.948, 0.963, (0.95, 0.955, 0.96))],
)
def test_ticks_are_round_and_inside(low, high, expected):
    """
    Steps of 1, 2 or 5 times a power of ten.
    """
    assert expected == plot.Axis(low, high, 0, 100).ticks()
