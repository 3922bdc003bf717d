# SPDX-License-Identifier: Apache-2.0
"""
Looks for systems that still serve the pods of a dialect that is switched on; what follows is `core.ownership`'s to say.

Until the first answer every such dialect is refused: it is not known to be ours.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from isolation.kube.core.errors import ClusterError
from isolation.scheduler.core.ownership import find_owned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from isolation.kube.paging import PageSource
    from isolation.scheduler.admission.core.serving import Serving

log = logging.getLogger(__name__)
POLL_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 2.0
_PATH: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_MOST: Final = "500"
"""Configurations; a cluster has tens."""


class _Webhook(msgspec.Struct):
    name: str = ""


class _Configuration(msgspec.Struct):
    webhooks: list[_Webhook] | None = None


class _Configurations(msgspec.Struct):
    items: list[_Configuration]


_DECODER: Final = msgspec.json.Decoder(_Configurations)
UNKNOWN: Final = "not known yet"


class OwnershipWatch:
    """Asks the API server every minute; `tell` gets the dialects that are not ours, with the webhook that shows it."""

    def __init__(self, source: PageSource, systems: Serving, tell: Callable[[Mapping[str, str]], None]) -> None:
        self._source, self._systems, self._tell = source, systems, tell
        shared = {dialect for dialect, _ in systems.left}
        self._owned: Mapping[str, str] = {one.name: UNKNOWN for one in systems.on if one.name not in shared}
        tell(self._owned)

    async def run(self) -> None:
        """Forever."""
        while True:
            try:
                names = await self._names()
            except (ClusterError, TimeoutError, msgspec.MsgspecError) as exc:
                log.warning("cannot list webhook configurations, so dialects stay as they are: %s", exc)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            owned = find_owned(self._systems.on, self._systems.left, names)
            if owned != self._owned:
                for dialect, webhook in owned.items():
                    log.error(
                        "dialect %s is not served: webhook %s shows that its own system runs in this cluster; remove "
                        "it, or name the namespaces that are left to it with --leave-to %s=NAMESPACE,...",
                        *(dialect, webhook, dialect),
                    )
                self._owned = owned
                self._tell(owned)
            await asyncio.sleep(POLL_SECONDS)

    async def _names(self) -> list[str]:
        found = _DECODER.decode(await self._source.page(_PATH, {"limit": _MOST}))
        return [hook.name for one in found.items for hook in one.webhooks or ()]
