# SPDX-License-Identifier: Apache-2.0
"""
A simulated box: creating its hardware file, reading its books, breaking things.

The file belongs to the simulator's C code (driver/hw.h); this module speaks to it through
`_hardware.so` and mirrors only the three structs that cross. It shares nothing with the isolation
library, so that its books can judge it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import uuid
from contextlib import contextmanager, suppress
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_uint8, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from isolation.simgpu.mig import SLICES, LayoutError
from isolation.simgpu.models import MIB, VENDOR, Model, model_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DRIVER: Final = "615.71.05"
MAX_UINT64: Final = 2**64 - 1
GRANULE: Final = 512
"""What the driver's addresses are aligned to; nothing is rounded by less."""
LONGEST_STEP: Final = 10**18
"""Nanoseconds that a clock is moved on by at once: some thirty years."""
LIBRARIES: Final = Path(__file__).parent / "lib"
RUNTIMES: Final = (LIBRARIES / "libcudart.so.12", LIBRARIES / "libcudart.so.13")
"""To be preloaded: programs that bring NVIDIA's own find it by their RPATH, which comes before LD_LIBRARY_PATH."""
KINDS: Final = ("context", "module", "data", "pool", "graph", "vmm", "array", "managed", "adopted")
STATES: Final = ("free", "live", "teardown", "gone")
NAME, TEXT = 64, 192


class SimulatorError(Exception):
    """The simulator cannot do what was asked."""


class UnknownSettingError(SimulatorError):
    """A model, a parameter or a value that does not exist."""


class CardModel(Structure):
    """`struct hw_model`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_char * NAME) for name in ("name", "profile", "serial")),
        ("uuid", c_uint8 * 16),
        *((name, c_uint64) for name in ("total_bytes", "reserved_bytes", "context_bytes")),
        *((name, c_uint64) for name in ("sms", "threads_per_sm", "cores", "l2_bytes", "shared_bytes")),
        *((name, c_uint64) for name in ("cc_major", "cc_minor")),
        *((name, c_uint64) for name in ("sm_mhz", "memory_mhz", "bus_bits", "copy_mbps")),
        *((name, c_uint64) for name in ("idle_mw", "limit_mw")),
        *((name, c_uint64) for name in ("pci_domain", "pci_bus", "pci_device", "pci_id", "pci_subsystem")),
        *((name, c_uint64) for name in ("pcie_generation", "brand", "architecture")),
        *((name, c_uint64) for name in ("mig", "parent", "gpu_instance", "compute_instance")),
        *((name, c_uint64) for name in ("gpu_slices", "compute_slices")),
    ]


class CardBook(Structure):
    """`struct card_book`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("model", CardModel),
        *((name, c_uint64) for name in ("clock_ns", "used_bytes", "busy_ns", "copy_ns", "energy_uj")),
        *((name, c_uint64) for name in ("temperature_mc", "fault", "ecc_corrected", "ecc_uncorrected")),
        *((name, c_uint64) for name in ("throttle", "xids", "last_xid", "active")),
        *((name, c_uint64) for name in ("utilisation_percent", "unowned_bytes", "peak_bytes")),
    ]


