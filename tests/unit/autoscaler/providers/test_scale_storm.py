# SPDX-License-Identifier: Apache-2.0
"""
Removals and purchases behind `/scale` with answers lost and processes ended at any request.

The API server here is one of few lines with the manners that matter: versions, conflicts, marks; its controller
takes marked machines first and otherwise the newest. What the real server does is tested against the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples

from autoscaler.providers.base import ProviderError
from autoscaler.providers.scale import ScaleProvider, parse_settings
from autoscaler.providers.scale_wire import DELETE_MACHINE
from isolation.contract.codec.cursor import At
from isolation.kube.core.errors import RefusedError, UnreachableError

BEFORE, AFTER = "before", "after"


class Server:
    """One pool; `trouble` maps the number of a request to when it is lost."""

    def __init__(self, size):
        self.version, self.replicas, self.made = 1, size, 0
        self.machines = {}
        self.gone = []
        self.trouble = {}
        self.sent = 0
        self.control()

    def control(self):
        """One pass of the machine controller."""
        while len(self.machines) < self.replicas:
            self.made += 1
            self.machines[f"m{self.made:03}"] = {"uid": f"u{self.made}", "annotations": {}}
        while len(self.machines) > self.replicas:
            order = sorted(self.machines, key=lambda name: (not self._marked(name), -int(name[1:])))
            self.gone.append(order[0])
            del self.machines[order[0]]

    def _marked(self, name):
        return bool(self.machines[name]["annotations"].get(DELETE_MACHINE))

    @contextlib.contextmanager
    def _wire(self):
        self.sent += 1
        when = self.trouble.get(self.sent)
        if when == BEFORE:
            raise UnreachableError("lost on its way")
        yield
        if when == AFTER:
            raise UnreachableError("the answer was lost")

    async def send(self, method, path, body=None, kind="json"):  # noqa: ARG002 (as the access has it)
        """A Scale, or a patch of a Machine."""
        with self._wire():
            if path.endswith("/scale"):
                if method == "PUT":
                    if body["metadata"]["resourceVersion"] != str(self.version):
                        raise RefusedError(409, "Conflict")
                    self.version += 1
                    self.replicas = body["spec"]["replicas"]
                meta = {"resourceVersion": str(self.version)}
                scale = {"metadata": meta, "spec": {"replicas": self.replicas}, "status": {"selector": "a=b"}}
                answer = json.dumps(scale).encode()
            else:
                name = path.rpartition("/")[2]
                if name not in self.machines:
                    raise RefusedError(404, "NotFound")
                assert body["metadata"]["uid"] == self.machines[name]["uid"]
                for key, value in body["metadata"]["annotations"].items():
                    self.machines[name]["annotations"][key] = value
                answer = b"{}"
        return answer

    async def page(self, path, query):  # noqa: ARG002 (as the access has it)
        """Every Machine."""
        with self._wire():
            items = [
                {
                    "metadata": {"name": name, "namespace": "default", **about},
                    "status": {"nodeRef": {"name": f"node-{name}"}, "phase": "Running"},
                }
                for name, about in self.machines.items()
            ]
            return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["remove", "remove all"]), st.integers(0, 9)),
        st.tuples(st.just("grow"), st.integers(1, 2)),
        st.tuples(st.just("control"), st.just(0)),
        st.tuples(st.just("status"), st.just(0)),
    ),
    max_size=14,
)
TROUBLE = st.dictionaries(st.integers(1, 60), st.sampled_from([BEFORE, AFTER]), max_size=12)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS, TROUBLE)
def test_only_named_machines_go_and_in_the_end_all_of_them(steps, trouble):
    """
    Whatever is lost and whenever the process ends: no other machine goes, and asking again finishes the work.
    """
    server = Server(6)
    server.trouble = trouble
    named: set[str] = set()

    async def story():
        for what, number in steps:
            # a new process each time: nothing is remembered but what the cluster says
            provider = ScaleProvider(server, {"a": parse_settings(At({"name": "a"}))})
            with contextlib.suppress(ProviderError):
                if what.startswith("remove"):
                    name = f"m{number:03}"
                    if name in server.machines:
                        named.add(name)
                    asked = [name] if what == "remove" else sorted(named)
                    await provider.remove("a", [f"node-{name}" for name in asked])
                elif what == "grow":
                    await provider.grow("a", number)
                elif what == "status":
                    server.version += 1
                else:
                    server.control()
        server.trouble = {}
        for _ in range(2):
            provider = ScaleProvider(server, {"a": parse_settings(At({"name": "a"}))})
            await provider.remove("a", [f"node-{name}" for name in sorted(named)])
            target = server.replicas
            server.control()
        return target

    target = asyncio.run(story())

    assert set(server.gone) <= named
    assert named.isdisjoint(server.machines)
    assert target == len(server.machines)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 4), TROUBLE)
def test_a_purchase_is_in_the_target_once_or_not_at_all(by, trouble):
    """
    An answer that was lost does not hide a purchase from whoever looks: seen again, it is not repeated.
    """
    server = Server(2)
    server.trouble = trouble

    async def story():
        bought = None
        for _ in range(80):
            provider = ScaleProvider(server, {"a": parse_settings(At({"name": "a"}))})
            with contextlib.suppress(ProviderError):
                target = (await provider.pools())[0].target
                if target > 2:
                    return target
                bought = await provider.grow("a", by, seen=target)
        return bought

    assert 2 + by == asyncio.run(story()) == server.replicas


def test_a_machine_that_comes_while_it_is_given_up_is_not_paid_for_with_another():
    """
    Its controller was slow and makes it between the look and the write: the wish is not lowered below what stands.
    """
    server = Server(2)
    server.replicas = 3
    plain = server.send

    async def send(method, path, body=None, kind="json"):
        if method == "PUT" and len(server.machines) < server.replicas:
            server.control()
            server.version += 1
        return await plain(method, path, body, kind)

    server.send = send
    settings = parse_settings(At({"name": "a"}))
    assert 3 == asyncio.run(ScaleProvider(server, {"a": settings}).cancel("a", 1))
    server.control()
    assert (3, []) == (len(server.machines), server.gone)
