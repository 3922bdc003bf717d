# SPDX-License-Identifier: Apache-2.0
"""The commands as a person types them: options, exit statuses, pipes; wrong input gets a sentence."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import tomllib

import pytest
import yaml
from support.children import HEEDS_SIGNALS
from support.views_harness import (
    COMMAND,
    ROOT,
    api,
    environment,
    exporter,
    fleet_of_cards,
    inside,
    kubeconfig,
    node_json,
    on_terminal,
    page_of,
    piped,
    pod_json,
    serving,
)
from support.waiting import PATIENCE_SECONDS

GIB = 1 << 30
FLEET, USAGE = fleet_of_cards(8)
PAGE = page_of(USAGE)
RECORD = {
    "kind": "denied",
    "uuid": "GPU-1",
    "card": 1,
    "namespace": "team",
    "pod": "a",
    "started": 5.0,
    "last_seen": 9.0,
}
RECORD |= {"open": True, "source": "library", "message": "allocations beyond the promise were denied", "count": 3}
BREACHES = {"version": 1, "breaches": [RECORD, RECORD | {"open": False, "pod": "b"}, RECORD | {"namespace": "other"}]}


def cluster(**more):
    """A small cluster: a node, a pod that is bound, one that waits."""
    bound, waits = pod_json("bound", "n-0", 8), pod_json("waits", "", 640)
    objects = {
        "/api/v1/nodes": [node_json("n-0", 2, 80)],
        "/api/v1/nodes/n-0": node_json("n-0", 2, 80),
        "/api/v1/pods": [bound, waits],
        "/api/v1/namespaces/team/pods": [bound, waits],
        "/api/v1/namespaces/team/pods/waits": waits,
        "/api/v1/namespaces/team/pods/bound": bound,
        "/api/v1/namespaces/team/events": [],
    }
    return api(objects | more)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["top", "--by", "rack"], "'rack' is not one of"),
        (["top", "--local", "ftp://x"], "http://HOST:PORT"),
        (["top", "--local", "http://x", "--context", "c"], "--local cannot be used with"),
        (["top", "--prometheus", "http://x"], "use it with --kubeconfig"),
        (["breaches", "--local", "--prometheus", "http://x"], "without --local"),
        (["top", "--kubeconfig", "/absent"], "does not exist"),
        (["top", "--watch", "0"], "0.5<=x<=3600"),
        (["top", "--timeout", "forever"], "'forever' is not a valid number"),
        (["explain"], "Missing argument"),
        (["explain", "p"], "explain requires a cluster"),
        (["explain", "A_B", "--context", "c"], "in lower case"),
        (["explain", "x/y", "-n", "z", "--context", "c"], "different namespaces"),
        (["explain", "../../nodes/n", "--context", "c"], "in lower case"),
        (["nonsense"], "No such command"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_wrong_usage_is_status_2_and_a_sentence(words, said):
    """
    What to write instead, on standard error alone.
    """
    done = inside(*words)
    assert (2, "") == (done.returncode, done.stdout)
    assert said in " ".join(done.stderr.split())


def test_nobody_there_is_status_3_with_what_to_do(monkeypatch, tmp_path):
    """
    No exporter on this machine; no API server behind the kubeconfig.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"http://127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setattr("dashboards.terminal.read.source.LOCAL", nobody)  # on the usual port one may run here
    done = inside("top")
    assert (3, "") == (done.returncode, done.stdout)
    assert nobody in done.stderr
    assert "gpushare exporter" in done.stderr
    assert "--kubeconfig" in done.stderr
    done = inside("top", "--kubeconfig", kubeconfig(nobody, tmp_path))
    assert (3, "") == (done.returncode, done.stdout)
    assert "cannot read the API server" in done.stderr


def test_a_missing_kubeconfig_is_said_with_what_to_do(tmp_path):
    """
    One line: which file, and how to name another.
    """
    done = piped("top", KUBECONFIG=str(tmp_path / "none"))
    expected = (
        f"Error: kubeconfig {tmp_path}/none does not exist: select another with --kubeconfig or $KUBECONFIG; "
        "or use --local to read this machine\n"
    )
    assert (3, "", expected) == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("text", ["", "7", "{", "clusters: []", "current-context: x", "\x00"], ids=repr)
