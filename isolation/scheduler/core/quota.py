# SPDX-License-Identifier: Apache-2.0
"""
Quotas: how much shared memory a namespace may have of each card model, and how much it uses.

Knows neither nodes nor pods, only what it is charged. A model that a quota does not name is not limited, nor is a
namespace without a quota; a limit of 0 blocks the model. Amounts are bytes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from isolation.contract.quantity import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Charge = tuple[tuple[str, int], ...]
"""Bytes by card model."""


class QuotaUsage:
    """See the module."""

    def __init__(self, unit_bytes: int) -> None:
        self._unit = unit_bytes
        self._limits: dict[str, Mapping[str, int]] = {}
        self._spent: defaultdict[tuple[str, str], int] = defaultdict(int)

    def set_limit(self, namespace: str, units: Mapping[str, int] | None) -> None:
        """Set the quota of a namespace, in units by card model; None removes it."""
        if units is None:
            self._limits.pop(namespace, None)
        else:
            self._limits[namespace] = {model: max(0, most) for model, most in units.items()}

    def charge(self, namespace: str, charge: Charge) -> None:
        """Count what a pod or reservation of the namespace holds from now on."""
        for model, amount in charge:
            self._spent[namespace, model] += amount

    def refund(self, namespace: str, charge: Charge) -> None:
        """Count it no longer."""
        for model, amount in charge:
            left = self._spent[namespace, model] - amount
            if left:
                self._spent[namespace, model] = left
            else:
                del self._spent[namespace, model]

    def is_limited(self, namespace: str) -> bool:
        """Whether any card model is limited there."""
        return bool(self._limits.get(namespace))

    def used(self, namespace: str, model: str) -> int:
        """Bytes of the model that the namespace uses."""
        return self._spent.get((namespace, model), 0)

    def explain_refusal(self, namespace: str, models: Iterable[str], amount: int) -> str:
        """Why the namespace cannot have so many more bytes on one of these models; empty: it can."""
        limits = self._limits.get(namespace)
        if not limits:
            return ""
        for model in sorted(models):
            most, spent = limits.get(model), self.used(namespace, model)
            if most is not None and spent + amount > most * self._unit:
                of = show_bytes(most * self._unit)
                cards = model or "cards without a model"
                return f"exceeds the quota of namespace {namespace} for {cards}: {show_bytes(spent)} of {of} used"
        return ""
