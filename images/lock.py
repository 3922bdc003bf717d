# SPDX-License-Identifier: Apache-2.0
"""
Writes what is installed, by version: `constraints.txt` for people and tests, `images/requirements/*.txt` for images.

    python images/lock.py              # versions as they are, where pyproject.toml still allows them
    python images/lock.py --upgrade    # the newest that it allows

Both come from one resolution. Images install with `--require-hashes`; constraints stay without hashes, since pip wants
one for everything as soon as one has any, and an editable install of ours has none. Needs `uv` on the PATH.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CONSTRAINTS: Final = ROOT / "constraints.txt"
FOLDER: Final = ROOT / "images" / "requirements"
IMAGES: Final = {
    "exporter": ("exporter",),
    "node": ("node", "doctor", "simgpu"),
    "controller": ("scheduler", "autoscaler"),
    "controller-ack": ("scheduler", "autoscaler", "ack"),
    "demo": ("up", "exporter", "run"),
}
"""Extras by file."""
BESIDE: Final = ("boto3", "botocore", "jmespath", "s3transfer", "pip")
"""What tests install without its requirements: an SDK that no resolver puts beside the Kubernetes client, and pip."""
_PYTHON: Final = "3.11"
"""As the base image has it; hashes are of the files for every platform."""


def resolved(source: Path, given: tuple[str, ...]) -> str:
    """What uv says, without a word on where it was found."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    plain = (
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
        "--no-emit-find-links",
        f"--no-emit-package={ours}",
    )
    target = (f"--python-version={_PYTHON}", "--python-platform=linux")
    command = ["uv", "pip", "compile", "--quiet", str(source), *plain, *target, *given]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=600).stdout


def main() -> None:
    """Write every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="Take the newest versions that pyproject.toml allows.")
    upgrade = parser.parse_args().upgrade
    project = ROOT / "pyproject.toml"
    with tempfile.NamedTemporaryFile("w", suffix=".in") as beside:
        beside.write("\n".join(BESIDE))
        beside.flush()
        kept = () if upgrade else (f"--constraint={CONSTRAINTS}",)
        pins = resolved(project, ("--all-extras", "--group=dev", *kept))
        pins += resolved(Path(beside.name), ("--no-deps", *kept))
    CONSTRAINTS.write_text("".join(sorted(pins.splitlines(keepends=True), key=str.lower)), encoding="ascii")
    FOLDER.mkdir(exist_ok=True)
    for name, extras in IMAGES.items():
        wanted = tuple(f"--extra={extra}" for extra in extras)
        text = resolved(project, (*wanted, f"--constraint={CONSTRAINTS}", "--generate-hashes"))
        if re.search(r"https?://", text):
            raise SystemExit(f"{name}: the address of a registry is in the output")
        (FOLDER / f"{name}.txt").write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
