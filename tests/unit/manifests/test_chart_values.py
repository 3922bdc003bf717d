# SPDX-License-Identifier: Apache-2.0
"""What each value changes in what kustomize makes, alone and in pairs; and the dialects, as admission prints them."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections import Counter

import pytest
from e2e.chart_build import combined, keyed, render, rendered, sets_of

from autoscaler.kube.config.reader import read_config
from autoscaler.kube.scale_bounds import bounds
from charts.values import SWITCHES, VALUES
from isolation.contract.dialects import SYSTEMS
from isolation.contract.names import ACK, AUTOSCALER, EXPORTER, NODE_AGENT, SCHEDULER, SYSTEM_NAMESPACE
from isolation.scheduler.admission.core.serving import parse_serving
from isolation.scheduler.admission.objects import build_objects

pytestmark = pytest.mark.processes
KINDS = {SCHEDULER: "Deployment", AUTOSCALER: "Deployment", NODE_AGENT: "DaemonSet", EXPORTER: "DaemonSet"}
OURS = {"controller": (SCHEDULER, AUTOSCALER), "node": (NODE_AGENT,), "exporter": (EXPORTER,)}
DIGEST = f"sha256:{'b' * 64}"


def pod(things, name):
    """The pods' spec of a workload."""
    return things[KINDS[name], SYSTEM_NAMESPACE, name]["spec"]["template"]["spec"]


def containers(things, *names):
    """Of these workloads, or of all."""
    return [
        one
        for name in names or KINDS
        for one in (*pod(things, name).get("initContainers", ()), *pod(things, name)["containers"])
    ]


def first(things, name):
    """The container of ours."""
    return pod(things, name)["containers"][0]


def put(*path):
    """A change that sets what is at a path below an object; the last word is the value."""
    key, *inside, last, value = path

    def change(things):
        at = things[key]
        for step in inside:
            at = at[step]
        at[last] = value

    return change


def in_pod(name, field, value):
    """A field of a pod."""
    return lambda things: pod(things, name).update({field: value})


def argue(option, *names):
    """One more argument of these workloads' containers of ours."""
    return lambda things: [first(things, name)["args"].append(option) for name in names]


def image(name, before, after):
    """The images of one of our programs; `before` and `after` are parts of the reference."""

    def change(things):
        for one in containers(things, *OURS[name]):
            if one["image"].startswith("gpushare-") or f"/gpushare-{name}" in one["image"]:
                one["image"] = one["image"].replace(before, after)

    return change


def images(registry):
    """All of ours from a registry."""

    def change(things):
        for one in containers(things):
            if "kube-scheduler" not in one["image"]:
                one["image"] = f"{registry}/{one['image']}"

    return change


def kube_image(change_of):
    """The image of kube-scheduler."""

    def change(things):
        [one] = [one for one in containers(things, SCHEDULER) if one["name"] == "kube-scheduler"]
        one["image"] = change_of(one["image"])

    return change


def everywhere(field, value):
    """A field of every container."""
    return lambda things: [one.update({field: value}) for one in containers(things)]


def pull_secrets(things):
    """In every pod."""
    for name in KINDS:
        pod(things, name)["imagePullSecrets"] = [{"name": "mine"}]


def log_level(things):
    """Of every process of ours, the device plugin too."""
    for one in containers(things):
        if one["name"] != "kube-scheduler":
            one["args"].append("--log-level=debug")


def config(key, value):
    """The autoscaler's configuration."""
    return put(("ConfigMap", SYSTEM_NAMESPACE, "gpushare-autoscaler-config"), "data", "config.yaml", key, value)


def scale_policy(things):
    """The variable of the autoscaler's policy that names what it may scale."""
    return things["ValidatingAdmissionPolicy", "", f"{AUTOSCALER}-scale"]["spec"]["variables"][0]


