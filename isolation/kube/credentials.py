# SPDX-License-Identifier: Apache-2.0
"""
Who we are to the API server, read as the official client reads it.

Decides where: a pod's service account where there is one and no $KUBECONFIG, else a kubeconfig. The pod's account
and the usual kind of kubeconfig are read here (`kubeconfig`); for the others the official client is loaded, which
takes longer than all the rest. When to read again is the business of `access`.
"""

from __future__ import annotations

import logging
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from isolation.kube.core.errors import CredentialsError
from isolation.kube.identity import Identity
from isolation.kube.kubeconfig import identity_in, usual_file

log = logging.getLogger(__name__)
_HOST: Final = "KUBERNETES_SERVICE_HOST"
_PORT: Final = "KUBERNETES_SERVICE_PORT"
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS: Final = 60.0
"""The kubelet replaces an account's token; so often it is read again."""
_HINT: Final = "check the file, or select another with --kubeconfig or $KUBECONFIG"


async def identity_of(kubeconfig: Path | None, context: str | None) -> Identity:
    """The credentials as they are now; raises CredentialsError, in one line."""
    if kubeconfig is None and _HOST in os.environ and "KUBECONFIG" not in os.environ:
        return _account()
    file = usual_file(kubeconfig)
    found = None if file is None else identity_in(file, context)
    return found if found is not None else await official_identity(kubeconfig, context)


async def official_identity(kubeconfig: Path | None, context: str | None) -> Identity:
    """The same by the official client's own reading: plug-ins, providers, several files."""
    _some_file(kubeconfig)
    official: Any = import_module("kubernetes.aio.config")
    configuration: Any = import_module("kubernetes.aio.client").Configuration()
    try:
        await official.load_kube_config(
            config_file=None if kubeconfig is None else str(kubeconfig),
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
    except Exception as exc:  # over a file that is none it raises whatever its code ran into
        raise CredentialsError(
            f"cannot load kubeconfig: {type(exc).__name__}: {' '.join(str(exc).split())}; {_HINT}"
        ) from exc

    async def authorization() -> str:
        return await configuration.get_api_key_with_prefix("BearerToken") or ""

    certificates = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    authority, certificate, key = (Path(one) if one else None for one in certificates)
    return Identity(
        configuration.host,
        authorization,
        authority,
        certificate,
        key,
        bool(configuration.verify_ssl),
        configuration.tls_server_name or "",
        configuration.proxy or None,
    )


def _some_file(kubeconfig: Path | None) -> None:
    """The official client says in its own log that there is none, and then goes on without."""
    told = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "")
    names = [Path(name).expanduser() for name in told.split(os.pathsep) if name]
    if not told and kubeconfig is None and "KUBECONFIG" in os.environ:
        raise CredentialsError("$KUBECONFIG is empty: set it to a file, or use --kubeconfig")
    if names and not any(name.exists() for name in names):
        raise CredentialsError(f"none of the kubeconfig files {told} exists: use --kubeconfig or $KUBECONFIG")


# A pod's own account.


def _account() -> Identity:
    host, port = os.environ.get(_HOST, ""), os.environ.get(_PORT, "")
    authority = _ACCOUNT / "ca.crt"
    if not host or not port:
        raise CredentialsError(f"${_HOST} or ${_PORT} is not set: set both, or use --kubeconfig or $KUBECONFIG")
    token = _AccountToken(_ACCOUNT / "token")
    if not _text(authority):
        raise CredentialsError(f"{authority} is empty: the service account volume is broken, recreate the pod")
    where = f"[{host}]:{port}" if ":" in host or "%" in host else f"{host}:{port}"
    return Identity(f"https://{where}", token.current, authority)


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
