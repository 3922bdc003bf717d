"""
Who may come: TLS, certificates of clients, passwords, a rate; re-read while we run.

The file is looked at when somebody comes, at most once a second. One that has become unusable leaves the last
good one in force and says so in the log: half a file on its way to the disk must not end the scrapes.
What the file may say is `exporter.webconfig`'s, passwords are checked by `exporter.passwords`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import os
import selectors
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from exporter.message import plain
from exporter.passwords import LONGEST, Passwords, refusal
from exporter.site import OPEN
from exporter.webconfig import Tls, WebConfig, WebConfigError, load

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from exporter.connection import Later
    from exporter.message import Answer, Request

_log: Final = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
_VERSIONS: Final = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The file as it is in force."""

    config: WebConfig
    context: ssl.SSLContext | None
    stamp: tuple[object, ...]


class Guard:
    """The gate that a web configuration describes. `judge` and `wrap` are for the server's thread alone."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._loaded = self._load()
        self._looked = clock()
        self._failed: tuple[object, ...] | None = None
        self._passwords = Passwords()
        self._tokens = float(self._loaded.config.burst)
        self._filled = clock()

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken; that much cannot change while we run."""
        return self._loaded.context is not None

    def fields(self) -> tuple[tuple[str, str], ...]:
        """What the file adds to every answer."""
        return self._loaded.config.headers

    def wrap(self, sock: socket.socket) -> socket.socket:
        """Speak TLS through it, with the certificate that is in the file now."""
        self._look()
        context = self._loaded.context
        if context is None:
            return sock
        return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def shake(self, sock: socket.socket) -> None:
        """Go on with the handshake, and see whose certificate it is at its end."""
        if not isinstance(sock, ssl.SSLSocket):
            return
        sock.do_handshake()
        tls = self._loaded.config.tls
        if tls is not None and tls.allowed_sans and not _names(sock.getpeercert()).intersection(tls.allowed_sans):
            raise ssl.CertificateError("the client certificate has none of the allowed names")

    def wants(self, error: OSError) -> int:
        """TLS may have to write in order to read."""
        if isinstance(error, ssl.SSLWantWriteError):
            return selectors.EVENT_WRITE
        return selectors.EVENT_READ if isinstance(error, ssl.SSLWantReadError) else 0

    def judge(
        self, sock: socket.socket, address: str, request: Request, done: Callable[[Answer | None], None]
    ) -> Answer | Later | None:
        """The rate first, then the password."""
        del sock
        self._look()
        config = self._loaded.config
        if config.interval and not self._token(config):
            return plain(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", ("Retry-After", "1"))
        if not config.users or request.path in OPEN:
            return None
        given = _credentials(request.fields.get("authorization", ""))
        if given is None:
            return refusal()
        name, secret = given
        wanted = dict(config.users).get(name)
        return self._passwords.judge(address, (name, secret, wanted.encode() if wanted else None), done)

    def close(self) -> None:
        """End the thread that checks passwords."""
        self._passwords.close()

    def _token(self, config: WebConfig) -> bool:
        now = self._clock()
        self._tokens = min(float(max(1, config.burst)), self._tokens + (now - self._filled) / config.interval)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _look(self) -> None:
        """Read the file again if it, or a file that it names, is another one than before."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        stamp = _stamp(self._path, self._loaded.config.tls)
        if stamp in {self._loaded.stamp, self._failed}:
            return
        try:
            loaded = self._load()
            self._like_before(loaded)
        except WebConfigError as exc:
            self._failed = stamp
            _log.error("cannot load web configuration %s; keeping the previous one", exc)
            return
        self._failed = None
        self._loaded = loaded
        _log.info("reloaded web configuration %s", self._path)

    def _like_before(self, loaded: _Loaded) -> None:
        if (loaded.context is None) != (self._loaded.context is None):
            raise WebConfigError(f"{self._path}: TLS can be switched on or off only by a restart")

    def _load(self) -> _Loaded:
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise WebConfigError(f"{self._path}: cannot read file: {getattr(exc, 'strerror', None) or exc}") from None
        try:
            config = load(text)
            # the stamp is taken first: what changes while we read is read again
            stamp = _stamp(self._path, config.tls)
            context = _context(config.tls, self._path.parent) if config.tls is not None else None
        except WebConfigError as exc:
            raise WebConfigError(f"{self._path}: {exc}") from None
        return _Loaded(config, context, stamp)


def _files(tls: Tls | None) -> tuple[str, ...]:
    if tls is None:
        return ()
    return tuple(name for name in (tls.cert_file, tls.key_file, tls.client_ca_file) if name)


def _stamp(path: Path, tls: Tls | None) -> tuple[object, ...]:
    """What changes when one of the files does; a Secret's files are links, and it is their targets that change."""
    found: list[object] = []
    for file in (path, *(path.parent / name for name in _files(tls))):
        try:
            about = file.stat()
        except OSError as exc:
            found.append(exc.errno)
        else:
            found.append((about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns))
    return tuple(found)


def _context(tls: Tls, folder: Path) -> ssl.SSLContext:
    """A context as the file asks for it; paths are relative to the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        if tls.ciphers:
            context.set_ciphers(":".join(tls.ciphers))
        with contextlib.ExitStack() as open_files:
            certificate = _path(tls.cert, tls.cert_file, folder, open_files)
            context.load_cert_chain(certificate, _path(tls.key, tls.key_file, folder, open_files), password="")
        if tls.client_ca:
            context.load_verify_locations(cadata=tls.client_ca)
        elif tls.client_ca_file:
            context.load_verify_locations(cafile=folder / tls.client_ca_file)
    except (OSError, ValueError) as exc:
        names = ", ".join(_files(tls)) or "cert, key"
        reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or exc
        raise WebConfigError(f"tls_server_config: cannot load {names}: {reason}") from None
    context.verify_mode = _VERIFY[tls.verify]
    return context


def _path(inline: str, name: str, folder: Path, open_files: contextlib.ExitStack) -> str:
    """A path for OpenSSL: the file's, or that of memory which holds what stood in the configuration."""
    if not inline:
        return str(folder / name)
    fd = os.memfd_create("web-config", os.MFD_CLOEXEC)
    open_files.callback(os.close, fd)
    os.write(fd, inline.encode())
    return f"/proc/self/fd/{fd}"


def _names(certificate: object) -> set[str]:
    """Subject alternative names, as `getpeercert` gives them."""
    if not isinstance(certificate, dict):
        return set()
    return {str(value) for _, value in certificate.get("subjectAltName", ())}


def _credentials(field: str) -> tuple[str, bytes] | None:
    """Name and password of an Authorization field; None where there is nothing that we could check."""
    scheme, _, text = field.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, secret = base64.b64decode(text.strip(), validate=True).partition(b":")
        named = name.decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return (named, secret) if colon and len(secret) <= LONGEST and b"\0" not in secret else None
