# SPDX-License-Identifier: Apache-2.0
"""
A real process in a mount namespace that looks exactly as the agent's adjustment says, the tenant's own wishes below it.

    box = Boxed(tmp_path)
    answer = box.run(delivery.deliver(...).edits, "say(alloc(1 << 30))", env={"LD_PRELOAD": ""}, mounts={...})

Only /etc and /run are the container's own; the rest is the machine's. Needs root, or user namespaces.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.simcontainers import CLIENT
from support.waiting import PATIENCE_SECONDS

from isolation.contract.names import PRELOAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from isolation.node.cdi import Edits

_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group", "nsswitch.conf")


@cache
def namespaces() -> tuple[str, ...]:
    """The command that makes a mount namespace here; empty: this machine allows none."""
    flags = "-m" if os.geteuid() == 0 else "-Urm"
    command = ("unshare", flags, "--propagation", "private")
    if shutil.which("unshare") is None:
        return ()
    done = subprocess.run(
        [*command, "mount", "-t", "tmpfs", "none", "/run"], capture_output=True, check=False, timeout=300
    )
    return command if done.returncode == 0 else ()


def own_loader(folder: Path) -> Path:
    """A copy of the dynamic loader that reads no list of libraries to preload."""
    source = next(
        path for path in (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/ld-linux-aarch64.so.1")) if path.exists()
    )
    made = folder / "loader"
    made.write_bytes(source.read_bytes().replace(PRELOAD.encode(), b"/etc/ld.so.nothing"))
    made.chmod(0o755)
    return made


class Boxed:
    """See the module."""

    def __init__(self, folder: Path) -> None:
        self.etc = folder / "etc"
        self.etc.mkdir()
        for name in _ETC:
            source = Path("/etc") / name
            if source.is_dir():
                shutil.copytree(source, self.etc / name)
            elif source.exists():
                shutil.copy(source, self.etc / name)

    def start(
        self,
        edits: Edits,
        code: str,
        *,
        env: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        mounts: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        first: str = "",
        loader: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Run Python in it, pipes open. `first`: lines before the client's own; `loader`: it is started by this one."""
        variables = dict(env) | edits.env
        places = dict(mounts) | {mount.container: mount.host for mount in edits.mounts}
        read_only = {mount.container for mount in edits.mounts if not mount.writable}
        lines = [f"mount --bind {shlex.quote(str(self.etc))} /etc", "mount -t tmpfs none /run"]
        for inside, source in places.items():
            target = shlex.quote(inside)
            kind = "mkdir -p" if Path(source).is_dir() else f"mkdir -p $(dirname {target}) && touch"
            lines += [f"{kind} {target}", f"mount --bind {shlex.quote(source)} {target}"]
            if inside in read_only:
                lines.append(f"mount -o remount,bind,ro {target}")
        lines.append(f'exec env -i {" ".join(shlex.quote(f"{k}={v}") for k, v in variables.items())} "$@"')
        command = [*namespaces(), "sh", "-ec", "\n".join(lines), "sh"]
        python = str(Path(sys.executable).resolve()) if loader is not None else sys.executable
        start, _, rest = first.partition("CLIENT\n")
        command += [*((str(loader),) if loader is not None else ()), python, "-S", "-c", start + CLIENT + rest + code]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)

    def run(self, edits: Edits, code: str, **more: Any) -> object:
        """To the end; what it said last."""
        out, err = (process := self.start(edits, code, **more)).communicate("", timeout=PATIENCE_SECONDS)
        assert 0 == process.returncode, err
        return json.loads(out.splitlines()[-1])
