# SPDX-License-Identifier: Apache-2.0
"""
One candidate as a process of its own, for tests that freeze it: writes a line whenever it may act.

Each line is the clock *before* the right was checked, the epoch, and the name: "at that moment I held it".
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from isolation.kube.access import Access
from isolation.kube.core.lease import LeaseTiming
from isolation.kube.election import Election, boottime
from isolation.kube.writes import LeaseClient


def terms_of(duration: float) -> LeaseTiming:
    """Terms with that duration, and looks as often as ever."""
    return LeaseTiming(duration=duration, act=0.75 * duration, retry=0.4, request=0.25 * duration)


async def main(kubeconfig: str, name: str, out: str, duration: str) -> None:
    """Stand as a candidate for a Lease of so many seconds until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Access(Path(kubeconfig)) as access:
        election = Election(LeaseClient(access, "default", "tested"), name, terms_of(float(duration)))
        running = asyncio.create_task(election.run())
        with Path(out).open("a") as log:  # noqa: ASYNC230 (a line to memory)
            while not stop.is_set():
                now = boottime()
                fence = election.fence()
                if fence is not None:
                    log.write(f"{now} {fence.epoch} {name}\n")
                    log.flush()
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
