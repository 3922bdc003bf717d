# SPDX-License-Identifier: Apache-2.0
"""
What all commands have in common: JSON, versions, completion by real shells, and one table of exit statuses.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import gpushare
from gpushare import main
from isolation.completion import for_kubectl

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "commands.md").read_text("utf-8")
NOBODY = "http://127.0.0.1:9"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
    - name: main
      resources: {limits: {aliyun.com/gpu-mem: "99"}}
"""


def asked(*words, **more):
    """One command line, in this process."""
    return CliRunner().invoke(main, [str(word) for word in words], **more)


@pytest.fixture
def cards(tmp_path):
    """Simulated cards."""
    path = tmp_path / "hardware"
    assert 0 == asked("simgpu", "create", path, "--model", "t4").exit_code
    return path


# JSON.


def leaves(command, words=()):
    """Every command without sub-commands, with the words that lead to it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), (*words, name))
    else:
        yield " ".join(words), command


SILENT = {
    *("autoscaler bounds", "autoscaler hand-back", "completion", "dashboards build", "dashboards check", "node"),
    *("device-plugin", "mps", "resize"),
    *("rules build", "rules check", "scheduler config", "simgpu create", "simgpu inject", "simgpu own", "simgpu set"),
}
"""Print a file in a format of its own, or no more than what they have done."""


def test_every_command_that_tells_something_has_json_in_one_spelling():
    """`-o json`; where `--json` was the spelling before, it still is one."""
    without = {
        name
        for name, command in leaves(main)
        if not any("-o" in one.opts and "json" in getattr(one.type, "choices", ()) for one in command.params)
    }
    assert SILENT == without


@pytest.mark.parametrize(
    "words",
    [
        ["dashboards", "list"],
        ["lib"],
        ["simgpu", "models"],
        ["simgpu", "parameters"],
        ["simgpu", "clock", "CARDS"],
        ["simgpu", "show", "CARDS"],
        ["run", "--list", "--simgpu", "CARDS"],
        ["exporter", "--once", "--simgpu", "CARDS", "--no-kubernetes"],
        ["doctor", "machine", "--simgpu", "CARDS"],
        ["place", "-f", "-", "--node", "name=n1,cards=1,gib=15,mode=cgpu"],
        ["migrate", "-"],
        ["migrate", "quota", "-"],
        ["sim", "--synthetic", "--fleet-scale", "0.01", "--seeds", "1", "--policy", "best-fit"],
        ["up", "--no-stack", "--no-metrics", "--for", "0.1"],
        ["version"],
    ],
    ids=" ".join,
)
def test_json(words, cards):
    """One document on standard output and nothing else there."""
    done = asked(*(str(cards) if word == "CARDS" else word for word in words), "-o", "json", input=POD)
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    "words",
    [["lib"], ["version"], ["simgpu", "models"], ["dashboards", "list"], ["run", "--list", "--simgpu", "CARDS"]],
    ids=" ".join,
)
def test_json_has_a_spelling_of_its_own(words, cards):
    """The same as `-o json`."""
    given = [str(cards) if word == "CARDS" else word for word in words]
    assert json.loads(asked(*given, "--json").stdout) == json.loads(asked(*given, "-o", "json").stdout)


@pytest.mark.parametrize(
    ("typed", "meant"), [("explian", "Did you mean 'explain'?"), ("simgpus", "Did you mean 'simgpu'?"), ("qqqq", "")]
)
def test_a_mistyped_command(typed, meant):
    """The similar one is named, where there is one."""
    done = asked(typed)
    assert 2 == done.exit_code
    assert f"Error: No such command '{typed}'. {meant}".rstrip() == done.stderr.splitlines()[-1]


# Versions and completion.


def test_version():
    """What is installed: program and library; a machine without a driver has none."""
    document = json.loads(asked("version", "-o", "json").stdout)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", document["client"]["version"])
    assert document["library"]["version"]
    assert Path(document["library"]["path"]).is_file()
    assert (document["driver"] is None) is not Path("/proc/driver/nvidia/version").exists()
    assert document["client"]["version"] in asked("version").stdout


@pytest.fixture
def shell_environment(tmp_path):
    """`gpushare` in PATH, as a package manager would have installed it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "gpushare"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nimport gpushare\ngpushare.run()\n"
    )
    command.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}


