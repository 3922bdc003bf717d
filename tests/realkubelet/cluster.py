# SPDX-License-Identifier: Apache-2.0
"""
A cluster as a newcomer's: a control plane, and real nodes whose pods have a network and reach the API server.

Everything is in a network of its own, which the calling thread enters: no port is taken on this machine, and all of it
is gone with its processes. Pods have routes to nodes and to each other, and the exporter its port at the node. There
are no addresses of Services but the API server's, and no names.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e import binaries
from e2e.manifest_build import objects, templates
from e2e.plane import ControlPlane
from realkubelet import found
from realkubelet.configuration import HERE
from realkubelet.programs_image import make_image
from realkubelet.realnode import RealNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SERVICE = "10.0.0.1"
"""The API server's, by which every pod finds it."""
NODES = "192.168.77"
PODS = "10.244"
PROMETHEUS = "docker.io/prom/prometheus:v2.42.0"
EXPORTER_PORT = 9445
_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_SECONDS = 30.0


@contextlib.contextmanager
def own_network(*addresses: str) -> Iterator[None]:
    """A network with a loopback alone, for this thread and all that it starts; these addresses are at the loopback."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if _LIBC.unshare(_NEWNET):
            pytest.skip(f"a network of its own cannot be had: {os.strerror(ctypes.get_errno())}")
        _call("ip", "link", "set", "lo", "up")
        for address in addresses:
            _call("ip", "address", "add", f"{address}/32", "dev", "lo")
        _call("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        yield
    finally:
        _LIBC.setns(before, _NEWNET)
        os.close(before)


def _call(*words: str) -> None:
    subprocess.run(words, check=True, timeout=_SECONDS)


class ClusterNode(RealNode):
    """A real node with an address of its own, whose pods have a network."""

    def __init__(self, plane: ControlPlane, programs: Mapping[str, Path], root: Path, number: int) -> None:
        super().__init__(plane, programs, root, f"node-{number}")
        self._address, self._prefix = f"{NODES}.{number}", f"{PODS}.{number}"
        self.kubelet_flags = (f"--node-ip={self._address}",)

    def configure(self) -> None:
        """As every node, with another network, and a kubelet that the API server reaches."""
        super().configure()
        shutil.copy(HERE / "routed.sh", self.root / "bin/routed")
        plugin = {"type": "routed", "prefix": self._prefix, "capabilities": {"portMappings": True}}
        network = {"cniVersion": "1.0.0", "name": "routed", "plugins": [plugin]}
        (self.root / "cni/10-nothing.conflist").write_text(json.dumps(network))
        kubelet = json.loads((self.root / "kubelet.json").read_text())
        kubelet |= {"address": self._address, "clusterDNS": [SERVICE], "clusterDomain": "cluster.local"}
        (self.root / "kubelet.json").write_text(json.dumps(kubelet))

    def start(self) -> None:
        """And a port of it leads to the exporter."""
        super().start()
        words = [sys.executable, "-I", HERE / "hostport.py", self._address, str(EXPORTER_PORT), "/run/routed"]
        self.start_agent(words, {}, "hostport")

    def load(self, archive: Path, first: str, *names: str) -> None:
        """The image of an archive, by all of these names."""
        self.ctr("images", "import", "--local", archive)
        for name in names:
            self.ctr("images", "tag", "--force", first, name)


def image_names() -> list[str]:
    """By which the demo overlay's pods, and the quick start's Prometheus, ask for their images."""
    found = {PROMETHEUS}
    for template in templates(objects("demo")).values():
        spec = template["spec"]
        for box in (*spec["containers"], *spec.get("initContainers", ())):
            name, _, digest = box["image"].partition("@")
            # with a digest the tag does not count; whose digest it is, only a registry could say
            found.add(f"{name.rpartition(':')[0]}@{digest}" if digest else f"docker.io/library/{name}")
    return sorted(found)


@contextlib.contextmanager
def small_cluster(folder: Path, nodes: int) -> Iterator[ControlPlane]:
    """A control plane with so many nodes, on which all images are; a skip where there can be none."""
    programs, servers = found.find(), binaries.find()
    for missing in (programs, servers):
        if isinstance(missing, str | binaries.Missing):
            pytest.skip(str(missing))
    image, names = folder / "image", image_names()
    image.mkdir()
    more = {
        "bin/kube-scheduler": servers["kube-scheduler"],
        "usr/bin/prometheus": _program("prometheus"),
        "bin/promtool": _program("promtool"),
    }
    archive = make_image(image, names[0], more, {"bin/prometheus": HERE / "prometheus_pods.py"})
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_network(SERVICE, *(f"{NODES}.{number + 1}" for number in range(nodes))))
        plane = stack.enter_context(_plane(folder / "plane", servers))
        for number in range(nodes):
            root = folder / f"node{number + 1}"
            root.mkdir()
            node = ClusterNode(plane, programs, root, number + 1)
            stack.callback(node.stop)
            node.start()
            node.load(archive, *names)
        archive.unlink()
        yield plane


def _program(name: str) -> Path:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: run make tools")
    return Path(path)


@contextlib.contextmanager
def _plane(folder: Path, servers: Mapping[str, Path]) -> Iterator[ControlPlane]:
    """One that pods reach by the address of its Service, and that reaches kubelets."""
    folder.mkdir()
    plane = ControlPlane(servers, folder, port=443)
    pair = plane.pair_for("kube-apiserver-kubelet-client", ("system:masters",))
    plane.more_apiserver_flags(
        "--bind-address=0.0.0.0",
        f"--kubelet-client-certificate={pair.certificate}",
        f"--kubelet-client-key={pair.key}",
        "--kubelet-preferred-address-types=InternalIP",
    )
    plane.start()
    try:
        yield plane
    finally:
        plane.stop()
