# SPDX-License-Identifier: Apache-2.0
"""
A member of a story of `virtual_clock`: looks at a card's records at given moments, and feeds jobs meanwhile.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

from isolation.contract import abi
from isolation.lib import files
from isolation.simgpu.hardware import Box

FEED_SECONDS = 0.03
FOR_EVER = 1e9


def look(box: Box) -> tuple[int, dict[int, int]]:
    """The first card's clock and who had how much of it, now."""
    box.settle()
    own: dict[int, int] = {}
    for client in box.clients(0):
        own[client.pid] = own.get(client.pid, 0) + client.own_ns
    return box.cards()[0].clock_ns, own


def main() -> None:
    """Take part, look, and tell."""
    wanted = json.loads(sys.argv[1])
    box, seen = Box(Path(wanted["box"])), []
    ctypes.CDLL(None).virtual_clock_join()
    for second in wanted["looks"]:
        until = wanted["begin"] + second
        while (left := until - time.monotonic()) > 0:
            if wanted["feeds"] and time.monotonic() < wanted["begin"] + wanted.get("feed_seconds", FOR_EVER):
                now, (_, own) = time.clock_gettime_ns(time.CLOCK_MONOTONIC), look(box)
                for path, pid in wanted["feeds"].items():
                    fed = abi.CardFeed(own.get(pid, 0), now, rate_ppm=wanted.get("rate_ppm", 0))
                    files.write_feed(Path(path), [fed])
            time.sleep(min(left, FEED_SECONDS))
        seen.append(look(box))
    print(json.dumps(seen))  # noqa: T201 (what the test asked for)


if __name__ == "__main__":
    main()
