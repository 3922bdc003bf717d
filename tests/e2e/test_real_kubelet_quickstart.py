# SPDX-License-Identifier: Apache-2.0
"""
The quick start's script on a control plane and nodes that are there already: nothing of it is a stand-in but images.

Kubelets and containerd run the pods of the demo overlay as the stored objects say: DaemonSets, the scheduler's
Deployment with its kube-scheduler, tenants under the isolation library, a Prometheus. What the page shows was printed
here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from e2e.manifest_build import operator
from realkubelet.cluster import small_cluster
from support.docs_reading import FENCE, ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SCRIPT = ROOT / "hack/quickstart-kind.sh"
PAGE = ROOT / "docs/quickstart.md"
PRINTED = ROOT / "build/quickstart.txt"
"""Left there for whoever brings the page up to date."""
FIRST_POD_SECONDS = 300
"""From applied manifests to running pods with shares: what the page promises."""
_SECONDS = 900.0
STATE = """
kubectl get nodes,pods -A -o wide; kubectl get events -A --sort-by=.lastTimestamp | tail -n 60
for one in $(kubectl get pods -n gpushare-system -o name); do echo "== $one"
kubectl logs -n gpushare-system "$one" --all-containers --tail=60; done 2>&1
"""
"""What a failure needs to be understood: the cluster is gone after it."""
MEMORY_ALONE = """
kubectl kustomize hack/quickstart/own | sed '/gpu-core/d; s/name: own/name: alone/' | kubectl apply -f -
"""
_MAIN = "import sys, gpushare; sys.argv[0] = '{name}'; gpushare.{entry}()"


@dataclass
class Outputs:
    """What was printed, by step."""

    done: str = ""
    again: str = ""
    own: str = ""
    refused: str = ""
    foreign: str = ""
    gone: str = ""
    objects: dict[str, str] = field(default_factory=dict)


class Operator:
    """A person with a kubeconfig and this tree."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        folder.mkdir()
        for name, entry in (("gpushare", "run"), ("kubectl-gpushare", "kubectl")):
            program = folder / name
            code = _MAIN.format(name=name, entry=entry)
            program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "{code}" "$@"\n')
            program.chmod(0o755)
        self._env = operator(KUBECONFIG=kubeconfig)
        self._env["PATH"] = f"{folder}:{self._env['PATH']}"

    def run(self, *words: str, status: int = 0) -> str:
        """A command's output."""
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert status == done.returncode, f"{done.stdout}\n{self._state()}"
        return done.stdout

    def _state(self) -> str:
        """Of the cluster, as far as it answers."""
        asked = ("timeout", "120", "bash", "-c", STATE)
        return subprocess.run(asked, env=self._env, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The script with two nodes, from the first label to its own removal, and once where it must not touch anything."""
    folder = tmp_path_factory.mktemp("quickstart")
    result = Outputs()
    with small_cluster(folder, 2) as plane:
        we = Operator(plane.kubeconfig, folder / "bin")
        quickstart = ("bash", str(SCRIPT))
        we.run("kubectl", "create", "namespace", "gpushare-system")
        result.foreign = we.run(*quickstart, "--existing", status=1)
        result.objects["foreign"] = we.run("kubectl", "get", "nodes", "-o", "yaml")
        we.run("kubectl", "delete", "namespace", "gpushare-system")
        we.run("kubectl", "label", "node", "node-2", "team=mine")
        result.done = we.run(*quickstart, "--existing", "--node", "node-1", "--spare", "node-2")
        PRINTED.parent.mkdir(exist_ok=True)
        PRINTED.write_text(result.done)
        result.objects["cards"] = we.run("kubectl", "get", "nodes", "-o", "yaml")
        result.again = we.run(*quickstart, "--existing", "--node", "node-1", "--spare", "node-2")
        we.run("kubectl", "apply", "-k", "hack/quickstart/own")
        we.run("kubectl", "wait", "--for=condition=Ready", "pod/own", f"--timeout={FIRST_POD_SECONDS}s")
        result.own = we.run("gpushare", "explain", "own")
        result.refused = we.run("bash", "-c", MEMORY_ALONE, status=1)
        we.run("kubectl", "delete", "-k", "hack/quickstart/own")
        result.gone = we.run(*quickstart, "--delete")
        result.objects["after"] = we.run("kubectl", "get", "nodes", "-o", "yaml")
        kinds = "namespaces,crds,clusterroles,mutatingwebhookconfigurations,validatingadmissionpolicies"
        result.objects["left"] = we.run("kubectl", "get", kinds, "-o", "name")
        result.objects["pods"] = we.run("kubectl", "get", "pods", "-A", "-o", "name")
    return result


def test_the_script_goes_from_nothing_to_a_purchase(outputs):
    """
    It says what it skips; pods with shares run within the promised time; doctor finds nothing; a pod is refused what is
    beyond its promise, an alert fires, and the autoscaler buys a node on which the pod runs for which it was bought.
    """
    done = outputs.done
    assert "Skipped: making a cluster, building and loading images" in done
    assert int(re.search(r"run (\d+) s after the manifests were applied", done)[1]) <= FIRST_POD_SECONDS
    assert re.search(r"^\d+ ok(, \d+ warning)?$", done, re.MULTILINE)
    assert "denied an allocation beyond the promise and allowed one within it" in done
    assert 'ALERTS{alertname="GpushareAllocationsDenied", alertstate="firing"' in done
    assert re.search(r"^demo +1$", done, re.MULTILINE)
    *_, final = re.findall(r"^(\d) nodes, (\d) cards, (\d) pods, 0 pending; allocated ([\d.]+)", done, re.MULTILINE)
    assert ("2", "4", "5", "32.0") == final


def test_two_nodes_have_different_cards(outputs):
    """
    Four cards, four UUIDs.
    """
    assert 4 == len(set(re.findall(r"GPU-[0-9a-f-]{36}", outputs.objects["cards"])))


def test_an_installation_of_somebody_else_is_not_touched(outputs):
    """
    Where the namespace is there already, the script says so before it has written anything.
    """
    assert "installed here already, not by this script: it changes nothing" in outputs.foreign
    assert "quickstart.gpushare.dev" not in outputs.objects["foreign"]
    assert "ack.node.gpu.schedule" not in outputs.objects["foreign"]


def test_what_the_script_made_is_removed_and_nothing_else(outputs):
    """
    No object, label, annotation or resource of gpushare is left, nodes take pods, a label of somebody else's stays.
    """
    assert not re.findall("gpushare", outputs.objects["left"])
    assert not outputs.objects["pods"].strip()
    after = outputs.objects["after"]
    assert not re.findall(r"(?:gpushare\.dev|ack\.node|aliyun\.accelerator)/?\S*:", after)
    assert {"gpu-mem"} >= set(re.findall(r"aliyun\.com/([\w.-]+)", after))  # the kubelet keeps the name
    assert "unschedulable: true" not in after
    assert "team: mine" in after


def test_a_pod_of_ones_own_runs_and_a_refusal_says_what_to_add(outputs):
    """
    The next step of the page; memory alone, as on nodes of mode cgpu, is refused. Again: nothing happens.
    """
    assert re.search(r"^default/own: bound to node node-\d, Running$", outputs.own, re.MULTILINE)
    assert "requests 2 GiB and 25 % compute on 1 card" in outputs.own
    assert "also request aliyun.com/gpu-core.percentage" in outputs.refused
    assert "Done before: the autoscaler has bought node node-2" in outputs.again


VARYING = (
    (r"-[0-9a-f]{8,10}-[a-z0-9]{5}\b", "-POD"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"-[0-9a-f]{11}\b", "-ID"),
    (r"@\[[\d.]+\]", "@[TIME]"),
    (r"\b\d+:\d\d:\d\d\b", "AGE"),
    (r"\b\d+ s after", "N s after"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (r"[█▒·x!]{20}", "BAR"),
    (r"\bused [\d.]+", "used N"),
    (r"\buses [\d.]+", "uses N"),
    (r"BAR +([\d.]+) +[\d.]+\+?", r"BAR \1 N"),
    (r"Linux [\d.]+|cgroup v\d|cgroup driver \w+", "KERNEL"),
    (r"\s+", " "),
)
"""What differs from run to run."""


def plain(text):
    """Without what differs, and without line ends."""
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return text.strip()


def shown():
    """Commands of the page that have an output there, with its parts; `...` stands for what is left out."""
    for language, body in FENCE.findall(PAGE.read_text()):
        if language == "console":
            for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE):
                command, _, output = part.strip().partition("\n")
                if output:
                    yield command, [one for one in map(plain, re.split(r"^\.\.\.$", output, flags=re.MULTILINE)) if one]


def test_the_page_shows_what_was_printed(outputs):
    """
    Each command with an output was run by the script, and printed each part of it, in that order.
    """
    blocks = list(shown())
    assert len(blocks) >= 6
    printed = plain(outputs.done)
    for command, parts in blocks:
        at = printed.find(plain(command))
        assert at >= 0, command
        for part in parts:
            found = printed.find(part, at)
            assert found >= 0, f"{command}\n{part}"
            at = found + len(part)
