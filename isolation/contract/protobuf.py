# SPDX-License-Identifier: Apache-2.0
"""
Protobuf messages built at run time from their documented names and numbers.

No generated file has to be kept in step, and no other package's `v1` gets in the way: each `Wire` has a pool
of its own. Decides how a field is written down, and nothing about what any message means.

A field reads `number type`:
    "1 string"      a scalar (string, bytes, bool, double, int32, int64), or a message of the same package
    "2 *string"     repeated
    "3 {string}"    a map from text to that type
    "4 core.Node"   a message of another package of the same wire
An enum is written as int32, which is the same on the wire. Presence is proto3's: a scalar that is 0 or
empty cannot be distinguished from one that is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor_pb2 import DescriptorProto

_SCALARS: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "bool": FieldDescriptorProto.TYPE_BOOL,
}
_REPEATED: Final = "*"


class Wire:
    """Packages that belong together; messages may name those of packages that were added before."""

    def __init__(self) -> None:
        self._pool = DescriptorPool()
        self._files: list[str] = []

    def package(self, package: str, messages: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
        """Classes of the messages, by name; fields as the module says."""
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3", dependency=self._files)
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field, text in fields.items():
                number, kind = text.split()
                _add(message, f"{package}.{name}", field, int(number), kind)
        self._pool.Add(file)
        self._files.append(file.name)
        return {name: GetMessageClass(self._pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add(message: DescriptorProto, path: str, field: str, number: int, kind: str) -> None:
    added = message.field.add(name=field, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    package = path.rpartition(".")[0]
    if kind.startswith("{"):
        added.label, added.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_MESSAGE
        added.type_name = f".{path}.{_entry(message, package, field, kind.strip('{}'))}"
        return
    if kind.startswith(_REPEATED):
        added.label = FieldDescriptorProto.LABEL_REPEATED
    _type(added, package, kind.removeprefix(_REPEATED))


def _entry(message: DescriptorProto, package: str, field: str, kind: str) -> str:
    """A map is a repeated message of key and value, under a name that follows from the field's."""
    name = "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for at, (part, of) in enumerate((("key", "string"), ("value", kind)), 1):
        added = entry.field.add(name=part, number=at, label=FieldDescriptorProto.LABEL_OPTIONAL)
        _type(added, package, of)
    return name


def _type(field: FieldDescriptorProto, package: str, kind: str) -> None:
    scalar = _SCALARS.get(kind)
    field.type = FieldDescriptorProto.TYPE_MESSAGE if scalar is None else scalar
    if scalar is None:
        field.type_name = f".{kind}" if "." in kind else f".{package}.{kind}"
