# SPDX-License-Identifier: Apache-2.0
"""
The dashboard of a namespace's account: memory and compute promised and used over time, waste, energy.

GiB-hours are the promise integrated over the time shown, minute by minute, whatever the scrape interval:
a pod of 8 GiB for half an hour is 4. A minute without a scrape is charged to nobody.
"""

from __future__ import annotations

from typing import Final

from dashboards.boards.dashboard import Dashboard, to_pod
from dashboards.boards.layout import Section, even, wide
from dashboards.boards.panel import (
    GREEN,
    GREY,
    ORANGE,
    YELLOW,
    LabelColumn,
    PanelColumn,
    Query,
    Threshold,
    dial,
    lines,
    stat,
    table,
)
from dashboards.promql import NAMESPACE_ALLOCATED, NAMESPACE_USED, NAMESPACE_WASTED, Scope, increase, rate, total
from isolation.contract import metrics as m
from isolation.contract.metrics import autoscaler as a
from isolation.contract.quantity import GIB

_SCOPE: Final = Scope(("cluster", "job", "namespace"))
_FLEET: Final = Scope(("cluster", "job"))
READY: Final = 'state="ready"'
_HOUR: Final = 3600
_MINUTES: Final = 60
_GIB_HOURS: Final = "suffix: GiB h"
_CARD_HOURS: Final = "suffix: card h"


def _hours(expr: str, *by: str, per: int = 1) -> str:
    """An amount by the hour, over the time shown: its minutes, summed."""
    return f"sum_over_time(({total(expr, *by)})[$__range:1m]) / {_MINUTES * per}"


def _wh(*by: str) -> str:
    return f"{total(increase(_SCOPE(m.CONTAINER_ENERGY), '$__range'), *by)} / {_HOUR}"


def _computed(*by: str) -> str:
    return f"{total(increase(_SCOPE(m.CONTAINER_COMPUTE_SECONDS), '$__range'), *by)} / {_HOUR}"


def _never(*by: str) -> str:
    """Promised, and not used at any moment of the time shown."""
    most = f"max_over_time({_SCOPE(m.CONTAINER_MEMORY_USED)}[$__range])"
    return total(f"clamp_min({_SCOPE(m.CONTAINER_MEMORY_ALLOCATED)} - {most}, 0)", *by)


