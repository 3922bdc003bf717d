# SPDX-License-Identifier: Apache-2.0
"""
Which labels the result of a PromQL expression has, and what of it names something that does not exist.

An upper bound read off the expression: selectors from a table of series, aggregations and matchings from the text.
Faults are collected, not raised, so that a test shows all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import promql_parser as promql

    from dashboards.promql import Series

COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
SETS = frozenset({"and", "or", "unless"})
OF_COUNTERS = frozenset({"rate", "increase", "irate", "resets"})
NO_LABELS = frozenset({"absent", "absent_over_time", "vector", "time", "scalar"})


def walk(node: promql.Expr) -> Iterator[promql.Expr]:
    """The node and everything below it, selectors of ranges too."""
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        below = getattr(node, name, None)
        if below is not None:
            yield from walk(below)
    for below in getattr(node, "args", None) or ():
        yield from walk(below)


@dataclass
class Judge:
    """Judges expressions over these series; `faults` says what was found."""

    known: Mapping[str, Series]
    recorded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def labels(self, node: promql.Expr) -> frozenset[str] | None:
        """Labels of the result; None of a scalar."""
        kind = type(node).__name__
        found: frozenset[str] | None = getattr(self, f"_{kind.lower()}")(node)
        return found

    def _vectorselector(self, node: Any) -> frozenset[str] | None:
        has = self.recorded.get(node.name)
        if has is None:
            if node.name not in self.known:
                self.faults.append(f"no series {node.name}")
                return frozenset()
            has = self.known[node.name].labels
        for matcher in node.matchers.matchers:
            if matcher.name not in has:
                self.faults.append(f"{node.name} has no label {matcher.name}")
        return has

    def _matrixselector(self, node: Any) -> frozenset[str] | None:
        return self.labels(node.vector_selector)

    def _subqueryexpr(self, node: Any) -> frozenset[str] | None:
        return self.labels(node.expr)

    def _parenexpr(self, node: Any) -> frozenset[str] | None:
        return self.labels(node.expr)

    _unaryexpr = _parenexpr

    def _numberliteral(self, _: Any) -> frozenset[str] | None:
        return None

    _stringliteral = _numberliteral

    def _call(self, node: Any) -> frozenset[str] | None:
        of = [self.labels(arg) for arg in node.args]
        if node.func.name in NO_LABELS:
            return None if node.func.name in {"time", "scalar"} else frozenset()
        vectors = [labels for labels in of if labels is not None]
        return vectors[0] if vectors else None

    def _aggregateexpr(self, node: Any) -> frozenset[str] | None:
        has = self.labels(node.expr) or frozenset()
        if node.modifier is None:
            return frozenset()
        named = frozenset(node.modifier.labels)
        if missing := named - has:
            self.faults.append(f"aggregation names {sorted(missing)}, which {node.expr} has not")
        return named if "By" in str(node.modifier.type) else has - named

    def _binaryexpr(self, node: Any) -> frozenset[str] | None:
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        if left is None or right is None:
            return left if right is None else right
        matching = node.modifier.matching if node.modifier else None
        if matching is None:
            if left != right:
                self.faults.append(f"{node.op} matches {sorted(left)} with {sorted(right)}: never equal")
            return left
        named = frozenset(matching.labels)
        on = "Include" in str(matching.type)
        if on and (missing := named - (left & right)):
            self.faults.append(f"on ({sorted(missing)}) of {node.op}: not on both sides")
        card = str(node.modifier.card)
        if str(node.op) in SETS:
            return left & right if str(node.op) == "or" else left
        group: frozenset[str] = frozenset(
            node.modifier.group_labels.labels
            if hasattr(node.modifier.group_labels, "labels")
            else node.modifier.group_labels or ()
        )
        if "ManyToOne" in card or "OneToMany" in card:
            many, single = (left, right) if "ManyToOne" in card else (right, left)
            if missing := group - single:
                self.faults.append(f"group takes {sorted(missing)}, which is not there")
            return many | group
        return named if on else (left & right) - named
