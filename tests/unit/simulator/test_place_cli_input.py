# SPDX-License-Identifier: Apache-2.0
"""
`gpushare place` on input that makes no sense: every complaint names file, line and the fix.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpushare import main
from isolation.simulator.place.yaml_document import DocumentError, documents

NODE = "name=n1,cards=2,gib=15"
POD = """apiVersion: v1
kind: Pod
metadata:
  name: a
spec:
  containers:
  - name: main
    resources:
      limits:
        aliyun.com/gpu-mem: 4
"""


def gpushare(*arguments, stdin=None):
    """Run the command in this process."""
    return CliRunner().invoke(main, ["place", *arguments], input=stdin, catch_exceptions=False)


def place(text, *options):
    """Place this text on one node."""
    return gpushare("-f", "-", "--node", NODE, *options, stdin=text)


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("a: b: c\n", "<stdin>:1:5: ", "quote the value"),
        ("a:\n\t- b\n", "<stdin>:2:1: ", "never with tabs"),
        ("a:\n  - b\n c: 1\n", "<stdin>:3:2: ", "align this line"),
        ("a: [1, 2\nb: 3\n", "<stdin>:2:2: ", "close the bracket"),
        ('a: "open\n', "<stdin>:2:1: ", "close the quote"),
        (POD.replace("kind:", "kind"), "<stdin>:3:", "write key: value"),
        (POD.replace("kind: Pod", "kind: {{ .Values.kind }}"), "<stdin>:2:8: ", "render the template"),
        (POD + "kind: Job\n", "<stdin>:11:1: ", "duplicate key 'kind', first on line 2; keep one"),
        (POD + "---\nfoo: 1\n", "<stdin>:12: ", "add apiVersion: and kind:"),
        (POD + "---\njust text\n", "<stdin>:12: ", "write key: value"),
        (
            POD.replace("        aliyun.com/gpu-mem: 4", "      - 4"),
            "<stdin>:9: spec.containers[0].resources.limits: ",
            "mapping",
        ),
        (POD.replace("name: a", "name: A"), "<stdin>:4: metadata.name: ", "lower-case"),
        (POD.replace("  name: a", "  name: a\n  labels:\n    aliyun.com/gpu-count: 4"), "<stdin>:6: ", 'quote it: "4"'),
        ("x: !!python/object:os.system {}\n", "<stdin>:1:4: ", "remove it"),
        ("a: *b\n", "<stdin>:1:4: ", "define it first"),
        ("a: &a [*a]\n", "<stdin>:1:8: ", "define it first"),
        ("a: \x00\n", "<stdin>:1:4: ", "remove it"),
        ('{"kind": "Pod" "x": 1}', "<stdin>:1:", "add the missing comma"),
        ('{"apiVersion": "v1",\n "kind": "Pod",\n "metadata": 1}', "<stdin>:3: metadata: ", "mapping"),
        ('{"kind": "Pod",\n"kind": "Job"}', "<stdin>:2:1: ", "keep one"),
    ],
)
def test_malformed_text_names_file_line_and_fix(text, where, fix):
    """Exit status 2, one line on stderr, nothing on stdout."""
    result = place(text)
    assert (2, "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith(f"Error: {where}"), result.stderr
    assert fix in result.stderr


def test_the_error_names_the_file_it_is_in(tmp_path):
    """The second of two files, not the first."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(POD)
    bad.write_text(POD + "---\nkind: Pod\n")
    result = gpushare("-f", str(good), "-f", str(bad), "--node", NODE)
    assert 2 == result.exit_code
    assert f"{bad}:12: not a Kubernetes object: apiVersion is missing" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        '{"a":' * 1_000_000,
        "- " * 200_000,
        "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
        "x: " + "9" * 5000 + "\n",
        "x: " + "a" * (10 << 20) + "\n",
    ],
    ids=["brackets", "braces", "dashes", "aliases", "digits", "size"],
)
def test_text_that_would_exhaust_the_machine_is_turned_away(text):
    """Within seconds, by limits on size, depth and aliases."""
    result = place(text)
    assert 2 == result.exit_code
    assert result.stderr.startswith("Error: <stdin>:")


