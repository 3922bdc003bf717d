# SPDX-License-Identifier: Apache-2.0
"""
`gpushare place` as a person or a script uses it: what lands where, and why not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

from gpushare import main
from isolation.contract.model import Card, Mode
from isolation.contract.quantity import GIB
from isolation.node.inventory import NodeInventory, Terms

SAMPLES = Path(__file__).resolve().parents[3].parent / "shared" / "samples"
COUNT = "aliyun.com/gpu-count"
SHORT = {"mem": "aliyun.com/gpu-mem", "core": "aliyun.com/gpu-core.percentage", "whole": "nvidia.com/gpu"}


def limits(**amounts):
    """Resources of a container, under short names."""
    return {"limits": {SHORT.get(key, key): value for key, value in amounts.items()}}


def pod(name="a", *, count=None, containers=None, spec=None, **amounts):
    """A bare pod of one container, or of those given."""
    labels = {} if count is None else {COUNT: str(count)}
    containers = containers or [{"name": "main", "resources": limits(**amounts)}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": containers, **(spec or {})},
    }


def workload(kind="StatefulSet", name="app", replicas=1, count=None, **amounts):
    """A workload of such pods."""
    made = pod(count=count, **amounts)
    template = {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "template": template},
    }


def gpushare(*arguments, stdin=None):
    """Run the command in this process."""
    return CliRunner().invoke(main, ["place", *arguments], input=stdin, catch_exceptions=False)


def place(*objects, node=(), options=()):
    """Exit status and parsed JSON for these objects on these nodes."""
    nodes = [part for spec in ([node] if isinstance(node, str) else node) for part in ("--node", spec)]
    result = gpushare("-f", "-", "--json", *nodes, *options, stdin=yaml.safe_dump_all(objects))
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


def landed(answer):
    """Pod -> (node, card indices, GiB per card) of an answer."""
    return {
        p["pod"]: (p["node"], [c["index"] for c in p["cards"]], [c["memory_gib"] for c in p["cards"]])
        for p in answer["placements"]
    }


def refused(answer):
    """The one refusal of an answer."""
    assert [] == answer["placements"]
    (only,) = answer["refusals"]
    return only["reason"]


def test_a_stateful_set_spreads_its_memory_over_the_cards_of_one_node():
    """The first seed example, in exactly the promised shape."""
    status, answer = place(workload(count=4, mem=8), node="name=n1,cards=4,gib=15,mode=cgpu,placement=binpack")
    cards = [{"index": i, "memory_gib": 2, "core_percent": 0} for i in range(4)]
    placements = [{"pod": "app-0", "container": "main", "node": "n1", "cards": cards}]
    assert (0, {"placements": placements, "refusals": []}) == (status, answer)


@pytest.mark.parametrize(("choice", "cards"), [("binpack", 1), ("spread", 2)])
def test_binpack_shares_a_card_and_spread_takes_another(choice, cards):
    """The second seed example: 2 and 3 GiB on 2 x 15 GiB."""
    _, answer = place(pod("a", mem=2), pod("b", mem=3), node=f"name=n1,cards=2,gib=15,mode=share,placement={choice}")
    assert cards == len({c["index"] for p in answer["placements"] for c in p["cards"]})


@pytest.mark.parametrize(
    ("manifest", "node", "says"),
    [
        (pod(count=3, mem=8), "name=n1,cards=4,gib=15", "request 6 or 9"),
        (pod(count=5, mem=10), "name=n1,cards=4,gib=15", "lower label aliyun.com/gpu-count to at most 4"),
        (pod(mem=20), "name=n1,cards=4,gib=16", "request at most that per card"),
        (pod(mem=0), "name=n1,cards=4,gib=16", "request 1 or more"),
        (pod(mem=-1), "name=n1,cards=4,gib=16", "request a positive amount"),
        (pod(mem=1.5), "name=n1,cards=4,gib=16", "request a whole number"),
        (
            pod(containers=[{"name": "m", "resources": {**limits(mem=4), "requests": {SHORT["mem"]: 2}}}]),
            "name=n1,cards=4,gib=16",
            "make them equal",
        ),
        (pod(mem=4), "name=n1,cards=4,gib=16,mode=default", "ack.node.gpu.schedule"),
        (pod(whole=1), "name=n1,cards=4,gib=16,mode=cgpu", "ack.node.gpu.schedule=default"),
        (pod(mem=4, core=30), "name=n1,cards=4,gib=16,mode=cgpu", "ack.node.gpu.schedule=core_mem"),
        (pod(mem=4), "name=n1,cards=4,gib=16,mode=core_mem", "ack.node.gpu.schedule"),
        (pod(mem=1), "name=n1,cards=0", "in a mode that does not support this request"),
        (pod(mem=1, cpu="9"), "name=n1,cards=1,gib=4,cpu=8", "CPU"),
        (pod(mem=1, memory="9Gi"), "name=n1,cards=1,gib=4,memory=8.5", "memory"),
        (pod(mem=1, spec={"nodeSelector": {"zone": "b"}}), "name=n1,cards=1,gib=4,label.zone=a", "selector"),
        (pod(mem=1, spec={"nodeName": "n2"}), "name=n1,cards=1,gib=4", "selector"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_what_to_change(manifest, node, says):
    """Exit status 1, and a reason that tells its reader what to do."""
    status, answer = place(manifest, node=node)
    assert 1 == status
    assert says in refused(answer)


def test_one_refusal_does_not_stop_the_others():
    """Each pod has its own outcome."""
    status, answer = place(pod("a", mem=0), pod("b", mem=4), node="name=n1,cards=1,gib=4")
    assert (1, {"b": ("n1", [0], [4])}, ["a"]) == (status, landed(answer), [r["pod"] for r in answer["refusals"]])


def test_every_pod_sees_the_ones_before_it():
    """Two of 10 GiB do not share 15, and the third has no room."""
    status, answer = place(*(pod(name, mem=10) for name in "abc"), node="name=n1,cards=2,gib=15")
    assert (1, [0, 1]) == (status, sorted(c["index"] for p in answer["placements"] for c in p["cards"]))
    assert ["c"] == [r["pod"] for r in answer["refusals"]]


def test_every_container_is_listed_with_its_own_part():
    """They share the pod's cards; a helper without cards is not in the list."""
    containers = [
        {"name": "a", "resources": limits(mem=4, core=40)},
        {"name": "b", "resources": limits(mem=2, core=20)},
        {"name": "log", "resources": limits(cpu="1")},
    ]
    _, answer = place(pod("p", count=2, containers=containers), node="name=n1,cards=2,gib=3,mode=core_mem")
    parts = [
        (p["container"], [(c["index"], c["memory_gib"], c["core_percent"]) for c in p["cards"]])
        for p in answer["placements"]
    ]
    assert [("a", [(0, 2, 20), (1, 2, 20)]), ("b", [(0, 1, 10), (1, 1, 10)])] == parts


