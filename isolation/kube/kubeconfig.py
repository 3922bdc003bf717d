# SPDX-License-Identifier: Apache-2.0
"""
A kubeconfig of the usual kind, read without the official client, whose import takes longer than a first answer.

Usual is: one file; a token, a token's file, a user with a password or a client certificate. Everything else (exec
plug-ins, auth providers, several files, shapes that are odd) is `None`: the official client's. What is read here
means what it means to the official client, which the tests hold against each other. A file that is broken beyond
doubt is a CredentialsError in one line that says what to do.
"""

from __future__ import annotations

import base64
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from isolation.kube.core.errors import CredentialsError
from isolation.kube.identity import Identity, says

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isolation.kube.identity import Material

_LARGEST: Final = 16 << 20
_DEEPEST: Final = 64
_SHOWN: Final = 5
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ELSEWHERE: Final = frozenset({"exec", "auth-provider"})


class _UnusualError(Exception):
    """The official client knows what to make of it."""


def usual_file(kubeconfig: Path | None) -> str | None:
    """The one file that is meant; None: there are several, or one whose name the official client takes apart."""
    name = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG")
    if name is None:
        name = (Path.home() / ".kube" / "config").as_posix()
    return None if os.pathsep in name or not name else os.path.expanduser(name)  # noqa: PTH111 (as the client does)


def identity_in(file: str, context: str | None) -> Identity | None:
    """Who the file says we are; None: the official client has to read it. Raises CredentialsError."""
    try:
        said = _said(file)
        return _identity(said, file, context)
    except _UnusualError:
        return None


def _said(file: str) -> dict[str, Any]:
    try:
        about = Path(file).stat()
        if stat.S_ISDIR(about.st_mode):
            raise CredentialsError(f"kubeconfig {file} is a directory: select a file")
        if not stat.S_ISREG(about.st_mode):  # a pipe can be read once only
            raise _UnusualError
        if about.st_size > _LARGEST:
            raise CredentialsError(f"kubeconfig {file} is too large ({about.st_size} bytes): select another file")
        text = Path(file).read_text(encoding=None)
        if _nested(text):
            raise CredentialsError(f"kubeconfig {file} has more than {_DEEPEST} levels: select another file")
        said = yaml.load(text, Loader=_LOADER)  # noqa: S506 (a safe loader, in C)
    except FileNotFoundError:
        raise CredentialsError(
            f"kubeconfig {file} does not exist: select another with --kubeconfig or $KUBECONFIG"
        ) from None
    except OSError as exc:
        raise CredentialsError(f"cannot read kubeconfig {file} ({exc.strerror}): check its permissions") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        raise CredentialsError(f"kubeconfig {file} is not valid YAML: {_line(exc)}; fix it or select another") from None
    if not isinstance(said, dict):
        what = "is empty" if said is None else "is not a mapping"
        raise CredentialsError(f"kubeconfig {file} {what}: select another with --kubeconfig or $KUBECONFIG")
    return said


