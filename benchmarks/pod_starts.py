# SPDX-License-Identifier: Apache-2.0
"""
How many pods fail for good while everything on their node is killed: a real kubelet and containerd, simulated cards.

Pods that run once and are never restarted, some at a time; the node agent is killed, and containerd restarted, every so
often. With --rolling-update the agent is replaced in the orderly way instead. Failures are counted by cause; a program
that saw another card or more than it was promised counts as wrong. As root; needs what `make kubelet` builds.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

MAX_FAILED = 1 / 1000
"""Of all pods; none in rolling updates."""


def progress(done: int, count: int) -> None:
    """On a terminal, in place."""
    if sys.stderr.isatty():
        print(f"\r{done} of {count} pods", end="", file=sys.stderr, flush=True)


def main() -> int:
    """1 where more failed than may, or one was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no more pods after so long")
    parser.add_argument("--at-once", type=int, default=10, help="pods in flight, 28 at most (default: %(default)s)")
    parser.add_argument("--agent-seconds", type=float, default=30.0, help="between two kills (default: %(default)s)")
    parser.add_argument("--runtime-seconds", type=float, default=300.0, help="the same of containerd (%(default)s)")
    parser.add_argument("--rolling-update", action="store_true", help="replace the agent, kill nothing")
    parser.add_argument("--without-shares", action="store_true", help="the same pods ask for no card")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    programs = import_module("e2e.binaries").find()
    if not isinstance(programs, dict):
        sys.exit(str(programs))
    stages, churn = import_module("realkubelet.harness"), import_module("realkubelet.churn")
    faults = {"agent-killed": args.agent_seconds, "containerd": args.runtime_seconds}
    if args.rolling_update:
        faults = {"rolling-update": args.agent_seconds}
    with tempfile.TemporaryDirectory() as folder:
        plane = import_module("e2e.plane").ControlPlane(programs, Path(folder))
        plane.start()
        try:
            with stages.real_node(plane, Path(folder) / "n") as stage:
                many = functools.partial(churn.starts, count=args.pods, faults=faults, show=progress)
                began, most = time.monotonic(), {"seconds": 60 * args.minutes, "at_once": args.at_once}
                most["shares"] = not args.without_shares
                found = stages.play(stage, lambda client: many(stage, client, **most))
                seconds = time.monotonic() - began
        finally:
            plane.stop()
    failed = found.failed.total()
    count = found.succeeded + found.cut_short + failed + len(found.wrong)
    if args.json:
        print(json.dumps(vars(found) | {"seconds": round(seconds, 1)}))
    else:
        ran = f"{found.succeeded} succeeded, {found.cut_short} ended before they had said everything"
        print(f"\n{ran}, {len(found.wrong)} wrong, {failed} failed; {dict(found.faults)}")
        print(f"{count / seconds:.2f} pods a second")
        for cause, number in found.failed.most_common():
            print(f"{number:6}  {cause}")
        for one in found.wrong:
            print(f" wrong  {one}")
    return int(bool(found.wrong) or failed > (0 if args.rolling_update else MAX_FAILED * count))


if __name__ == "__main__":
    raise SystemExit(main())