_ACCOUNT: Final = Section(
    "Usage in the selected time range",
    (
        even(
            5,
            stat(
                "Promised",
                "Memory promised to the selected namespaces, in GiB-hours. No other namespace could use it.",
                _hours(_SCOPE(NAMESPACE_ALLOCATED), per=GIB),
                _GIB_HOURS,
                spark=False,
                decimals=1,
            ),
            stat(
                "Used",
                "Memory used by the selected namespaces, in GiB-hours.",
                _hours(_SCOPE(NAMESPACE_USED), per=GIB),
                _GIB_HOURS,
                spark=False,
                decimals=1,
            ),
            stat(
                "Wasted",
                "Memory promised to the selected namespaces but not used, in GiB-hours.",
                _hours(_SCOPE(NAMESPACE_WASTED), per=GIB),
                _GIB_HOURS,
                spark=False,
                decimals=1,
                steps=(Threshold(YELLOW),),
            ),
            dial(
                "Used fraction of the promises",
                "Mean over the selected time range.",
                f"{_hours(_SCOPE(NAMESPACE_USED))} / ({_hours(_SCOPE(NAMESPACE_ALLOCATED))} > 0)",
                "percentunit",
                (Threshold(ORANGE), Threshold(YELLOW, 0.3), Threshold(GREEN, 0.5)),
            ),
            stat(
                "Compute used",
                "Compute used by the selected namespaces, in card-hours: 1 is a whole card for one hour.",
                _computed(),
                _CARD_HOURS,
                spark=False,
                decimals=2,
            ),
            stat(
                "Energy",
                "Energy of cards attributed to the namespaces' containers: active energy by compute used, idle energy "
                "by promise.",
                _wh(),
                "watth",
                spark=False,
                decimals=1,
            ),
        ),
        wide(
            9,
            (
                24,
                table(
                    "Namespaces",
                    "Usage of each namespace in the selected time range. Select a month to get a monthly bill.",
                    (LabelColumn("namespace", "Namespace"),),
                    (
                        PanelColumn("Promised", _hours(_SCOPE(NAMESPACE_ALLOCATED), "namespace", per=GIB), _GIB_HOURS),
                        PanelColumn("Used", _hours(_SCOPE(NAMESPACE_USED), "namespace", per=GIB), _GIB_HOURS),
                        PanelColumn("Wasted", _hours(_SCOPE(NAMESPACE_WASTED), "namespace", per=GIB), _GIB_HOURS),
                        PanelColumn(
                            "Used fraction",
                            f"{_hours(_SCOPE(NAMESPACE_USED), 'namespace')} / "
                            f"({_hours(_SCOPE(NAMESPACE_ALLOCATED), 'namespace')} > 0)",
                            "percentunit",
                            steps=(Threshold(ORANGE), Threshold(YELLOW, 0.3), Threshold(GREEN, 0.5)),
                            bar=1.0,
                        ),
                        PanelColumn(
                            "Compute promised", _hours(_SCOPE(m.CONTAINER_COMPUTE_ALLOCATED), "namespace"), _CARD_HOURS
                        ),
                        PanelColumn("Compute used", _computed("namespace"), _CARD_HOURS),
                        PanelColumn("Energy", _wh("namespace"), "watth"),
                        PanelColumn(
                            "Pods now",
                            "count by (namespace) "
                            f"(count by (namespace, pod) ({_SCOPE(m.CONTAINER_MEMORY_ALLOCATED)}))",
                            "short",
                            width=90,
                        ),
                    ),
                    sort="Promised",
                ),
            ),
        ),
    ),
)

_COURSE: Final = Section(
    "Over time",
    (
        even(
            9,
            lines(
                "Promised memory",
                "By namespace.",
                (Query(total(_SCOPE(NAMESPACE_ALLOCATED), "namespace"), "{{namespace}}"),),
                "bytes",
                stacked=True,
                over_range=True,
            ),
            lines(
                "Used memory",
                "By namespace.",
                (Query(total(_SCOPE(NAMESPACE_USED), "namespace"), "{{namespace}}"),),
                "bytes",
                stacked=True,
                over_range=True,
            ),
            lines(
                "Wasted memory",
                "By namespace: promised but not used.",
                (Query(total(_SCOPE(NAMESPACE_WASTED), "namespace"), "{{namespace}}"),),
                "bytes",
                stacked=True,
                over_range=True,
            ),
        ),
        even(
            8,
            lines(
                "Compute used",
                "By namespace, in cards.",
                (Query(total(rate(_SCOPE(m.CONTAINER_COMPUTE_SECONDS)), "namespace"), "{{namespace}}"),),
                "short",
                stacked=True,
            ),
            lines(
                "Power",
                "By namespace.",
                (Query(total(rate(_SCOPE(m.CONTAINER_ENERGY)), "namespace"), "{{namespace}}"),),
                "watt",
                stacked=True,
            ),
        ),
    ),
)

_PODS: Final = Section(
    "Savings",
    (
        wide(
            9,
            (
                24,
                table(
                    "Pods with the largest unused promises",
                    "Memory that is promised now and was not used at any time in the selected time range. These pods "
                    "could request less. The name links to the dashboard of the pod.",
                    (LabelColumn("namespace", "Namespace"), LabelColumn("pod", "Pod", to_pod(), "This pod")),
                    (
                        PanelColumn("Never used", _never("namespace", "pod"), "bytes", steps=(Threshold(GREY),)),
                        PanelColumn(
                            "Promised", total(_SCOPE(m.CONTAINER_MEMORY_ALLOCATED), "namespace", "pod"), "bytes"
                        ),
                        PanelColumn("Used now", total(_SCOPE(m.CONTAINER_MEMORY_USED), "namespace", "pod"), "bytes"),
                        PanelColumn(
                            "Busy", total(rate(_SCOPE(m.CONTAINER_COMPUTE_SECONDS)), "namespace", "pod"), "percentunit"
                        ),
                    ),
                    sort="Never used",
                ),
            ),
        ),
    ),
)

