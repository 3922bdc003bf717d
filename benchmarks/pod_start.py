# SPDX-License-Identifier: Apache-2.0
"""
What a share costs a pod at its start: a real kubelet and containerd, `gpushare node` on simulated cards.

Pods with and without a share of one card, in turn, one at a time; the clock runs from the binding to the first line
that the container's program writes (the runtime's log has the time of each). Prints the medians and their difference,
or with --json one object. As root; needs what `make kubelet` builds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

BAR_MS = 50.0
_PATIENCE_SECONDS = 60.0


def first_line(stage: Any, pod: dict[str, Any]) -> float:
    """When the program wrote its first line, in seconds since 1970."""
    meta = pod["metadata"]
    folder = stage.node.machine.path(f"/var/log/pods/default_{meta['name']}_{meta['uid']}/main")
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        for log in folder.glob("*.log"):
            if text := log.read_text("utf-8", "replace"):
                return datetime.fromisoformat(text.split(" ", 1)[0]).timestamp()
        time.sleep(0.01)
    raise SystemExit(f"{meta['name']} wrote nothing within {_PATIENCE_SECONDS:.0f} s")


async def measure(stage: Any, client: Any, count: int) -> dict[str, float]:
    """Milliseconds at the median, by kind."""
    pods = import_module("realkubelet.pods")
    took: dict[str, list[float]] = {"share": [], "plain": []}
    for number in range(2 * count):
        kind = ("share", "plain")[number % 2]
        name = f"{kind}-{number}"
        words = ("/bin/sh", "-c", "echo here; exec sleep 600")
        made = await client.create(pods.pod_of(name, pods.container("main", 2 if kind == "share" else 0, *words)))
        began = time.time()
        if kind == "share":
            await stage.bind_to(client, made, 0)
        else:
            await stage.bind(client, made)
        took[kind].append((await asyncio.to_thread(first_line, stage, made) - began) * 1000)
        await client.delete(f"{pods.PODS}/{name}", force=True)
    found = {kind: round(statistics.median(times), 1) for kind, times in took.items()}
    return found | {"difference": round(found["share"] - found["plain"], 1), "count": count}


def main() -> int:
    """1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="pods of each kind (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    programs = import_module("e2e.binaries").find()
    if not isinstance(programs, dict):
        sys.exit(str(programs))
    stages = import_module("realkubelet.harness")
    with tempfile.TemporaryDirectory() as folder:
        plane = import_module("e2e.plane").ControlPlane(programs, Path(folder))
        plane.start()
        try:
            with stages.real_node(plane, Path(folder) / "n") as stage:
                found = stages.play(stage, lambda client: measure(stage, client, args.count))
        finally:
            plane.stop()
    if args.json:
        print(json.dumps({"milliseconds": found, "bar": BAR_MS}))
    else:
        print(f"{'':12}median of {args.count}")
        for kind in ("plain", "share", "difference"):
            print(f"{kind:12}{found[kind]:8.1f} ms")
    return int(found["difference"] > BAR_MS)


if __name__ == "__main__":
    raise SystemExit(main())
