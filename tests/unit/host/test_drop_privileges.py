# SPDX-License-Identifier: Apache-2.0
"""
What a process that has given something up can still do, tried in one that has.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[3]
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give it up")
filtered = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64"}, reason="system calls are filtered on x86-64 and arm64 only"
)


def tried(given_up, deed):
    """What came of a deed: its result, or the name of its error."""
    script = f"""
import ctypes, errno, os, signal, socket, threading
from isolation.host import drop_privileges
drop_privileges.{given_up}
try:
    print({deed})
except OSError as exc:
    print(errno.errorcode[exc.errno])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)  # noqa: PLW1510
    return done.stdout.strip() or done.stderr[-300:]


@root
@pytest.mark.parametrize(
    ("deed", "found"),
    [
        ("open('/proc/1/environ').read()", "EACCES"),
        ("os.listdir('/proc/1/root')", "EACCES"),
        ("open('/proc/1/mem')", "EACCES"),
        ("os.kill(1, signal.SIGCONT)", "EPERM"),
        ("os.setuid(0)", "EPERM"),
        ("open('/etc/shadow').read()", "EACCES"),
        ("os.getresuid() + os.getresgid() + tuple(os.getgroups())", str((65534,) * 6)),
        (
            "[line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapPrm', 'NoNew'))]",
            "['0000000000000000', '0000000000000000', '1']",
        ),
    ],
)
def test_without_root(deed, found):
    """Nothing of root's is to be read or reached."""
    assert found == tried("give_up_root()", deed)


@filtered
@pytest.mark.parametrize(
    ("deed", "found"),
    [
        ("socket.socket(socket.AF_INET)", "EPERM"),
        ("socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)", "EPERM"),
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "EPERM"),
        ("socket.socket(socket.AF_UNIX).close()", "None"),
        ("len(socket.socketpair())", "2"),
        ("os.kill(os.getppid(), 0)", "EPERM"),
        ("os.kill(os.getpid(), 0)", "EPERM"),
        ("signal.raise_signal(signal.SIGCONT)", "None"),
        ("threading.Thread(target=print, args=('threads go on',)).start() or ''", "threads go on"),
        ("ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) == -1 and ctypes.get_errno()", "1"),
        ("os.popen('echo programs too').read().strip()", "programs too"),
        ("os.popen('kill -0 1 || echo and they are bound').read().strip().splitlines()[-1]", "and they are bound"),
    ],
)
def test_without_network(deed, found):
    """The machine's own sockets, threads and files stay; the network and other processes are out of reach."""
    assert found == tried("give_up_network()", deed)


@root
def test_without_the_capabilities_that_it_takes():
    """One line that says which."""
    script = """
from isolation.host import drop_privileges
try:
    drop_privileges.give_up_root()
except OSError as exc:
    print(exc.strerror)
"""
    without = ["--bounding-set", "-setuid,-setgid", "--inh-caps", "-setuid,-setgid"]
    command = ["setpriv", *without, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)  # noqa: PLW1510
    assert "cannot give up root: grant the capabilities SETUID and SETGID, or start as another user\n" == done.stdout
