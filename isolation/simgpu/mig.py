# SPDX-License-Identifier: Apache-2.0
"""
How MIG divides a card: NVIDIA's profiles, where each may lie, and which of them fit beside each other.

A card has eight slices of memory; an instance takes a run of them that begins where its profile may. Fractions, places
and numbers of instances: NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles". SMs and bytes of A100 and H100
are those that `nvidia-smi mig -lgip` lists; of B200 the bytes are an eighth of the card each, less what the driver
keeps (an approximation). Ids of GPU instances are numbered as the driver does: 0 for the whole card, then halves,
quarters and eighths, from the first slice on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SLICES: Final = 8
"""Slices of a card's memory."""
_FIRST_ID: Final = {8: 0, 4: 1, 2: 3, 1: 7}
_EXTENSION: Final = "+me"
"""Behind a profile that has the card's media extensions, which only one instance can have."""


class LayoutError(ValueError):
    """A division that the card does not have; the message names what it has."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of instance."""

    name: str
    compute: int
    """Slices of compute, of seven."""
    size: int
    """Slices of memory, of eight."""
    starts: tuple[int, ...]
    """Where it may begin."""
    sms: int
    mib: int


@dataclass(frozen=True, slots=True)
class SimulatedInstance:
    """One instance of a divided card."""

    profile: Profile
    start: int

    @property
    def taken(self) -> int:
        """The slices of memory that it has, as bits."""
        return ((1 << self.profile.size) - 1) << self.start

    @property
    def gpu_instance(self) -> int:
        """Its id, as the driver numbers them."""
        return _FIRST_ID[self.profile.size] + self.start // self.profile.size


Layout = tuple[SimulatedInstance, ...]


def _profiles(gigabytes: Sequence[int], sms: Sequence[int], mib: Sequence[int]) -> dict[str, Profile]:
    """The seven kinds of a card; sizes of an eighth, a quarter, a half and all of it."""
    eighth, quarter, half, full = zip(gigabytes, mib, strict=True)
    kinds = (
        ("1g", 1, 1, tuple(range(7)), eighth, ""),
        ("1g", 1, 1, tuple(range(7)), eighth, _EXTENSION),
        ("1g", 1, 2, (0, 2, 4, 6), quarter, ""),
        ("2g", 2, 2, (0, 2, 4), quarter, ""),
        ("3g", 3, 4, (0, 4), half, ""),
        ("4g", 4, 4, (0,), half, ""),
        ("7g", 7, 8, (0,), full, ""),
    )
    made = {}
    for (form, compute, size, starts, (gb, each), more), number in zip(kinds, sms, strict=True):
        name = f"{form}.{gb}gb{more}"
        made[name] = Profile(name, compute, size, starts, number, each)
    return made


PROFILES: Final[Mapping[str, Mapping[str, Profile]]] = {
    "a100-80g": _profiles((10, 20, 40, 80), (14, 14, 14, 28, 42, 56, 98), (9728, 19968, 40192, 80640)),
    "h100-80g": _profiles((10, 20, 40, 80), (16, 16, 26, 32, 60, 64, 132), (9984, 20096, 40448, 81152)),
    "b200": _profiles((23, 45, 90, 180), (18, 18, 18, 36, 70, 72, 148), (22144, 44928, 90112, 182272)),
}
"""By model of the card, by name of the profile."""


def layouts(profiles: Mapping[str, Profile]) -> Iterator[Layout]:
    """Every way to divide a card, by profiles and places, that has no room for one more instance."""
    parts = sorted(
        (SimulatedInstance(profile, start) for profile in profiles.values() for start in profile.starts),
        key=lambda part: (part.start, part.profile.size, part.profile.name),
    )

    def more(at: int, chosen: Layout) -> Iterator[Layout]:
        if not any(_fits(part, chosen) for part in parts):
            yield chosen
        for number in range(at, len(parts)):
            if _fits(parts[number], chosen):
                yield from more(number + 1, (*chosen, parts[number]))

    yield from more(0, ())


def _fits(part: SimulatedInstance, chosen: Layout) -> bool:
    media = part.profile.name.endswith(_EXTENSION)
    return not any(part.taken & other.taken or (media and other.profile.name.endswith(_EXTENSION)) for other in chosen)


def layout(profiles: Mapping[str, Profile], text: str) -> Layout:
    """
    The division that `1g.10gb,3g.40gb@4` names: profiles, each with the slice where it begins or at any that is left.

    Raises LayoutError for a profile that the card does not have, and for profiles that do not fit beside each other.
    """
    wanted: list[tuple[Profile, tuple[int, ...]]] = []
    for word in text.split(","):
        name, at, start = word.strip().partition("@")
        if name not in profiles:
            raise LayoutError(f"no MIG profile {name!r}; choose from {', '.join(profiles)}")
        starts = tuple(one for one in profiles[name].starts if not at or str(one) == start)
        if not starts:
            places = ", ".join(map(str, profiles[name].starts))
            raise LayoutError(f"MIG profile {name} cannot begin at slice {start!r}; choose from {places}")
        wanted.append((profiles[name], starts))
    found = _put(wanted, ())
    if found is None:
        raise LayoutError(f"MIG profiles {text} do not fit on one card together")
    return tuple(sorted(found, key=lambda part: part.start))


def _put(wanted: Sequence[tuple[Profile, tuple[int, ...]]], chosen: Layout) -> Layout | None:
    if not wanted:
        return chosen
    (profile, starts), *rest = wanted
    for start in starts:
        part = SimulatedInstance(profile, start)
        found = _put(rest, (*chosen, part)) if _fits(part, chosen) else None
        if found is not None:
            return found
    return None
