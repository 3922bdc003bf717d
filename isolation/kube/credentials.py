# SPDX-License-Identifier: Apache-2.0
"""
The credentials of a process at the API server: a pod's service account, or a kubeconfig.

Decides which of the two: the service account where there is one and no $KUBECONFIG. A kubeconfig is read by the
official client alone, with everything that it may hold (exec plug-ins, auth providers, several files). When to read
again is decided by `access`.
"""

from __future__ import annotations

import logging
import os
import shutil
import ssl
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isolation.kube.core.errors import CredentialsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)
_HOST: Final = "KUBERNETES_SERVICE_HOST"
_PORT: Final = "KUBERNETES_SERVICE_PORT"
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS: Final = 60.0
"""The kubelet replaces an account's token; so often it is read again."""
_HINT: Final = "check the file, or select another with --kubeconfig, --context or $KUBECONFIG"
_LONGEST_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class Credentials:
    """One account at one API server."""

    host: str
    """URL without a slash at its end."""
    authorization: Callable[[], Awaitable[str]]
    """The header's text as it is now; empty: a client certificate, or anonymous."""
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: bool = True
    server_name: str = ""
    proxy: str | None = None

    async def headers(self) -> dict[str, str]:
        """Headers of every request; CredentialsError for a token that no header can carry."""
        headers = {"Accept": "application/json"}
        # A token file ends with a newline; a newline within a token would begin another header.
        authorization = (await self.authorization()).strip(" \t\r\n")
        if authorization:
            if not authorization.isascii() or not authorization.isprintable():
                raise CredentialsError("token has characters that are invalid in HTTP headers: use one ASCII line")
            headers["Authorization"] = authorization
        return headers

    def tls(self) -> ssl.SSLContext:
        """How the server is verified, and our client certificate; OSError or ValueError for invalid files."""
        context = ssl.create_default_context(cafile=self.authority)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, keyfile=self.key)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


async def read_credentials(kubeconfig: Path | None, context: str | None) -> Credentials:
    """The credentials as they are now; raises CredentialsError, in one line."""
    if kubeconfig is None and _HOST in os.environ and "KUBECONFIG" not in os.environ:
        return _read_account()
    files = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "~/.kube/config")
    _check_exists(files)
    return await _read_kubeconfig(files, context)


# A kubeconfig.


def _check_exists(files: str) -> None:
    """The official client only logs that there is no file, and goes on without."""
    paths = [Path(name).expanduser() for name in files.split(os.pathsep) if name]
    if not paths:
        raise CredentialsError("$KUBECONFIG is empty: set it to a file, or use --kubeconfig")
    if not any(path.exists() for path in paths):
        what = f"kubeconfig {files} does not exist" if len(paths) == 1 else f"none of the kubeconfigs {files} exists"
        raise CredentialsError(f"{what}: select another with --kubeconfig or $KUBECONFIG")


async def _read_kubeconfig(files: str, context: str | None) -> Credentials:
    # Imported here: it takes 0.2 s and 20 MiB, which a pod with a service account does not need to spend.
    official: Any = import_module("kubernetes.aio.config")
    configuration: Any = import_module("kubernetes.aio.client").Configuration()
    try:
        loader = await official.load_kube_config(
            config_file=files, context=context, client_configuration=configuration, persist_config=False
        )
    except Exception as exc:  # a broken file raises whatever the client's code runs into
        reason = f"not a valid kubeconfig ({exc})"
        if isinstance(exc, OSError):
            reason = f"cannot read {exc.filename or files} ({exc.strerror})"
        elif isinstance(exc, official.ConfigException):
            reason = str(exc)
        reason = " ".join(reason.split())[:_LONGEST_REASON]
        raise CredentialsError(f"cannot load kubeconfig {files}: {reason}; {_HINT}") from exc
    _check_plugin(loader, configuration)

    async def authorization() -> str:
        return await configuration.get_api_key_with_prefix("BearerToken") or ""

    paths = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    authority, certificate, key = (Path(path) if path else None for path in paths)
    return Credentials(
        configuration.host,
        authorization,
        authority,
        certificate,
        key,
        bool(configuration.verify_ssl),
        configuration.tls_server_name or "",
        configuration.proxy or None,
    )


def _check_plugin(loader: Any, configuration: Any) -> None:
    """The official client only logs that an exec plug-in failed, and goes on as anonymous."""
    user = loader._user  # noqa: SLF001 (its own refresh_token looks there too)
    if user and "exec" in user and "BearerToken" not in configuration.api_key and not configuration.cert_file:
        command = user["exec"].safe_get("command")
        if isinstance(command, str) and shutil.which(command) is None:
            raise CredentialsError(f"exec plugin {command!r} is not installed: install it")
        raise CredentialsError(f"exec plugin {command!r} gave no credentials: run it to see its error")


# A pod's own account.


def _read_account() -> Credentials:
    host, port = os.environ.get(_HOST, ""), os.environ.get(_PORT, "")
    authority = _ACCOUNT / "ca.crt"
    if not host or not port:
        raise CredentialsError(f"${_HOST} or ${_PORT} is not set: set both, or use --kubeconfig or $KUBECONFIG")
    token = _AccountToken(_ACCOUNT / "token")
    if not _text(authority):
        raise CredentialsError(f"{authority} is empty: the service account volume is broken, recreate the pod")
    where = f"[{host}]:{port}" if ":" in host or "%" in host else f"{host}:{port}"
    return Credentials(f"https://{where}", token.current, authority)


class _AccountToken:
    """The account's token; one that cannot be read again is used on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._token = self._read()
        self._read_at = time.monotonic()

    async def current(self) -> str:
        """As the header says it, at most a minute old."""
        if time.monotonic() - self._read_at >= _TOKEN_SECONDS:
            self._read_at = time.monotonic()
            try:
                self._token = self._read()
            except CredentialsError as exc:
                log.warning("cannot reload the service account token, keeping the previous one: %s", exc)
        return self._token

    def _read(self) -> str:
        token = _text(self._file)
        if not token:
            raise CredentialsError(f"{self._file} is empty: the service account volume is broken, recreate the pod")
        return f"bearer {token}"


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise CredentialsError(
            f"cannot read {file} ({exc}): check automountServiceAccountToken of the pod and its service account"
        ) from None
