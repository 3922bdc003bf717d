# SPDX-License-Identifier: Apache-2.0
"""
Flags and environment of `gpushare exporter`, and the words for what is wrong with them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from exporter import cli, settings
from exporter.settings import ExporterSettings

ROOT = Path(__file__).resolve().parents[3]
EVERYWHERE = "0.0.0.0"  # noqa: S104 (the default, which is what is tested)


@pytest.fixture
def chosen(monkeypatch):
    """Runs a command line and says what was chosen; nothing is started."""
    monkeypatch.setattr(cli.logs, "set_up", lambda *_, **__: None)
    monkeypatch.setattr(cli.sys, "setswitchinterval", lambda _: None)
    monkeypatch.delenv("NODE_NAME", raising=False)

    def run(*words, **environment):
        found = []
        with monkeypatch.context() as patched:
            patched.setattr(cli, "_serve", lambda choice, web: found.append((choice, web)))
            patched.setattr(cli, "_once", lambda choice, *, as_data: found.append((choice, as_data)))
            done = CliRunner().invoke(cli.exporter, words, env=environment)
        return found[0] if found else done

    return run


def test_without_a_word(chosen, monkeypatch):
    """Every default is that of the settings, and the node is this host."""
    monkeypatch.setattr(cli.socket, "gethostname", lambda: "here")
    found, web = chosen()

    assert (ExporterSettings(node="here", health_dir=Path("/run/gpushare-exporter")), None) == (found, web)


def test_every_flag(chosen, tmp_path):
    """Each by its name."""
    words = {
        "--listen": "[::1]:9999",
        "--interval": "500ms",
        "--node": "n-1",
        "--pool": "gold",
        "--mode": "cgpu",
        "--isolation": "kernel",
        "--simgpu": str(tmp_path / "hardware"),
        "--state-dir": str(tmp_path),
        "--agent-state-dir": "/r",
        "--proc": "/p",
        "--cgroup": "/c",
        "--kubelet-socket": "/k",
        "--pods-socket": "/q",
        "--log-dir": "/l",
        "--compat-metrics": "ack",
        "--web-config": "/w",
    }
    found, web = chosen(*(word for pair in words.items() for word in pair), "--no-kubernetes")

    assert Path("/w") == web
    expected = ExporterSettings(
        node="n-1",
        host="::1",
        port=9999,
        period=0.5,
        proc=Path("/p"),
        cgroup=Path("/c"),
        agent_state_dir=Path("/r"),
        state_dir=tmp_path,
        kubelet_socket=Path("/k"),
        pods_socket=Path("/q"),
        log_dir=Path("/l"),
        kubernetes=False,
        simgpu=(tmp_path / "hardware").resolve(),
        compat_metrics=frozenset({"ack"}),
        health_dir=(tmp_path / "hardware.exporter").resolve(),
        pool="gold",
        mode="cgpu",
        isolation="kernel",
    )
    assert expected == found


def test_every_flag_has_a_variable(chosen):
    """GPUSHARE_EXPORTER_ and the flag's name; a flag on the command line is stronger."""
    found, _ = chosen(
        "--node",
        "flag",
        GPUSHARE_EXPORTER_INTERVAL="5s",
        GPUSHARE_EXPORTER_LISTEN=":1",
        GPUSHARE_EXPORTER_NODE="variable",
        GPUSHARE_EXPORTER_KUBELET_SOCKET="/k",
        GPUSHARE_EXPORTER_COMPAT_METRICS="ack",
        GPUSHARE_EXPORTER_KUBERNETES="true",
    )

    assert (5.0, 1, "flag", Path("/k"), frozenset({"ack"}), True) == (
        found.period,
        found.port,
        found.node,
        found.kubelet_socket,
        found.compat_metrics,
        found.kubernetes,
    )
    assert "downward" == chosen(NODE_NAME="downward")[0].node


def test_every_option_is_documented():
    """In docs/exporter.md, by its name."""
    text = (ROOT / "docs/exporter.md").read_text("utf-8").replace("--[no-]kubernetes", "--kubernetes")

    assert [] == [one.opts[0] for one in cli.exporter.params if one.opts[0] not in text and not one.hidden]


def test_usual_sockets():
    """Where kubelets have them."""
    kubelet_api = pytest.importorskip("isolation.contract.kubelet_api")
    usual = ExporterSettings(node="n")

    assert (kubelet_api.POD_RESOURCES_SOCKET, kubelet_api.PODS_SOCKET) == (
        str(usual.kubelet_socket),
        str(usual.pods_socket),
    )


