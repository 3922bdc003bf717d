# SPDX-License-Identifier: Apache-2.0
"""
What a container needs to reach its cards: device nodes and the driver's libraries, or simulated ones.

Cards are UUIDs; the number of /dev/nvidia<N> is the kernel's word at that moment. Device nodes and the user-mode driver
come by a CDI spec of ours, which takes the driver's files over from the vendor's; NVIDIA_VISIBLE_DEVICES stays `void`,
for a runtime of NVIDIA's would add the same once more.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import yaml

from isolation.contract.names import ACK, CARD_KIND, CDI_DIR, IN_CONTAINER
from isolation.contract.nri_api import VOID
from isolation.files import replace_file
from isolation.host.machine import SIMGPU
from isolation.node.backend import UndeliverableError
from isolation.node.cdi import Edits, Mount, cards_spec, resolve, vendor_of
from isolation.simgpu.owner import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from isolation.contract.model import Card, Slice
    from isolation.node.cdi import Vendor

_log: Final = logging.getLogger(__name__)
CDI_DIRS: Final = (Path("/etc/cdi"), Path(CDI_DIR))
DRIVER: Final = Path("/proc/driver/nvidia/gpus")
CAPABILITIES: Final = Path("/proc/driver/nvidia/capabilities")
"""What may be done with MIG instances, and by which device file it is allowed."""
CAPS: Final = "nvidia-caps/nvidia-cap"
CONTROL: Final = ("nvidiactl", "nvidia-uvm")
OPTIONAL: Final = ("nvidia-uvm-tools",)
MAX_BYTES: Final = 4 << 20
_FILE: Final = "gpushare-cards.json"
_UUID: Final = re.compile(r"^GPU UUID:\s*(\S+)$", re.MULTILINE)
_MINOR: Final = re.compile(r"^Device Minor:\s*([0-9]+)$", re.MULTILINE)
_CAPABILITY: Final = re.compile(r"^DeviceFileMinor:\s*([0-9]{1,7})$", re.MULTILINE)
SIMULATED: Final = ("libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so.12", "libcudart.so.13")


class CardAccess(Protocol):
    """How containers reach cards."""

    def edits(self, slices: Sequence[Slice], cards: Mapping[str, Card]) -> Edits:
        """For these of the node's cards; UndeliverableError where one of them is not there."""


