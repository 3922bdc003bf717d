# SPDX-License-Identifier: Apache-2.0
"""
Dashboards as files: what each holds, and whether those that are committed are what the code would write.

Knows where files lie and how they are compared; what stands in them is `encode`'s.
"""

from __future__ import annotations

import json
from difflib import unified_diff
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dashboards.boards import autoscaler, breaches, card, internals, namespace, overview, pod
from dashboards.boards.grafana_json import encode_dashboard
from isolation.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.boards.dashboard import Dashboard

BOARDS: Final = (
    overview.BOARD,
    card.BOARD,
    pod.BOARD,
    namespace.BOARD,
    breaches.BOARD,
    autoscaler.BOARD,
    internals.BOARD,
)
FOLDER: Final = Path(__file__).resolve().parents[1] / "json"
_SHOWN: Final = 12
"""Lines of difference that are enough to see what changed."""


def text(board: Dashboard) -> str:
    """The file's content; the same code writes the same bytes."""
    return json.dumps(encode_dashboard(board), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def written(folder: Path) -> list[Path]:
    """Write every dashboard, or none; what else lies in the folder stays."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / f"{board.uid}.json": text(board) for board in BOARDS}
    write_whole(texts)
    return list(texts)


def stale(folder: Path) -> Iterator[str]:
    """What is wrong with the files of the folder, a paragraph each: missing, different, or nobody's."""
    for board in BOARDS:
        path = folder / f"{board.uid}.json"
        try:
            found = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            yield f"{path.name} is missing"
            continue
        except (OSError, UnicodeDecodeError) as exc:
            yield f"{path.name} cannot be read: {exc}"
            continue
        if found != (expected := text(board)):
            lines = unified_diff(found.splitlines(), expected.splitlines(), "committed", "built", lineterm="", n=1)
            yield "\n".join((f"{path.name} is stale:", *islice(lines, _SHOWN)))
    known = {f"{board.uid}.json" for board in BOARDS}
    for path in sorted(folder.glob("*.json")):
        if path.name not in known:
            yield f"{path.name} is not a gpushare dashboard: delete it"
