# SPDX-License-Identifier: Apache-2.0
"""
Findings about the container runtime: CDI, plugins (NRI), and whether an environment variable can ask for a card.

Pure: text of configuration files in, findings out. Text that is no configuration is "cannot tell".

Sources: containerd docs/cri/config.md (`enable_cdi`, `cdi_spec_dirs`; on by default since 2.0), docs/NRI.md (the
same), CRI-O docs/crio.conf.5.md (`cdi_spec_dirs`, `enable_nri`), NVIDIA Container Toolkit documentation
(`accept-nvidia-visible-devices-envvar-when-unprivileged`, `accept-nvidia-visible-devices-as-volume-mounts`).
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from isolation.contract.names import CDI_DIR
from isolation.contract.nri_api import SOCKET
from isolation.doctor.bounded_files import Folder, Missing, Text, Unreadable
from isolation.doctor.checks import minimum
from isolation.doctor.checks.finding import Finding, named, ok, problem, unknown, warning
from isolation.doctor.checks.machine.facts import CRIO_SOCKET, NRI_PLUGINS, Runtime

if TYPE_CHECKING:
    from collections.abc import Iterable

_CRI: Final = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
"""The plugin that knows CDI, in configuration version 2 and in version 3."""
_BY_DEFAULT: Final = (2, 0)
_NRI: Final = "io.containerd.nri.v1.nri"
_INDEX: Final = "90"
"""The node agent's place among plugins: `isolation.node.nri.session`."""
_PLUGIN: Final = re.compile(r"([0-9]{2})-.+")
_VERSION: Final = re.compile(r"\bv?([0-9]{1,4})\.([0-9]{1,4})(?:\.[0-9]+)?")
_UNPRIVILEGED: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_SWITCH_ON: Final = "set enable_cdi = true in containerd's configuration and restart it"
_SAME: Final = frozenset({CDI_DIR, "/run/cdi"})
"""/var/run is a link to /run."""


def check_runtime(runtime: Runtime) -> list[Finding]:
    """CDI and NRI in whichever runtime is there, and device requests by environment."""
    found = []
    if runtime.crio_version is not None or CRIO_SOCKET in runtime.sockets:
        found.append(_check_crio(runtime))
    if runtime.containerd_version is not None or runtime.sockets - {CRIO_SOCKET}:
        found.append(_check_containerd(runtime))
    if not found:
        what = "neither containerd nor CRI-O was found"
        found.append(unknown("machine.runtime", what, "on a cluster node, run this on the host or set --root"))
    return [*found, _check_nri(runtime), _check_nri_plugins(runtime), _check_visible_devices(runtime.nvidia)]


def parse_version(text: str | None) -> tuple[int, int] | None:
    """The first two numbers of a version in what a program says of itself."""
    match = _VERSION.search(text[:1000]) if text else None
    return (int(match[1]), int(match[2])) if match else None


def _check_containerd(runtime: Runtime) -> Finding:
    check, version = "machine.runtime", parse_version(runtime.containerd_version)
    if version is not None and version < minimum.CONTAINERD:
        fix = f"upgrade containerd to {minimum.dotted(minimum.CONTAINERD)} or newer"
        return problem(check, f"containerd {minimum.dotted(version)} is too old", fix)
    settings = [_table(text) for text in (runtime.containerd, *runtime.containerd_parts)]
    wrong = [why for why in settings if isinstance(why, str)]
    if wrong:
        return unknown(
            check,
            f"cannot read containerd's configuration: {wrong[0]}",
            "run as root; `containerd config dump` shows it",
        )
    values = [_cri(table) for table in settings if isinstance(table, dict)]
    enabled = _last(values, "enable_cdi")
    folders = _last(values, "cdi_spec_dirs")
    evidence = f"containerd {minimum.dotted(version)}" if version else "containerd"
    if enabled is None and version is None:
        fix = f"it must be {minimum.dotted(minimum.CONTAINERD)} or newer; CDI is then on by default"
        return unknown(check, "containerd does not report its version", fix)
    if enabled is False:
        return problem(check, f"{evidence} has CDI disabled: no container would get its card", _SWITCH_ON)
    if isinstance(folders, list) and not _SAME & {str(one).rstrip("/") for one in folders}:
        return problem(check, f"{evidence} searches CDI specs only in {folders}", f"add {CDI_DIR} to cdi_spec_dirs")
    return ok(check, f"{evidence} with CDI")