def pools(things):
    """The configuration, and what the API server lets the autoscaler scale."""
    config("pools", POOL)(things)
    scale_policy(things)["expression"] = BOUNDS


def switch(key, value):
    """The autoscaler's switch."""
    return put(("ConfigMap", SYSTEM_NAMESPACE, AUTOSCALER), "data", key, value)


def replicas(name, value):
    """Of a Deployment."""
    return put((KINDS[name], SYSTEM_NAMESPACE, name), "spec", "replicas", value)


def resources(name, at, value):
    """Of the container at a place."""
    return lambda things: pod(things, name)["containers"][at].update(resources=value)


FEW = {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"memory": "2Mi"}}
PLACE = {"kubernetes.io/os": "linux", "example/for": "gpushare"}
TAINT = [{"key": "example", "operator": "Exists"}]
POOL = [{"name": "a", "provider": "scale", "settings": {"name": "a", "namespace": "b"}, "max_nodes": 3}]
BOUNDS = '{"machinedeployments.cluster.x-k8s.io/b/a":[0,3]}'
SOURCE = {"source": "prometheus", "scrape_interval_seconds": 30}
CASES = {
    "images.registry": ("registry.example/gpu/", images("registry.example/gpu")),
    "images.pullPolicy": ("Always", everywhere("imagePullPolicy", "Always")),
    "images.pullSecrets": (["mine"], pull_secrets),
    **{
        f"images.{name}.repository": (
            f"other/gpushare-{name}",
            image(name, f"gpushare-{name}", f"other/gpushare-{name}"),
        )
        for name in OURS
    },
    **{f"images.{name}.tag": ("9.9", image(name, ":0.1.0", ":9.9")) for name in OURS},
    **{f"images.{name}.digest": (DIGEST, image(name, ":0.1.0", f"@{DIGEST}")) for name in OURS},
    "memoryUnit": ("256MiB", argue("--memory-unit=256MiB", SCHEDULER, NODE_AGENT, AUTOSCALER)),
    "logLevel": ("debug", log_level),
    "scheduler.replicas": (3, replicas(SCHEDULER, 3)),
    "scheduler.policy": ("spread", argue("--policy=spread", SCHEDULER)),
    "scheduler.resources": (FEW, resources(SCHEDULER, 0, FEW)),
    "scheduler.nodeSelector": (PLACE, in_pod(SCHEDULER, "nodeSelector", PLACE)),
    "scheduler.tolerations": (TAINT, in_pod(SCHEDULER, "tolerations", TAINT)),
    "scheduler.kubeScheduler.image.repository": (
        "registry.example/kube-scheduler",
        kube_image(lambda text: text.replace("registry.k8s.io", "registry.example")),
    ),
    "scheduler.kubeScheduler.resources": (FEW, resources(SCHEDULER, 1, FEW)),
    "node.backend": ("mps", argue("--backend=mps", NODE_AGENT)),
    "node.unsupportedImages": ("allow", argue("--unsupported-images=allow", NODE_AGENT)),
    "node.overLimit": ("kill", argue("--over-limit=kill", NODE_AGENT)),
    "node.resources": (FEW, resources(NODE_AGENT, 0, FEW)),
    "node.runtimeClassName": ("nvidia", in_pod(NODE_AGENT, "runtimeClassName", "nvidia")),
    "exporter.resources": (FEW, resources(EXPORTER, 0, FEW)),
    "exporter.runtimeClassName": ("nvidia", in_pod(EXPORTER, "runtimeClassName", "nvidia")),
    "exporter.ackMetrics": (True, argue("--compat-metrics=ack", EXPORTER)),
    "autoscaler.replicas": (1, replicas(AUTOSCALER, 1)),
    "autoscaler.resources": (FEW, resources(AUTOSCALER, 0, FEW)),
    "autoscaler.nodeSelector": (PLACE, in_pod(AUTOSCALER, "nodeSelector", PLACE)),
    "autoscaler.tolerations": (TAINT, in_pod(AUTOSCALER, "tolerations", TAINT)),
    "autoscaler.enabled": (False, switch("enabled", "false")),
    "autoscaler.dryRun": (False, switch("dryRun", "false")),
    "autoscaler.pools": (POOL, pools),
    "autoscaler.limits": ({"max_moves_per_hour": 7}, config("limits", {"max_moves_per_hour": 7})),
    "autoscaler.metrics": (SOURCE, config("metrics", SOURCE)),
    **{
        f"{value}.priorityClassName": ("mine", in_pod(name, "priorityClassName", "mine"))
        for value, name in (
            ("scheduler", SCHEDULER),
            ("node", NODE_AGENT),
            ("exporter", EXPORTER),
            ("autoscaler", AUTOSCALER),
        )
    },
}
"""A value by its path, and what it changes in the objects of kustomize."""
ELSEWHERE = {
    *(path for one in SWITCHES.values() for path in one.sets),
    *("namespace.create", "namespaceOverride", "admission.dialects", "admission.leaveTo"),
    *("scheduler.kubeScheduler.image.tag", "scheduler.kubeScheduler.image.digest"),
}
"""Values that other tests of the chart are about."""
CONTRADICTING = [{f"images.{name}.tag", f"images.{name}.digest"} for name in OURS]
"""Of these the digest decides."""


