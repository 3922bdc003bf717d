# SPDX-License-Identifier: Apache-2.0
"""Promises that a writer has put on disk, and the exporter's source that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exporter.sources.promises import PromiseSource
from isolation.contract.host_allocation import Tenant

if TYPE_CHECKING:
    from pathlib import Path

    from support.hold_writer import HoldWriter

    from exporter.pipeline.snapshot import PromiseSample

TENANT = Tenant("ml", "train-0", "1140914f-bf25-4cf5-a28a-2853bcd66768", "main")


def source_on(writer: HoldWriter, folder: Path) -> PromiseSource:
    """The source on what is written; a second book and the control groups are below the folder."""
    return PromiseSource([writer.book, folder / "other-book"], writer.run_dir, writer.proc, folder / "cgroup")


def names(facts: PromiseSample) -> list[str]:
    """Promise ids, in the order told."""
    return [one.hold.id for one in facts.holds]