def test_a_sidecar_needs_its_room_beside_the_app():
    """2 + 3 GiB do not fit on 4; an init container that ends first would."""
    init = [{"name": "s", "restartPolicy": "Always", "resources": limits(mem=2)}]
    status, _ = place(pod(mem=3, spec={"initContainers": init}), node="name=n1,cards=1,gib=4")
    assert 1 == status
    del init[0]["restartPolicy"]
    status, answer = place(pod(mem=3, spec={"initContainers": init}), node="name=n1,cards=1,gib=4")
    assert (0, ["s", "main"]) == (status, [p["container"] for p in answer["placements"]])


def test_spread_keeps_replicas_of_one_owner_apart():
    """Three replicas, three cards, though another card has more room."""
    _, answer = place(
        pod("first", mem=1), workload("Deployment", replicas=3, mem=2), node="name=n1,cards=3,gib=15,placement=spread"
    )
    assert [0, 1, 2] == sorted(cards[0] for name, (_, cards, _) in landed(answer).items() if name != "first")


def test_compute_is_a_limit_of_its_own():
    """60 and 60 % do not share a card; 60 and 40 % do."""
    node = "name=n1,cards=1,gib=15,mode=core_mem"
    assert 1 == place(pod("a", mem=1, core=60), pod("b", mem=1, core=60), node=node)[0]
    assert 0 == place(pod("a", mem=1, core=60), pod("b", mem=1, core=40), node=node)[0]