def alike(things):
    """With arguments in one order: it says nothing to our programs."""
    for kind, _, name in things:
        if kind in ("Deployment", "DaemonSet"):
            for one in containers(things, name):
                one["args"] = sorted(one.get("args", ()))
    return things


def expected(*paths):
    """Kustomize's objects with the changes of these values, in the order of the table."""
    things = copy.deepcopy(combined())
    for path in CASES:
        if path in paths:
            CASES[path][1](things)
    return alike(things)


def helm(*paths):
    """The chart's."""
    return alike(rendered(sets_of() | {path: CASES[path][0] for path in paths}))


def test_every_value_has_a_test():
    """
    Here, or by its name elsewhere.
    """
    assert {value.path for value in VALUES} == set(CASES) | ELSEWHERE


@pytest.mark.parametrize("path", CASES)
def test_a_value_changes_what_it_says_and_nothing_else(path):
    """
    The default is something else.
    """
    assert expected(path) == helm(path)
    assert expected() != helm(path)


def halves(times):
    """Random halves of the values, until each pair was set together, and each of it without the other, so often."""
    chance, seen, found = random.Random(0), Counter(), []  # noqa: S311 (the same each time)
    wanted = [pair for pair in itertools.permutations(CASES, 2) if set(pair) not in CONTRADICTING]
    while any(min(seen[one, other, True], seen[one, other, False]) < times for one, other in wanted):
        half = {path for path in CASES if chance.random() < 0.5}
        for pair in CONTRADICTING:
            if pair <= half:
                half.remove(chance.choice(sorted(pair)))
        seen.update((one, other, other in half) for one in half for other in CASES)
        found.append(half)
    return found


HALVES = halves(3)


@pytest.mark.slow
@pytest.mark.parametrize("paths", HALVES, ids=map(str, range(len(HALVES))))
def test_values_together_change_what_each_of_them_changes(paths):
    """
    Every pair three times at least, each time with other values around it.
    """
    assert expected(*paths) == helm(*paths)


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHES)
def test_each_value_goes_with_each_switch(name):
    """
    Whatever it changes, it is schema and sense to helm: nothing fails, and the same objects are there.
    """
    there = set(combined(name))
    assert set(CASES) == set().union(*HALVES[:8])
    for paths in HALVES[:8]:
        assert there == set(rendered(sets_of(name) | {path: CASES[path][0] for path in paths})), paths