class ClientBook(Structure):
    """`struct client_book`."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_uint64) for name in ("state", "pid", "start_time", "contexts")),
        ("bytes", c_uint64 * len(KINDS)),
        *((name, c_uint64) for name in ("managed_bytes", "total_bytes", "peak_bytes", "denied")),
        *((name, c_uint64) for name in ("own_ns", "launches", "copies", "slices", "fault", "queued", "space_ns")),
        *((name, c_uint64) for name in ("born_ns", "gone_ns")),
        ("name", c_char * NAME),
        ("cgroup", c_char * TEXT),
    ]


def _load() -> ctypes.CDLL:
    """The C half, with its three structs checked against ours."""
    path = Path(__file__).with_name("_hardware.so")
    if not path.is_file():
        raise SimulatorError(f"{path.name} was not built: run `make test`, or `pip install .` with gcc on PATH")
    lib = ctypes.CDLL(str(path))
    lib.simgpu_param_name.restype = c_char_p
    lib.simgpu_param_name.argtypes = lib.simgpu_param_default.argtypes = [c_uint64]
    lib.simgpu_param_default.restype = lib.simgpu_param.restype = c_uint64
    lib.simgpu_create.argtypes = [c_char_p, c_char_p, c_uint64, POINTER(CardModel), POINTER(c_uint64)]
    lib.simgpu_open.argtypes = [c_char_p, POINTER(c_void_p)]
    lib.simgpu_close.argtypes = lib.simgpu_cards.argtypes = lib.simgpu_settle.argtypes = [c_void_p]
    lib.simgpu_close.restype = None
    lib.simgpu_clock.argtypes = [c_void_p, POINTER(c_int)]
    lib.simgpu_step.argtypes = [c_void_p, c_uint64]
    lib.simgpu_stop.argtypes = lib.simgpu_go.argtypes = [c_void_p]
    lib.simgpu_clock.restype = lib.simgpu_stop.restype = c_uint64
    lib.simgpu_driver.argtypes = [c_void_p, c_char_p, c_uint64]
    lib.simgpu_param.argtypes = [c_void_p, c_uint64]
    lib.simgpu_set_param.argtypes = [c_void_p, c_uint64, c_uint64]
    lib.simgpu_card.argtypes = [c_void_p, c_uint64, POINTER(CardBook)]
    lib.simgpu_client.argtypes = [c_void_p, c_uint64, c_uint64, POINTER(ClientBook)]
    lib.simgpu_inject.argtypes = [c_void_p, c_uint64, c_char_p, c_uint64]
    sizes = (c_uint64 * 3)()
    lib.simgpu_abi.restype = c_int
    lib.simgpu_abi(sizes)
    if list(sizes) != [ctypes.sizeof(struct) for struct in (CardModel, CardBook, ClientBook)]:
        raise SimulatorError(f"{path.name} was built for another version: build it again")
    return lib


_LIB: ctypes.CDLL | None = None


def _lib() -> ctypes.CDLL:
    global _LIB  # noqa: PLW0603 (loaded when first needed, so that help works without a build)
    if _LIB is None:
        _LIB = _load()
    return _LIB


def parameters() -> dict[str, int]:
    """Every parameter of the simulation with its default."""
    lib, index, found = _lib(), 0, {}
    while (name := lib.simgpu_param_name(index)) is not None:
        found[name.decode()] = int(lib.simgpu_param_default(index))
        index += 1
    return found


def _card(model: Model, position: int, seed: int) -> CardModel:
    identity = uuid.uuid5(uuid.NAMESPACE_OID, f"gpushare simgpu {seed} {position} {model.name}")
    return CardModel(
        name=model.name.encode(),
        serial=f"{1320000000000 + seed * 1000 + position}".encode(),
        uuid=(c_uint8 * 16)(*identity.bytes),
        total_bytes=model.memory_mib * MIB,
        reserved_bytes=model.reserved_mib * MIB,
        context_bytes=model.context_mib * MIB,
        sms=model.sms,
        threads_per_sm=model.threads_per_sm,
        cores=model.sms * model.cores_per_sm,
        l2_bytes=int(model.l2_mib * MIB),
        shared_bytes=model.shared_kib * 1024,
        cc_major=model.capability[0],
        cc_minor=model.capability[1],
        sm_mhz=model.sm_mhz,
        memory_mhz=model.memory_mhz,
        bus_bits=model.bus_bits,
        copy_mbps=model.copy_mbps,
        idle_mw=model.idle_watts * 1000,
        limit_mw=model.limit_watts * 1000,
        pci_domain=0,
        pci_bus=0x10 + position,
        pci_device=0,
        pci_id=model.pci_device << 16 | VENDOR,
        pci_subsystem=model.pci_subsystem << 16 | VENDOR,
        pcie_generation=model.pcie_generation,
        brand=model.brand,
        architecture=model.architecture,
        mig=int(bool(model.layout)),
    )


def _instance(card: CardModel, model: Model, parent: int, number: int, seed: int) -> CardModel:
    """The MIG instance of that number; where there are several compute instances in it is not simulated."""
    part, lies = CardModel.from_buffer_copy(card), model.layout[number]
    identity = uuid.uuid5(uuid.NAMESPACE_OID, f"gpushare simgpu {seed} {parent} instance {number}")
    part.uuid = (c_uint8 * 16)(*identity.bytes)
    part.profile = lies.profile.name.encode()
    part.mig, part.parent = 0, parent + 1
    part.gpu_instance, part.compute_instance = lies.gpu_instance, 0
    part.gpu_slices, part.compute_slices = lies.profile.size, lies.profile.compute
    part.sms, part.cores = lies.profile.sms, lies.profile.sms * model.cores_per_sm
    part.total_bytes, part.reserved_bytes = lies.profile.mib * MIB, 13 * MIB
    part.bus_bits = card.bus_bits * lies.profile.size // SLICES
    part.l2_bytes = card.l2_bytes * lies.profile.size // SLICES
    return part


def describe(models: Sequence[str], seed: int) -> list[CardModel]:
    """The cards of a box, one model (`model_of`) per physical card; MIG instances follow the whole cards."""
    try:
        chosen = [model_of(name) for name in models]
    except LayoutError as exc:
        raise UnknownSettingError(str(exc)) from None
    cards = [_card(model, position, seed) for position, model in enumerate(chosen)]
    for parent, model in enumerate(chosen):
        cards += [_instance(cards[parent], model, parent, number, seed) for number in range(len(model.layout))]
    return cards


def _check_setting(name: str, value: int, known: Mapping[str, int] | Sequence[str]) -> int:
    """The value of a parameter that exists, as far as the file can hold it and the driver can round by it."""
    if name not in known:
        raise UnknownSettingError(f"unknown parameter {name}; choose from {', '.join(known)}")
    least = GRANULE if name.endswith("granule_bytes") else 0
    if not least <= value <= MAX_UINT64:
        raise UnknownSettingError(f"{name}={value} is not in the range {least} to {MAX_UINT64}")
    return value


def create(path: Path, models: Sequence[str], settings: Mapping[str, int] | None = None, driver: str = DRIVER) -> None:
    """Write a new hardware file; one that is in use stays with those who use it."""
    values = parameters()
    for name, value in (settings or {}).items():
        values[name] = _check_setting(name, value, values)
    cards = describe(models, values["seed"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise SimulatorError(f"cannot create directory {path.parent}: {exc.strerror}") from None
    status = _lib().simgpu_create(
        os.fsencode(path),
        driver.encode(),
        len(cards),
        (CardModel * len(cards))(*cards),
        (c_uint64 * len(values))(*values.values()),
    )
    if status:
        raise SimulatorError(f"cannot create {path}: {os.strerror(-status)}")
    _both_names()


def install(directory: Path) -> None:
    """
    Put links to the driver's libraries and the CUDA runtimes beside a hardware file: the directory is a driver then.

    The driver's under both names of each, `libcuda.so.1` and `libcuda.so`: some programs open the second (numba).
    """
    for library in (*sorted(LIBRARIES.glob("*.so.1")), *RUNTIMES):
        names = {library.name} if library in RUNTIMES else {library.name, library.stem}
        for link in (directory / name for name in names):
            link.unlink(missing_ok=True)
            link.symlink_to(library)


def _both_names() -> None:
    """Make LIBRARIES, which may be a search path by itself, hold both names too; a wheel cannot hold links."""
    for library in sorted(LIBRARIES.glob("*.so.1")):
        with suppress(OSError):  # there already, or an installation that nobody may write to
            (LIBRARIES / library.stem).symlink_to(library.name)


class Box:
    """An open hardware file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = c_void_p()
        status = _lib().simgpu_open(os.fsencode(path), ctypes.byref(self._handle))
        if status:
            why = "not a hardware file of this version" if status == -errno.EPROTO else os.strerror(-status)
            raise SimulatorError(f"cannot open {path}: {why}; gpushare simgpu create makes one")

    def close(self) -> None:
        """Unmap the file."""
        _lib().simgpu_close(self._handle)
        self._handle = c_void_p()

    @property
    def driver(self) -> str:
        """Version of the simulated driver."""
        text = ctypes.create_string_buffer(NAME)
        _lib().simgpu_driver(self._handle, text, NAME)
        return text.value.decode()

    def settings(self) -> dict[str, int]:
        """The parameters as they are now."""
        return {name: int(_lib().simgpu_param(self._handle, i)) for i, name in enumerate(parameters())}

    def set(self, name: str, value: int) -> None:
        """Change a parameter; running processes follow at their next call."""
        names = list(parameters())
        value = _check_setting(name, value, names)
        _lib().simgpu_set_param(self._handle, names.index(name), value)

    def settle(self) -> None:
        """Bring every card to the present; the dead are found and what is due comes back."""
        _lib().simgpu_settle(self._handle)

    @property
    def now(self) -> int:
        """The clock of its cards, in nanoseconds."""
        return int(_lib().simgpu_clock(self._handle, byref(c_int())))

    @property
    def stands(self) -> bool:
        """Whether that clock was stopped."""
        stands = c_int()
        _lib().simgpu_clock(self._handle, byref(stands))
        return bool(stands.value)

    def stop(self) -> int:
        """Let the clock stand, and tell where: what is queued waits, and nothing that happens meanwhile takes time."""
        return int(_lib().simgpu_stop(self._handle))

    def step(self, ns: int) -> None:
        """Move a clock that stands on by so much, and every card with it."""
        if not 0 <= ns <= LONGEST_STEP:
            raise SimulatorError(f"a step of {ns} ns is not in the range 0 to {LONGEST_STEP}")
        if _lib().simgpu_step(self._handle, ns):
            raise SimulatorError(f"the clock of {self.path} is running; stop it first")

    def go(self) -> None:
        """Let a clock that stands run on from there."""
        _lib().simgpu_go(self._handle)

    def inject(self, card: int, what: str, value: int) -> None:
        """Make something go wrong on a card: see driver/tool.c."""
        status = _lib().simgpu_inject(self._handle, card, what.encode(), value)
        if status:
            raise SimulatorError(f"cannot inject {what} into card {card}: {os.strerror(-status)}")

    def cards(self) -> list[CardBook]:
        """Every card's book, MIG instances included."""
        books = []
        for index in range(_lib().simgpu_cards(self._handle)):
            book = CardBook()
            _lib().simgpu_card(self._handle, index, ctypes.byref(book))
            books.append(book)
        return books

    def clients(self, card: int) -> list[ClientBook]:
        """The books of every process that has or had a hold on the card, the dead included."""
        books: list[ClientBook] = []
        index = 0
        while True:
            book = ClientBook()
            status = _lib().simgpu_client(self._handle, card, index, ctypes.byref(book))
            if status < 0:
                return books
            if status:
                books.append(book)
            index += 1


def find_fault(path: Path) -> str:
    """Why the file holds no cards; empty: it does."""
    try:
        Box(path).close()
    except SimulatorError as exc:
        return str(exc)
    return ""


@contextmanager
def open_box(path: Path) -> Iterator[Box]:
    """A box for the length of a block."""
    box = Box(path)
    try:
        yield box
    finally:
        box.close()