_BASH = """
source <(gpushare completion bash)
COMP_WORDS=({words}) COMP_CWORD={at}
_gpushare_completion gpushare
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
_ZSH = """
zmodload zsh/zpty; zpty it 'zsh -f -i'
zpty -w it 'PS1=; autoload -U compinit; compinit -u -D; source <(gpushare completion zsh)'
zpty -w it 'compdef _gpushare_completion gpushare; print -r READ""Y'
while zpty -r it line '*READY*'; do break; done
zpty -w -n it '{words}'$'\\t\\t'
for i in {{1..40}}; do sleep 0.25; zpty -r -t it line && print -r -- $line; done
zpty -d it
"""


def completed(shell, words, environment):
    """What a real shell offers in place of the last word."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = {
        "bash": _BASH.format(words=" ".join(word or '""' for word in words), at=len(words) - 1),
        "zsh": _ZSH.format(words=" ".join(words)),
        "fish": f"gpushare completion fish | source; complete -C '{' '.join(words)}'",
    }[shell]
    done = subprocess.run(
        [shell, "-c", script], capture_output=True, text=True, env=environment, timeout=100, check=False
    )
    return re.sub(r"\s", "", done.stdout)  # a line editor wraps what it draws


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_their_values(shell, shell_environment):
    """By the shell itself, with the script that the command prints."""
    assert "scheduler" in completed(shell, ["gpushare", "sched"], shell_environment)
    assert "--namespace" in completed(shell, ["gpushare", "top", "--name"], shell_environment)
    assert "stranded" in completed(shell, ["gpushare", "top", "--sort", "str"], shell_environment)


def test_every_command_is_offered_to_a_shell_without_loading_any(shell_environment):
    """All at once after the first word: loading them takes seconds, and needs every extra."""
    script = "import sys, gpushare\nsys.argv = ['gpushare']\ntry: gpushare.run()\nfinally: print(*sys.modules)"
    environment = shell_environment | {
        "COMP_WORDS": "gpushare ",
        "COMP_CWORD": "1",
        "_GPUSHARE_COMPLETE": "bash_complete",
    }
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, cwd=ROOT, check=False)
    *offered, loaded = done.stdout.splitlines()
    assert [f"plain,{name}" for name in gpushare.COMMANDS] == offered, done.stderr
    assert not {"numpy", "rich", "aiohttp", "dashboards.terminal.cli"} & set(loaded.split())


def test_kubectl_completes_the_plug_in(capsys, monkeypatch):
    """By cobra's protocol: a choice and its help in each line, then what the shell should do besides."""
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-gpushare", "top", "--sort", ""])
    gpushare.kubectl_complete()
    assert ["name", "allocated", "used", "free", "stranded", ":4"] == capsys.readouterr().out.split()
    found = list(for_kubectl(gpushare._views(), [""]))
    assert {"top", "inspect", "explain", "breaches", "recommend", "version"} == {
        line.partition("\t")[0] for line in found[:-1]
    }
    assert [":0"] == list(for_kubectl(gpushare._views(), ["top", "--kubeconfig", ""]))[-1:]


# Exit statuses.


def documented():
    """The table of docs/commands.md: commands by status."""
    rows = re.findall(r"^\| ([\d, ]+) \| (.*) \| (.*) \|$", PAGE.partition("## Exit status")[2], re.MULTILINE)
    return {
        int(number): re.findall(r"`([^`]+)`", who) or [who]
        for numbers, _, who in rows
        for number in numbers.split(", ")
    }


def full(words):
    """A command whose output goes to a device that is always full."""
    with Path("/dev/full").open("w") as device:
        done = subprocess.run(
            [sys.executable, "-m", "gpushare", *words], stdout=device, cwd=ROOT, timeout=60, check=False
        )
    return done.returncode