def test_whole_cards_live_beside_shares_in_one_fleet():
    """Each on nodes of its own mode."""
    nodes = ("name=whole,cards=2,gib=16,mode=default", "name=share,cards=2,gib=16")
    _, answer = place(pod("w", whole=2), pod("s", mem=2), node=nodes)
    assert {"w": ("whole", [0, 1], [16, 16]), "s": ("share", [0], [2])} == landed(answer)
    assert [100, 100] == [card["core_percent"] for card in answer["placements"][0]["cards"]]


def test_containers_that_ask_for_whole_cards_get_their_own():
    """Two containers, two cards, one each."""
    containers = [{"name": name, "resources": limits(whole=1)} for name in "ab"]
    _, answer = place(pod("p", containers=containers), node="name=n1,cards=2,gib=16,mode=default")
    assert [("a", [0]), ("b", [1])] == [
        (p["container"], [c["index"] for c in p["cards"]]) for p in answer["placements"]
    ]


def test_a_pod_without_cards_is_placed_with_none():
    """Its containers are listed, on no card."""
    status, answer = place(pod(cpu="1"), node="name=n1,cards=0,cpu=2")
    assert (0, [{"pod": "a", "container": "main", "node": "n1", "cards": []}]) == (status, answer["placements"])


def test_cpu_and_memory_that_nobody_stated_are_no_reason():
    """A planner who asks about cards is not told about CPU."""
    assert 0 == place(pod(mem=1, cpu="4000", memory="900Ti"), node="name=n1,cards=1,gib=4")[0]


@pytest.mark.parametrize(("gib", "amount", "status"), [("15.75", 15, 0), ("15.75", 16, 1), ("16", 16, 0)])
def test_a_card_offers_whole_units(gib, amount, status):
    """The rest of a GiB is nobody's."""
    assert status == place(pod(mem=amount), node=f"name=n1,cards=1,gib={gib}")[0]


@pytest.mark.parametrize("model", ["Tesla V100-SXM2-16GB", "Tesla-V100-SXM2-16GB", "Tesla-T4", "NVIDIA-X1", ""])
@pytest.mark.parametrize("gib", ["16", "15.25"])
@pytest.mark.parametrize("mode", ["mps", "cgpu"])
def test_a_card_offers_what_its_agent_will_state(tmp_path, model, gib, mode):
    """Under MPS without what the card's server has."""
    nvml = model.replace("-", " ") if "V100" not in model else "Tesla V100-SXM2-16GB"
    card = Card("GPU-0", 0, int(float(gib) * GIB), model=nvml)
    inventory = NodeInventory(SimpleNamespace(cards=lambda: (card,)), Terms(GIB), tmp_path / "cards.json")
    inventory.refresh()
    inventory.serves(Mode(mode), whole=False)
    [stated] = inventory.cards()
    spec = f"name=n1,cards=1,gib={gib},mode={mode}{model and f',model={model}'}"
    offered = stated.allocatable_bytes // GIB
    wants = {"nodeSelector": {"ack.node.gpu.schedule": mode}, "securityContext": {"runAsUser": 1000}}
    for amount, status in ((offered, 0), (offered + 1, 1)):
        assert status == place(pod(mem=amount, spec=wants), node=spec)[0]


def test_a_card_without_room_for_a_unit_under_mps_is_bad_input():
    found = gpushare("-f", "-", "--node", "name=n1,cards=1,gib=1.5,mode=mps", stdin="{}")
    assert found.exit_code == 2
    assert "640 MiB of an MPS server" in found.stderr