def test_bytes_that_are_no_text_are_an_error_with_their_line():
    """A binary file given by mistake."""
    result = CliRunner().invoke(main, ["place", "-f", "-", "--node", NODE], input=b"a: 1\nb: \xff\n")
    assert 2 == result.exit_code
    assert "<stdin>:2: byte 8 is not UTF-8" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-f", "/nowhere/pods.yaml", "--node", NODE], "/nowhere/pods.yaml: no such file"),
        (["-f", "/", "--node", NODE], "pass its files instead"),
        (["-f", "-"], "no nodes; add --node"),
        (["-f", "-", "--nodes-file", "-"], "only once"),
        (["--node", NODE], "--file"),
        (["-f", "-", "--node", NODE, "--policy", "luck"], "luck"),
        (["-f", "-", "--node", NODE, "--node", NODE], "two nodes are named n1"),
        (["-f", "-", "--node", "cards=2,gib=15"], "name is missing"),
        (["-f", "-", "--node", "name=n1,cards=2"], "gib is missing"),
        (["-f", "-", "--node", "name=n1,cards=two,gib=15"], "cards=two is not a whole number"),
        (["-f", "-", "--node", "name=n1,cards=65,gib=15"], "from 0 to 64"),
        (["-f", "-", "--node", "name=n1,cards=1,gib=0.5"], "less than one unit"),
        (["-f", "-", "--node", "name=n1,cards=1,gib=1e9"], "gib=1e9 is not a number"),
        (["-f", "-", "--node", "name=n1,cards=1,gib=-3"], "gib=-3 is not a number"),
        (["-f", "-", "--node", "name=n1,cards=1,gib=9,mode=mig"], "use share, cgpu, core_mem, mps, default"),
        (["-f", "-", "--node", "name=n1,cards=1,gib=9,placement=left"], "use binpack, spread"),
        (["-f", "-", "--node", "name=n1,card=1"], 'unknown key "card"; use name, cards'),
        (["-f", "-", "--node", "name=n1,name=n2"], "key name is given twice"),
        (["-f", "-", "--node", "name=N_1,cards=1,gib=4"], "lower-case"),
        (["-f", "-", "--node", "n1"], '"n1" is not KEY=VALUE'),
        (["-f", "-", "--node", "name=n1,count=10001"], "from 0 to 10000"),
    ],
)
def test_arguments_that_make_no_sense_say_what_to_write(arguments, says):
    """Exit status 2 for every one of them."""
    result = gpushare(*arguments, stdin="")
    assert (2, "") == (result.exit_code, result.stdout)
    assert says in result.stderr


def test_a_nodes_file_without_nodes_says_how_to_make_one(tmp_path):
    """Given the pods' file by mistake."""
    file = tmp_path / "pods.yaml"
    file.write_text(POD)
    result = gpushare("-f", str(file), "--nodes-file", str(file))
    assert 2 == result.exit_code
    assert "kubectl get nodes -o yaml" in result.stderr


def test_a_node_that_lies_names_its_file_and_line(tmp_path):
    """60 units on no cards."""
    file = tmp_path / "nodes.yaml"
    status = "status: {capacity: {aliyun.com/gpu-mem: 60}}"
    file.write_text(f"apiVersion: v1\nkind: Node\nmetadata: {{name: n1}}\n{status}\n")
    result = gpushare("-f", "-", "--nodes-file", str(file), stdin=POD)
    assert 2 == result.exit_code
    assert f"{file}:4: status.capacity: aliyun.com/gpu-mem needs aliyun.com/gpu-count" in result.stderr


def test_objects_without_pods_are_skipped_with_a_note():
    """Files hold more than pods; stdout stays clean for programs."""
    service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n---\n# nothing\n"
    result = place(POD + service, "--json")
    assert 0 == result.exit_code
    assert 1 == len(json.loads(result.stdout)["placements"])
    assert "note: <stdin>:12: Service web is skipped: gpushare reads no pods from this kind" in result.stderr


