# SPDX-License-Identifier: Apache-2.0
"""
What a real node is configured with: folders, containerd's and the kubelet's files, a network of nothing, images.

Decides flags and contents only; starts nothing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from realkubelet.oci import image, with_libraries
from support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
PAUSE, TENANT = "test.dev/pause:1", "test.dev/tenant:1"
STATIC, LINKED, OWN_LIST = "test.dev/static:1", "test.dev/linked:1", "test.dev/own-list:1"
"""Images: with static programs only; with a link in place of /etc/ld.so.preload; with a list of its own there."""
_APPLETS = (
    "sh",
    "cat",
    "ls",
    "sleep",
    "env",
    "id",
    "test",
    "stat",
    "mount",
    "touch",
    "true",
    "false",
    "rm",
    "mv",
    "dd",
)


def configure(root: Path, programs: Mapping[str, Path], authority: Path, cgroup: str) -> None:
    """Everything that containerd and kubelet read, below the root."""
    folder = root / "bin"
    folder.mkdir(parents=True)
    for name in ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc"):
        (folder / name).symlink_to(programs[name])
    shutil.copy(HERE / "cni.sh", folder / "nothing")
    network = root / "cni"
    network.mkdir()
    plugins = {"cniVersion": "1.0.0", "name": "nothing", "plugins": [{"type": "nothing"}]}
    (network / "10-nothing.conflist").write_text(json.dumps(plugins))
    (root / "containerd.toml").write_text(_CONTAINERD.format(cni=network, programs=folder, pause=PAUSE))
    (root / "kubelet.json").write_text(json.dumps(_kubelet(authority, cgroup)))


def _kubelet(authority: Path, cgroup: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": free_port(),
        "healthzPort": 0,
        "authentication": {"x509": {"clientCAFile": str(authority)}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "makeIPTablesUtilChains": False,
        "evictionHard": {"memory.available": "10Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "2s",
        "fileCheckFrequency": "0s",
        "localStorageCapacityIsolation": False,
        "logging": {"flushFrequency": 0},
    }


def images(programs: Mapping[str, Path]) -> dict[str, bytes]:
    """Archives by file name: the pause image, and the tenant's with a dynamically linked client of the driver."""
    client, sleep = programs["client"], Path("/bin/sleep").resolve()
    tenant: dict[str, Path | bytes] = {"bin/busybox": programs["busybox"], "bin/client": client, "bin/dynamic": sleep}
    tenant |= with_libraries(client) | with_libraries(sleep)
    tenant["etc/passwd"] = b"root:x:0:0::/:/bin/sh\n"
    links = {f"bin/{name}": "busybox" for name in _APPLETS}
    links["a/b/c/link"] = "/etc"
    busybox: dict[str, Path | bytes] = {"bin/busybox": programs["busybox"]}
    elsewhere = links | {"etc/ld.so.preload": "/srv/list"}
    client_command = ["/bin/client"]
    return {
        "pause.tar": image(PAUSE, {"pause": programs["pause"]}, {}, ["/pause"]),
        "tenant.tar": image(TENANT, tenant, links, client_command),
        "static.tar": image(STATIC, busybox, links, client_command),
        "linked.tar": image(LINKED, tenant | {"srv/list": b""}, elsewhere, client_command),
        "own-list.tar": image(OWN_LIST, tenant | {"etc/ld.so.preload": b"/srv/own.so\n"}, links, client_command),
    }


_CONTAINERD = """version = 3
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["*"]
container_annotations = ["*"]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{programs}/runc"
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{programs}"]
conf_dir = "{cni}"
use_internal_loopback = true
"""
