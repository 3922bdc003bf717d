# SPDX-License-Identifier: Apache-2.0
"""hack/quickstart-kind.sh where something is missing or too old: it says what to do, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from support.docs_reading import ROOT
from support.waiting import PATIENCE_SECONDS

SCRIPT = ROOT / "hack/quickstart-kind.sh"
USED = ("bash", "dirname", "sed", "sort", "head", "grep", "rm", "mktemp", "tr", "sleep")
NODE = r"""#!/bin/sh
printf 'kubectl %s\n' "$*" >>"$CALLS"
case "$*" in
version) exit 0 ;;
*containerRuntimeVersion*) echo "$RUNTIME" ;;
*schedule*) echo / ;;
"get nodes"*) echo node-1 ;;
esac
"""


@pytest.fixture
def machine(tmp_path):
    """A function that runs the script on a machine with these programs alone: its status, its words, its calls."""

    def run(*words, runtime="containerd://2.1.9", **programs):
        for name in USED:
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).symlink_to(shutil.which(name))
        for name, text in programs.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        calls = tmp_path / "calls"
        calls.write_text("")
        done = subprocess.run(
            ["bash", SCRIPT, *words],
            env={
                "PATH": str(tmp_path),
                "CALLS": str(calls),
                "RUNTIME": runtime,
                "WAIT": "0",
                "HOME": os.environ.get("HOME", "/"),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()

    return run


OK = "#!/bin/sh\n"
HAVE = {"openssl": OK, "gpushare": OK, "kubectl": NODE}


def changes(calls):
    """Calls of kubectl that write something."""
    return [one for one in calls if not one.startswith(("kubectl get ", "kubectl version", "kubectl config "))]


@pytest.mark.parametrize(
    ("words", "programs", "says"),
    [
        ((), {}, "kubectl is missing: https://kubernetes.io"),
        ((), HAVE, "docker is missing: https://docs.docker.com/engine/install, or use --existing"),
        ((), HAVE | {"docker": OK}, "kind is missing: https://kind.sigs.k8s.io"),
        ((), HAVE | {"kind": OK, "docker": "#!/bin/sh\nexit 1\n"}, "docker does not answer: start it"),
        (
            (),
            HAVE | {"docker": OK, "kind": "#!/bin/sh\necho gpushare-quickstart\n"},
            "kind cluster gpushare-quickstart exists",
        ),
        (("--existing",), HAVE | {"gpushare": "#!/bin/sh\nexit 1\n"}, "gpushare doctor does not start: run make up"),
        (("--existing", "--node"), HAVE, "--node needs a name"),
        (("--existing", "--node", "a", "--spare", "a"), HAVE, "--node and --spare name the same node"),
        (("--existing", "--context", "x"), HAVE, "kubectl has no context x"),
    ],
)
def test_what_is_missing_is_said_with_the_remedy(machine, words, programs, says):
    """
    Status 1, one sentence, and nothing was changed.
    """
    status, said, calls = machine(*words, **programs)
    assert (1, []) == (status, changes(calls))
    assert f"quickstart: {says}" in said


@pytest.mark.parametrize(
    ("runtime", "says"),
    [
        ("containerd://1.7.28", "node node-1 has containerd 1.7.28: 2.1 or newer is needed"),
        ("containerd://2.0.5-k3s1", "node node-1 has containerd 2.0.5-k3s1: 2.1 or newer is needed"),
        ("cri-o://1.33.1", "node node-1 has CRI-O 1.33.1: 1.34 or newer is needed"),
        ("docker://28.4.0", "node node-1 has the runtime docker://28.4.0: containerd 2.1 or CRI-O 1.34 is needed"),
    ],
)
def test_a_container_runtime_that_is_too_old_is_named(machine, runtime, says):
    """
    Before anything is labelled or installed.
    """
    status, said, calls = machine("--existing", runtime=runtime, **HAVE)
    assert (1, []) == (status, changes(calls))
    assert says in said


@pytest.mark.parametrize(
    "runtime", ["containerd://2.1.0", "containerd://v2.1.9", "containerd://2.2.5-k3s1", "cri-o://1.34.0"]
)
def test_a_container_runtime_that_is_new_enough_is_taken(machine, runtime):
    """
    The next step is the first one that writes.
    """
    _, said, calls = machine("--existing", runtime=runtime, **HAVE)
    assert "is needed" not in said
    assert changes(calls)


def test_only_a_kind_cluster_with_the_scripts_mark_is_deleted(machine):
    """
    One of that name that somebody else has made stays.
    """
    kind = '#!/bin/sh\necho "kind $*" >>"$CALLS"\n[ "$1" = delete ] || echo gpushare-quickstart\n'
    status, said, calls = machine("--delete", kind=kind, kubectl=NODE)
    assert 1 == status
    assert "does not bear the mark of this script" in said
    assert not [one for one in calls if one.startswith("kind delete")]
    marked = NODE.replace('"get nodes"*)', '*kube-system*) echo cluster ;;\n"get nodes"*)')
    status, _, calls = machine("--delete", kind=kind, kubectl=marked)
    assert 0 == status
    assert "kind delete cluster --name gpushare-quickstart" in calls


def test_help_and_unknown_options(machine):
    """
    Every option is named by --help; one that does not exist is an error of usage.
    """
    status, said, _ = machine("--help")
    assert 0 == status
    assert [] == [one for one in ("--existing", "--delete", "--node", "--spare", "--context") if one not in said]
    status, said, calls = machine("--exsting", **HAVE)
    assert (2, []) == (status, calls)
    assert "unknown option --exsting" in said
