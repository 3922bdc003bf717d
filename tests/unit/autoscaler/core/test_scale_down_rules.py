# SPDX-License-Identifier: Apache-2.0
"""What keeps a node, row by row beside cluster-autoscaler's documented rules; docs/autoscaler.md has the same rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.autoscaler_harness import START, Api, Machines, a_node, a_pod, run

from autoscaler.core.drain_rules import DrainRules
from autoscaler.core.limits import ScalingLimits
from autoscaler.core.plan import Drain, RemoveNode
from autoscaler.core.reconcile import reconcile
from autoscaler.core.scale_down import explain_needed
from autoscaler.core.state import AutoscalerState
from autoscaler.kube.cluster import KubeCluster
from isolation.contract.codec.pod import safe_to_evict, time_of
from isolation.contract.names import EVICT, MIRROR, SAFE_TO_EVICT, SAFE_TO_EVICT_LOCAL_VOLUMES, USER_SAFE_TO_EVICT

LIMITS = ScalingLimits(action_validation_delay_seconds=0.0, min_node_age_seconds=0.0)
PAGE = Path(__file__).parents[4] / "docs" / "autoscaler.md"
EVICTED, KEEPS, GOES, WAITS = "evicted", "keeps the node", "goes with the node", "waited for"
SYSTEM = {"namespace": "kube-system"}
DISK = {"name": "scratch", "emptyDir": {}}
HOST = {"name": "host", "hostPath": {"path": "/data"}}


def owned(kind):
    """By a controller of this kind."""
    return {"ownerReferences": [{"kind": kind, "name": "x", "uid": "x", "controller": True, "apiVersion": "v1"}]}


def said(**more):
    """Annotations beside the pod's record."""
    names = {"safe": SAFE_TO_EVICT, "volumes": SAFE_TO_EVICT_LOCAL_VOLUMES, "user": USER_SAFE_TO_EVICT, "evict": EVICT}
    return {names.get(key, key): value for key, value in more.items()}


@dataclass(frozen=True)
class Row:
    """One pod on a node that is superfluous but for it."""

    what: str
    theirs: str
    """cluster-autoscaler's, as documented."""
    ours: str
    meta: dict = field(default_factory=dict)
    said: dict = field(default_factory=dict)
    spec: dict = field(default_factory=dict)
    status: dict = field(default_factory=dict)
    budget: int | None = None
    rules: DrainRules = DrainRules()  # noqa: RUF009 (a value)
    alone: bool = False


