# SPDX-License-Identifier: Apache-2.0
"""
The oldest versions that gpushare supports: what the checks call too old. docs/compatibility.md shows the same numbers.

A test compares the two, and the quick start's script. What is older may work, and nobody has tried it.
"""

from __future__ import annotations

from typing import Final

KUBERNETES: Final = (1, 34)
"""The exporter asks kubelets for single pods, which is on by default since."""
KUBELET_CDI: Final = (1, 29)
"""Kubelets give containers the CDI devices of device plugins by default since. From here on to `KUBERNETES` a feature
gate makes up for what is missing."""
CONTAINERD: Final = (2, 1)
"""The oldest that the node agent was run with; NRI and CDI are on by default since 2.0."""
CRIO: Final = (1, 34)
"""As with containerd."""


def dotted(version: tuple[int, int]) -> str:
    """As people write it."""
    return ".".join(map(str, version))
