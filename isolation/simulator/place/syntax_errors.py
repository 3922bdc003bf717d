# SPDX-License-Identifier: Apache-2.0
"""
What is wrong with a text that no parser could read, and what its author should do.

Decides the words; where reading stops is `document`'s business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import yaml


class DocumentError(ValueError):
    """Text that cannot be read; `line` and `column` count from 1 (0: the file as a whole)."""

    def __init__(self, line: int, column: int, message: str) -> None:
        self.line, self.column, self.problem = line, column, message
        super().__init__(message)


# What the parser says, and what a person should do about it; the first that is contained wins.
_FIXES: Final = (
    ("cannot start any token", "quote the value, and indent with spaces, never with tabs"),
    ("mapping values are not allowed", "quote the value if it contains ': ', or align this line with the one above"),
    ("could not find expected ':'", "write key: value, with a colon and a space"),
    ("did not find expected key", "align this line with the keys above it, and close every quote"),
    ("did not find expected '-' indicator", "start every item of the list with a dash, all in one column"),
    ("did not find expected ',' or", "add the missing comma or close the bracket"),
    ("block sequence entries are not allowed", "start the list on a line of its own"),
    ("unexpected end of stream", "close the quote or bracket"),
    ("undefined alias", "define the anchor above its use"),
    ("escape", "write the backslash twice, or use single quotes"),
)
_DEFAULT_FIX: Final = "check indentation, quotes and brackets here"


def explained(exc: yaml.YAMLError, text: str) -> DocumentError:
    """The parser's complaint with its place and what to do."""
    mark = getattr(exc, "problem_mark", None)
    if mark is None:
        position = getattr(exc, "position", 0)
        before = text[: position if isinstance(position, int) else 0]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        return DocumentError(line, column, "YAML does not allow this character; remove it or save the file as UTF-8")
    problem = str(getattr(exc, "problem", None) or "cannot be read")
    fix = next((fix for part, fix in _FIXES if part in problem), _DEFAULT_FIX)
    lines = text.splitlines()
    if "{{" in (lines[mark.line] if mark.line < len(lines) else ""):
        fix = "this looks like a template; render it first (helm template)"
    start = getattr(exc, "context_mark", None)
    opened = (
        f" (in the block that starts on line {start.line + 1})" if start is not None and start.line != mark.line else ""
    )
    return DocumentError(mark.line + 1, mark.column + 1, f"{problem}{opened}; {fix}")
