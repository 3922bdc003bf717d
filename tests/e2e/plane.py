# SPDX-License-Identifier: Apache-2.0
"""
A control plane on loopback, from nothing to ready in seconds, and gone without a trace.

Decides flags, ports and credentials. RBAC is on; nodes are never made here (`kubelets`). Every
process dies with the one that started it, also if that one is killed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from e2e.certificates import Authority, Pair, new_key
from support.children import DIES_WITH_US
from support.ports import free_port
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HOSTS = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1")
ADMIN, ADMINS = "admin", ("system:masters",)


class NotReadyError(Exception):
    """A program ended or did not answer in time; the message ends with its last words."""


class ControlPlane:
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler."""

    def __init__(
        self, programs: Mapping[str, Path], folder: Path, apiserver_flags: tuple[str, ...] = (), port: int = 0
    ) -> None:
        self._programs = programs
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._flags = apiserver_flags
        # One thread that lives as long as this: the kernel ends a child with the *thread* that made it.
        self._launcher = ThreadPoolExecutor(1)
        self.port, self._etcd_port, self._peer_port = port or free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._authority = Authority(folder, "ca")
        self._proxy_authority = Authority(folder, "front-proxy-ca")
        self._serving = self._authority.issue("kube-apiserver", hosts=_HOSTS)
        self._proxy = self._proxy_authority.issue("front-proxy-client")
        new_key(folder / "service-accounts.key")
        self._issued: dict[tuple[str, tuple[str, ...]], Pair] = {}
        self.ca = self._authority.certificate
        self.kubeconfig = self.kubeconfig_for(ADMIN)

    # Credentials.

    def pair_for(self, user: str, groups: tuple[str, ...] = ()) -> Pair:
        """A client certificate of a user in these groups; the admin is one of the masters without saying so."""
        asked = user, ADMINS if user == ADMIN else groups
        if asked not in self._issued:
            self._issued[asked] = self._authority.issue(user, groups=asked[1])
        return self._issued[asked]

    def serving_pair(self, name: str, hosts: tuple[str, ...]) -> Pair:
        """A server certificate that every client here trusts; asked for again: a new one in the same files."""
        return self._authority.issue(name, hosts=hosts)

    def kubeconfig_for(self, user: str, groups: tuple[str, ...] = (), port: int | None = None) -> Path:
        """A kubeconfig of a user, by certificate; another port where a proxy stands in between."""
        pair = self.pair_for(user, groups)
        given = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        return self._write_kubeconfig(pair.certificate.stem, given, port)

    def kubeconfig_of_token(self, name: str, token_file: Path) -> Path:
        """A kubeconfig that reads a token from a file."""
        return self._write_kubeconfig(name, {"tokenFile": str(token_file)}, None)

    def _write_kubeconfig(self, name: str, user: dict[str, str], port: int | None) -> Path:
        server = f"https://127.0.0.1:{port or self.port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "t", "cluster": {"server": server, "certificate-authority": str(self.ca)}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": name}}],
            "current-context": "t",
        }
        path = self._folder / f"{name.replace(':', '-')}{port or ''}.kubeconfig"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(config))
        fresh.replace(path)  # whoever was started with it before may be reading it now
        return path

    def tls(self, user: str = ADMIN) -> ssl.SSLContext:
        """What a client of this user needs."""
        context = ssl.create_default_context(cafile=str(self.ca))
        pair = self.pair_for(user)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    # Life.

    def more_apiserver_flags(self, *flags: str) -> None:
        """For its next start; a flag that is there already counts as said here."""
        self._flags += flags

    def start(self) -> None:
        """From nothing to ready; whatever was started is stopped if it does not get there."""
        try:
            self._start_etcd()
            self.start_apiserver()
            self.start_controller_manager()
            self.start_scheduler()
            self._await("kube-controller-manager", self._has_default_account)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Every process, the last one started first; a frozen one too."""
        for name in reversed(list(self._running)):
            self.kill(name, signal.SIGTERM if name == "etcd" else signal.SIGKILL)
        self._launcher.shutdown()

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End one program."""
        process = self._running.pop(name, None)
        if process is None:
            return
        for step in (signal.SIGCONT, how):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(step)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def freeze(self, name: str) -> None:
        """Connections stay open and nothing comes any more."""
        self._running[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """And on it goes."""
        self._running[name].send_signal(signal.SIGCONT)

    def pids(self) -> dict[str, int]:
        """The processes that have not ended, by program."""
        return {name: process.pid for name, process in self._running.items() if process.poll() is None}

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        data = self._folder / "etcd"
        data.mkdir(mode=0o700, exist_ok=True)
        flags = {
            "data-dir": data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "error",
        }
        self._launch("etcd", flags, "--unsafe-no-fsync")
        self._await("etcd", lambda: self.etcd("/v3/kv/range", {"key": _b64("health")}) is not None)

    def start_apiserver(self) -> None:
        """Start it, on the same port as before, and wait until it is ready."""
        self._launch("kube-apiserver", self._apiserver_flags(), *self._flags)
        self._await("kube-apiserver", lambda: self.get("/readyz") == b"ok")

    def restart_apiserver(self) -> None:
        """Killed and back; controllers and scheduler begin again, since they would wait half a minute to try again."""
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver"):
            self.kill(name)
        self.start_apiserver()
        self.start_controller_manager()
        self.start_scheduler()

    def _apiserver_flags(self) -> dict[str, object]:
        keys = self._folder / "service-accounts.key"
        return {
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "etcd-compaction-interval": "0",  # tests compact when they want to
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "secure-port": self.port,
            "cert-dir": self._folder,
            "tls-cert-file": self._serving.certificate,
            "tls-private-key-file": self._serving.key,
            "client-ca-file": self.ca,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": keys,
            "service-account-signing-key-file": keys,
            "service-cluster-ip-range": "10.0.0.0/16",
            "authorization-mode": "Node,RBAC",
            "allow-privileged": "true",
            "requestheader-client-ca-file": self._proxy_authority.certificate,
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": self._proxy.certificate,
            "proxy-client-key-file": self._proxy.key,
            "enable-aggregator-routing": "true",
        }

    def start_controller_manager(self, *more: str) -> None:
        """Start it, with more flags where a test wants them; it has no readiness of its own here."""
        config = self.kubeconfig_for("system:kube-controller-manager")
        flags = {
            "kubeconfig": config,
            "authentication-skip-lookup": "true",
            "bind-address": "127.0.0.1",
            "secure-port": "0",
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self._folder / "service-accounts.key",
            "root-ca-file": self.ca,
            "kube-api-qps": "300",  # the default of 20 costs seconds at the start
            "kube-api-burst": "600",
        }
        self._launch("kube-controller-manager", flags, *more)

    def start_scheduler(self, configuration: Path | None = None) -> None:
        """Start it, with a configuration of the caller's or the stock profile."""
        if configuration is None:
            configuration = self._folder / "scheduler.json"
            configuration.write_text(json.dumps(self.scheduler_configuration()))
        flags = {
            "config": configuration,
            "authentication-skip-lookup": "true",
            "bind-address": "127.0.0.1",
            "secure-port": "0",
        }
        self._launch("kube-scheduler", flags)

    def scheduler_configuration(self, **more: object) -> dict[str, object]:
        """The stock profile, with whatever else the caller wants in it."""
        config = self.kubeconfig_for("system:kube-scheduler")
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(config), "qps": 500, "burst": 1000},
        } | more

    def add_scheduler(self, name: str, configuration: Path, host: str = "", **env: str) -> None:
        """One more kube-scheduler, under a name of its own (for `kill`, `freeze`, `last_words`), as if on that host."""
        flags = {
            "config": configuration,
            "authentication-skip-lookup": "true",
            "bind-address": "127.0.0.1",
            "secure-port": "0",
        }
        self._launch(name, flags, program="kube-scheduler", host=host, env=env)

    def _launch(
        self,
        name: str,
        flags: Mapping[str, object],
        *more: str,
        program: str = "",
        host: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        apart = ("unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$0" "$@"') if host else ()
        arguments = [
            *DIES_WITH_US,
            *apart,
            str(self._programs[program or name]),
            *(f"--{key}={value}" for key, value in flags.items()),
            *more,
        ]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = self._launcher.submit(
                subprocess.Popen,
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | dict(env or {}),
            ).result()

    def _await(self, name: str, ready) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if self._running[name].poll() is not None:
                raise NotReadyError(f"{name} ended with {self._running[name].returncode}: {self.last_words(name)}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                if ready():
                    return
            time.sleep(0.05)
        raise NotReadyError(f"{name} was not ready after {PATIENCE_SECONDS:.0f} s: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """The end of a program's log."""
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]

    # Questions that need no client.

    def get(self, path: str) -> bytes:
        """One GET as the administrator."""
        with urllib.request.urlopen(self.url + path, timeout=30, context=self.tls()) as answer:  # noqa: S310
            return answer.read()

    def _has_default_account(self) -> bool:
        return b'"default"' in self.get("/api/v1/namespaces/default/serviceaccounts")

    def etcd(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """One call to etcd's JSON gateway."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._etcd_port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read())

    def compact(self) -> None:
        """Forget every old revision, as etcd does after minutes."""
        now = self.etcd("/v3/kv/range", {"key": _b64("x")})
        self.etcd("/v3/kv/compaction", {"revision": now["header"]["revision"], "physical": True})

    def store(self, objects: Mapping[str, dict[str, object]]) -> None:
        """Objects straight into etcd by key, past admission: thousands in seconds, for figures only."""
        items = [(key, json.dumps(value)) for key, value in objects.items()]
        for start in range(0, len(items), 100):
            puts = [
                {"requestPut": {"key": _b64(key), "value": _b64(value)}} for key, value in items[start : start + 100]
            ]
            self.etcd("/v3/kv/txn", {"success": puts})


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
