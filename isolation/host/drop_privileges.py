# SPDX-License-Identifier: Apache-2.0
"""
What a process gives up for good: root, or the network.

Linux only, and for a process without threads: each of these is a thread's own. Nothing can be had back, by an exec
neither. Sources: capabilities(7), prctl(2), seccomp(2), <linux/seccomp.h>, <linux/filter.h>, <linux/audit.h>.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
from typing import Final, NamedTuple

NOBODY: Final = 65534
"""User and group that own nothing."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER: Final = 2
_AF_UNIX: Final = 1
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # SECCOMP_RET_*
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: LD|W|ABS, JMP|JEQ|K, JMP|JGE|K, RET|K
_NUMBER_AT, _ARCH_AT, _FIRST_AT = 0, 4, 16  # struct seccomp_data, little endian: nr, arch, low half of args[0]


class _Machine(NamedTuple):
    """Numbers of system calls (<asm/unistd.h>)."""

    audit: int
    first_foreign: int
    """From here on numbers belong to another ABI of the same machine (x32)."""
    socket: int
    refused: tuple[int, ...]
    """ptrace, process_vm_readv, process_vm_writev, kill, pidfd_send_signal, rt_sigqueueinfo, io_uring_setup."""
    own: tuple[int, ...]
    """tgkill, rt_tgsigqueueinfo: their first argument is a process."""


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 0x40000000, 41, (101, 310, 311, 62, 424, 129, 425), (234, 297)),
    "aarch64": _Machine(0xC00000B7, 0xFFFFFFFF, 198, (117, 270, 271, 129, 424, 138, 425), (131, 240)),
}


class ConfineError(OSError):
    """It cannot be given up here; the message says what is missing."""


def end_with_parent() -> None:
    """End when the process that made this one does; to be said after root was given up, which cancels it (prctl(2))."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def give_up_root(user: int = NOBODY) -> None:
    """
    Become that user, with no group and no capability, and unreadable for others of that user.

    Nothing to do where this process is not root. Raises ConfineError where it may not.
    """
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        except PermissionError:
            raise ConfineError(
                errno.EPERM,
                "cannot give up root: grant the capabilities SETUID and SETGID, or start as another user",
            ) from None
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)


def give_up_network() -> None:
    """
    Sockets of the machine itself (AF_UNIX) only, and no hand on other processes: no signals, no tracing, no memory.

    Reading files, which root may, stays. Without effect on machines whose system calls are not known here. Raises
    ConfineError where the kernel has no filters.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return
    program = _program(machine, os.getpid())
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    code = ctypes.create_string_buffer(b"".join(program), 8 * len(program))
    # struct sock_fprog: the number of instructions, then where they are
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filters))


def _program(machine: _Machine, pid: int) -> list[bytes]:
    """The filter; each jump goes to the line that it names."""

    def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("=HBBI", code, then, otherwise, value)

    refuse, allow = step(_RETURN, _ERRNO | errno.EPERM), step(_RETURN, _ALLOW)
    lines = [
        step(_LOAD, _ARCH_AT),
        step(_EQUAL, machine.audit, 1, 0),
        step(_RETURN, _KILL),
        step(_LOAD, _NUMBER_AT),
        step(_AT_LEAST, machine.first_foreign, 0, 1),
        refuse,
    ]
    for number in machine.refused:
        lines += [step(_EQUAL, number, 0, 1), refuse]
    for number, first in ((machine.socket, _AF_UNIX), *((own, pid) for own in machine.own)):
        lines += [step(_EQUAL, number, 0, 4), step(_LOAD, _FIRST_AT), step(_EQUAL, first, 1, 0), refuse, allow]
    return [*lines, allow]


def _prctl(option: int, *values: int) -> None:
    words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *words):
        number = ctypes.get_errno()
        raise ConfineError(number, f"prctl({option}) failed: {os.strerror(number)}")
