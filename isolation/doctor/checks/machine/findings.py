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


def check_machine(facts: MachineFacts) -> list[Finding]:
    """Cards first: without them nothing else matters."""
    found = cards.check_cards(facts)
    kubelet = machine_kubelet.check_kubelet(facts.kubelet)
    if kubelet:  # a node of a cluster: else there is nobody to whom a runtime would hand a card
        found += runtime.check_runtime(facts.runtime) + kubelet
    return found + system.check_system(facts, node=bool(kubelet))
