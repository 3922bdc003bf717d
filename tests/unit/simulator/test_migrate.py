# SPDX-License-Identifier: Apache-2.0
"""`gpushare migrate` as a person or a script uses it: what becomes of manifests and quotas, and why."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner
from support.dialect_corpus import CARD_GIB, CORPUS, Refused

from gpushare import main
from isolation.contract.dialects import SYSTEMS
from isolation.contract.dialects.quotas import MEASURES

NODE = f"name=n1,cards=4,gib={CARD_GIB},mode=core_mem"
MODES = ("core_mem", "cgpu", "share,label.gpushare.dev/time-slices=10")
WORDS = [word for at, mode in enumerate(MODES) for word in ("--node", f"name=n{at},cards=4,gib={CARD_GIB},mode={mode}")]
HAMI = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}


def container(limits, name="main"):
    """One container."""
    return {"name": name, "image": "none", "resources": {"limits": limits}}


def template(limits=None, **notes):
    """A template of pods."""
    return {"metadata": {"annotations": notes}, "spec": {"containers": [container(limits or HAMI)]}}


def workload(version, kind, spec, name="app"):
    """An object."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def migrate(*objects, words=WORDS):
    """Exit status, and output, of objects on standard input."""
    text = yaml.safe_dump_all(objects)
    done = CliRunner().invoke(main, ["migrate", "-", *words], input=text, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def found(*objects, words=WORDS):
    """Exit status, and the parsed answer."""
    status, text, _ = migrate(*objects, words=(*words, "-o", "json"))
    return status, json.loads(text)["objects"]


KINDS = {
    "Pod": ("v1", lambda made: made["spec"]),
    "PodTemplate": ("v1", None),
    "ReplicationController": ("v1", lambda made: {"template": made}),
    "Deployment": ("apps/v1", lambda made: {"template": made}),
    "ReplicaSet": ("apps/v1", lambda made: {"template": made}),
    "StatefulSet": ("apps/v1", lambda made: {"template": made}),
    "DaemonSet": ("apps/v1", lambda made: {"template": made}),
    "Job": ("batch/v1", lambda made: {"template": made}),
    "CronJob": ("batch/v1", lambda made: {"jobTemplate": {"spec": {"template": made}}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_that_makes_pods_is_translated_where_its_template_stands(kind):
    """Twice is once: what is written is in gpushare's words, and says so."""
    version, spec = KINDS[kind]
    made = workload(version, kind, spec(template()) if spec else {})
    if spec is None:
        made = {"apiVersion": version, "kind": kind, "metadata": {"name": "app"}, "template": template()}
    status, text, errors = migrate(made, words=("-o", "yaml"))
    assert (0, "") == (status, errors)
    assert "nvidia.com" not in text.replace("gpushare.dev/asked", "").split("containers:")[-1]
    assert "aliyun.com/gpu-mem: '3'" in text
    again, rows = found(yaml.safe_load(text))
    assert (0, "unchanged", "requests gpushare's own resources") == (again, rows[0]["state"], rows[0]["reason"])


@pytest.mark.parametrize("row", CORPUS, ids=lambda row: row.name)
def test_every_example_of_a_vendor_has_its_answer(row):
    """Refused with the reason, translated with a line for each change, or unchanged."""
    status, rows = found(row.pod, words=WORDS)
    state = rows[0]["state"]
    if isinstance(row.becomes, Refused):
        assert (1, "refused") == (status, state)
        assert row.becomes.words in rows[0]["reason"]
    elif row.dialect:
        assert (0, "translated", row.dialect) == (status, state, rows[0]["dialect"])
        assert rows[0]["lines"]
    else:
        assert (0, "unchanged") == (status, state)


def test_a_part_of_a_card_needs_to_know_the_nodes():
    """Without them it is not guessed; with cards of one size it is an amount."""
    made = workload("v1", "Pod", {"containers": [container({})]})
    made["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    status, rows = found(made, words=())
    assert (1, "unresolved") == (status, rows[0]["state"])
    assert "--nodes-file" in rows[0]["reason"]
    status, rows = found(made)
    assert (0, "translated", "aliyun.com/gpu-mem 40") == (status, rows[0]["state"], rows[0]["lines"][0]["after"])


def test_objects_of_other_systems_are_judged_and_stay():
    """A Volcano job is refused, for its pods are a group; another's template is warned about; a queue is named."""
    job = workload("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"template": template()}, {"template": template()}]})
    other = workload("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"template": template()}}})
    queue = workload("scheduling.run.ai/v2", "Queue", {})
    service = workload("v1", "Service", {"ports": []})
    status, rows = found(job, other, queue, service)
    assert (1, ["refused", "refused", "translated", "other"]) == (status, [row["state"] for row in rows])
    assert "as a group" in rows[0]["reason"]
    assert "spec.tasks[1].template" in rows[1]["object"]
    assert "stays" in rows[2]["warnings"][0]
    assert "KAI's own" in rows[3]["reason"]
    _, text, errors = migrate(job, other, words=("-o", "yaml"))
    assert [job, other] == list(yaml.safe_load_all(text))
    assert "cannot be translated" in errors


def test_rules_on_whole_cards_are_said_to_have_no_effect():
    """`nvidia.com/gpu` alone is the vendor's, with whatever HAMi would have made of its annotations."""
    note = {"nvidia.com/use-gputype": "A100"}
    status, rows = found(workload("apps/v1", "Deployment", {"template": template({"nvidia.com/gpu": 2}, **note)}))
    assert (0, "unchanged") == (status, rows[0]["state"])
    assert "use a nodeSelector" in rows[0]["warnings"][0]


def test_the_text_names_file_line_and_reason():
    """What goes, what comes, why."""
    status, text, _ = migrate(workload("apps/v1", "Deployment", {"template": template()}))
    assert 0 == status
    first, minus, plus, why, *_ = text.splitlines()
    assert "<stdin>:1: Deployment app: translated from HAMi" == first
    assert minus.startswith("  - container main: nvidia.com/gpu")
    assert "  + aliyun.com/gpu-mem 3, aliyun.com/gpu-core.percentage 30" == plus
    assert "rounded up" in why


def test_a_name_cannot_draw_on_the_terminal():
    """What a stranger wrote is shown without control characters."""
    made = workload("v1", "Pod", {"containers": [container(HAMI)]}, name="a\x1b[31m\nb: translated")
    made["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": "\x1b]0;x\x07"}
    status, text, errors = migrate(made)
    assert 1 == status
    assert "\x1b" not in text + errors
    assert 1 == sum("Pod" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no objects"),
        ("kind: Pod\n", "apiVersion"),
        ("[" * 200, "nested"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [x]}", "spec.containers[0]"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: {}, template: {spec: 3}}", ""),
    ],
)
def test_what_is_no_manifest_is_bad_input(text, words):
    """Status 2 with the place, or nothing to say."""
    done = CliRunner().invoke(main, ["migrate", "-"], input=text, catch_exceptions=False)
    assert (2 if words else 0) == done.exit_code
    assert words in done.stderr


def quotas(hard, *words):
    """Exit status and the answer about one ResourceQuota."""
    made = workload("v1", "ResourceQuota", {"hard": hard, "scopes": ["NotTerminating"]}, name="team")
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [made]})
    done = CliRunner().invoke(main, ["migrate", "quota", "-", *words], input=text, catch_exceptions=False)
    return done.exit_code, done.stdout


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        ({"requests.nvidia.com/gpumem": 9000}, {"gpu-mem": "9"}),
        ({"limits.nvidia.com/gpumem": 9000, "requests.nvidia.com/gpumem": 9000}, {"gpu-mem": "9"}),
        ({"requests.volcano.sh/vgpu-memory": "10k"}, {"gpu-mem": "10"}),
        ({"requests.tencent.com/vcuda-memory": 60}, {"gpu-mem": "15"}),
        ({"requests.tke.cloud.tencent.com/qgpu-memory": 7}, {"gpu-mem": "7"}),
        ({"requests.koordinator.sh/gpu-memory": "8Gi"}, {"gpu-mem": "8"}),
        ({"requests.koordinator.sh/gpu-core": 250}, {"gpu-core.percentage": "250"}),
        ({"requests.nvidia.com/vgpu-memory": 20480, "requests.nvidia.com/vgpu-cores": 600},
         {"gpu-mem": "20", "gpu-core.percentage": "600"}),
        ({"requests.nvidia.com/gpumem": 1024, "requests.volcano.sh/vgpu-memory": 1024}, {"gpu-mem": "2"}),
        ({"requests.nvidia.com/gpu": 4}, {}),
    ],
    ids=str,
)  # fmt: skip
def test_amounts_of_a_quota_become_ours(hard, expected):
    """Memory in units, rounded up; compute in percent. Scopes stay, and the old quota is not touched."""
    status, text = quotas(hard, "-o", "yaml")
    assert 0 == status
    made = yaml.safe_load(text)
    if not expected:
        assert made is None
        return
    assert {f"requests.aliyun.com/{name}": value for name, value in expected.items()} == made["spec"]["hard"]
    assert ("team-gpushare", ["NotTerminating"]) == (made["metadata"]["name"], made["spec"]["scopes"])


def test_what_a_quota_of_ours_cannot_say_is_said():
    """Numbers of vGPUs never; percent of memory where cards of one size are known."""
    hard = {"requests.nvidia.com/vgpu-number": 3, "requests.koordinator.sh/gpu-memory-ratio": 150, "pods": 5}
    status, text = quotas(hard)
    assert 1 == status
    assert 2 == text.count("cannot be expressed")
    assert "count/pods" in text
    del hard["requests.nvidia.com/vgpu-number"]
    status, text = quotas(hard, "--node", NODE)
    assert 0 == status
    assert "requests.aliyun.com/gpu-mem: '120'" in text
    two = ("--node", NODE, "--node", NODE.replace("n1", "n2").replace("80", "15"))
    assert 1 == quotas(hard, *two)[0]


@pytest.mark.parametrize("amount", ["-1", "x", {}, "1e30"])
def test_an_amount_that_is_none_is_bad_input(amount):
    """With the line, and what to write."""
    made = workload("v1", "ResourceQuota", {"hard": {"requests.nvidia.com/gpumem": amount}})
    done = CliRunner().invoke(main, ["migrate", "quota", "-"], input=yaml.safe_dump(made), catch_exceptions=False)
    assert 2 == done.exit_code
    assert "nvidia.com/gpumem" in done.stderr


def test_every_resource_that_a_translation_removes_has_its_measure():
    """Or a quota on it would be passed over."""
    assert {name for one in SYSTEMS.values() for name in (*one.resources, *one.implied)} == set(MEASURES)
