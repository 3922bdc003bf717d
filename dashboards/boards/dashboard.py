# SPDX-License-Identifier: Apache-2.0
"""
What all our dashboards share: variables, how they are chosen, links that carry them, stable addresses.

Pure. A variable is asked of the series that it narrows; `All` stands for a pattern that also matches
series without the label, so that a fleet without clusters or pools is not empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from isolation.contract import metrics

if TYPE_CHECKING:
    from dashboards.boards.layout import Section

TAG: Final = "gpushare"
"""On every dashboard of ours; the links at the top of a page are those with it."""
SOURCE: Final = "datasource"
ASK: Final = "ask"


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the page."""

    name: str
    label: str
    text: str
    query: str = ""
    """Whose values it has; empty: the data source, or `values`."""
    values: tuple[str, ...] = ()
    every: str = ".*"
    """What `All` stands for; `.+` where a series always has the label."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Moments that are marked in every graph of a page: where the expression has a sample."""

    name: str
    expr: str
    text: str
    """What is shown of one; `{{label}}` stands for a label's value."""
    colour: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    text: str
    variables: tuple[str, ...]
    """Names out of `VARIABLES`, after the data source; each asks within those before it."""
    sections: tuple[Section, ...]
    start: str = "now-6h"
    marks: tuple[Annotation, ...] = ()

    @property
    def address(self) -> str:
        """Within a Grafana."""
        return f"/d/{self.uid}"


def _values(spec: metrics.MetricSpec, label: str, *within: str) -> str:
    picks = ",".join(f'{name}=~"${name}"' for name in within)
    return f"label_values({spec.name}{{{picks}}}, {label})"


_CARDS: Final = metrics.CARD_INFO
_USES: Final = metrics.CONTAINER_MEMORY_ALLOCATED
VARIABLES: Final = MappingProxyType(
    {
        one.name: one
        for one in (
            Variable(SOURCE, "Data source", "The Prometheus that scrapes gpushare."),
            Variable("cluster", "Cluster", "Cluster, if one Prometheus stores several.", _values(_CARDS, "cluster")),
            Variable(
                *("job", "Job", "Scrape jobs of gpushare."),
                f'label_values({{__name__=~"{metrics.PREFIX}.+",cluster=~"$cluster"}}, job)',
                every=".+",
            ),
            Variable("pool", "Pool", "Node pools.", _values(_CARDS, "pool", "cluster", "job")),
            Variable("node", "Node", "Nodes with cards.", _values(_CARDS, "node", "cluster", "job"), every=".+"),
            Variable(
                "uuid", "Card", "Cards of the nodes.", _values(_CARDS, "uuid", "cluster", "job", "node"), every=".+"
            ),
            Variable(
                "namespace", "Namespace", "Namespaces with promises.", _values(_USES, "namespace", "cluster", "job")
            ),
            Variable(
                *("pod", "Pod", "Pods with promises."),
                _values(_USES, "pod", "cluster", "job", "namespace"),
                every=".+",
            ),
            Variable(
                *("instance", "Instance", "Processes of gpushare."),
                f'label_values({{__name__=~"{metrics.PREFIX}.+",cluster=~"$cluster",job=~"$job"}}, instance)',
                every=".+",
            ),
            Variable(
                *(ASK, "Pod size (GiB)", "Free memory that no pod of this size can use is shown as stranded."),
                values=("1", "2", "4", "8", "16", "24", "40", "80"),
            ),
        )
    }
)


def to_node() -> str:
    """Address of the cards of the node in a table's row, with the time and the data source of now."""
    return f"/d/gpushare-card?var-node=${{__data.fields.Node}}&{_KEPT}"


def to_card() -> str:
    """Address of the one card in a table's row, which has columns for its node and UUID."""
    return f"/d/gpushare-card?var-node=${{__data.fields.Node}}&var-uuid=${{__data.fields.UUID}}&{_KEPT}"


def to_pod() -> str:
    """Address of the pod in a table's row, which has a column for its namespace too."""
    return f"/d/gpushare-pod?var-namespace=${{__data.fields.Namespace}}&var-pod=${{__data.fields.Pod}}&{_KEPT}"


def to_namespace() -> str:
    """Address of the account of the namespace in a table's row."""
    return f"/d/gpushare-namespace?var-namespace=${{__data.fields.Namespace}}&{_KEPT}"


_KEPT: Final = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}"
