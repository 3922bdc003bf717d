# SPDX-License-Identifier: Apache-2.0
"""
Turns of phrase of alerts: who, where and how much, as templates over the labels that a series has.

Pure. A template here may only be used where its query keeps those labels; a test holds every alert to that.
"""

from __future__ import annotations

from typing import Final

DAY: Final = 86_400
"""Seconds."""
WHO: Final = (
    "container {{ $labels.container }} of {{ if $labels.namespace }}{{ $labels.namespace }}/{{ end }}{{ $labels.pod }}"
)
CARD: Final = "card {{ $labels.card }} of node {{ $labels.node }}"
UUID: Final = "{{ $labels.uuid }}"
NODE: Final = "node {{ $labels.node }}"
TARGET: Final = "{{ $labels.instance }}"
BYTES: Final = "{{ $value | humanize1024 }}B"
COUNT: Final = '{{ $value | printf "%.0f" }}'
PART: Final = "{{ $value | humanizePercentage }}"
WHILE: Final = "{{ $value | humanizeDuration }}"
