# SPDX-License-Identifier: Apache-2.0
"""
Pods that admission must refuse, with what it must say, and pods that it must let pass; for unit and e2e tests.

A case is one change to a sound pod of 2 units. `message` is part of the webhook's answer; `policy` of
the answer without a webhook, where the API server's own validation may come first.
"""

from __future__ import annotations

from support.admission_pods import (
    CORE,
    COUNT,
    MEM,
    SHARED,
    WHOLE,
    Case,
    amount,
    annotated,
    beside,
    capability,
    container,
    env,
    host,
    labelled,
    main_of,
    mount,
    plain,
    spec,
)

AMOUNTS = (
    Case(
        "8-over-3",
        labelled(COUNT, "3", amount(MEM, "8")),
        "request 6 or 9",
        "must be a multiple of the number of cards",
    ),
    Case("count-0", labelled(COUNT, "0"), "whole number from 1 to 64", "whole number from 1 to 64"),
    Case(
        "count-65", labelled(COUNT, "65", amount(MEM, "65")), "whole number from 1 to 64", "whole number from 1 to 64"
    ),
    Case("count-text", labelled(COUNT, "two"), "whole number from 1 to 64", "whole number from 1 to 64"),
    Case("zero", amount(MEM, "0"), "request 1 or more", "whole number of 1 or more"),
    Case("negative", amount(MEM, "-1"), "negative", "must be greater than or equal to 0"),
    Case("fraction", amount(MEM, "1500m"), "a fraction", "must be an integer"),
    Case("requests-differ", amount(MEM, "3", "2"), "make them equal", "must be equal to"),
    Case("bytes-for-units", amount(MEM, "8Gi"), "the unit is 1 GiB"),
    Case("core-step", amount(CORE, "7"), "not a multiple of 5", "must be a multiple of 5"),
    Case("core-step-by-2", labelled(COUNT, "2", amount(CORE, "15")), "multiple of 10", "must be a multiple of 5"),
    Case("core-105", amount(CORE, "105"), "more than 100", "more than 100"),
    Case(
        "core-alone",
        lambda p: (
            main_of(p)["resources"]["limits"].pop(MEM, None),
            main_of(p)["resources"]["requests"].pop(MEM, None),
            amount(CORE, "5")(p),
        ),
        "needs aliyun.com/gpu-mem",
        "needs aliyun.com/gpu-mem",
    ),
    Case("shares-and-whole", amount(WHOLE, "1"), "cannot request both", "cannot request both"),
    Case(
        "whole-in-another",
        beside("containers", resources={"limits": {WHOLE: "1"}, "requests": {WHOLE: "1"}}),
        "cannot request both",
        "cannot request both",
    ),
    Case(
        "cores-of-two",
        lambda p: (
            amount(CORE, "60")(p),
            beside("containers", resources={"limits": {MEM: "1", CORE: "60"}, "requests": {MEM: "1", CORE: "60"}})(p),
        ),
        "request at most 100",
    ),
    Case(
        "init-on-two-cards",
        labelled(COUNT, "2", beside("initContainers", resources={"limits": {MEM: "4"}, "requests": {MEM: "4"}})),
        "make them equal",
    ),
    Case(
        "mode-of-whole-cards",
        spec(nodeSelector={"ack.node.gpu.schedule": "default"}),
        "do not support this kind of GPU share; set ack.node.gpu.schedule to cgpu or share",
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
    Case("host-pid", spec(hostPID=True), "hostPID exposes", "hostPID exposes"),
    Case("scheduler", spec(schedulerName="volcano"), "gpushare-scheduler", "scheduled by gpushare-scheduler"),
    Case("visible", env("NVIDIA_VISIBLE_DEVICES"), "NVIDIA_VISIBLE_DEVICES", "would select cards"),
    Case("preload", env("LD_PRELOAD"), "LD_PRELOAD", "would select cards"),
    Case("ours", env("GPUSHARE_LIMITS"), "GPUSHARE_LIMITS", "would select cards"),
    Case("units", env("ALIYUN_COM_GPU_MEM_DEV"), "ALIYUN_COM_GPU_MEM_DEV", "would select cards"),
    Case(
        "visible-from",
        env("NVIDIA_VISIBLE_DEVICES", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "NVIDIA_VISIBLE_DEVICES",
        "would select cards",
    ),
    Case(
        "env-prefix",
        container(envFrom=[{"prefix": "LD_", "configMapRef": {"name": "c"}}]),
        "change the prefix",
        "change the prefix",
    ),
    Case(
        "beside-env", beside("containers", env=[{"name": "LD_AUDIT", "value": "x"}]), "LD_AUDIT", "would select cards"
    ),
    *(
        Case(f"host-{path}", host(path), "mount another directory", "mount another directory")
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
        Case(f"host-{path}", host(path), "use a plain path", "plain path")
        for path in ("/srv//data", "/srv/./x", "//dev")
    ),
    *(
        Case(f"mount-{path}", mount(path), "files of gpushare", "files of gpushare")
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
        Case(f"mount-{path}", mount(path), "use a plain path", "plain path")
        for path in ("/etc//ld.so.preload", "/x/../etc/ld.so.preload", "/./run", "//run")
    ),
    Case(
        "message-path",
        container(terminationMessagePath="/etc/ld.so.preload"),
        "terminationMessagePath",
        "files of gpushare",
    ),
    Case(
        "block-device",
        lambda p: (
            container(volumeDevices=[{"name": "v", "devicePath": "/run/gpushare/region"}])(p),
            spec(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])(p),
        ),
        "has a device at",
        "files of gpushare",
    ),
    Case(
        "cdi",
        annotated("cdi.k8s.io/x", "gpushare.dev/alloc=1"),
        "devices from the container runtime",
        "devices from the container runtime",
    ),
    *(
        Case(
            f"runtime-{key}", annotated(key), "devices from the container runtime", "devices from the container runtime"
        )
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
        Case(f"forged-{key}", annotated(key), "allocation record", "allocation record")
        for key in (
            "gpushare.dev/allocation",
            "gpushare.dev/consumed-reservation",
            "scheduler.framework.gpushare.allocation",
        )
    ),
    Case("label-false", labelled(SHARED, "false"), "remove it: admission sets it", "label gpushare.dev/shared"),
)
COMPUTE = (
    Case(
        "online-maybe",
        annotated("gpushare.dev/online", "maybe"),
        "gpushare.dev/online is",
        "gpushare.dev/online must be",
    ),
    Case(
        "offline-with-compute",
        lambda p: (annotated("gpushare.dev/online", "false")(p), amount(CORE, "30")(p)),
        "no compute is guaranteed to the pod",
        "no compute is guaranteed to the pod",
    ),
    Case("weight-0", annotated("gpushare.dev/weight", "0"), "whole number from 1 to 100", "whole number from 1 to 100"),
    Case("weight-101", annotated("gpushare.dev/weight", "101"), "from 1 to 100", "from 1 to 100"),
    Case("ceiling-1.5", annotated("gpushare.dev/core-limit", "1.5"), "from 1 to 100", "from 1 to 100"),
    Case(
        "ceiling-below",
        lambda p: (annotated("gpushare.dev/core-limit", "20")(p), amount(CORE, "30")(p)),
        "less than the 30 percent",
    ),
    Case("cgpu-weight-many", env("ALIYUN_COM_GPU_SCHD_WEIGHT", value="1000"), "whole number from 1 to 100"),
    Case(
        "cgpu-weight-elsewhere",
        env("ALIYUN_COM_GPU_SCHD_WEIGHT", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "as its value",
    ),
    Case(
        "cgpu-weight-against",
        lambda p: (annotated("gpushare.dev/weight", "3")(p), env("ALIYUN_COM_GPU_SCHD_WEIGHT", value="2")(p)),
        "differs; remove one",
    ),
)
REFUSED = AMOUNTS + SAFETY + COMPUTE


FORGED = (
    Case(
        "plain-record",
        lambda p: (p.update(plain()), annotated("gpushare.dev/allocation")(p)),
        "allocation record",
        "allocation record",
    ),
    Case(
        "plain-label",
        lambda p: (p.update(plain()), labelled(SHARED, "true")(p)),
        "does not request aliyun.com/gpu-mem",
        "set by admission",
    ),
    Case("count-alone", lambda p: (p.update(plain()), labelled(COUNT, "2")(p)), "request it or remove the label"),
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
    ("offline", annotated("gpushare.dev/online", "false")),
    ("weight", annotated("gpushare.dev/weight", "100")),
    ("ceiling", lambda p: (annotated("gpushare.dev/core-limit", "30")(p), amount(CORE, "30")(p))),
    ("cgpu-weight", env("ALIYUN_COM_GPU_SCHD_WEIGHT", value="2")),
    ("cgpu-on", env("CGPU_DISABLE", value="false")),
    ("shared-pids", spec(shareProcessNamespace=True)),
    ("init", beside("initContainers", resources={"limits": {MEM: "1"}, "requests": {MEM: "1"}})),
    (
        "sidecar",
        beside("initContainers", restartPolicy="Always", resources={"limits": {MEM: "1"}, "requests": {MEM: "1"}}),
    ),
    ("mode", spec(nodeSelector={"ack.node.gpu.schedule": "cgpu"})),
)