def test_a_unit_of_256_mib_makes_quarters():
    """3 units are 0.75 GiB; 15.75 GiB are 63 of them."""
    _, answer = place(
        pod("a", mem=60), pod("b", mem=3), node="name=n1,cards=1,gib=15.75", options=("--memory-unit", "256MiB")
    )
    assert {"a": ("n1", [0], [15]), "b": ("n1", [0], [0.75])} == landed(answer)


def test_a_count_makes_nodes_alike():
    """name-0 and on; one pod of a whole card's memory fills each."""
    _, answer = place(workload(replicas=3, mem=15), node="name=n,cards=1,gib=15,count=3")
    assert {"n-0", "n-1", "n-2"} == {node for node, _, _ in landed(answer).values()}


@pytest.mark.parametrize(
    ("selector", "status"),
    [
        ({"ack.node.gpu.schedule": "cgpu"}, 0),
        ({"ack.node.gpu.placement": "spread"}, 0),
        ({"aliyun.accelerator/nvidia_name": "T4"}, 0),
        ({"nvidia.com/gpu.product": "T4"}, 0),
        ({"kubernetes.io/hostname": "n1"}, 0),
        ({"zone": "a"}, 0),
        ({"aliyun.accelerator/nvidia_name": "V100"}, 1),
        ({"zone": "b"}, 1),
    ],
)
def test_a_written_node_carries_the_labels_of_its_like(selector, status):
    """So that the selectors of real manifests find it."""
    node = "name=n1,cards=1,gib=4,mode=cgpu,placement=spread,model=T4,label.zone=a"
    assert status == place(pod(mem=1, spec={"nodeSelector": selector}), node=node)[0]


def test_pods_refused_for_one_reason_are_reported_once():
    """All by name in JSON, one line for people; and a refusal ends when the reason does."""
    manifest, node = workload(replicas=5, mem=4), "name=n1,cards=1,gib=8"
    answer = place(manifest, node=node)[1]
    assert ["app-2", "app-3", "app-4"] == [r["pod"] for r in answer["refusals"]]
    text = gpushare("-f", "-", "--node", node, stdin=yaml.safe_dump(manifest)).stdout
    assert "refused  app-2 and 2 more\n" in text
    assert 1 == text.count("refused  ")


@pytest.mark.parametrize("policy", ["binpack", "spread", "best-fit", "random", "fgd", "potential"])
def test_every_policy_places_what_fits(policy):
    """They differ in where, not in whether."""
    assert (
        0 == place(workload(replicas=4, mem=15), node="name=n,cards=2,gib=15,count=2", options=("--policy", policy))[0]
    )


def test_nodes_of_a_cluster_are_read_from_its_own_words(tmp_path):
    """Recorded from a running cluster: 4 x 16 GiB."""
    recorded = SAMPLES / "extender-filter-fullnodes.json"
    if not recorded.exists():
        pytest.skip(f"{recorded} is not here")
    items = json.loads(recorded.read_text())["body"]["Nodes"]["items"]
    nodes = {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Node", **n} for n in items]}
    for name, text in (("nodes.json", json.dumps(nodes)), ("nodes.yaml", yaml.safe_dump(nodes))):
        (tmp_path / name).write_text(text)
        _, answer = place(pod(count=4, mem=64), options=("--nodes-file", str(tmp_path / name)))
        assert {"a": ("gpu-0", [0, 1, 2, 3], [16] * 4)} == landed(answer)


def running(name, phase="Running", annotation=None, **amounts):
    """A pod that is on n1 already."""
    made = pod(name, spec={"nodeName": "n1"}, **amounts)
    key = "scheduler.framework.gpushare.allocation"
    made["metadata"]["annotations"] = {key: annotation} if annotation else {}
    return {**made, "status": {"phase": phase}}


def cluster(tmp_path, *pods, **capacity):
    """A file with node n1 and these pods."""
    states = {"cpu": "8", "memory": "64Gi", **{k.replace("__", "/"): v for k, v in capacity.items()}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"capacity": states}}
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all([node, *pods]))
    return "--nodes-file", str(file)