LOCAL_OFF = DrainRules(skip_nodes_with_local_storage=False)
CUSTOM_OFF = DrainRules(skip_nodes_with_custom_controller_pods=False)
AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
ROWS = (
    Row("of a ReplicaSet, a StatefulSet or a ReplicationController", EVICTED, EVICTED),
    Row("under a PodDisruptionBudget that allows a disruption", EVICTED, EVICTED, budget=1),
    Row("under a PodDisruptionBudget that allows none", KEEPS, KEEPS, budget=0),
    Row("of a DaemonSet", GOES, GOES, owned("DaemonSet")),
    Row('of a DaemonSet, safe-to-evict: "false"', GOES, GOES, owned("DaemonSet"), said(safe="false")),
    Row("a static pod's mirror", GOES, GOES, said={MIRROR: "x"}),
    Row("Succeeded or Failed", GOES, GOES, status={"phase": "Failed"}),
    Row(
        'of a Job, Succeeded, safe-to-evict: "false"',
        GOES,
        GOES,
        owned("Job"),
        said(safe="false"),
        status={"phase": "Succeeded"},
    ),
    Row("terminating", WAITS, WAITS, {"deletionTimestamp": time_of(START + 1500)}),
    Row("terminating for 30 s longer than its grace", GOES, GOES, {"deletionTimestamp": time_of(START + 300)}),
    Row("without a controller", KEEPS, KEEPS, {"ownerReferences": []}),
    Row(
        'without a controller, safe-to-evict: "true"',
        "evicted, lost",
        KEEPS,
        {"ownerReferences": []},
        said(safe="true"),
    ),
    Row("of a Job", EVICTED, KEEPS, owned("Job")),
    Row(
        'of a Job, safe-to-evict: "true" or gpushare.dev/evict: "true"',
        EVICTED,
        EVICTED,
        owned("Job"),
        said(evict="true"),
    ),
    Row("of a controller of another kind", KEEPS, KEEPS, owned("CloneSet")),
    Row(
        'of a controller of another kind, safe-to-evict: "true"', EVICTED, EVICTED, owned("CloneSet"), said(safe="true")
    ),
    Row(
        "of a controller of another kind, skip_nodes_with_custom_controller_pods: false",
        EVICTED,
        EVICTED,
        owned("CloneSet"),
        rules=CUSTOM_OFF,
    ),
    Row("in kube-system", "keeps the node for its first hour (before 1.33: always)", KEEPS, SYSTEM),
    Row("in kube-system, under a PodDisruptionBudget that allows a disruption", EVICTED, KEEPS, SYSTEM, budget=1),
    Row('in kube-system, safe-to-evict: "true"', EVICTED, KEEPS, SYSTEM, said(safe="true")),
    Row('safe-to-evict: "false"', KEEPS, KEEPS, said=said(safe="false")),
    Row('safe-to-evict: "false", both switches off', KEEPS, KEEPS, said=said(safe="false"), rules=LOCAL_OFF),
    Row("safe-to-evict: another word", EVICTED, EVICTED, said=said(safe="False")),
    Row("with an emptyDir", KEEPS, KEEPS, spec={"volumes": [DISK]}),
    Row("with a hostPath", KEEPS, KEEPS, spec={"volumes": [HOST]}),
    Row(
        "with an emptyDir in memory",
        EVICTED,
        EVICTED,
        spec={"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]},
    ),
    Row(
        "with a local volume named in safe-to-evict-local-volumes",
        EVICTED,
        EVICTED,
        said=said(volumes="a,scratch"),
        spec={"volumes": [DISK]},
    ),
    Row(
        "with two local volumes, one of them named there",
        KEEPS,
        KEEPS,
        said=said(volumes="scratch"),
        spec={"volumes": [DISK, HOST]},
    ),
    Row(
        'with a local volume, safe-to-evict: "true"', EVICTED, EVICTED, said=said(safe="true"), spec={"volumes": [DISK]}
    ),
    Row(
        "with a local volume, skip_nodes_with_local_storage: false",
        EVICTED,
        EVICTED,
        spec={"volumes": [HOST]},
        rules=LOCAL_OFF,
    ),
    Row("the only replica of its controller", "evicted (--min-replica-count is 0)", KEEPS, alone=True),
    Row('gpushare.dev/evict: "false"', EVICTED, KEEPS, said=said(evict="false")),
    Row(
        "of another scheduler, or without shares of cards", EVICTED, KEEPS, spec={"schedulerName": "default-scheduler"}
    ),
    Row("with required pod affinity or anti-affinity", "evicted where it fits", KEEPS, spec={"affinity": AFFINITY}),
)


def outcome(row):
    """What becomes of the pod."""
    return played(row)[0]


def played(row):
    """What becomes of the pod, and what is said of a node that stays."""
    pod = a_pod("p1", "n1")
    pod["metadata"] |= row.meta | {"annotations": pod["metadata"]["annotations"] | row.said}
    pod["spec"] |= row.spec
    pod["status"] |= row.status
    replica, other = a_pod("p2", "n2", units=1), a_pod("p3", "n2", units=5, app="other")
    replica["metadata"] |= {key: value for key, value in row.meta.items() if key in ("ownerReferences", "namespace")}
    budgets = []
    if row.budget is not None:
        meta = {"name": "web", "namespace": pod["metadata"]["namespace"], "uid": "b", "generation": 1}
        status = {"observedGeneration": 1, "disruptionsAllowed": row.budget}
        spec = {"selector": {"matchLabels": {"app": "web"}}}
        budgets = [{"metadata": meta | {"resourceVersion": "1"}, "spec": spec, "status": status}]
    api = Api([a_node("n1"), a_node("n2")], [pod, other, *([] if row.alone else [replica])], budgets)

    async def story(stand):
        pools = tuple(replace(one, drain_rules=row.rules) for one in stand.world._pools)
        stand.world = KubeCluster(stand.world._parts, pools, LIMITS)
        steps, memory = [], AutoscalerState()
        for stand.seconds in (0.0, 700.0, 1100.0):
            await stand.heard()
            plan, memory = await reconcile(stand.world, LIMITS, memory)
            steps += [step for step in plan.steps if getattr(step, "node", "") == "n1"]
        return steps, explain_needed(await stand.world.observe(), LIMITS)

    steps, said = run(api, Machines("n1", "n2"), story, stale_seconds=1e9)
    drain = next((step for step in steps if isinstance(step, Drain)), None)
    if drain is None:
        return KEEPS, said
    return EVICTED if drain.reservations else GOES if any(
        isinstance(step, RemoveNode) for step in steps
    ) else WAITS, said


@pytest.mark.parametrize("row", [pytest.param(row, id=row.what) for row in ROWS])
def test_a_pod_keeps_its_node_or_leaves_it_as_the_row_says(row):
    """
    On objects as the API server has them, through the whole turn.
    """
    assert row.ours == outcome(row)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (Row("", KEEPS, KEEPS, spec={"volumes": [DISK, HOST]}), "it has local storage (volumes: scratch, host)"),
        (Row("", KEEPS, KEEPS, said=said(safe="false")), 'it is annotated safe-to-evict: "false"'),
        (Row("", KEEPS, KEEPS, owned("CloneSet")), "its controller, a CloneSet, may not make it again"),
        (Row("", KEEPS, KEEPS, {"ownerReferences": []}), "it can only run where it is, or must not be moved"),
    ],
)
def test_a_node_that_stays_is_explained(row, why):
    """
    `gpushare autoscaler plan` says which pod it is, and why.
    """
    assert {"n1": f"pod default/p1: {why}"} == played(row)[1]


