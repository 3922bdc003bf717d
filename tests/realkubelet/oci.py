# SPDX-License-Identifier: Apache-2.0
"""
Container images of one layer, made of files on this machine: no registry, no build tool.

Decides the layout (OCI image 1.0) and that a program brings its shared libraries along. Which files
an image has is the caller's business.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
FOLDERS = ("tmp", "proc", "sys", "dev", "etc", "run", "var")


def image(name: str, files: Mapping[str, Path | bytes], links: Mapping[str, str], entry: list[str]) -> bytes:
    """A tar for `ctr images import`: files and links by their path in the image."""
    out = io.BytesIO()
    layer = io.BytesIO(_layer(files, links))
    archive(out, name, layer, {"Entrypoint": entry, "Env": ["PATH=/bin:/usr/bin"]})
    return out.getvalue()


def archive(out: IO[bytes], name: str, layer: IO[bytes], config: Mapping[str, object]) -> None:
    """The same of a layer that is a tar already: written as it is read, for layers that are large."""
    described = _described("application/vnd.oci.image.layer.v1.tar", layer)
    about = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [described["digest"]]},
    }
    stored = io.BytesIO(json.dumps(about).encode())
    parts = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _described("application/vnd.oci.image.config.v1+json", stored),
        "layers": [described],
    }
    manifest = io.BytesIO(json.dumps(parts).encode())
    entry = _described("application/vnd.oci.image.manifest.v1+json", manifest)
    entry["annotations"] = {"io.containerd.image.name": name}
    index = io.BytesIO(json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
    whole = {"oci-layout": io.BytesIO(b'{"imageLayoutVersion":"1.0.0"}'), "index.json": index}
    whole |= {f"blobs/sha256/{_digest(blob).partition(':')[2]}": blob for blob in (layer, stored, manifest)}
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, content in whole.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = _size(content), 0o644
            tar.addfile(entry, content)


def with_libraries(program: Path) -> dict[str, Path]:
    """The shared libraries a program loads, at the paths where it looks for them."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    paths = [word for line in said.splitlines() for word in line.split() if word.startswith("/")]
    return {path.strip("/"): Path(path).resolve() for path in paths}


def _layer(files: Mapping[str, Path | bytes], links: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for path, content in files.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(entry)
    return out.getvalue()


def _digest(blob: IO[bytes]) -> str:
    blob.seek(0)
    digest = f"sha256:{hashlib.file_digest(blob, 'sha256').hexdigest()}"
    blob.seek(0)
    return digest


def _size(blob: IO[bytes]) -> int:
    size = blob.seek(0, io.SEEK_END)
    blob.seek(0)
    return size


def _described(kind: str, blob: IO[bytes]) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(blob), "size": _size(blob)}
