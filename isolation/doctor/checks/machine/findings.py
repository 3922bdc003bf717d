# SPDX-License-Identifier: Apache-2.0
"""
All findings about one machine.

Pure: joins what the parts say, in the order in which a person would mend it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.doctor.checks.machine import cards, runtime, system
from isolation.doctor.checks.machine import kubelet as machine_kubelet

if TYPE_CHECKING:
    from isolation.doctor.checks.finding import Finding
    from isolation.doctor.checks.machine.facts import MachineFacts


def judged(facts: MachineFacts) -> list[Finding]:
    """Cards first: without them nothing else matters."""
    found = cards.look(facts)
    kubelet = machine_kubelet.look(facts.kubelet)
    if kubelet:  # a node of a cluster: else there is nobody to whom a runtime would hand a card
        found += runtime.look(facts.runtime) + kubelet
    return found + system.look(facts, node=bool(kubelet))
