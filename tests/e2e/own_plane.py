# SPDX-License-Identifier: Apache-2.0
"""
A control plane for one module of tests alone, that writes down who asks for what.

Not started: whoever has it may want something to be there before.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

import pytest
import yaml
from e2e.binaries import Missing, find
from e2e.plane import ControlPlane

from isolation.contract.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_AUDIT = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
_AUDIT |= {"omitStages": ["RequestReceived"]}


def audited(folder: Path) -> ControlPlane:
    """Its programs as the shared plane's; without them a skip with the remedy, under CI a failure."""
    programs = find()
    if isinstance(programs, Missing):
        pytest.fail(str(programs)) if os.environ.get("CI") == "true" else pytest.skip(str(programs))
    (folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT))
    flags = (f"--audit-policy-file={folder}/audit.yaml", f"--audit-log-path={folder}/audit.log")
    return ControlPlane(programs, folder, flags)


class Asked(NamedTuple):
    """One request, by the API server's own record."""

    group: str
    resource: str
    """With its sub-resource."""
    verb: str
    status: int
    program: str

    @property
    def right(self) -> tuple[str, str, str]:
        """As in the table of rights."""
        return self.group, self.resource, self.verb


def asked_by(plane: ControlPlane, account: str) -> Iterator[Asked]:
    """What an account of ours asked for so far."""
    user = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{account}"
    for line in (plane._folder / "audit.log").read_text().splitlines():
        event = json.loads(line)
        if event["user"]["username"] == user:
            about = event.get("objectRef", {})
            parts = [about.get("resource", ""), about.get("subresource", "")]
            resource = "/".join(part for part in parts if part)
            status = event.get("responseStatus", {}).get("code", 0)
            yield Asked(about.get("apiGroup", ""), resource, event["verb"], status, event.get("userAgent", ""))