def test_what_is_not_weighed_is_said_once_for_pods_alike():
    """On stderr, naming the first and the number of the others."""
    spread = "topologySpreadConstraints: [{maxSkew: 1}], containers: [{name: c}]"
    spec = f"{{replicas: 3, template: {{spec: {{{spread}}}}}}}"
    text = f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec: {spec}"
    result = place(text, "--json")
    assert 0 == result.exit_code
    assert ["note: d-0 and 2 more: placement ignores topology spread constraints"] == result.stderr.splitlines()


def test_pods_of_a_workload_that_is_in_the_files_too_are_counted_once():
    """As in the output of `kubectl get all -o yaml`."""
    owned = POD.replace("name: a", "name: d-x\n  ownerReferences: [{kind: Deployment, name: d, controller: true}]")
    spec = "{containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 1}}}]}"
    owner = f"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec: {{template: {{spec: {spec}}}}}\n"
    result = place(owned + owner, "--json")
    assert ["d-0"] == [p["pod"] for p in json.loads(result.stdout)["placements"]]
    assert "is skipped: the Deployment that creates it is counted" in result.stderr


def test_yaml_anchors_and_merges_work():
    """They are common in hand-written manifests."""
    text = POD.replace("limits:", "limits: &l").replace("gpu-mem: 4", "gpu-mem: 3")
    more = "  - name: b\n    resources:\n      limits:\n        <<: *l\n        cpu: 1\n"
    answer = json.loads(place(text + more, "--json").stdout)
    assert [("main", 3), ("b", 3)] == [(p["container"], p["cards"][0]["memory_gib"]) for p in answer["placements"]]


def test_json_with_tabs_and_escapes_is_read():
    """JSON is JSON even where YAML would stumble."""
    text = (
        '{\t"apiVersion": "v1",\n\t"kind": "Pod", "metadata": {"name": "a", "annotations": {"x": "\\ud83d\\ude00\\/"}},'
    )
    spec = '\t"spec": {"containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "4"}}}]}}'
    assert 0 == place(text + spec).exit_code


def test_stdin_that_is_closed_reads_as_empty():
    """As under a supervisor; no traceback."""
    command = f"{sys.executable} -m gpushare place -f - --node {NODE} <&-"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert (2, False) == (done.returncode, "Traceback" in done.stderr), done.stderr
    assert "no pods to place" in done.stderr


@given(st.text(max_size=60) | st.text("[]{}:,-&*!|>'\"%@ \n\tab0", max_size=40))
def test_any_text_is_documents_or_an_error_with_a_place(text):
    """The reader never breaks and always points into the text."""
    try:
        for document in documents(text):
            assert document.line >= 1
    except DocumentError as exc:
        if not (1 <= exc.line <= text.count("\n") + text.count("\r") + 2 and exc.column >= 1):
            pytest.fail(f"points nowhere: {exc.line}:{exc.column}")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text('aé"\\/:#\t 1', max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
        max_leaves=12,
    )
)
def test_json_reads_the_same_through_either_reader(value):
    """The fast reader and the one that knows lines agree."""
    text = json.dumps([value])
    (plain,) = documents(text)
    (marked,) = documents("# a comment makes it YAML\n" + text)
    assert [value] == plain.value == marked.value


NUMBERS = {
    "010": 8, "08": 8, "0o10": 8, "0O10": 8, "1_000": 1000, "0x1F": 31, "-010": -8, "+7": 7, "1e3": 1000, ".5": 0.5,
    "5.": 5, "0b11": 3, "0B1": 1, "_1": "_1", "1__0": 10, "019": 19, "00": 0, "-0x10": -16, "1_0.5": 10.5, "0x1_0": 16,
    "y": True, "n": False, "1:30": "1:30", "+": "+", ".": ".", "-.": "-.", "1e400": "1e400",
}  # fmt: skip
"""What sigs.k8s.io/yaml v1.6.0, as kubectl uses it, makes of a plain scalar."""


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_plain_scalars_are_read_as_kubectl_reads_them(text, value):
    """Quantities too: gpu-mem: 010 is eight."""
    [found] = documents(f"a: {text}\n")
    assert {"a": value} == found.value


def test_nothing_to_place_is_an_error():
    """An empty file is most often a mistake in the command before it."""
    result = place("")
    assert (2, "") == (result.exit_code, result.stdout)
    assert "no pods to place; <stdin>: the file contains no objects" in result.stderr