_FREED: Final = f"max by (namespace, owner, container, model) ({_SCOPE(a.RECOMMENDED_FREED)})"
_GIB_PRICE: Final = (
    f"sum(max by (pool) ({_FLEET(a.POOL_NODE_PRICE)}) * on (pool) max by (pool) "
    f"({_FLEET(m.POOL_NODES, READY)})) / (sum({_FLEET(m.CARD_MEMORY_ALLOCATABLE)}) / {GIB} > 0)"
)
"""Of one GiB: what the ready nodes of all pools cost, divided by what their cards offer."""

_RIGHT_SIZING: Final = Section(
    "Right-sizing",
    (
        even(
            5,
            stat(
                "Would come back",
                "Promised memory that would come back if all running containers had what the autoscaler recommends.",
                f"sum({_FREED})",
                "bytes",
                steps=(Threshold(YELLOW),),
            ),
            stat(
                "Cost that would come back",
                "The same at the prices of the pools, as the autoscaler's configuration gives them: in their currency, "
                "for their time (such as an hour).",
                f"sum({_FREED}) / {GIB} * scalar({_GIB_PRICE})",
                "short",
                decimals=2,
                spark=False,
            ),
            lines(
                "Workloads without a recommendation",
                "Of all namespaces, by reason; see the page on right-sizing.",
                (Query(f"max by (reason) ({_FLEET(a.RECOMMENDED_ABSTAINED)})", "{{reason}}"),),
                "short",
            ),
        ),
        even(
            5,
            lines(
                "Running pods on trial",
                "Of all namespaces: containers that were made smaller, and have what they gave up reserved.",
                (Query(f"max({_FLEET(a.RIGHT_SIZING_TRIALS)})", "containers"),),
                "short",
            ),
            lines(
                "Reserved for trials",
                "Memory that becomes free if no request for memory is denied to them.",
                (Query(f"max({_FLEET(a.RIGHT_SIZING_RESERVED)})", "reserved"),),
                "bytes",
            ),
        ),
        wide(
            9,
            (
                24,
                table(
                    "Recommended memory",
                    "By workload and container, of one card. A workload without a recommendation is not shown; "
                    "`gpushare recommend` says why.",
                    (
                        LabelColumn("namespace", "Namespace"),
                        LabelColumn("owner", "Workload"),
                        LabelColumn("container", "Container"),
                        LabelColumn("model", "Card"),
                    ),
                    (
                        PanelColumn("Would come back", _FREED, "bytes", steps=(Threshold(YELLOW),)),
                        PanelColumn(
                            "Recommended",
                            f"max by (namespace, owner, container, model) ({_SCOPE(a.RECOMMENDED_MEMORY)})",
                            "bytes",
                        ),
                        PanelColumn(
                            "Recommended compute",
                            f"max by (namespace, owner, container, model) ({_SCOPE(a.RECOMMENDED_COMPUTE)})",
                            "percentunit",
                        ),
                    ),
                    sort="Would come back",
                ),
            ),
        ),
    ),
)

BOARD: Final = Dashboard(
    "gpushare-namespace",
    "gpushare / Namespace",
    "Usage of namespaces: promised, used and wasted GiB-hours, card-hours and energy in the selected time range.",
    ("cluster", "job", "namespace"),
    (_ACCOUNT, _COURSE, _PODS, _RIGHT_SIZING),
    start="now-24h",
)
