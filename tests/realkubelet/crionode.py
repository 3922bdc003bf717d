# SPDX-License-Identifier: Apache-2.0
"""
A real node whose container runtime is CRI-O: what differs from one with containerd.

Its images come from a registry of the test's own, over HTTP on the loopback; CRI-O has no other way in.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import tarfile
import threading
from typing import TYPE_CHECKING

import grpc
from realkubelet.configuration import PAUSE, images
from realkubelet.realnode import RealNode

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOCKET = "/run/crio/crio.sock"
_PULL = "/runtime.v1.ImageService/PullImage"
_PULL_SECONDS = 60.0


class CrioNode(RealNode):
    """See the module."""

    runtime = "crio"
    needs = ("crio", "conmon", "pinns")

    def start_runtime(self) -> None:
        """CRI-O; what watches its containers outlives it."""
        for name in self.needs:
            if not self._bin(name).is_symlink():
                self._bin(name).symlink_to(self._programs[name])
        kubelet = json.loads((self.root / "kubelet.json").read_text())
        kubelet["containerRuntimeEndpoint"] = f"unix://{_SOCKET}"
        (self.root / "kubelet.json").write_text(json.dumps(kubelet))
        (self.root / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (self.root / "storage.conf").write_text(_STORAGE)
        files = {"programs": self.root / "bin", "cni": self.root / "cni", "root": self.root, "pause": PAUSE}
        (self.root / "crio.conf").write_text(_CRIO.format(**files))
        env = {
            "PATH": f"{self.root / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.root),
            "CONTAINERS_STORAGE_CONF": str(self.root / "storage.conf"),
        }
        self._run("crio", [self._bin("crio"), "--config", self.root / "crio.conf", "--config-dir", ""], env)
        self._until("crio", lambda: self.machine.path(_SOCKET).exists() and self._answers())

    def import_images(self) -> None:
        """Pulled once, before the kubelet runs: no pod pulls any."""
        with _registry(images(self._programs).values()) as (port, names):
            conf = f'[[registry]]\nprefix = "test.dev"\nlocation = "127.0.0.1:{port}"\ninsecure = true\n'
            file = self.root / ".config/containers/registries.conf"
            file.parent.mkdir(parents=True)
            file.write_text(conf)
            self.kill("crio")
            self.start_runtime()
            for name in names:
                self._call(_PULL, _text(1, _text(1, name.encode())), _PULL_SECONDS)

    def _answers(self) -> bool:
        with contextlib.suppress(grpc.RpcError):
            self._call("/runtime.v1.RuntimeService/Version", b"", 2.0)
            return True
        return False

    def _call(self, method: str, message: bytes, seconds: float) -> bytes:
        with grpc.insecure_channel(f"unix:{self.machine.path(_SOCKET)}") as channel:
            return channel.unary_unary(method)(message, timeout=seconds)


def _text(field: int, value: bytes) -> bytes:
    """A field of protobuf's kind 2, of fewer than 128 bytes."""
    return bytes([field << 3 | 2, len(value)]) + value


@contextlib.contextmanager
def _registry(archives) -> Iterator[tuple[int, list[str]]]:
    """A registry of these OCI archives: its port, and the names of the images."""
    served: dict[str, tuple[str, bytes]] = {}
    names = [name for archive in archives for name in _serve(archive, served)]

    class Handler(http.server.BaseHTTPRequestHandler):
        """Manifests and blobs, from memory."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """The registry API (OCI distribution 1.0), as far as a pull goes."""
            kind, body = served.get(self.path, ("application/json", b"{}"))
            self.send_response(200 if self.path in served or self.path == "/v2/" else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 (the same)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], names
        server.shutdown()


def _serve(archive: bytes, served: dict[str, tuple[str, bytes]]) -> Iterator[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        blobs = {member.name: tar.extractfile(member).read() for member in tar.getmembers() if member.isfile()}
    for entry in json.loads(blobs["index.json"])["manifests"]:
        name = entry["annotations"]["io.containerd.image.name"]
        path, _, tag = name.removeprefix("test.dev/").partition(":")
        for reference in (tag, entry["digest"]):
            manifest = blobs[f"blobs/{entry['digest'].replace(':', '/')}"]
            served[f"/v2/{path}/manifests/{reference}"] = entry["mediaType"], manifest
        for blob in blobs.values():
            served[f"/v2/{path}/blobs/sha256:{hashlib.sha256(blob).hexdigest()}"] = "application/octet-stream", blob
        yield name


_STORAGE = """[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""
_CRIO = """[crio]
root = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
log_dir = "/var/log/crio/pods"
version_file = "/run/crio/version"
[crio.api]
listen = "/run/crio/crio.sock"
[crio.runtime]
default_runtime = "runc"
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
pinns_path = "{programs}/pinns"
hooks_dir = []
selinux = false
disable_hostport_mapping = true
[crio.runtime.runtimes.runc]
runtime_path = "{programs}/runc"
runtime_root = "/run/runc"
monitor_path = "{programs}/conmon"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{pause}"
pause_command = "/pause"
signature_policy = "{root}/policy.json"
[crio.network]
network_dir = "{cni}"
plugin_dirs = ["{programs}"]
[crio.nri]
enable_nri = true
"""