@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicationController"])
def test_replicas_of_other_kinds_move_too(kind):
    """
    As the first row says.
    """
    assert EVICTED == outcome(Row("", EVICTED, EVICTED, owned(kind)))


def test_the_page_has_these_rows_and_says_where_we_are_stricter():
    """
    Nothing is stricter unsaid, and nothing is laxer than cluster-autoscaler.
    """
    table = PAGE.read_text().partition("| the pod is | cluster-autoscaler | gpushare |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", table, re.MULTILINE)
    documented = {what.replace("`", ""): (theirs, ours) for what, theirs, ours in rows}
    assert {
        row.what: (row.theirs, row.ours if row.theirs == row.ours else f"**{row.ours}**") for row in ROWS
    } == documented
    assert {KEEPS} == {row.ours for row in ROWS if row.ours != row.theirs}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, None),
        ({SAFE_TO_EVICT: "true"}, True),
        ({SAFE_TO_EVICT: "false"}, False),
        ({SAFE_TO_EVICT: "maybe"}, None),
        ({SAFE_TO_EVICT: "false", USER_SAFE_TO_EVICT: ""}, None),
        ({SAFE_TO_EVICT: "false", USER_SAFE_TO_EVICT: "true"}, True),
        ({SAFE_TO_EVICT: "true", USER_SAFE_TO_EVICT: "false"}, False),
    ],
)
def test_the_owners_own_word_is_what_counts(annotations, expected):
    """
    Where somebody else has set the annotation, what the owner had written, if anything, stands beside it.
    """
    assert expected is safe_to_evict(annotations)