def test_pods_that_run_already_keep_what_they_hold(tmp_path):
    """12 of card 0 and all CPU but one core are taken; an ended pod has given back."""
    shares = {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}
    pods = (running("r", annotation='{"0":{"0":12}}', mem=12, cpu="7"), running("s", "Succeeded", mem=12, cpu="1"))
    options = cluster(tmp_path, *pods, **shares)
    assert {"a": ("n1", [1], [8])} == landed(place(pod(mem=8), options=options)[1])
    assert 0 == place(pod(mem=8, cpu="1"), options=options)[0]
    assert 1 == place(pod(mem=8, cpu="2"), options=options)[0]


def test_whole_cards_without_a_record_still_count(tmp_path):
    """Two of three are taken, whichever they are."""
    options = cluster(tmp_path, running("r", whole=2), **{"nvidia.com/gpu": "3"})
    assert 0 == place(pod(whole=1), options=options)[0]
    assert 1 == place(pod(whole=2), options=options)[0]


def test_the_table_for_people_is_plain_when_piped(tmp_path):
    """No colour codes, names uncut, the rest in 80 columns, a summary; through the real command."""
    file = tmp_path / "pods.yaml"
    long = "a-very-long-name-of-a-workload-that-somebody-really-gave-to-it-0123456789"
    file.write_text(yaml.safe_dump_all([workload(name=long, count=4, mem=8), pod("b", mem=20)]))
    command = [sys.executable, "-m", "gpushare", "place", "-f", str(file), "--node", "name=n1,cards=4,gib=15"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8", timeout=300)

    assert (1, "") == (done.returncode, done.stderr)
    assert "\x1b" not in done.stdout
    heading, row, *others = done.stdout.splitlines()
    assert ["POD", "CONTAINER", "NODE", "CARDS"] == heading.split()
    assert f"{long}-0  main       n1    0 1 2 3: 2 GiB each" == row
    assert max(map(len, others)) <= 80
    assert "refused  b" in done.stdout
    assert "2 of 15 GiB" in done.stdout
    assert "1 placed, 1 refused; 52 GiB free on 4 cards of 1 node" in done.stdout


def test_the_table_needs_no_unicode(tmp_path):
    """An ASCII terminal gets ASCII bars."""
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump(pod(mem=5)))
    command = [sys.executable, "-m", "gpushare", "place", "-f", str(file), "--node", "name=n1,cards=1,gib=15"]
    env = {"PYTHONIOENCODING": "ascii", "PATH": ""}

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=300)

    assert 0 == done.returncode, done.stderr
    assert "##########...................." in done.stdout


@pytest.mark.parametrize(
    ("policy", "compute", "offline"), [("fixed", False, False), ("weight", True, False), ("priority", True, True)]
)
def test_the_policy_of_a_node_decides_who_may_be_beside_compute(policy, compute, offline):
    """Pods without compute where all are limited, offline pods where they yield; and on cards of their own."""
    shy = pod("offline", mem=2)
    shy["metadata"]["annotations"] = {"gpushare.dev/online": "false"}
    node = f"name=n,cards=2,gib=15,mode=core_mem,policy={policy}"
    _, answer = place(pod("both", mem=2, core=30), pod("plain", mem=2), shy, node=node)

    found = landed(answer)
    assert {"both": True, "plain": compute, "offline": offline} == {
        name: name in found for name in ("both", "plain", "offline")
    }


def test_a_policy_that_is_none_is_refused_by_name():
    """With those that there are."""
    result = gpushare("-f", "-", "--node", "name=n,cards=1,gib=15,policy=fair", stdin=yaml.safe_dump(pod(mem=1)))
    assert 2 == result.exit_code
    assert "burst" in result.output
