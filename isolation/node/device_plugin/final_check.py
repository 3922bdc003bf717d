# SPDX-License-Identifier: Apache-2.0
"""
The last of the runtime's plugins: refuses what the agent did not prepare, and closes what it did not close.

The runtime passes over a plugin that is away, dead or late. This one is asked after the agent and sees what the agent
has changed; so it need not know whether the agent lives, nor when it died. An error as the answer makes the kubelet try
again in place, also for a pod that never restarts; the guard's refusal at the start would be final for those. It keeps
nothing of any container.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from isolation.contract import nri_api as api
from isolation.contract.names import ACK, START_NONCE
from isolation.node.core.container_check import check_other, record_of, share_of
from isolation.node.nri.model import Adjustment, NriRefusedError
from isolation.node.nri.session import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isolation.node.device_plugin.exchange import Offer
    from isolation.node.guard_device import GuardDevice
    from isolation.node.nri.model import Container, Sandbox

_log: Final = logging.getLogger(__name__)
PLUGIN: Final = Subscription("gpushare-last-look", "99", (api.NriEvent.CREATE_CONTAINER,))


class FinalCheck:
    """See the module; fulfils `nri.model.Handler`."""

    def __init__(self, offer: Callable[[], Offer], guard_device: GuardDevice) -> None:
        """`offer`: what is known of this node."""
        self._offer, self._guard_device = offer, guard_device
        self.refused = 0
        """Containers with a share, so far."""

    def create(self, container: Container) -> Adjustment | None:
        """See `Handler`."""
        asks = self._guard_device.is_guarded(container.hooks)
        if asks or share_of(container, record_of(container.sandbox)) is not None:
            # A tenant who forges the annotation gets past this, and no further than the guard.
            if START_NONCE in container.annotations:
                return None
            self.refused += 1
            _log.warning("refused container %s: the node agent did not prepare it", container.key)
            raise NriRefusedError(
                f"{container.key}: the node agent did not answer: it is restarting, or too slow; the kubelet will retry"
            )
        offer = self._offer()
        closes = offer.shares and check_other(container, offer.exempt)
        return Adjustment(env={ACK.env_visible: api.VOID}) if closes else None

    def synchronize(self, sandboxes: Sequence[Sandbox], containers: Sequence[Container]) -> None:
        """See `Handler`."""

    def start(self, container: Container) -> None:
        """See `Handler`; not subscribed to."""

    def gone(self, container: Container, *, removed: bool) -> None:
        """See `Handler`; not subscribed to."""
