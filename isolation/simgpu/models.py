# SPDX-License-Identifier: Apache-2.0
"""
The cards that can be simulated: figures of real ones, one row each.

Memory as NVML shows it (total, and what the driver keeps back), SMs, clocks, power, PCI ids.
Context sizes are approximations of what a first CUDA context takes; a parameter overrides them.
Nothing here reads or writes a hardware file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from isolation.simgpu.mig import PROFILES, LayoutError, layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.simgpu.mig import Layout

MIB: Final = 1 << 20
VENDOR: Final = 0x10DE  # NVIDIA's PCI vendor id


@dataclass(frozen=True, slots=True)
class Model:
    """One kind of card. Units in the names."""

    name: str
    memory_mib: int
    reserved_mib: int
    context_mib: int
    sms: int
    cores_per_sm: int
    threads_per_sm: int
    shared_kib: int
    l2_mib: float
    capability: tuple[int, int]
    sm_mhz: int
    memory_mhz: int
    bus_bits: int
    idle_watts: int
    limit_watts: int
    pcie_generation: int
    pci_device: int
    pci_subsystem: int
    brand: int
    architecture: int
    layout: Layout = ()
    """How MIG divides it; empty: it does not."""

    @property
    def copy_mbps(self) -> int:
        """Host copies: sixteen lanes of this generation, less what protocols take."""
        return {3: 12_000, 4: 24_000, 5: 50_000}[self.pcie_generation]


T4: Final = Model(
    name="Tesla T4",
    memory_mib=15360,
    reserved_mib=449,
    context_mib=104,
    sms=40,
    cores_per_sm=64,
    threads_per_sm=1024,
    shared_kib=64,
    l2_mib=4,
    capability=(7, 5),
    sm_mhz=1590,
    memory_mhz=5001,
    bus_bits=256,
    idle_watts=10,
    limit_watts=70,
    pcie_generation=3,
    pci_device=0x1EB8,
    pci_subsystem=0x12A2,
    brand=2,
    architecture=6,
)
V100: Final = Model(
    name="Tesla V100-SXM2-16GB",
    memory_mib=16384,
    reserved_mib=223,
    context_mib=306,
    sms=80,
    cores_per_sm=64,
    threads_per_sm=2048,
    shared_kib=96,
    l2_mib=6,
    capability=(7, 0),
    sm_mhz=1530,
    memory_mhz=877,
    bus_bits=4096,
    idle_watts=39,
    limit_watts=300,
    pcie_generation=3,
    pci_device=0x1DB1,
    pci_subsystem=0x1212,
    brand=2,
    architecture=5,
)
A10: Final = Model(
    name="NVIDIA A10",
    memory_mib=23028,
    reserved_mib=512,
    context_mib=256,
    sms=72,
    cores_per_sm=128,
    threads_per_sm=1536,
    shared_kib=100,
    l2_mib=6,
    capability=(8, 6),
    sm_mhz=1695,
    memory_mhz=6251,
    bus_bits=384,
    idle_watts=16,
    limit_watts=150,
    pcie_generation=4,
    pci_device=0x2236,
    pci_subsystem=0x1482,
    brand=14,
    architecture=7,
)
A100: Final = Model(
    name="NVIDIA A100-SXM4-80GB",
    memory_mib=81920,
    reserved_mib=870,
    context_mib=416,
    sms=108,
    cores_per_sm=64,
    threads_per_sm=2048,
    shared_kib=164,
    l2_mib=40,
    capability=(8, 0),
    sm_mhz=1410,
    memory_mhz=1593,
    bus_bits=5120,
    idle_watts=61,
    limit_watts=400,
    pcie_generation=4,
    pci_device=0x20B2,
    pci_subsystem=0x1463,
    brand=14,
    architecture=7,
)
H100: Final = Model(
    name="NVIDIA H100 80GB HBM3",
    memory_mib=81559,
    reserved_mib=551,
    context_mib=522,
    sms=132,
    cores_per_sm=128,
    threads_per_sm=2048,
    shared_kib=228,
    l2_mib=50,
    capability=(9, 0),
    sm_mhz=1980,
    memory_mhz=2619,
    bus_bits=5120,
    idle_watts=70,
    limit_watts=700,
    pcie_generation=5,
    pci_device=0x2330,
    pci_subsystem=0x16C1,
    brand=14,
    architecture=9,
)
H200: Final = replace(
    H100,
    name="NVIDIA H200",
    memory_mib=143771,
    reserved_mib=605,
    context_mib=528,
    l2_mib=60,
    memory_mhz=3201,
    bus_bits=6144,
    pci_device=0x2335,
    pci_subsystem=0x18BE,
)
B200: Final = Model(
    name="NVIDIA B200",
    memory_mib=183359,
    reserved_mib=645,
    context_mib=560,
    sms=148,
    cores_per_sm=128,
    threads_per_sm=2048,
    shared_kib=228,
    l2_mib=126,
    capability=(10, 0),
    sm_mhz=1965,
    memory_mhz=3996,
    bus_bits=8192,
    idle_watts=140,
    limit_watts=1000,
    pcie_generation=5,
    pci_device=0x2901,
    pci_subsystem=0x1999,
    brand=14,
    architecture=10,
)
MODELS: Final[Mapping[str, Model]] = {
    "t4": T4,
    "v100-16g": V100,
    "a10": A10,
    "a100-80g": A100,
    "h100-80g": H100,
    "h200": H200,
    "b200": B200,
    # The smallest slices: seven instances of one compute slice and an eighth of the memory each.
    "a100-80g-mig": replace(A100, layout=layout(PROFILES["a100-80g"], ",".join(["1g.10gb"] * 7))),
}


def model_of(text: str) -> Model:
    """
    A model by name, divided where the name goes on with profiles: `h100-80g:3g.40gb,1g.10gb@0`.

    Raises LayoutError for a model that does not exist or cannot be divided like that.
    """
    name, divided, profiles = text.partition(":")
    if name not in MODELS:
        raise LayoutError(f"unknown model {name}; choose from {', '.join(MODELS)}")
    if not divided:
        return MODELS[name]
    if name not in PROFILES:
        raise LayoutError(f"model {name} has no MIG profiles; choose from {', '.join(PROFILES)}")
    return replace(MODELS[name], layout=layout(PROFILES[name], profiles))
