# SPDX-License-Identifier: Apache-2.0
"""
How to read untrusted JSON: one cursor that knows where it stands.

Decides only whether a value has the shape that Kubernetes gives it; what the value means is
the other `codec_*` modules' business. As in Kubernetes, null means absent.

Errors of the codec, all of them:

    CodecError      a value of the wrong shape; carries its path, so that a reader of files can name the line
    Unacceptable    never leaves the codec: a promise that contradicts itself, turned into a `Refusal` at the border
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

Path = tuple[str | int, ...]

LARGEST: Final = 1 << 62
"""No amount reaches this: sums of two still fit the 64-bit integers of placement and metrics."""
_SHOWN: Final = 60
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
# RFC 1123 as Kubernetes applies it: labels (containers, namespaces) and subdomains (pods, nodes).
_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NAME_LENGTH: Final = 253


class CodecError(ValueError):
    """A value from outside that has the wrong shape; `path` says where, the message what to write instead."""

    def __init__(self, path: Path, message: str) -> None:
        self.path = path
        self.problem = message
        super().__init__(f"{show_path(path)}: {message}" if path else message)

    def under(self, prefix: Path) -> CodecError:
        """The same error, seen from further out."""
        return CodecError(prefix + self.path, self.problem)


class Unacceptable(Exception):  # noqa: N818 (a refusal on its way to becoming a value, not an error)
    """A request that contradicts itself; the message tells its author what to change."""


def show_path(path: Path) -> str:
    """A path as people write it: `spec.containers[0].resources.limits["aliyun.com/gpu-mem"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{show(step)}]"
    return text


def show(value: object) -> str:
    """An untrusted value for a message: short, on one line, without control characters."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_SHOWN else "a number of more than 60 digits"
    text = str(value)
    clean = printable(text, _SHOWN) + ("..." if len(text) > _SHOWN else "")
    return f'"{clean}"' if isinstance(value, str) else clean


class At:
    """A value and where it stands; every reader either returns what it promises or raises CodecError."""

    # No dataclass, and no path that is made before somebody needs it: a pod is some forty of these.
    __slots__ = ("_key", "_parent", "_sound", "value")

    def __init__(self, value: object, path: Path | At = (), key: str | int | None = None) -> None:
        """`path`: where the value stands; with `key`, the cursor in which it is the value of that key."""
        self.value = value
        self._parent, self._key = path, key
        self._sound = False  # whether it was found to be a mapping with text keys

    @property
    def path(self) -> Path:
        """The keys and indices that lead here."""
        if isinstance(self._parent, At):
            return (*self._parent.path, 0 if self._key is None else self._key)
        return self._parent

    def wrong(self, message: str) -> CodecError:
        """An error about this very place."""
        return CodecError(self.path, message)

    def __bool__(self) -> bool:
        return self.value is not None

    def __getitem__(self, key: str) -> At:
        """The field `key` of a mapping; absent stays absent all the way down."""
        mapping = self.value if self._sound else self.mapping()
        return At(mapping.get(key), self, key)  # type: ignore[attr-defined]

    def mapping(self) -> dict[str, object]:
        """A mapping with text keys; absent is empty."""
        value = self.value
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(f"expected a mapping, not {show(value)}; write key: value")
        if not self._sound:
            for key in value:
                if not isinstance(key, str):
                    raise self.wrong(f"the key {show(key)} is not a string; quote it")
            self._sound = True
        return value

    def fields(self) -> Iterator[tuple[str, At]]:
        """The fields of a mapping that are not null."""
        for key, value in self.mapping().items():
            if value is not None:
                yield key, At(value, self, key)

    def items(self) -> list[At]:
        """The items of a list; absent is empty."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.wrong(f"expected a list, not {show(self.value)}; write each item after a dash")
        return [At(item, self, i) for i, item in enumerate(self.value)]

    def text(self, default: str = "") -> str:
        """Text, never a number that was meant as text: Kubernetes refuses that too."""
        if self.value is None:
            return default
        if not isinstance(self.value, str):
            hint = "" if isinstance(self.value, dict | list) else f'; quote it: "{show(self.value)}"'
            raise self.wrong(f"expected a string, not {show(self.value)}{hint}")
        return self.value

    def flag(self) -> bool:
        """A truth; absent is false."""
        if self.value is None:
            return False
        if not isinstance(self.value, bool):
            raise self.wrong(f"expected true or false, not {show(self.value)}")
        return self.value

    def integer(self, default: int, lowest: int = -(1 << 31), highest: int = (1 << 31) - 1) -> int:
        """A whole number within Kubernetes' int32 unless told otherwise."""
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.wrong(f"expected a whole number, not {show(self.value)}")
        if not lowest <= self.value <= highest:
            raise self.wrong(f"{show(self.value)} is outside {lowest} to {highest}")
        return self.value

    # A field of a mapping in one step: only one of the wrong shape needs a cursor that can say where it stands.

    def text_at(self, key: str, default: str = "") -> str:
        """`self[key].text(default)`."""
        value = (self.value if self._sound else self.mapping()).get(key)  # type: ignore[attr-defined]
        if type(value) is str:
            return value
        return default if value is None else self[key].text(default)

    def flag_at(self, key: str) -> bool:
        """`self[key].flag()`."""
        value = self.mapping().get(key)
        return value if type(value) is bool else self[key].flag()

    def texts(self) -> dict[str, str]:
        """A mapping from text to text (labels, annotations, selectors)."""
        mapping = self.mapping()
        # Nearly every one is: no cursor for each of a pod's labels, of which a cluster has a million.
        if all(type(value) is str for value in mapping.values()):
            return dict(mapping)  # type: ignore[arg-type]
        return {key: at.text() for key, at in self.fields()}

    def name(self, default: str = "") -> str:
        """A DNS name as Kubernetes demands of pods and nodes; safe to print."""
        text = self.text(default)
        if not text:
            raise self.wrong("a name is missing")
        if len(text) > _NAME_LENGTH or not _DNS_NAME.fullmatch(text):
            raise self.wrong(f"{show(text)} is not a valid name; use up to 253 lower-case letters, digits, - and .")
        return text

    def label_name(self, default: str = "") -> str:
        """A DNS label as Kubernetes demands of containers and namespaces; safe to print."""
        text = self.text(default)
        if not text:
            raise self.wrong("a name is missing")
        if not is_label_name(text):
            raise self.wrong(f"{show(text)} is not a valid name; use up to 63 lower-case letters, digits and -")
        return text


def is_label_name(text: str) -> bool:
    """Whether this is a DNS label (RFC 1123), as Kubernetes demands of containers and namespaces."""
    return _DNS_LABEL.fullmatch(text) is not None


def decoded(text: str) -> At:
    """JSON in a text, such as an annotation; anything that is no JSON raises CodecError."""
    try:
        return At(json.loads(text))
    except (ValueError, RecursionError) as exc:
        problem = exc.msg if isinstance(exc, json.JSONDecodeError) else "nested too deeply, or a number is too long"
        raise CodecError((), f"not JSON: {problem}") from None
