# SPDX-License-Identifier: Apache-2.0
"""
What is wrong with a PromQL expression, by the catalogue: names, labels, counters, joins, quotients.

`read(expr, known)` gives the labels of the result and a list of problems in words. It knows less than Prometheus
(no values, no types) and more: which labels a metric has, so that a join that can never match is found unasked.

    told = read('sum by (node) (rate(gpushare_x_total{node="a"}[5m]))', promql.series())
    told.labels == {"node"}, told.problems == ()
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import promql_parser as pp

from isolation.contract.metrics import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.promql import Series

GROWING = ("rate", "increase", "irate", "resets")
COUNTED = {*GROWING, "unless"}
"""`x unless x offset 1h` is a counter that is younger than an hour, and began at 0."""
KEEPERS = ("topk", "bottomk", "limitk")
POSITIVE = ("gpushare_card_memory_total_bytes",)
"""Never 0: a card without memory is none."""
NUMBERS = ("time", "scalar", "vector", "pi")


@dataclass(frozen=True)
class Told:
    """Labels of the result (None: a number without labels), series that are named, and what is wrong."""

    labels: frozenset[str] | None
    names: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


@dataclass
class _Reader:
    known: dict[str, Series]
    problems: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def labels(self, node: pp.Expr, inside: tuple[str, ...] = ()) -> frozenset[str] | None:
        """The labels that the result may have; `inside`: functions around it."""
        match node:
            case pp.NumberLiteral() | pp.StringLiteral():
                return None
            case pp.ParenExpr() | pp.UnaryExpr():
                return self.labels(node.expr, inside)
            case pp.SubqueryExpr():
                return self.labels(node.expr, inside)
            case pp.MatrixSelector():
                return self.selected(node.vector_selector, inside)
            case pp.VectorSelector():
                return self.selected(node, inside)
            case pp.AggregateExpr():
                return self.aggregate(node, inside)
            case pp.Call():
                return self.call(node, inside)
            case pp.BinaryExpr():
                return self.binary(node, inside)
        raise TypeError(f"cannot read {type(node)}")

    def selected(self, node: pp.VectorSelector, inside: tuple[str, ...]) -> frozenset[str]:
        name = node.name or ""
        self.names.add(name)
        if name not in self.known:
            self.problems.append(f"{name} is in no catalogue")
            return frozenset()
        series = self.known[name]
        for matcher in node.matchers.matchers:
            if matcher.name not in series.labels:
                self.problems.append(f"{node.name} has no label {matcher.name}")
        if series.kind is Kind.COUNTER and not COUNTED & set(inside):
            self.problems.append(f"{node.name} is a counter: it wants rate or increase")
        if series.kind is not Kind.COUNTER and set(GROWING) & set(inside):
            self.problems.append(f"{node.name} is no counter: no rate of it")
        return series.labels

    def aggregate(self, node: pp.AggregateExpr, inside: tuple[str, ...]) -> frozenset[str]:
        inner = self.labels(node.expr, (str(node.op), *inside)) or frozenset()
        if str(node.op) in KEEPERS:
            return inner
        if node.modifier is None:
            return frozenset()
        named = frozenset(node.modifier.labels)
        if lost := named - inner:
            self.problems.append(f"{node.op} names {sorted(lost)}, which nothing within has")
        return named & inner if node.modifier.type == pp.AggModifierType.By else inner - named

    def call(self, node: pp.Call, inside: tuple[str, ...]) -> frozenset[str] | None:
        name = node.func.name
        if name in GROWING and any(around in GROWING for around in inside):
            self.problems.append(f"{name} within another rate")
        results = [self.labels(arg, (name, *inside)) for arg in node.args]
        if name in NUMBERS:
            return None if name != "vector" else frozenset()
        if name == "label_replace":
            return (results[0] or frozenset()) | {node.args[1].val}
        if name == "histogram_quantile":
            if "le" not in (results[1] or ()):
                self.problems.append("histogram_quantile without le")
            return (results[1] or frozenset()) - {"le"}
        return next((found for found in results if found is not None), None)

    def binary(self, node: pp.BinaryExpr, inside: tuple[str, ...]) -> frozenset[str] | None:
        op = str(node.op)
        around = (*inside, op) if op == "unless" else inside
        left, right = self.labels(node.lhs, around), self.labels(node.rhs, around)
        if op == "/":
            self.divisor(node.rhs)
        if left is None or right is None:
            return right if left is None else left
        matching = node.modifier.matching if node.modifier else None
        included = matching is not None and matching.type == pp.LabelModifierType.Include
        named = frozenset(matching.labels) if matching else frozenset()
        if named and (lost := (named - left) | (named - right)):
            self.problems.append(f"{op} matches on {sorted(lost)}, which one side does not have")
        if op in ("or", "and", "unless"):
            if op == "and" and not matching and left != right:
                self.problems.append(f"{op} of series with different labels: {sorted(left ^ right)}")
            return left | right if op == "or" else left
        if matching is None and left != right:
            self.problems.append(f"{op} of series with different labels never matches: {sorted(left ^ right)}")
        if node.modifier is None or not included:
            return left - named
        group = node.modifier.card
        if group == pp.VectorMatchCardinality.OneToOne:
            return named
        many, one = (left, right) if group == pp.VectorMatchCardinality.ManyToOne else (right, left)
        carried = frozenset(node.modifier.group_labels or ())
        if lost := carried - one:
            self.problems.append(f"{op} carries {sorted(lost)}, which the other side does not have")
        return many | carried

    def divisor(self, node: pp.Expr) -> None:
        """A number, something kept above 0, or a figure that is never 0."""
        inner = node.expr if isinstance(node, pp.ParenExpr) else node
        fine = isinstance(inner, pp.NumberLiteral)
        fine |= isinstance(inner, pp.BinaryExpr) and (str(inner.op) == ">" or _constant(inner))
        fine |= isinstance(inner, pp.VectorSelector) and inner.name in POSITIVE
        if not fine:
            self.problems.append(f"divides by {inner}, which may be 0: say (x > 0)")


def _constant(node: pp.Expr) -> bool:
    if isinstance(node, pp.BinaryExpr):
        return _constant(node.lhs) and _constant(node.rhs)
    return isinstance(node, pp.NumberLiteral)


def read(expr: str, known: Mapping[str, Series]) -> Told:
    """See the module; an expression that does not parse is a ValueError."""
    reader = _Reader(dict(known))
    labels = reader.labels(pp.parse(expr))
    return Told(labels, frozenset(reader.names), tuple(reader.problems))
