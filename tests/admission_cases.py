"""
Pods that admission must refuse, with what it must say, and pods that it must let pass; for unit and e2e tests.

A case is one change to a sound pod of 2 units. `told` is part of the webhook's answer; `policy` of
the answer without a webhook, where the API server's own validation may come first.
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
    told: str
    policy: str = ""
    """Empty: no policy can say it."""

    def made(self) -> Pod:
        """The pod."""
        made = pod()
        self.change(made)
        return made


def main_of(pod: Pod) -> dict[str, Any]:
    """Its first container."""
    return pod["spec"]["containers"][0]


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


AMOUNTS = (
    Case("8-over-3", labelled(COUNT, "3", amount(MEM, "8")), "ask for 6 or 9", "does not split evenly"),
    Case("count-0", labelled(COUNT, "0"), "whole number from 1 to 64", "whole number from 1 to 64"),
    Case(
        "count-65", labelled(COUNT, "65", amount(MEM, "65")), "whole number from 1 to 64", "whole number from 1 to 64"
    ),
    Case("count-text", labelled(COUNT, "two"), "whole number from 1 to 64", "whole number from 1 to 64"),
    Case("zero", amount(MEM, "0"), "ask for 1 or more", "whole number of 1 or more"),
    Case("negative", amount(MEM, "-1"), "negative", "must be greater than or equal to 0"),
    Case("fraction", amount(MEM, "1500m"), "a fraction", "must be an integer"),
    Case("requests-differ", amount(MEM, "3", "2"), "make them equal", "must be equal to"),
    Case("bytes-for-units", amount(MEM, "8Gi"), "it counts units of 1 GiB"),
    Case("core-step", amount(CORE, "7"), "not a multiple of 5", "not a multiple of 5"),
    Case("core-step-by-2", labelled(COUNT, "2", amount(CORE, "15")), "multiple of 10", "not a multiple of 5"),
    Case("core-105", amount(CORE, "105"), "more than 100", "more than 100"),
    Case(
        "core-alone",
        lambda p: (
            main_of(p)["resources"]["limits"].pop(MEM, None),
            main_of(p)["resources"]["requests"].pop(MEM, None),
            amount(CORE, "5")(p),
        ),
        "without aliyun.com/gpu-mem",
        "without aliyun.com/gpu-mem",
    ),
    Case("shares-and-whole", amount(WHOLE, "1"), "not for both", "not for both"),
    Case(
        "whole-in-another",
        beside("containers", resources={"limits": {WHOLE: "1"}, "requests": {WHOLE: "1"}}),
        "not for both",
        "not for both",
    ),
    Case(
        "cores-of-two",
        lambda p: (
            amount(CORE, "60")(p),
            beside("containers", resources={"limits": {MEM: "1", CORE: "60"}, "requests": {MEM: "1", CORE: "60"}})(p),
        ),
        "100 is all it has",
    ),
    Case(
        "init-on-two-cards",
        labelled(COUNT, "2", beside("initContainers", resources={"limits": {MEM: "4"}, "requests": {MEM: "4"}})),
        "make them equal",
    ),
    Case(
        "mode-of-whole-cards",
        spec(nodeSelector={"ack.node.gpu.schedule": "default"}),
        "serves no such shares; write cgpu or share",
    ),
)
SAFETY = (
    Case("node-name", spec(nodeName="n1"), "nodeName", "nodeName is set"),
    Case("privileged", container(securityContext={"privileged": True}), "remove privileged", "remove privileged"),
    Case(
        "privileged-init",
        beside("initContainers", securityContext={"privileged": True}),
        '"other" is privileged',
        "remove privileged",
    ),
    Case("sys-admin", capability("SYS_ADMIN"), "capability", "capabilities"),
    Case("all", capability("ALL"), "capability", "capabilities"),
    Case("cap-spelling", capability("CAP_sys_admin"), "capability", "capabilities"),
    Case("cap-dotless", capability("SYS_ADM\u0131N"), "capability", "capabilities"),
    Case("cap-long-s", capability("\u017fys_admin"), "capability", "capabilities"),
    Case("cap-twice", capability("CAP_CAP_SYS_ADMIN"), "capability", "capabilities"),
    Case("host-pid", spec(hostPID=True), "hostPID shows", "hostPID shows"),
    Case("scheduler", spec(schedulerName="volcano"), "gpushare-scheduler", "placed by gpushare-scheduler"),
    Case("visible", env("NVIDIA_VISIBLE_DEVICES"), "NVIDIA_VISIBLE_DEVICES", "would choose cards"),
    Case("preload", env("LD_PRELOAD"), "LD_PRELOAD", "would choose cards"),
    Case("ours", env("GPUSHARE_LIMITS"), "GPUSHARE_LIMITS", "would choose cards"),
    Case("units", env("ALIYUN_COM_GPU_MEM_DEV"), "ALIYUN_COM_GPU_MEM_DEV", "would choose cards"),
    Case(
        "visible-from",
        env("NVIDIA_VISIBLE_DEVICES", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "NVIDIA_VISIBLE_DEVICES",
        "would choose cards",
    ),
    Case(
        "env-prefix",
        container(envFrom=[{"prefix": "LD_", "configMapRef": {"name": "c"}}]),
        "change the prefix",
        "change the prefix",
    ),
    Case(
        "beside-env", beside("containers", env=[{"name": "LD_AUDIT", "value": "x"}]), "LD_AUDIT", "would choose cards"
    ),
    *(
        Case(f"host-{path}", host(path), "mount another folder", "mount another folder")
        for path in (
            "/",
            "/dev",
            "/dev/",
            "/dev/nvidia0",
            "/proc",
            "/sys",
            "/var",
            "/run",
            "/var/run/cdi",
            "/run/cdi",
            "/var/lib/gpushare/alloc",
            "/var/lib/kubelet/device-plugins",
            "/run/containerd/containerd.sock",
            "/var/run/docker.sock",
            "/etc",
            "/etc/cdi",
            "/etc/kubernetes/manifests",
            "/etc/systemd/system",
            "/etc/cron.d",
            "/usr/local/bin",
            "/root/.ssh",
            "/lib/modules",
            "/sys/bus/pci",
            "/sys/devices/pci0000:80",
            "/sys/kernel",
            "/run/udev/rules.d",
            "/var/run/user/1000",
            "/var/run/podman/podman.sock",
            "/opt",
            "/opt/cni/bin",
            "/home/kubernetes/bin",
            "/var/lib/cloud/scripts/per-boot",
            "/var/lib/k0s/kubelet",
            "/var/snap/microk8s/common",
            "/var/log",
            "/var/log/pods/default_p_u-1",
        )
    ),
    *(
        Case(f"host-{path}", host(path), "write it plainly", "written plainly")
        for path in ("/srv//data", "/srv/./x", "//dev")
    ),
    *(
        Case(f"mount-{path}", mount(path), "files of ours", "files of ours")
        for path in (
            "/etc/ld.so.preload",
            "etc/ld.so.preload",
            "/run/gpushare",
            "/run/gpushare/",
            "/run/gpushare/limits/limits",
            "/var/run/gpushare/lib",
            "/run",
            "/var/run",
            "/etc",
            "/",
            "/var/run/nvidia-container-devices/all",
            "/run/nvidia-container-devices",
        )
    ),
    *(
        Case(f"mount-{path}", mount(path), "plainly", "written plainly")
        for path in ("/etc//ld.so.preload", "/x/../etc/ld.so.preload", "/./run", "//run")
    ),
    Case(
        "message-path",
        container(terminationMessagePath="/etc/ld.so.preload"),
        "terminationMessagePath",
        "files of ours",
    ),
    Case(
        "block-device",
        lambda p: (
            container(volumeDevices=[{"name": "v", "devicePath": "/run/gpushare/region"}])(p),
            spec(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])(p),
        ),
        "has a device at",
        "files of ours",
    ),
    Case(
        "cdi",
        annotated("cdi.k8s.io/x", "gpushare.dev/alloc=1"),
        "asks the container runtime",
        "asks the container runtime",
    ),
    *(
        Case(f"runtime-{key}", annotated(key), "asks the container runtime", "asks the container runtime")
        for key in (
            "devices.nri.io",
            "devices.nri.io/container.main",
            "mounts.nri.io/pod",
            "cdi-devices.nri.io/container.main",
            "devices.noderesource.dev/pod",
            "mounts.noderesource.dev",
            "cdi-devices.noderesource.dev/pod",
            "io.kubernetes.cri-o.Devices",
        )
    ),
    *(
        Case(f"forged-{key}", annotated(key), "scheduler's record", "scheduler's record")
        for key in ("gpushare.dev/allocation", "gpushare.dev/reservation", "scheduler.framework.gpushare.allocation")
    ),
    Case("label-false", labelled(SHARED, "false"), "so remove it", "label gpushare.dev/shared"),
)
REFUSED = AMOUNTS + SAFETY


def plain(*changes: Callable[[Pod], object]) -> Pod:
    """A pod that asks for no shares."""
    made = pod(None)
    for change in changes:
        change(made)
    return made


FORGED = (
    Case(
        "plain-record",
        lambda p: (p.update(plain()), annotated("gpushare.dev/allocation")(p)),
        "scheduler's record",
        "scheduler's record",
    ),
    Case(
        "plain-label",
        lambda p: (p.update(plain()), labelled(SHARED, "true")(p)),
        "asks for no aliyun.com/gpu-mem",
        "set by admission",
    ),
    Case("count-alone", lambda p: (p.update(plain()), labelled(COUNT, "2")(p)), "ask for memory or remove the label"),
)

GOOD = (
    ("shares", lambda _: None),
    ("8-over-4", labelled(COUNT, "4", amount(MEM, "8"))),
    ("compute", amount(CORE, "30")),
    ("whole-none", amount(WHOLE, "0")),
    ("count-1", labelled(COUNT, "1")),
    ("data", host("/srv/data")),
    ("shm", host("/dev/shm")),  # noqa: S108 (a path in a manifest)
    ("clock", host("/etc/localtime")),
    ("log", host("/var/log/app")),
    ("optional", host("/opt/models")),
    ("home", host("/home/me")),
    ("socket", host("/run/spire/sockets")),
    ("priority", annotated("io-priority.nri.io/pod")),
    ("rdma", host("/dev/infiniband/uverbs0")),
    ("scratch", mount("/run/app/")),
    ("scratch-etc", mount("/etc/app")),
    ("near", mount("/run/gpushare2")),
    ("library-path", env("LD_LIBRARY_PATH")),
    ("subset", env("CUDA_VISIBLE_DEVICES")),
    ("driver", env("NVIDIA_DRIVER_CAPABILITIES")),
    ("ptrace", capability("SYS_PTRACE")),
    ("shared-pids", spec(shareProcessNamespace=True)),
    ("init", beside("initContainers", resources={"limits": {MEM: "1"}, "requests": {MEM: "1"}})),
    (
        "sidecar",
        beside("initContainers", restartPolicy="Always", resources={"limits": {MEM: "1"}, "requests": {MEM: "1"}}),
    ),
    ("mode", spec(nodeSelector={"ack.node.gpu.schedule": "cgpu"})),
)


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
    if thing["kind"] == "PodTemplate":
        return thing["template"]
    inner = thing["spec"]
    return (inner["jobTemplate"]["spec"] if thing["kind"] == "CronJob" else inner)["template"]


def patched(thing: Any, changes: list[dict[str, Any]]) -> Any:
    """The object after the `add` operations of a JSON patch."""
    made = copy.deepcopy(thing)
    for change in changes:
        if change["op"] != "add":
            raise AssertionError(change)
        *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in change["path"].split("/")[1:])
        at = made
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at[step]
        if isinstance(at, list):
            at.append(change["value"]) if last == "-" else at.insert(int(last), change["value"])
        else:
            at[last] = change["value"]
    return made
