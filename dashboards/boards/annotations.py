# SPDX-License-Identifier: Apache-2.0
"""
Moments that pages mark in their graphs: moves, purchases and releases of nodes, XID errors.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.dashboard import Annotation
from dashboards.promql import RATE, Scope, begun, increase, total
from isolation.contract import metrics
from isolation.contract.metrics import autoscaler

_FLEET: Final = Scope(("cluster", "job"))
_NODES: Final = Scope(("cluster", "job", "node"))


def _steps(*actions: str) -> str:
    picked = "|".join(actions)
    steps = _FLEET(autoscaler.ACTIONS, f'action=~"{picked}"', 'outcome="done"')
    return f"{total(increase(steps), 'action')} > 0"


def _xids(scope: Scope) -> str:
    return f"{total(begun(scope(metrics.CARD_XIDS), RATE), 'node', 'card', 'xid')} > 0"


_XID: Final = "XID {{xid}} on {{node}} card {{card}}"
AUTOSCALER: Final = (
    Annotation("Moves", _steps("evict", "make_room", "defragment", "mitigate_hot_card"), "{{action}}", "blue"),
    Annotation("Purchases", _steps("scale_up"), "{{action}}", "green"),
    Annotation("Releases", _steps("remove_node", "remove_failed_node"), "{{action}}", "purple"),
)
FLEET: Final = (*AUTOSCALER, Annotation("XID errors", _xids(_FLEET), _XID, "red"))
CARD: Final = (*AUTOSCALER, Annotation("XID errors", _xids(_NODES), _XID, "red"))
