# SPDX-License-Identifier: Apache-2.0
"""Promises that a writer has put on disk, and the exporter's source that reads them."""

from __future__ import annotations

from exporter.sources.promises import PromiseSource
from isolation.contract.host_allocation import Tenant

TENANT = Tenant("ml", "train-0", "1140914f-bf25-4cf5-a28a-2853bcd66768", "main")


def source_on(writer, folder):
    """The source on what is written; a second book and the control groups are below the folder."""
    return PromiseSource([writer.book, folder / "other-book"], writer.run_dir, writer.proc, folder / "cgroup")


def names(facts):
    """Promise ids, in the order told."""
    return [one.hold.id for one in facts.holds]
