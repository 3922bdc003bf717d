"""
All findings about one machine.

Pure: joins what the parts say, in the order in which a person would mend it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation.doctor import machine_cards, machine_kubelet, machine_runtime, machine_system

if TYPE_CHECKING:
    from isolation.doctor.finding import Finding
    from isolation.doctor.machine_facts import MachineFacts


def judged(facts: MachineFacts) -> list[Finding]:
    """Cards first: without them nothing else matters."""
    found = machine_cards.look(facts)
    kubelet = machine_kubelet.look(facts.kubelet)
    if kubelet:  # a node of a cluster: else there is nobody to whom a runtime would hand a card
        found += machine_runtime.look(facts.runtime) + kubelet
    return found + machine_system.look(facts, node=bool(kubelet))
