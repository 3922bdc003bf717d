# SPDX-License-Identifier: Apache-2.0
"""
Which tests CI may skip, by the reason they give.

Decides what a CI machine cannot be asked to have. Any other skip there hides a broken set-up behind a green run, and is
a failure (tests/conftest.py); on a machine of one's own every skip stays one.
"""

from __future__ import annotations

import re

ALLOWED = {
    "a GPU": r"no NVIDIA card|card \d+ \(.*\) is in use|nvidia-smi is not installed|PyTorch is not installed",
    "the folder beside the checkout": r"(\.\./|/)shared/|beside this (checkout|repository)|beside the checkout",
    "another processor": r"x86-64 assembler|of one machine$",
    "an archive of distributions long out of support": r"no glibc 2\.17 in ",
    "rights over the machine": (
        r"root|needs two users|give a folder away|mount namespace|control group|IPv6|cannot be added to lo|but loopback"
    ),
    "a program of others, tried where there is one": (
        r"^(Skipped: )?(apt-get|cargo|dpkg-deb|fish|git|java|javac|mvn|node|perl|zsh) is not installed"
    ),
    "a version that a distribution has replaced": r"withdrawn by Debian: ",
}
"""What CI cannot have, and the reasons that name it."""


def failure(reason: str) -> str | None:
    """What is wrong with a skip in CI; None where it names something that CI cannot have."""
    if any(re.search(known, reason) for known in ALLOWED.values()):
        return None
    return f"skipped under CI=true, which must have what this needs: {reason.removeprefix('Skipped: ')}"
