# SPDX-License-Identifier: Apache-2.0
"""
Hook of mkdocs: links from a page to files of the repository that are no pages lead to the repository.

Decides nothing else; a link to a page stays as it is, and one that leads nowhere stays broken, so that the build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_page_markdown(markdown: str, /, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs with each page."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def target(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found["path"]))
        folder_or_file = "tree" if (ROOT / path).is_dir() else "blob"
        no_page = not path.startswith("docs/") or path.endswith(".yaml") or folder_or_file == "tree"
        if no_page and (ROOT / path).exists():
            return f"{config['repo_url'].rstrip('/')}/{folder_or_file}/main/{path}{found['anchor'] or ''}"
        return found[0]

    return _LINK.sub(target, markdown)
