# SPDX-License-Identifier: Apache-2.0
"""
Findings about the system under it all: kernel, control groups, folders, disks, SELinux, ptrace.

Pure. How much room the agent's files need stands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from isolation.contract.quantity import GIB, MIB
from isolation.doctor.bounded_files import Folder, Missing, Unreadable
from isolation.doctor.checks.finding import Finding, ok, problem, unknown, warning
from isolation.doctor.checks.machine.runtime import parse_version

if TYPE_CHECKING:
    from isolation.doctor.bounded_files import Text
    from isolation.doctor.checks.machine.facts import Disk, MachineFacts

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "overlay", "squashfs"})
"""Gone at the next boot, or not the machine's own."""
_ROOM: Final = 256 * MIB
"""For the allocations, the limits and a few versions of the library."""
_OLDEST_KERNEL: Final = (5, 12)
_AS_ROOT: Final = "run as root on the machine itself"


def check_system(facts: MachineFacts, *, node: bool) -> list[Finding]:
    """The system's part; of folders only on a `node` of a cluster."""
    found = [_check_cgroups(facts.unified), _check_selinux(facts.selinux), _check_ptrace(facts.ptrace)]
    if not node:
        return found
    found.insert(0, _check_kernel(facts.kernel))
    if facts.cdi:
        found.append(_check_cdi(facts))
    if facts.run_dir is not None:
        found += [_check_state_dir(facts.run_dir), _check_shared_mount(facts.run_dir)]
    return found


def _check_kernel(release: Text) -> Finding:
    """The guard needs openat2 (5.6) and mount_setattr (5.12)."""
    check = "machine.kernel"
    version = parse_version(release) if isinstance(release, str) else None
    if version is None:
        return unknown(check, "cannot determine the kernel version", f"{_AS_ROOT}, or check `uname -r`")
    evidence = f"Linux {version[0]}.{version[1]}"
    if version < _OLDEST_KERNEL:
        oldest = ".".join(map(str, _OLDEST_KERNEL))
        return problem(check, f"{evidence}: no container with shares can start", f"use Linux {oldest} or newer")
    return ok(check, evidence)


def _check_cgroups(unified: bool | None) -> Finding:  # noqa: FBT001 (one fact)
    check = "machine.cgroups"
    if unified is None:
        return unknown(check, "cannot determine the cgroup version", "mount /sys, or set --root")
    return ok(check, "cgroup v2" if unified else "cgroup v1")


def _check_selinux(text: Text) -> Finding:
    check = "machine.selinux"
    if isinstance(text, Missing):
        return ok(check, "no SELinux")
    if isinstance(text, Unreadable) or text.strip() not in {"0", "1"}:
        return unknown(check, "cannot determine whether SELinux is enforcing", f"{_AS_ROOT}, or check `getenforce`")
    if text.strip() == "1":
        return warning(
            check,
            "SELinux is enforcing: containers can read gpushare's files only with label container_file_t",
            "the agent labels its files; if containers still get EACCES, check `ausearch -m avc -ts recent`",
        )
    return ok(check, "SELinux is permissive")


_TAMPERED: Final = (
    "a process can modify other processes of its user in its container, and what the library has counted for them"
)


def _check_ptrace(text: Text) -> Finding:
    check = "machine.ptrace"
    if isinstance(text, Missing):
        evidence = f"no Yama: {_TAMPERED}"
        return warning(check, evidence, "use a kernel with Yama, and set kernel.yama.ptrace_scope = 1")
    if isinstance(text, Unreadable) or not text.strip().isdigit():
        return unknown(check, "cannot read kernel.yama.ptrace_scope", _AS_ROOT)
    if text.strip() == "0":
        evidence = f"ptrace_scope 0: {_TAMPERED}"
        return warning(check, evidence, "run sysctl -w kernel.yama.ptrace_scope=1, and set it in /etc/sysctl.d")
    return ok(check, f"ptrace_scope {text.strip()}")


def _check_cdi(facts: MachineFacts) -> Finding:
    check, usable = "machine.cdi", []
    for path, folder in facts.cdi.items():
        if isinstance(folder, Folder) and folder.writable:
            usable.append(path)
        elif isinstance(folder, Unreadable):
            return unknown(check, f"cannot read {path}: {folder.why}", _AS_ROOT)
    if usable:
        return ok(check, f"writable: {' and '.join(usable)}")
    there = [path for path, folder in facts.cdi.items() if isinstance(folder, Folder)]
    if there:
        return problem(check, f"{there[0]} is not writable", f"{_AS_ROOT}; the agent must be able to write there")
    return warning(
        check, "no directory for CDI specs yet", "the agent creates /var/run/cdi; or run `mkdir -p /var/run/cdi`"
    )


def _check_state_dir(disk: Disk) -> Finding:
    check = "machine.state_dir"
    if disk.kind is None or disk.free_bytes is None:
        return unknown(check, f"cannot read {disk.path}", _AS_ROOT)
    if not disk.writable:
        return problem(check, f"{disk.path} is not writable", f"{_AS_ROOT}; it must be on a disk mounted read-write")
    if not disk.runs_programs:
        return problem(
            check,
            f"{disk.path} is mounted noexec: the runtime cannot run the guard, so no container with shares can start",
            "mount it without noexec, or set --state-dir of the agent to another directory",
        )
    if disk.kind in _IN_MEMORY:
        return warning(
            check,
            f"{disk.path} is on {disk.kind}: allocations would be lost at a reboot of the machine",
            "move it to a disk of the machine (--state-dir of the agent)",
        )
    if disk.free_bytes < _ROOM:
        return problem(check, f"{disk.path} has {disk.free_bytes // MIB} MiB free", f"free {_ROOM // MIB} MiB there")
    return ok(check, f"{disk.path} on {disk.kind}, {disk.free_bytes / GIB:.1f} GiB free")


def _check_shared_mount(disk: Disk) -> Finding:
    """Each container's ledger lies on a small file system of its own, mounted by the agent."""
    check = "machine.mount_propagation"
    if disk.shared is None:
        return unknown(check, f"cannot determine how {disk.path} is mounted", _AS_ROOT)
    if not disk.shared:
        return warning(
            check,
            f"{disk.path} is not on a shared mount: ledgers are stored on the disk, where tenants can make them grow",
            "run `mount --make-rshared /` (systemd does this at boot), then restart the agent",
        )
    return ok(check, f"the container runtime can see mounts below {disk.path}")