class NvidiaHardware:
    """Cards behind NVIDIA's kernel driver."""

    def __init__(
        self,
        cdi_dir: Path = Path(CDI_DIR),
        dev: Path = Path("/dev"),
        driver: Path = DRIVER,
        vendor_dirs: Iterable[Path] = CDI_DIRS,
        capabilities: Path = CAPABILITIES,
        *,
        looks_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`cdi_dir`: where our own spec is written; `looks_up`: whether the runtime takes CDI devices by name."""
        self._looks_up = looks_up
        self._file = cdi_dir / _FILE
        self._dev, self._driver, self._dirs = dev, driver, tuple(vendor_dirs)
        self._capabilities = capabilities
        self._read: dict[Path, tuple[tuple[int, int, int], Vendor | None]] = {}

    def edits(self, slices: Sequence[Slice], cards: Mapping[str, Card]) -> Edits:
        """See `CardAccess`."""
        minors = self._minors()
        names = [*(name for part in slices for name in self._names(part.uuid, cards, minors)), *CONTROL]
        missing = [name for name in names if not (self._dev / name).is_char_device()]
        if missing:
            advice = "run `nvidia-modprobe -u -c=0` on the node, or start nvidia-persistenced"
            if missing[0].startswith(CAPS):
                advice = "run `nvidia-modprobe -f CAPABILITY` for it on the node, or install nvidia-container-toolkit"
            raise UndeliverableError(f"{self._dev}/{missing[0]} is not a device file: {advice}")
        spec = self._write(self._listed(cards, minors))
        env, devices = {ACK.env_visible: VOID}, tuple(f"{CARD_KIND}={part.uuid}" for part in slices)
        if self._looks_up():
            return Edits(env, devices=devices)
        try:
            return Edits(env, injected=resolve(spec, devices, self._numbers))
        except (KeyError, TypeError, AttributeError) as exc:
            raise UndeliverableError(f"the vendor's CDI spec has an invalid entry: {exc!r}") from None

    def _numbers(self, path: str) -> tuple[int, int]:
        found = (self._dev / Path(path).relative_to("/dev")).stat()
        return os.major(found.st_rdev), os.minor(found.st_rdev)

    def _names(self, uuid: str, cards: Mapping[str, Card], minors: Mapping[str, int]) -> list[str]:
        """Device nodes of a card below /dev; UndeliverableError where the driver has no such card."""
        instance = cards[uuid].instance if uuid in cards else None
        board = uuid if instance is None else instance.parent
        if board not in minors:
            raise UndeliverableError(f"the driver does not list {board}: it may have fallen off the bus")
        found = [f"nvidia{minors[board]}"]
        if instance is None:
            return found
        # https://docs.nvidia.com/datacenter/tesla/mig-user-guide: "/dev Based nvidia-capabilities"
        gpu = self._capabilities / f"gpu{minors[board]}/mig/gi{instance.gpu}"
        for file in (gpu / "access", gpu / f"ci{instance.compute}/access"):
            try:
                match = _CAPABILITY.search(file.read_text("utf-8", "replace"))
            except OSError:
                match = None
            if match is None:
                raise UndeliverableError(
                    f"the driver has no MIG instance {uuid} ({file}): its partitions were changed; the pod cannot run "
                    "here any more: delete it"
                )
            found.append(f"{CAPS}{match[1]}")
        return found

    def _listed(self, cards: Mapping[str, Card], minors: Mapping[str, int]) -> dict[str, list[str]]:
        """Device nodes of every card that has all of its own, by UUID."""
        found = {}
        for uuid in {*cards, *minors}:
            try:
                names = self._names(uuid, cards, minors)
            except UndeliverableError:
                continue
            if all((self._dev / name).is_char_device() for name in names):
                found[uuid] = [f"/dev/{name}" for name in names]
        return found

    def _write(self, nodes: Mapping[str, Sequence[str]]) -> str:
        """Our spec, where it is not what it should be: the runtime reads it when a container is created."""
        vendor = self._vendor()
        if vendor is None:
            raise UndeliverableError(
                f"no CDI spec of kind {ACK.whole} in {' or '.join(map(str, self._dirs))}: it lists the driver's files; "
                "run `nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml` on the node, or start "
                "nvidia-cdi-refresh"
            )
        common = [f"/dev/{name}" for name in (*CONTROL, *OPTIONAL) if (self._dev / name).is_char_device()]
        text = cards_spec(nodes, common, vendor)
        if not self._file.is_file() or self._file.read_text("utf-8") != text:
            replace_file(self._file, text)
        return text

    def _vendor(self) -> Vendor | None:
        """The first spec of the vendor's that can be read, read again when it changes."""
        for folder in self._dirs:
            for path in sorted(folder.glob("*.*")) if folder.is_dir() else ():
                if path.suffix in {".json", ".yaml", ".yml"} and not path.name.startswith((".", "gpushare")):
                    found = self._spec(path)
                    if found is not None:
                        return found
        return None

    def _spec(self, path: Path) -> Vendor | None:
        try:
            about = path.stat()
            stamp = (about.st_ino, about.st_size, about.st_mtime_ns)
            if path not in self._read or self._read[path][0] != stamp:
                self._read[path] = (stamp, vendor_of(_document(path, about.st_size), ACK.whole))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as exc:
            _log.warning("ignoring unreadable file %s: %s", path, exc)
            return None
        return self._read[path][1]

    def _minors(self) -> dict[str, int]:
        """Number of the device node by UUID."""
        found = {}
        for file in self._driver.glob("*/information"):
            try:
                text = file.read_text("utf-8", "replace")
            except OSError:
                continue
            uuid, minor = _UUID.search(text), _MINOR.search(text)
            if uuid and minor:
                found[uuid[1]] = int(minor[1])
        return found


def _document(path: Path, size: int) -> Any:
    if size > MAX_BYTES:
        raise ValueError("file is too large for a CDI spec")
    text = path.read_text("utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


class SimulatedHardware:
    """Cards of a simulated machine: its file and its driver are put into the container."""

    def __init__(self, hardware: Path, libraries: Path, run_dir: Path) -> None:
        """`libraries`: the simulated driver; it is copied to where the host finds it."""
        self._hardware, self._from, self._libraries = hardware, libraries, run_dir / "simgpu"

    def edits(self, slices: Sequence[Slice], cards: Mapping[str, Card]) -> Edits:  # noqa: ARG002 (all are in one file)
        """See `CardAccess`; every card is in one file, so its driver is told which ones it sees."""
        if not self._hardware.is_file():
            raise UndeliverableError(f"{self._hardware} is not a file: the simulated machine is gone")
        self._install()
        inside = f"{IN_CONTAINER}/simgpu"
        owner = Path(f"{self._hardware}{SUFFIX}")
        owned = (Mount(str(owner), f"{inside}/hardware{SUFFIX}", writable=True),) if owner.is_socket() else ()
        return Edits(
            env={
                SIMGPU: f"{inside}/hardware",
                "LD_LIBRARY_PATH": f"{inside}/lib",
                "CUDA_VISIBLE_DEVICES": ",".join(part.uuid for part in slices),
            },
            mounts=(
                Mount(str(self._hardware), f"{inside}/hardware", writable=True),
                Mount(str(self._libraries), f"{inside}/lib"),
                *owned,
            ),
        )

    def _install(self) -> None:
        self._libraries.mkdir(parents=True, exist_ok=True)
        for name in SIMULATED:
            target, source = self._libraries / name, self._from / name
            try:
                if target.is_file() and target.stat().st_mtime_ns == source.stat().st_mtime_ns:
                    continue
                draft = self._libraries / f".{name}.new"
                shutil.copy2(source, draft)
                draft.replace(target)
            except OSError as exc:
                raise UndeliverableError(f"cannot copy {source} to {target}: {exc.strerror}") from None
