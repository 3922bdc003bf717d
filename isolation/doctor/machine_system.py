"""
Findings about the system under it all: control groups, folders, disks, SELinux, ptrace.

Pure. How much room the agent's files need stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import GIB, MIB
from isolation.doctor.finding import Finding, ok, problem, unknown, warning
from isolation.doctor.peek import Folder, Missing, Unreadable

if TYPE_CHECKING:
    from isolation.doctor.machine_facts import Disk, MachineFacts
    from isolation.doctor.peek import Text

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "overlay", "squashfs"})
"""Gone at the next boot, or not the machine's own."""
_ROOM: Final = 256 * MIB
"""For the book, the limits and a few versions of the library."""
_AS_ROOT: Final = "run it as root on the machine itself"


def look(facts: MachineFacts, *, node: bool) -> list[Finding]:
    """The system's part; of folders only on a `node` of a cluster."""
    found = [_groups(facts.unified), _selinux(facts.selinux), _ptrace(facts.ptrace)]
    if not node:
        return found
    if facts.cdi:
        found.append(_cdi(facts))
    if facts.run_dir is not None:
        found += [_run_dir(facts.run_dir), _shared(facts.run_dir)]
    return found


def _groups(unified: bool | None) -> Finding:  # noqa: FBT001 (one fact)
    check = "machine.cgroups"
    if unified is None:
        return unknown(check, "the version of control groups cannot be told", "mount /sys, or give --root")
    return ok(check, "control groups v2" if unified else "control groups v1")


def _selinux(text: Text) -> Finding:
    check = "machine.selinux"
    if isinstance(text, Missing):
        return ok(check, "no SELinux")
    if isinstance(text, Unreadable) or text.strip() not in {"0", "1"}:
        return unknown(check, "whether SELinux enforces cannot be told", f"{_AS_ROOT}, or look with `getenforce`")
    if text.strip() == "1":
        return warning(
            check,
            "SELinux enforces: a container reads our files only with the label container_file_t",
            "the agent labels what it makes; where containers still get EACCES look with `ausearch -m avc -ts recent`",
        )
    return ok(check, "SELinux is permissive")


def _ptrace(text: Text) -> Finding:
    check = "machine.ptrace"
    if isinstance(text, Missing):
        told = "no Yama: a process may change any other of its user in its container, so also its ledger"
        return warning(check, told, "use a kernel with Yama, and kernel.yama.ptrace_scope = 1")
    if isinstance(text, Unreadable) or not text.strip().isdigit():
        return unknown(check, "kernel.yama.ptrace_scope cannot be read", _AS_ROOT)
    if text.strip() == "0":
        told = "ptrace_scope 0: a process may change any other of its user in its container, so also its ledger"
        return warning(check, told, "sysctl -w kernel.yama.ptrace_scope=1, and in /etc/sysctl.d to keep it")
    return ok(check, f"ptrace_scope {text.strip()}")


def _cdi(facts: MachineFacts) -> Finding:
    check, usable = "machine.cdi", []
    for path, folder in facts.cdi.items():
        if isinstance(folder, Folder) and folder.writable:
            usable.append(path)
        elif isinstance(folder, Unreadable):
            return unknown(check, f"{path} {folder.why}", _AS_ROOT)
    if usable:
        return ok(check, f"{' and '.join(usable)} can be written")
    there = [path for path, folder in facts.cdi.items() if isinstance(folder, Folder)]
    if there:
        return problem(check, f"{there[0]} cannot be written", f"{_AS_ROOT}; the agent needs it read-write")
    return warning(check, "no folder for CDI specs yet", "the agent makes /var/run/cdi; or `mkdir -p /var/run/cdi`")


def _run_dir(disk: Disk) -> Finding:
    check = "machine.run_dir"
    if disk.kind is None or disk.free_bytes is None:
        return unknown(check, f"{disk.path} cannot be looked at", _AS_ROOT)
    if not disk.writable:
        return problem(check, f"{disk.path} cannot be written", f"{_AS_ROOT}; it must be on a disk mounted read-write")
    if disk.kind in _IN_MEMORY:
        return warning(
            check,
            f"{disk.path} is on {disk.kind}: who holds what would be forgotten at a restart of the machine",
            "put it on a disk of the machine (--run-dir of the agent)",
        )
    if disk.free_bytes < _ROOM:
        return problem(check, f"{disk.path} has {disk.free_bytes // MIB} MiB free", f"free {_ROOM // MIB} MiB there")
    return ok(check, f"{disk.path} on {disk.kind}, {disk.free_bytes / GIB:.1f} GiB free")


def _shared(disk: Disk) -> Finding:
    """Each container's ledger lies on a small file system of its own, mounted by the agent."""
    check = "machine.regions"
    if disk.shared is None:
        return unknown(check, f"how {disk.path} is mounted cannot be told", _AS_ROOT)
    if not disk.shared:
        return warning(
            check,
            f"{disk.path} is on a mount that is not shared: ledgers lie on the disk, where tenants can make them grow",
            "`mount --make-rshared /` (systemd does it at boot), then restart the agent",
        )
    return ok(check, f"what is mounted below {disk.path} is seen by the container runtime")