def test_a_kubeconfig_that_is_none_is_status_3(text, tmp_path):
    """
    One sentence, no stack.
    """
    file = tmp_path / "config"
    file.write_text(text)
    for words in (["top"], ["explain", "p"], ["breaches"], ["inspect"]):
        done = inside(*words, "--kubeconfig", file)
        assert (3, "") == (done.returncode, done.stdout)
        assert done.stderr.startswith("Error: ")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"{"), (200, b"[]"), (200, b'{"metadata":{}}'), (401, b""), (403, b"{}"), (500, b"x"), (302, b"")],
    ids=["cut", "list", "no-version", "401", "403", "500", "302"],
)
def test_an_api_server_that_answers_nonsense_is_status_3(status, body, tmp_path):
    """
    Whatever it says instead of a list.
    """
    with serving(lambda *_: (status, body)) as (url, _):
        done = inside("top", "--kubeconfig", kubeconfig(url, tmp_path))
    assert (3, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(("Error: the API server ", "Error: cannot read the API server: "))
    assert 3 > done.stderr.count("\n")


def test_what_is_not_there_is_status_4(tmp_path):
    """
    No such node, no such pod.
    """
    with serving(cluster()) as (url, _):
        config = kubeconfig(url, tmp_path)
        for words in (["top", "--node", "x"], ["inspect", "x"], ["explain", "x", "-n", "team"]):
            done = inside(*words, "--kubeconfig", config)
            assert (4, "") == (done.returncode, done.stdout)


def test_the_pod_is_looked_for_where_kubectl_would(tmp_path):
    """
    -n before the context's namespace; NAMESPACE/POD and pod/NAME are understood.
    """
    with serving(cluster()) as (url, _):
        config = kubeconfig(url, tmp_path, namespace="team")
        for words in (["waits"], ["team/waits"], ["pod/waits"], ["waits", "-n", "team"]):
            done = inside("explain", *words, "--kubeconfig", config)
            assert (0, "team/waits: pending") == (done.returncode, done.stdout.split("\n")[0])
        assert 4 == inside("explain", "waits", "-n", "other", "--kubeconfig", config).returncode


def test_a_narrow_account_sees_its_namespace_as_a_least_amount(tmp_path):
    """
    Pods of all namespaces may not be listed: with -n what is allocated is "at least", and a note says so.
    """
    refused = {"/api/v1/pods": (403, b'{"code": 403, "reason": "Forbidden", "message": "no"}')}
    with serving(cluster(**refused)) as (url, _):
        config = kubeconfig(url, tmp_path)
        assert 3 == inside("top", "--kubeconfig", config).returncode
        done = inside("top", "--kubeconfig", config, "-n", "team", "--by", "card")
    assert 0 == done.returncode
    assert "8.0+" in done.stdout
    assert "note: cannot list pods outside namespace team" in done.stdout


@pytest.mark.parametrize("by", ["card", "node", "pod", "namespace"])
def test_json_and_yaml_say_the_same(by, tmp_path):
    """
    Data for programs, in bytes, with null for what is not known.
    """
    with serving(cluster()) as (url, _):
        words = ["top", "--by", by, "--kubeconfig", kubeconfig(url, tmp_path)]
        document = json.loads(inside(*words, "-o", "json").stdout)
        assert document == yaml.safe_load(inside(*words, "-o", "yaml").stdout)
    assert (1, by) == (document["format"], document["by"])
    assert None is document["items"][0]["used_bytes"]


def test_breaches_by_namespace_ended_ones_and_exit_codes():
    """
    Open ones alone unless asked; over promise by the figures even where no record tells; --exit-code tells scripts.
    """
    with serving(exporter(PAGE, BREACHES)) as (url, _):
        document = json.loads(inside("breaches", "--local", url, "-o", "json").stdout)["items"]
        assert {("denied", 2), ("over_limit", 2)} == {
            (k, sum(b["kind"] == k for b in document)) for k in {b["kind"] for b in document}
        }
        everything = json.loads(inside("breaches", "--local", url, "-o", "json", "--ended").stdout)["items"]
        assert (4, 5) == (len(document), len(everything))
        mine = inside("breaches", "--local", url, "-n", "other")
        assert "source library: reported by the container" in mine.stdout
        assert "1 open breach" in mine.stdout
        assert [0, 1, 0] == [
            inside("breaches", "--local", url, *words).returncode
            for words in ([], ["--exit-code"], ["--exit-code", "-n", "nobody"])
        ]
    with serving(exporter(PAGE)) as (url, _):
        done = inside("breaches", "--local", url, "--exit-code")
    assert 1 == done.returncode
    assert "start times are unknown" in done.stdout


def test_prometheus_is_asked_instead_of_exporters(tmp_path):
    """
    One query for all nodes; a node that it does not know is a note, one that fails is a note and no zero.
    """
    labels = {"node": "n-0", "uuid": "GPU-n-0-0", "card": "0", "__name__": "gpushare_card_memory_used_bytes"}
    answer = {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": labels, "value": [1, "5e9"]}]},
    }
    refusal = {"status": "error", "error": "query is too long"}
    with serving(cluster()) as (url, asked):
        words = ["top", "-o", "json", "--kubeconfig", kubeconfig(url, tmp_path)]
        with serving(lambda *_: (200, json.dumps(answer).encode())) as (prometheus, _):
            document = json.loads(inside(*words, "--prometheus", prometheus).stdout)
        assert [5_000_000_000, None] == [card["used_bytes"] for card in document["items"]]
        with serving(lambda *_: (200, json.dumps(refusal).encode())) as (prometheus, _):
            document = json.loads(inside(*words, "--prometheus", prometheus).stdout)
        assert [None, None] == [card["used_bytes"] for card in document["items"]]
        assert "query is too long" in document["notes"][0]
        assert [] == [path for path, _ in asked if "proxy" in path]


def test_with_prometheus_only_nodes_with_open_breaches_are_asked(tmp_path):
    """
    Their exporters know since when and of what kind; the others are left alone.
    """
    nodes = [node_json(f"n-{i}", 1) for i in range(3)]
    labels = {"uuid": "GPU-n-1-0", "card": "0", "__name__": "gpushare_isolation_breaches_open"}
    series = [{"metric": labels | {"node": f"n-{i}"}, "value": [1, str(i % 2)]} for i in range(3)]
    answer = json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}).encode()
    exporters = [{"metadata": {"name": f"exp-{i}"}, "spec": {"nodeName": f"n-{i}"}} for i in range(3)]
    proxy = "/api/v1/namespaces/gpushare-system/pods/exp-1:9445/proxy"
    more = {"/api/v1/nodes": nodes, "/api/v1/namespaces/gpushare-system/pods": exporters}
    more |= {f"{proxy}/metrics": (200, b""), f"{proxy}/breaches": BREACHES}
    with serving(cluster(**more)) as (url, asked), serving(lambda *_: (200, answer)) as (prometheus, _):
        words = ["breaches", "--kubeconfig", kubeconfig(url, tmp_path), "--prometheus", prometheus, "-o", "json"]
        document = json.loads(inside(*words).stdout)
    assert {"denied"} == {one["kind"] for one in document["items"]}
    assert {"n-1"} == {one["node"] for one in document["items"]}
    assert {f"{proxy}/metrics", f"{proxy}/breaches"} == {path for path, _ in asked if "proxy" in path}


