# SPDX-License-Identifier: Apache-2.0
"""The simulated cards of the demo overlay: made by the init container's own command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from e2e.manifest_build import objects, templates
from e2e.manifest_installation import program
from support.waiting import PATIENCE_SECONDS

from isolation.simgpu.hardware import Box


def made(folder, path, node):
    """UUIDs of the cards in the file that the container leaves on that node."""
    [container] = [
        one for one in templates(objects("demo"))["gpushare-node"]["spec"]["initContainers"] if one["name"] == "cards"
    ]
    *command, file = container["command"]
    assert file.startswith("/var/lib/gpushare/")
    subprocess.run(
        [*command, str(path / node / "demo/hardware")],
        env={"NODE_NAME": node, "PATH": os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.defpath))},
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    box = Box(path / node / "demo/hardware")
    try:
        return [bytes(card.model.uuid) for card in box.cards()]
    finally:
        box.close()


def test_each_node_has_cards_of_its_own_and_keeps_them(tmp_path):
    """
    Two nodes share no UUID, by which cards are told apart in a cluster; a new agent on a node finds the same cards.
    """
    folder = program(tmp_path / "bin")
    one, two = (made(folder, tmp_path, node) for node in ("node-1", "node-2"))
    assert [2, 4] == [len(one), len({*one, *two})]
    assert one == made(folder, tmp_path, "node-1")
