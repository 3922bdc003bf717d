# SPDX-License-Identifier: Apache-2.0
"""
How a source says that it has nothing to tell.

One class for all of them: a cycle needs to know that a source failed and what a person can do about it,
not in which way.
"""

from __future__ import annotations


class SourceError(Exception):
    """
    The source cannot be read now. The message says why and what to do.

    It is shown in the log and by `--once`; the source's families are absent until it can be read again.
    """
