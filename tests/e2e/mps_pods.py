# SPDX-License-Identifier: Apache-2.0
"""
Pods of nodes in mode `mps`, for tests: their programs are real clients of the simulated driver, in a mount namespace
as the agent's adjustment says.
"""

from __future__ import annotations

from e2e.kubelets import share_pod
from support.cdi_process import Boxed

from isolation.contract.names import MPS_ENDED, SHARED, TRUST_GROUP
from isolation.node.cdi import Edits, Mount

USER = {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
FILL = """
rc, got = begin(), 0
while rc == 0 and alloc(32 * MIB)[0] == 0: got += 32 * MIB
sms = c_int(); cu.cuDeviceGetAttribute(byref(sms), 16, 0)
say([rc, got, sms.value])
"""
WAIT = f"{FILL}sys.stdin.readline()\n"


def client_pod(name, units, core=0, uid=0):
    """A pod that shares a card under MPS, as admission leaves it."""
    made = share_pod(name, units, securityContext={"runAsUser": uid})
    if core:
        made["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-core.percentage"] = str(core)
    made["metadata"]["labels"][SHARED] = "true"
    made["metadata"]["annotations"] = {TRUST_GROUP: "ml"}
    return made


class Programs:
    """What runs in the containers of the stand-in."""

    def __init__(self, at, folder):
        self._at, self._boxed, self.all = at, Boxed(folder), []

    def run(self, pod, code=WAIT):
        """A program in its container, whose process the agent sees from now on; what it says first."""
        started = pod.boxes["main"]
        given = started.container.adjustment.mounts
        mounts = tuple(
            Mount(one.source, one.destination, writable="rw" in one.options)
            for one in given
            if not one.destination.startswith("-")
        )
        process = self._boxed.start(Edits(started.env, mounts), code)
        self.all.append(process)
        group = self._at.kubelet.runtime._group(pod.uid, started)
        (group / "cgroup.procs").write_text(f"{process.pid}\n")
        return process, process.stdout.readline().strip()

    def end(self):
        """None outlives its container, or the test."""
        for one in self.all:
            one.kill()
            one.communicate()
        self.all.clear()


async def event_of(at, pod):
    """What its events say of its server."""
    found = await at.client.until(
        lambda listed: any(one["regarding"]["uid"] == pod.uid for one in listed["items"]),
        EVENTS,
        fieldSelector=f"reason={MPS_ENDED}",
    )
    return [one for one in found["items"] if one["regarding"]["uid"] == pod.uid]