def _nested(text: str) -> bool:
    """Whether it is deeper than any kubeconfig: the loader, being C, would run out of stack and take us along."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            return True
    return False


def _line(exc: Exception) -> str:
    mark = getattr(exc, "problem_mark", None)
    what = getattr(exc, "problem", None) or type(exc).__name__
    return f"line {mark.line + 1}, {what}" if mark is not None else str(what)


def _identity(said: Mapping[str, Any], file: str, context: str | None) -> Identity:
    name = context if context is not None else said.get("current-context")
    if not name and context is None and name in ("", None):
        raise CredentialsError(f"kubeconfig {file} has no current-context: select one with --context")
    if not isinstance(name, str):
        raise _UnusualError
    chosen = _found(said, "contexts", name, file)
    cluster = _found(said, "clusters", _text(chosen, "cluster"), file)
    host = _text(cluster, "server").rstrip("/")
    base = os.path.abspath(os.path.dirname(file))  # noqa: PTH100, PTH120 (as the client does: links are kept)
    secure = host.startswith("https")
    user = _user(said, chosen, file, secure=secure)
    authorization = _authorization(user, base, file)
    verify = cluster.get("insecure-skip-tls-verify", False)
    proxy = cluster.get("proxy-url", "")
    server_name = cluster.get("tls-server-name", "")
    if not (isinstance(verify, bool) and isinstance(proxy, str) and isinstance(server_name, str)):
        raise _UnusualError
    return Identity(
        host,
        says(authorization),
        _material(cluster, "certificate-authority", base, file) if secure else None,
        _material(user, "client-certificate", base, file) if secure else None,
        _material(user, "client-key", base, file) if secure else None,
        not verify,
        server_name,
        proxy or None,
    )


def _found(said: Mapping[str, Any], kind: str, name: str, file: str) -> dict[str, Any]:
    """What stands under that name."""
    items = said.get(kind) or []
    if not isinstance(items, list):
        raise _UnusualError
    named = [one.get("name") for one in items if isinstance(one, dict)]
    if len(named) != len(items) or not all(isinstance(one, str) for one in named) or len(set(named)) != len(named):
        raise _UnusualError
    if name not in named:
        known = ", ".join(map(repr, named[:_SHOWN])) or "none"
        raise CredentialsError(f"kubeconfig {file} has no {kind[:-1]} {name!r}; it has {known}")
    found = next(one for one in items if one["name"] == name).get(kind[:-1])
    if not isinstance(found, dict):
        raise _UnusualError
    return found


def _user(said: Mapping[str, Any], chosen: Mapping[str, Any], file: str, *, secure: bool) -> dict[str, Any]:
    """Empty for nobody, which the official client takes without TLS only."""
    name = chosen.get("user") or ""
    if not isinstance(name, str):
        raise _UnusualError
    if not name and secure:
        raise CredentialsError(f"the context in kubeconfig {file} has no user: add one, or use another --context")
    if not name:
        return {}
    try:
        user = _found(said, "users", name, file)
    except CredentialsError:
        if secure:
            raise
        return {}
    plugin = user.get("exec")
    command = plugin.get("command") if isinstance(plugin, dict) else None
    if isinstance(command, str) and command:
        # The official client writes its own complaint and goes on as nobody.
        path = os.path.join(os.path.dirname(os.path.abspath(file)), command) if "/" in command else command  # noqa: PTH100, PTH118, PTH120
        if shutil.which(path) is None:
            hint = plugin.get("installHint") if isinstance(plugin, dict) else None
            more = f" ({' '.join(hint.split())[:200]})" if isinstance(hint, str) and hint else ""
            raise CredentialsError(f"exec plugin {command!r} of kubeconfig {file} is not installed{more}: install it")
    if _ELSEWHERE & user.keys():
        raise _UnusualError
    return user


def _authorization(user: Mapping[str, Any], base: str, file: str) -> str:
    token = ""
    if "token" in user:
        token = _text(user, "token")
    elif "tokenFile" in user:
        path = os.path.normpath(os.path.join(base, _text(user, "tokenFile")))  # noqa: PTH118 (as the client does)
        try:
            with Path(path).open(encoding=None) as opened:
                token = opened.read(_LARGEST)
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not text"
            raise CredentialsError(
                f"cannot read token file {path} of kubeconfig {file} ({why}): correct the path"
            ) from None
    if token:
        return f"Bearer {token}"
    if "username" in user and "password" in user:
        both = f"{_text(user, 'username')}:{_text(user, 'password')}"
        return "Basic " + base64.b64encode(both.encode()).decode()
    return ""


def _material(where: Mapping[str, Any], key: str, base: str, file: str) -> Material:
    """Data before a file; data that is empty is none, whatever file is named."""
    if f"{key}-data" in where:
        data = _text(where, f"{key}-data")
        if not data:
            return None
        with suppress(ValueError):
            return base64.standard_b64decode(data.encode())
        raise CredentialsError(f"{key}-data in kubeconfig {file} is not valid base64: generate the kubeconfig again")
    if key not in where:
        return None
    path = os.path.normpath(os.path.join(base, _text(where, key)))  # noqa: PTH118 (as the client does)
    if not Path(path).is_file():
        raise CredentialsError(f"{key} {path} of kubeconfig {file} does not exist: create it, or correct the path")
    return Path(path)


def _text(where: Mapping[str, Any], key: str) -> str:
    value = where.get(key)
    if not isinstance(value, str):
        raise _UnusualError
    return value
