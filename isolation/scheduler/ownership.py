# SPDX-License-Identifier: Apache-2.0
"""
Looks for systems that still serve the pods of a dialect that is switched on; what follows is `core.ownership`'s to say.

By webhooks, which are listed once a minute, and by what nodes offer. Until the first answer every such dialect is
refused: it is not known to be ours.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from isolation.contract.dialects.ownership import Signs
from isolation.kube.core.errors import ClusterError
from isolation.kube.paging import list_objects
from isolation.scheduler.core.ownership import find_owned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from isolation.kube.paging import PageSource
    from isolation.scheduler.admission.core.serving import Serving
    from isolation.scheduler.informers import Informers

log = logging.getLogger(__name__)
POLL_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 2.0
_PATH: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class _Webhook(msgspec.Struct):
    name: str = ""


class _Configuration(msgspec.Struct):
    webhooks: list[_Webhook] | None = None


_DECODER: Final = msgspec.json.Decoder(_Configuration)
UNKNOWN: Final = "not known yet"


class OwnershipWatch:
    """Asks the API server every minute; `tell` gets the dialects that are not ours, with what shows it."""

    def __init__(
        self, source: PageSource, informers: Informers, systems: Serving, tell: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._source, self._informers, self._systems, self._tell = source, informers, systems, tell
        shared = {dialect for dialect, _ in systems.left}
        self._owned: Mapping[str, str] = {one.name: UNKNOWN for one in systems.on if one.name not in shared}
        tell(self._owned)

    async def run(self) -> None:
        """Forever."""
        await self._informers.live.nodes.synced.wait()
        while True:
            try:
                names = await self._names()
            except (ClusterError, TimeoutError, msgspec.MsgspecError) as exc:
                log.warning("cannot list webhook configurations, so dialects stay as they are: %s", exc)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            signs = Signs(webhooks=names, nodes=self._informers.store.offered)
            owned = find_owned(self._systems.on, self._systems.left, signs)
            if owned != self._owned:
                for dialect, shown in owned.items():
                    log.error(
                        "dialect %s is not served, since its own system runs in this cluster (%s); remove it, or name "
                        "the namespaces that are left to it with --leave-to %s=NAMESPACE,...",
                        *(dialect, shown, dialect),
                    )
                self._owned = owned
                self._tell(owned)
            await asyncio.sleep(POLL_SECONDS)

    async def _names(self) -> tuple[str, ...]:
        found = [_DECODER.decode(raw) async for raw in list_objects(self._source, _PATH)]
        return tuple(hook.name for one in found for hook in one.webhooks or ())
