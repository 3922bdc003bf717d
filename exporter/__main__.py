# SPDX-License-Identifier: Apache-2.0
"""`python -m exporter`: the same as `gpushare exporter`, for an image that has nothing else."""

from __future__ import annotations

from exporter.cli import exporter

if __name__ == "__main__":
    exporter(prog_name="python -m exporter")
