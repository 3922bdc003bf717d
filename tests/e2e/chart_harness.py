# SPDX-License-Identifier: Apache-2.0
"""
The chart installed by helm on a control plane, with nodes whose kubelets are stand-ins.
"""

from __future__ import annotations

import contextlib
import json

from e2e.apiclient import RefusedError, connected
from e2e.chart_build import run_helm, values_of
from e2e.foreign_kinds import definitions
from e2e.kubelets import Kubelets, shared_node
from e2e.manifest_harness import NODE
from e2e.manifest_installation import Installation
from e2e.sharing import card_node, untainted

from isolation.contract.names import SCHEDULER, SYSTEM_NAMESPACE

FLEETING = {"Event", "Lease", "ControllerRevision", "EndpointSlice", "Endpoints", "Node", "PodMetrics", "CSINode"}
"""Kinds that controllers make and remove on their own."""


class Chart(Installation):
    """An installation by helm."""

    def helm(self, *words):
        """A command of helm, without a complaint."""
        done = run_helm(*words, "--namespace", SYSTEM_NAMESPACE, KUBECONFIG=self.plane.kubeconfig)
        assert (0, "") == (done.returncode, done.stderr), done.stdout + done.stderr
        return done.stdout

    def put(self, verb, chart, sets, *more):
        """`helm install` or `helm upgrade`."""
        file = self.folder / "values.json"
        file.write_text(values_of(sets))
        return self.helm(verb, "gpushare", str(chart), "-f", str(file), *more)

    def stored(self, *fields):
        """All objects of the cluster but fleeting ones, by kind, namespace and name, with these fields of metadata."""
        kinds = self.run("kubectl", "api-resources", "--verbs=list", "--cached=false", "-o", "name").split()
        listed = json.loads(self.run("kubectl", "get", ",".join(kinds), "-A", "-o", "json"))["items"]
        return {
            (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): tuple(
                one["metadata"].get(field) for field in fields
            )
            for one in listed
            if one["kind"] not in FLEETING
        }


async def authorities(client):
    """What the API server believes of each webhook."""
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SCHEDULER}"
    return {one["clientConfig"].get("caBundle") for one in (await client.get(path))["webhooks"]}


@contextlib.asynccontextmanager
async def prepared(plane, folder, foreign=None):
    """The kinds of others, as the manifests use them or given ones, and two nodes, one with cards."""
    async with connected(plane) as client:
        for one in definitions() if foreign is None else foreign:
            with contextlib.suppress(RefusedError):
                await client.create(one)
        linux = {"kubernetes.io/os": "linux"}
        nodes = [card_node(NODE, **linux), shared_node("installation-plain", cards=0, **linux)]
        chart = Chart(plane, client, folder)
        async with Kubelets(client, nodes).alive():
            await untainted(client)
            try:
                yield chart
            except BaseException:
                print(chart.words())  # noqa: T201 (shown with the failure)
                raise