STATUSES = {
    (0, "all"): "version",
    (1, "place"): "place -f - --node name=n1,cards=1,gib=15,mode=cgpu",
    (1, "migrate"): None,  # tests/unit/simulator/test_migrate.py
    (1, "doctor"): "doctor machine --simgpu LOST",
    (1, "breaches"): None,  # tests/unit/dashboards/terminal/test_cli.py
    (1, "autoscaler plan"): None,  # tests/e2e/test_autoscaler_process.py: a plan with actions
    (1, "dashboards check"): "dashboards check --dir FOLDER",
    (1, "rules check"): "rules check --out FOLDER",
    (1, "simgpu"): "simgpu show FOLDER/none",
    (1, "exporter"): None,  # tests/simulated_cards/test_exporter_command.py: a port that is in use
    (1, "up"): None,  # tests/simulated_cards/test_up_command.py: the same
    (1, "lib"): "lib --reap CARDS",
    (1, "resize"): None,  # tests/e2e/test_resize.py, as (4, ...) and (75, ...)
    (2, "all"): "top --no-such-option",
    (3, "top"): f"top --local {NOBODY}",
    (3, "inspect"): f"inspect --local {NOBODY}",
    (3, "explain"): "explain web -n x --kubeconfig UNREACHABLE",
    (3, "breaches"): f"breaches --local {NOBODY} --exit-code",
    (3, "recommend"): "recommend --kubeconfig UNREACHABLE",
    (3, "autoscaler plan"): "autoscaler plan --kubeconfig UNREACHABLE",
    (3, "exporter --once"): "exporter --once --no-kubernetes --simgpu FOLDER/none",
    (3, "migrate quota"): "migrate quota --kubeconfig UNREACHABLE",
    (3, "resize"): "resize web --gpu-mem 1 --kubeconfig UNREACHABLE",
    (3, "doctor"): None,  # tests/unit/doctor/test_machine.py
    (4, "top"): None,  # tests/unit/dashboards/terminal/test_cli.py, as the next two
    (4, "inspect"): None,
    (4, "explain"): None,
    (4, "recommend"): None,
    (4, "resize"): None,
    (74, "all"): full,
    (75, "run"): "run --simgpu CARDS --gpu-mem 99 -- true",
    (75, "resize"): None,
    (125, "run"): "run --simgpu FOLDER/none --gpu-mem 1 -- true",
    (126, "run"): "run --simgpu CARDS --gpu-mem 1 -- FOLDER",
    (127, "run"): "run --simgpu CARDS --gpu-mem 1 -- FOLDER/none",
    (130, "all"): None,  # tests/unit/project/test_bad_commands.py, as the next
    (141, "all"): None,
}


def test_the_table_of_statuses_is_whole():
    """Each status and each command of the page has its line here; the program's own numbers stand in the page."""
    assert {(status, who) for status, known in documented().items() for who in known} == set(STATUSES)
    assert {gpushare.INTERRUPTED, gpushare.OUTPUT_CLOSED, os.EX_IOERR} <= set(documented())


@pytest.mark.parametrize(
    ("status", "line"),
    [(status, line) for (status, _), line in STATUSES.items() if line is not None],
    ids=[f"{status} {who}" for (status, who), line in STATUSES.items() if line is not None],
)
def test_a_status(status, line, cards, tmp_path):
    """As the page says."""
    folder = tmp_path / "folder"
    folder.mkdir()
    unreachable = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": NOBODY}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [cluster],
        "contexts": [context],
    }
    unreachable.write_text(json.dumps(config | {"users": [{"name": "u", "user": {}}]}))
    if callable(line):
        assert status == line(["simgpu", "models"])
        return
    lost = tmp_path / "lost"
    assert 0 == asked("simgpu", "create", lost, "--model", "t4").exit_code
    assert 0 == asked("simgpu", "inject", lost, "lost", "1").exit_code
    names = {"CARDS": cards, "LOST": lost, "FOLDER": folder, "UNREACHABLE": unreachable}
    words = [re.sub("CARDS|LOST|FOLDER|UNREACHABLE", lambda match: str(names[match[0]]), word) for word in line.split()]
    command = [sys.executable, "-m", "gpushare", *words]
    done = subprocess.run(command, input=POD, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert status == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
