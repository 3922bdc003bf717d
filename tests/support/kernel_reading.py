# SPDX-License-Identifier: Apache-2.0
"""What the exporter's kernel source tells of a tree of processes and control groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exporter.sources.kernel import KernelSource

if TYPE_CHECKING:
    from support.cgroup_tree import CgroupTree

UID = "1140914f-bf25-4cf5-a28a-2853bcd66768"
OTHER = "9a0f37e1-0f6a-4a53-9f5f-30dbdd1b4f77"
BOX, VICTIM = "a" * 64, "b" * 64


def source(tree: CgroupTree) -> KernelSource:
    """The kernel source over a tree."""
    return KernelSource(tree.proc, tree.cgroup)
