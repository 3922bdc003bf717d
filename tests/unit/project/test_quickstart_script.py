# SPDX-License-Identifier: Apache-2.0
"""hack/quickstart-kind.sh where something is missing or too old: it says what to do, and changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from support.docs_reading import ROOT
from support.waiting import PATIENCE_SECONDS

SCRIPT = ROOT / "hack/quickstart-kind.sh"
USED = ("bash", "dirname", "sed", "sort", "head", "grep", "rm", "mktemp", "tr", "sleep")
BUILDS = ("cat", "date", "env", "git", "timeout")
"""What images/build.sh needs too."""
NODE = r"""#!/bin/sh
case "$1" in
--request-timeout=[1-9]*s) shift ;;
*) echo "kubectl $*: without a deadline" >&2; exit 99 ;;
esac
printf 'kubectl %s\n' "$*" >>"$CALLS"
case "$*" in
version) exit 0 ;;
*containerRuntimeVersion*) echo "$RUNTIME" ;;
*schedule*) echo / ;;
"get pod gpushare-check"*) echo Succeeded ;;
"logs gpushare-check") echo "$DOCTOR" ;;
"get --raw /version") echo "\"gitVersion\": \"$SERVER\"," ;;
"apply -k hack/quickstart") echo "daemonset.apps/gpushare-node created" ;;
"get nodes"*) echo node-1 ;;
esac
"""
NRI = "ok       machine.nri              containerd with NRI"


@pytest.fixture
def machine(tmp_path):
    """A function that runs the script on a machine with these programs alone: its status, its words, its calls."""

    def run(*words, runtime="containerd://2.1.9", server="v1.36.4", doctor=NRI, **programs):
        for name in (*USED, *BUILDS):
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
                "SERVER": server,
                "DOCTOR": doctor,
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


def test_where_it_was_done_before_nothing_is_done_again(machine):
    """
    The spare node is the pool's by now: to set it aside again would take it from pods that run there.
    """
    bought = NODE.replace('"get nodes"*)', '*gpushare*dev/pool*) echo demo ;;\n"get nodes"*)')
    status, said, calls = machine("--existing", "--node", "node-1", "--spare", "node-2", **(HAVE | {"kubectl": bought}))
    assert (0, []) == (status, changes(calls))
    assert (
        "Done before: the autoscaler has bought node node-2. To begin again: bash hack/quickstart-kind.sh --delete"
        in said
    )


def test_nothing_is_installed_on_a_node_without_nri(machine):
    """
    What doctor says is shown, and where the page tells how to switch it on.
    """
    off = "problem  machine.nri              NRI is off"
    status, said, calls = machine("--existing", doctor=off, **HAVE)
    assert 1 == status
    assert off in said
    assert "is off on node node-1: docs/quickstart.md says how to switch it on" in said
    assert not [one for one in calls if one.startswith("kubectl apply -k hack/quickstart ")]


@pytest.mark.parametrize(
    ("server", "image"),
    [("v1.35.6+k3s1", "v1.35.6"), ("v1.34.9+k3s1", "v1.34.9"), ("v1.36.4", None), ("v1.37.0", None), ("v1.36.0", None)],
)
def test_kube_scheduler_is_never_newer_than_the_api_server(machine, server, image):
    """
    An older cluster gets the image of its own version; others keep the one of the manifests.
    """
    _, _, calls = machine("--existing", server=server, **HAVE)
    assert "kubectl apply -k hack/quickstart" in calls
    found = [one.rpartition(":")[2] for one in calls if " set image deployment/gpushare-scheduler " in one]
    assert [image] * (image is not None) == found


def test_a_cluster_that_is_too_old_is_refused(machine):
    """
    Before anything is installed.
    """
    status, said, calls = machine("--existing", server="v1.33.5", **HAVE)
    assert 1 == status
    assert "the cluster has Kubernetes 1.33.5: 1.34 or newer is needed" in said
    assert "kubectl apply -k hack/quickstart" not in calls


def test_a_cluster_is_made_with_kind_and_gets_the_images(machine):
    """
    One cluster of the pinned node image, three builds by the names that the manifests have, all of them loaded; then
    the first worker is shared and the second kept aside.
    """
    logged = '#!/bin/sh\necho "${0##*/} $*" >>"$CALLS"\n'
    context = NODE.replace("version)", '"config get-contexts"*) echo kind-gpushare-quickstart ;;\nversion)')
    programs = {"kind": logged, "docker": logged, "openssl": OK, "gpushare": OK, "kubectl": context}
    _, _, calls = machine(**programs)
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    names = [f"docker.io/library/gpushare-{name}:{version}" for name in ("node", "exporter", "controller")]
    [made] = [one for one in calls if one.startswith("kind create cluster ")]
    assert "--name gpushare-quickstart --image kindest/node:v1.36.4@sha256:" in made
    assert "--config hack/quickstart/kind.yaml" in made
    assert names == [one.split()[-2] for one in calls if one.startswith("docker buildx build ")]
    assert [f"kind load docker-image --name gpushare-quickstart {' '.join(names)}"] == [
        one for one in calls if one.startswith("kind load ")
    ]
    assert "kubectl cordon gpushare-quickstart-worker2" in calls
    assert "kubectl label node gpushare-quickstart-worker ack.node.gpu.schedule=core_mem --overwrite" in calls


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


def test_the_agent_stays_while_pods_of_others_have_shares(machine):
    """
    They are named, and nothing that they need is removed.
    """
    others = (
        '*shared=true*) echo "ml/trainer-0 " ;;\n*"get namespace gpushare-system"*) echo installation ;;\n"get nodes"*)'
    )
    status, said, calls = machine("--delete", kubectl=NODE.replace('"get nodes"*)', others))
    assert 1 == status
    assert "pods of yours have shares: ml/trainer-0; delete them first" in said
    assert not [one for one in calls if one.startswith("kubectl delete -k hack/quickstart ")]


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
