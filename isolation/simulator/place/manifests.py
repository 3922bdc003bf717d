# SPDX-License-Identifier: Apache-2.0
"""
Manifest files into the pods they would make, each with the place where it stands.

Decides what can be read; every complaint names file, line and what to change. What the pods
ask for is the codec's business, where they land is placement's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.codec.workloads import Planned, Skipped, objects_in, pods_of
from isolation.contract.dialects import translate
from isolation.simulator.place.yaml_document import MAX_BYTES, Document, DocumentError, documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from isolation.contract.codec import cursor
    from isolation.contract.dialects import Offered
    from isolation.contract.model import Refusal

T = TypeVar("T")

STDIN: Final = "-"


class ManifestError(ValueError):
    """A file that cannot be read as manifests; the message is `file:line:column: problem; fix`."""


@dataclass(frozen=True, slots=True)
class ManifestSource:
    """One file's text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Located:
    """One object of a file."""

    source: str
    path: cursor.Path
    at: At
    document: Document

    @property
    def line(self) -> int:
        """Where it begins; computed only on demand."""
        return self.document.line_of(self.path)

    def wrong(self, exc: CodecError) -> ManifestError:
        """A complaint of the codec, with the line where it stands."""
        line = self.document.line_of(self.path + exc.path)
        return ManifestError(f"{self.source}:{line}: {exc}")

    @property
    def key(self) -> str:
        """`Kind/namespace/name`, as owner references name it."""
        metadata = self.at["metadata"]
        return f"{self.at['kind'].text()}/{metadata['namespace'].text('default')}/{metadata['name'].text()}"


@dataclass(frozen=True, slots=True)
class RequestedPods:
    """Everything that files ask to be placed, in file order, and what of them was passed over."""

    pods: tuple[Planned, ...]
    notes: tuple[str, ...]


def read(name: str, stdin: BinaryIO, most_bytes: int = MAX_BYTES) -> ManifestSource:
    """The text of a file, `-` being standard input."""
    shown = "<stdin>" if name == STDIN else name
    try:
        if name == STDIN:
            raw = stdin.read(most_bytes + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(most_bytes + 1)
    except OSError as exc:
        hint = "pass its files instead" if isinstance(exc, IsADirectoryError) else "check the path"
        raise ManifestError(f"{shown}: {(exc.strerror or 'cannot be read').lower()}; {hint}") from None
    if len(raw) > most_bytes:
        raise ManifestError(f"{shown}: larger than {most_bytes >> 20} MiB; split the file")
    try:
        return ManifestSource(shown, raw.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise ManifestError(f"{shown}:{line}: byte {exc.start} is not UTF-8; save the file as UTF-8") from None


def iterate_objects(source: ManifestSource) -> Iterator[Located]:
    """Every Kubernetes object of a file; Lists count as their items, empty documents as nothing."""
    try:
        for document in documents(source.text):
            if document.value is None:
                continue
            try:
                found = list(objects_in(document.value))
            except CodecError as exc:
                line = document.line_of(exc.path)
                raise ManifestError(f"{source.name}:{line}: {exc}") from None
            for path, at in found:
                yield Located(source.name, path, At(at.value), document)
    except DocumentError as exc:
        raise ManifestError(f"{source.name}:{exc.line}:{exc.column}: {exc.problem}") from None


def read_pods(sources: Sequence[ManifestSource], offered: Offered) -> RequestedPods:
    """The pods of all files, in any dialect; pods whose controller is in the files too are counted there."""

    def translated(metadata: dict[str, object], spec: object, namespace: str) -> tuple[object, object] | Refusal:
        found = translate({"metadata": metadata, "spec": spec}, offered, namespace)
        notes.extend(found.warnings)
        return found.refusal or (found.metadata.value, found.spec.value)

    pods: list[Planned] = []
    notes: list[str] = []
    found = [located for source in sources for located in iterate_objects(source)]
    keys = {guarded(located, lambda o: o.key) for located in found}
    for located in found:
        made_above = guarded(located, lambda o: skip_if_controlled(o, keys))
        outcome = made_above or guarded(
            located, lambda o: pods_of(o.at.value, unit_bytes=offered.unit_bytes, translated=translated)
        )
        if isinstance(outcome, Skipped):
            notes.append(f"{located.source}:{located.line}: {outcome.what} {outcome.reason}")
        else:
            pods += outcome
    notes += [
        f"{source.name}: the file contains no objects"
        for source in sources
        if source.name not in {o.source for o in found}
    ]
    seen: set[str] = set()
    for pod in pods:
        if pod.key in seen:
            notes.append(f"pod {pod.key} is defined more than once; every definition is counted")
        seen.add(pod.key)
    return RequestedPods(tuple(pods), tuple(dict.fromkeys(notes)))


def guarded(located: Located, ask: Callable[[Located], T]) -> T:
    """What the codec says of an object, its complaints with the line they are about."""
    try:
        return ask(located)
    except CodecError as exc:
        raise located.wrong(exc) from None


def skip_if_controlled(located: Located, keys: set[str]) -> Skipped | None:
    """An object that another object of the same files makes, as in the output of `kubectl get all`."""
    for reference in located.at["metadata"]["ownerReferences"].items():
        namespace = located.at["metadata"]["namespace"].text("default")
        owner = f"{reference['kind'].text()}/{namespace}/{reference['name'].text()}"
        if reference["controller"].flag() and owner in keys:
            kind, _, name = located.key.split("/", 2)
            return Skipped(f"{kind} {name}", f"is skipped: the {reference['kind'].text()} that creates it is counted")
    return None