def test_a_service_of_our_name_changes_nothing(chosen):
    """What Kubernetes puts into every pod's environment for a Service called gpushare-exporter is no setting."""
    service = {
        "GPUSHARE_EXPORTER_SERVICE_HOST": "10.0.0.1",
        "GPUSHARE_EXPORTER_SERVICE_PORT": "9445",
        "GPUSHARE_EXPORTER_PORT": "tcp://10.0.0.1:9445",
        "GPUSHARE_EXPORTER_PORT_9445_TCP_PROTO": "tcp",
    }

    assert chosen("--node", "n") == chosen("--node", "n", **service)
    names = {parameter.name for parameter in cli.exporter.params}
    assert not {name for name in names if name.startswith(("port", "service"))}


def test_the_help_names_every_setting():
    """Whatever may be chosen can be found, with its default."""
    done = CliRunner().invoke(cli.exporter, ["--help"])

    assert 0 == done.exit_code
    for parameter in (one for one in cli.exporter.params if not one.hidden):
        assert parameter.opts[0] in done.output
        assert parameter.help
    assert "0.0.0.0:9445" in done.output
    flags = {parameter.name for parameter in cli.exporter.params}
    assert {one.name for one in fields(ExporterSettings)} - {"host", "port", "unit_bytes"} <= flags | {"listen"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "nowhere"], "use for example 0.0.0.0:9445"),
        (["--listen", ":70000"], "70000 is not a port"),
        (["--interval", "soon"], "use for example 2s or 500ms"),
        (["--interval", "1ms"], "must take 100ms to 1m"),
        (["--interval", "2m"], "must take 100ms to 1m"),
        (["--node", " "], "is not a node name"),
        (["--compat-metrics", "dcgm"], "is not 'ack'"),
        (["--json"], "-o json requires --once"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_bad_words(chosen, words, message):
    """Status 2, and what would have been right."""
    done = chosen(*words)

    assert 2 == done.exit_code
    assert message in done.output


def test_once(chosen):
    """With and without JSON."""
    assert [False, True] == [chosen("--once")[1], chosen("--once", "--json")[1]]


@pytest.mark.parametrize(("interval", "expected"), [("200ms", 10.0), ("30s", 30.0)])
def test_one_look_waits_for_a_driver_that_starts(monkeypatch, interval, expected):
    """Parts of the interval bound each read; nobody waits for the next one here, so a short interval is no reason."""
    seen = []

    def node(chosen):
        seen.append(chosen.period)
        sys.exit(7)

    monkeypatch.setattr("exporter.app.NodeExporter", node)
    assert 7 == CliRunner().invoke(cli.exporter, ["--once", "--interval", interval]).exit_code
    assert [expected] == seen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:9445", (EVERYWHERE, 9445)),
        (":9445", (EVERYWHERE, 9445)),
        ("9445", (EVERYWHERE, 9445)),
        ("[::]:0", ("::", 0)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_addresses(text, expected):
    """As people write them."""
    assert expected == settings.address(text)


@pytest.mark.parametrize(("text", "expected"), [("2s", 2.0), ("500ms", 0.5), ("1.5s", 1.5), ("1m", 60.0), ("3", 3.0)])
def test_durations(text, expected):
    """As Prometheus writes them, and plain seconds."""
    assert expected == settings.seconds(text)


@given(st.text(max_size=30))
def test_any_text_is_understood_or_refused(text):
    """Nothing else happens."""
    for parse in (settings.address, settings.cycle_seconds, settings.node_name):
        with contextlib.suppress(ValueError):
            assert parse(text)


def test_help_does_not_load_what_only_a_server_needs():
    """Neither gRPC nor NVML nor TLS for `--help`."""
    script = "import sys, exporter.cli; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT, timeout=300
    )

    assert set() == {"grpc", "pynvml", "ssl", "yaml", "bcrypt", "prometheus_client"} & set(loaded.stdout.split())


def test_it_is_a_command_of_the_front_door():
    """`gpushare exporter` and `python -m exporter` are the same."""
    from gpushare import main  # noqa: PLC0415

    assert cli.exporter is main.get_command(click.Context(main), "exporter")


@pytest.mark.parametrize(
    ("mode", "kubernetes", "agent", "expected"),
    [
        ("cgpu", True, True, "library"),
        ("core_mem", True, False, "library"),
        ("share", True, True, "none"),
        ("default", False, False, "none"),
        ("", True, True, "library"),
        ("", False, False, "library"),
        ("", True, False, ""),
    ],
)
def test_what_enforces_is_known_before_anybody_is_promised_anything(mode, kubernetes, agent, expected):
    """By the mode; without one, by who hands the cards out; where nobody said, nothing is claimed."""
    assert expected == settings.enforcement(mode, kubernetes=kubernetes, agent=agent)