def _check_crio(runtime: Runtime) -> Finding:
    check, version = "machine.runtime", parse_version(runtime.crio_version)
    if version is not None and version < minimum.CRIO:
        fix = f"upgrade CRI-O to {minimum.dotted(minimum.CRIO)} or newer"
        return problem(check, f"CRI-O {minimum.dotted(version)} is too old", fix)
    settings = [_table(text) for text in runtime.crio]
    wrong = [why for why in settings if isinstance(why, str)]
    if wrong:
        return unknown(check, f"cannot read CRI-O's configuration: {wrong[0]}", "run as root; `crio config` shows it")
    values = [_at(table, "crio", "runtime") for table in settings if isinstance(table, dict)]
    folders = _last(values, "cdi_spec_dirs")
    if isinstance(folders, list) and not _SAME & {str(one).rstrip("/") for one in folders}:
        return problem(check, f"CRI-O searches CDI specs only in {folders}", f"add {CDI_DIR} to cdi_spec_dirs")
    return ok(check, f"CRI-O {minimum.dotted(version)} with CDI" if version else "CRI-O with CDI")


def _check_nri(runtime: Runtime) -> Finding:
    """Whether the node agent can connect: without it no container with a share starts."""
    check, version = "machine.nri", parse_version(runtime.containerd_version)
    if runtime.crio_version is not None or CRIO_SOCKET in runtime.sockets:
        tables = [_at(table, "crio", "nri") for table in map(_table, runtime.crio) if isinstance(table, dict)]
        off = _last(tables, "enable_nri") is False
        evidence, fix = "CRI-O", "set enable_nri = true under [crio.nri] in CRI-O's configuration and restart it"
    else:
        texts = (runtime.containerd, *runtime.containerd_parts)
        tables = [_at(table, "plugins", _NRI) for table in map(_table, texts) if isinstance(table, dict)]
        said = _last(tables, "disable")
        off = said is True or (said is None and version is not None and version < _BY_DEFAULT)
        evidence = f"containerd {minimum.dotted(version)}" if version else "containerd"
        fix = f'set disable = false under [plugins."{_NRI}"] in containerd\'s configuration and restart it'
    if off:
        return problem(check, f"{evidence} has NRI disabled: no container with a share of a card can start", fix)
    if runtime.nri_socket is None:
        return unknown(check, f"cannot determine whether {SOCKET} exists", "run as root")
    if not runtime.nri_socket:
        more = "; if it is configured elsewhere, set --nri-socket of the agent"
        return problem(check, f"{SOCKET} does not exist: no container with a share of a card can start", fix + more)
    return ok(check, f"{evidence} with NRI")


def _check_nri_plugins(runtime: Runtime) -> Finding:
    """A plugin that comes after the node agent can change what the agent has given a container."""
    check = "machine.nri_plugins"
    if isinstance(runtime.nri_plugins, Unreadable):
        return unknown(check, f"cannot read {NRI_PLUGINS}: {runtime.nri_plugins.why}", "run as root")
    names = runtime.nri_plugins.names if isinstance(runtime.nri_plugins, Folder) else ()
    plugins = [name for name in names if _PLUGIN.fullmatch(name)]
    after = [name for name in plugins if name[:2] > _INDEX]
    if after:
        return warning(
            check,
            f"{named(after)} is asked after the node agent, which has index {_INDEX}: it may change what the agent set",
            f"give it an index below {_INDEX}, the number at the beginning of its name in {NRI_PLUGINS}",
        )
    evidence = f"before the node agent: {named(plugins)}" if plugins else f"no other plugins in {NRI_PLUGINS}"
    return ok(check, evidence)


def _check_visible_devices(nvidia: Text) -> Finding:
    """Whether NVIDIA_VISIBLE_DEVICES of any image gives it every card."""
    check = "machine.visible_devices"
    if isinstance(nvidia, Missing):
        return ok(check, "NVIDIA's container runtime is not configured: images cannot request cards by a variable")
    table = _table(nvidia)
    if isinstance(table, str):
        return unknown(
            check,
            f"cannot read the configuration of NVIDIA's container runtime: {table}",
            "run as root, or correct the file",
        )
    if table.get(_UNPRIVILEGED) is False:
        return ok(check, "unprivileged containers cannot request cards by NVIDIA_VISIBLE_DEVICES")
    return problem(
        check,
        "an image with NVIDIA_VISIBLE_DEVICES=all, as every CUDA base image has, gets every card if NVIDIA's container "
        "runtime starts it while neither the node agent nor its device plugin is connected (an update, a restart)",
        f"run `nvidia-ctk config --in-place --set {_UNPRIVILEGED}=false`, then restart the container runtime",
    )


def _table(text: Text) -> dict[str, Any] | str:
    """The settings of a file (none where there is no file), or why they cannot be read."""
    if isinstance(text, Missing):
        return {}
    if isinstance(text, Unreadable):
        return text.why
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as exc:
        return f"invalid TOML ({type(exc).__name__})"


def _cri(table: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for plugin in _CRI:
        merged |= _at(table, "plugins", plugin)
    return merged


def _at(table: dict[str, Any], *path: str) -> dict[str, Any]:
    """The table at a path; empty where something else is there."""
    for key in path:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return table


def _last(tables: Iterable[dict[str, Any]], key: str) -> Any:
    """What the last file says of it; None where none does."""
    said = [table[key] for table in tables if key in table]
    return said[-1] if said else None