def test_limits_of_ack_hold_whatever_is_given():
    """
    No pod is moved there; the other limits are the given ones.
    """
    given = {"max_moves_per_hour": 7, "max_nodes_per_cycle": 2}
    things = rendered(sets_of("ack") | {"autoscaler.limits": given})
    limits = things["ConfigMap", SYSTEM_NAMESPACE, "gpushare-autoscaler-config"]["data"]["config.yaml"]["limits"]

    assert (0, 2) == (limits["max_moves_per_hour"], limits["max_nodes_per_cycle"])


def test_the_autoscaler_may_scale_the_pools_of_the_values_and_nothing_else():
    """
    Their objects and bounds, as `gpushare autoscaler bounds` prints them for the same pools.
    """
    other = {"name": "b.c", "namespace": "machines", "resource": "sets", "apiVersion": "x.org/v1"}
    given = [
        {"name": "a", "provider": "scale", "settings": {"name": "gpu-a"}, "min_nodes": 1, "max_nodes": 5},
        {"name": "b", "provider": "scale", "settings": other},
        {"name": "e", "provider": "scale", "settings": {"name": "gpu-e"}, "max_nodes": 0},
        {"name": "o", "provider": "externalgrpc", "settings": {"provider": "scale", "settings": {"name": "gpu-o"}}},
        {"name": "c", "provider": "ack", "settings": {"region": "r", "cluster": "c", "nodePool": "n"}},
    ]
    variable = scale_policy(rendered({"autoscaler.pools": given}))
    read = read_config(json.dumps({"version": 1, "pools": given}).encode())

    assert ("bounds", bounds(read.pools)) == (variable["name"], json.loads(variable["expression"]))


def serving(on, left):
    """The options of the scheduler."""
    return parse_serving(",".join((ACK.name, *on)), [f"{name}={','.join(where)}" for name, where in left.items()])


def choices():
    """None, each, all, some at random, and some that leave namespaces to their systems."""
    found = [((), {}), *(((name,), {}) for name in SYSTEMS), (tuple(SYSTEMS), {})]
    found += [((name,), {name: ["team-b", "team-a"]}) for name in SYSTEMS]
    dice = random.Random(25)  # noqa: S311 (the same each time)
    for _ in range(20):
        on = tuple(dice.sample(list(SYSTEMS), dice.randint(1, len(SYSTEMS))))
        left = {name: dice.choice([[], ["team-a"], ["b", "a"]]) for name in on if dice.random() < 0.4}
        found.append((on, left))
    return found


@pytest.mark.parametrize(("on", "left"), choices(), ids=lambda one: json.dumps(one).replace(" ", ""))
def test_admission_is_what_it_prints_for_the_same_dialects(on, left):
    """
    Webhooks and policies, and the scheduler's options.
    """
    things = rendered({"admission.dialects": [ACK.name, *on], "admission.leaveTo": left})
    made = keyed(
        one for file in ("webhooks.yaml", "policies.yaml") for one in build_objects(file, systems=serving(on, left))
    )
    ours = {key: one for key, one in things.items() if key in made or "labels" not in one["metadata"]}
    options = [word for word in first(things, SCHEDULER)["args"] if word.startswith(("--dialects=", "--leave-to="))]
    read = (
        parse_serving(
            *(word.partition("=")[2] for word in options if word.startswith("--dialects=")),
            left=[word.removeprefix("--leave-to=") for word in options if word.startswith("--leave-to=")],
        )
        if options
        else serving((), {})
    )

    assert made == ours
    assert serving(on, left) == read


def test_a_namespace_left_in_a_dialect_that_is_off_is_refused():
    """
    In words, as the scheduler does.
    """
    with pytest.raises(AssertionError, match=r"admission\.leaveTo names hami, which is not in admission\.dialects"):
        render({"admission.leaveTo": {"hami": ["a"]}})


def test_ack_has_no_admission_in_any_dialect():
    """
    Nor with several.
    """
    assert set(combined("ack")) == set(rendered(sets_of("ack") | {"admission.dialects": [ACK.name, "time-slices"]}))
