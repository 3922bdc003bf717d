# SPDX-License-Identifier: Apache-2.0
"""
Pods and workloads for the tests of admission: a sound pod of 2 units, changes to it, and who would make it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MEM = "aliyun.com/gpu-mem"
CORE = "aliyun.com/gpu-core.percentage"
COUNT = "aliyun.com/gpu-count"
WHOLE = "nvidia.com/gpu"
SHARED = "gpushare.dev/shared"
Pod = dict[str, Any]


def pod(units: object = "2", **spec: Any) -> Pod:
    """A pod as the API server shows it to admission: defaulted, amounts as text."""
    amounts = {MEM: units} if units is not None else {}
    main = {
        "name": "main",
        "image": "none",
        "resources": {"limits": amounts, "requests": dict(amounts)},
        "terminationMessagePath": "/dev/termination-log",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [main], "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 1} | spec,
    }


@dataclass(frozen=True)
class Case:
    """One change, and what is said about it."""

    name: str
    change: Callable[[Pod], object]
    message: str
    policy: str = ""
    """Empty: no policy can say it."""

    def made(self) -> Pod:
        """The pod."""
        made = pod()
        self.change(made)
        return made


def main_of(pod: Pod) -> dict[str, Any]:
    """Its first container."""
    main: dict[str, Any] = pod["spec"]["containers"][0]
    return main


def amount(name: str, limit: str, request: str | None = None) -> Callable[[Pod], object]:
    """Another amount in the first container, under requests too unless told otherwise."""

    def change(pod: Pod) -> None:
        resources = main_of(pod)["resources"]
        resources["limits"][name] = limit
        resources["requests"][name] = limit if request is None else request

    return change


def labelled(key: str, value: str, then: Callable[[Pod], object] = lambda _: None) -> Callable[[Pod], object]:
    """A label, and another change."""

    def change(pod: Pod) -> None:
        pod["metadata"].setdefault("labels", {})[key] = value
        then(pod)

    return change


def annotated(key: str, value: str = "x") -> Callable[[Pod], object]:
    """An annotation."""
    return lambda pod: pod["metadata"].setdefault("annotations", {}).update({key: value})


def spec(**values: Any) -> Callable[[Pod], object]:
    """Fields of the pod's spec."""
    return lambda pod: pod["spec"].update(copy.deepcopy(values))


def container(**values: Any) -> Callable[[Pod], object]:
    """Fields of the first container."""
    return lambda pod: main_of(pod).update(copy.deepcopy(values))


def env(name: str, **source: Any) -> Callable[[Pod], object]:
    """A variable of the first container."""
    return container(env=[{"name": name} | (source or {"value": "x"})])


def host(path: str) -> Callable[[Pod], object]:
    """A folder of the host."""
    return spec(volumes=[{"name": "v", "hostPath": {"path": path}}])


def mount(path: str) -> Callable[[Pod], object]:
    """A scratch volume at this path."""

    def change(pod: Pod) -> None:
        pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
        main_of(pod)["volumeMounts"] = [{"name": "v", "mountPath": path}]

    return change


def capability(name: str) -> Callable[[Pod], object]:
    """An added capability."""
    return container(securityContext={"capabilities": {"add": [name]}})


def beside(kind: str, **values: Any) -> Callable[[Pod], object]:
    """One more container, without cards."""
    return lambda pod: pod["spec"].setdefault(kind, []).append({"name": "other", "image": "none", **values})


def plain(*changes: Callable[[Pod], object]) -> Pod:
    """A pod that asks for no shares."""
    made = pod(None)
    for change in changes:
        change(made)
    return made


def good(change: Callable[[Pod], object]) -> Pod:
    """A sound pod with a harmless change."""
    made = pod()
    change(made)
    return made


def admitted(pod: Pod, scheduler: str = "gpushare-scheduler") -> Pod:
    """The pod with what admission would add, for a cluster without the webhook; nothing where its owner wrote it."""
    made = copy.deepcopy(pod)
    if made["spec"].get("schedulerName") in (None, "default-scheduler"):
        made["spec"]["schedulerName"] = scheduler
    made["metadata"].setdefault("labels", {}).setdefault(SHARED, "true")
    made["spec"].setdefault("securityContext", {"seccompProfile": {"type": "RuntimeDefault"}})
    return made


TEMPLATED = {
    "Deployment": ("apps/v1", "deployments"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "DaemonSet": ("apps/v1", "daemonsets"),
    "Job": ("batch/v1", "jobs"),
    "CronJob": ("batch/v1", "cronjobs"),
    "ReplicationController": ("v1", "replicationcontrollers"),
    "PodTemplate": ("v1", "podtemplates"),
}


def workload(kind: str, pod: Pod, name: str = "w", **metadata: Any) -> dict[str, Any]:
    """An object that would make this pod."""
    app = {"app": name}
    labels = pod["metadata"].get("labels", {}) | app
    notes = {"annotations": pod["metadata"]["annotations"]} if "annotations" in pod["metadata"] else {}
    inner = copy.deepcopy(pod["spec"])
    if kind in ("Job", "CronJob"):
        inner["restartPolicy"] = "Never"
    template = {"metadata": {"labels": labels} | notes, "spec": inner}
    specs: dict[str, Any] = {
        "Job": {"template": template},
        "CronJob": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}},
        "ReplicationController": {"replicas": 0, "selector": app, "template": template},
        "DaemonSet": {"selector": {"matchLabels": app}, "template": template},
    }
    body = specs.get(kind, {"replicas": 0, "selector": {"matchLabels": app}, "template": template})
    made: dict[str, Any] = {"apiVersion": TEMPLATED[kind][0], "kind": kind, "metadata": {"name": name} | metadata}
    return made | ({"template": template} if kind == "PodTemplate" else {"spec": body})


def template_of(thing: dict[str, Any]) -> dict[str, Any]:
    """The template of a workload."""
    inner = thing if thing["kind"] == "PodTemplate" else thing["spec"]
    template: dict[str, Any] = (inner["jobTemplate"]["spec"] if thing["kind"] == "CronJob" else inner)["template"]
    return template


def patched(thing: Any, changes: list[dict[str, Any]]) -> Any:
    """The object after the `add` and `remove` operations of a JSON patch."""
    made = copy.deepcopy(thing)
    for change in changes:
        if change["op"] not in {"add", "remove"}:
            raise AssertionError(change)
        *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in change["path"].split("/")[1:])
        at = made
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at[step]
        if change["op"] == "remove":
            del at[last]
        elif isinstance(at, list):
            at.append(change["value"]) if last == "-" else at.insert(int(last), change["value"])
        else:
            at[last] = change["value"]
    return made