@pytest.mark.processes
def test_a_reader_that_goes_away_is_no_stack():
    """
    `gpushare top | head -1` with more lines than a pipe holds.
    """
    _, usage = fleet_of_cards(64)
    page = "".join(page_of(usage).replace("gpu-node", f"n{at}").replace("GPU-", f"GPU-{at}-") for at in range(40))
    with serving(exporter(page)) as (url, _):
        command = f"{sys.executable} -c '{COMMAND}' top --local {url} -o json | head -1"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert "{\n" == done.stdout
    assert "Traceback" not in done.stderr


def test_a_watch_draws_again_until_it_is_interrupted():
    """
    Screen after screen on a terminal; in a pipe one table after another, without codes.
    """
    with serving(exporter(PAGE)) as (url, asked):
        command = [*HEEDS_SIGNALS, sys.executable, "-c", COMMAND, "top", "--local", url, "--watch", "0.5"]
        pipes = {"stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes) as process:
            patience = threading.Timer(PATIENCE_SECONDS, process.kill)
            patience.start()
            lines = []
            for line in process.stdout:
                lines.append(line)
                if sum(line.startswith("NODE") for line in lines) == 2:
                    break
            process.send_signal(2)
            rest = process.stdout.read()
        patience.cancel()
    assert 0 == process.returncode
    assert [] == [line for line in [*lines, rest] if "\x1b" in line]
    assert 2 <= len(asked)


@pytest.mark.parametrize("word", ["top", "inspect", "explain", "breaches"])
def test_help_calls_the_plug_in_by_its_name(word):
    """
    As kubectl's own conventions want it.
    """
    done = inside(word, "-h")
    assert done.stdout.startswith(f"Usage: kubectl gpushare {word} [OPTIONS]")
    assert "Exit status: 0 success, 2 usage error, 3 no source can be read" in " ".join(done.stdout.split())


@pytest.mark.processes
def test_a_dumb_terminal_gets_no_colour():
    """
    TERM=dumb, NO_COLOR and --no-color: the same screen without codes.
    """
    with serving(exporter(PAGE)) as (url, _):
        shown = [
            on_terminal("top", "--once", "--local", url, *words, **env)[1]
            for words, env in (([], {"TERM": "dumb"}), ([], {"NO_COLOR": "1"}), (["--no-color"], {}))
        ]
    assert 1 == len(set(shown))
    assert "\x1b" not in shown[0]


def test_one_machine_loads_no_kubernetes_client():
    """
    `gpushare top` beside a local exporter: neither the official client nor aiohttp nor numpy.
    """
    heavy = "[m for m in sys.modules if m in ('kubernetes', 'aiohttp', 'numpy')]"
    with serving(exporter(PAGE)) as (url, _):
        code = f"import sys\ntry:\n    {COMMAND}\nfinally:\n    print({heavy}, file=sys.stderr)"
        code = code.replace("; ", "\n    ")
        done = subprocess.run(
            [sys.executable, "-c", code, "top", "--local", url],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert (0, "[]\n") == (done.returncode, done.stderr)


def test_the_command_is_installed_under_both_names():
    """
    `gpushare` and `kubectl-gpushare`, which kubectl finds as its plug-in.
    """
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "gpushare:kubectl" == scripts.get("kubectl-gpushare")
