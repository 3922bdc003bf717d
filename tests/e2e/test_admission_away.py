# SPDX-License-Identifier: Apache-2.0
"""Our admission webhook away, silent or spoilt: nobody waits for it who has no shares, and no share gets in."""

from __future__ import annotations

import asyncio

import pytest
from e2e.admission_harness import PODS, tried
from e2e.webhook_stories import answer, asking, binding, path_of, stored
from support.admission_pods import SHARED, amount, plain, pod, spec, workload


def test_only_pods_with_shares_ever_wait_for_us(plane):
    """
    While we are away they are refused, also their templates; pods without shares never notice, nor do
    exempt namespaces, updates of what runs already, and bindings.
    """

    async def story(client, stand):
        async with stored(client, pod() | {"metadata": {"name": "runs"}}):
            quiet = [
                await tried(client, plain()),
                await tried(client, plain(amount("nvidia.com/gpu", "1"))),
                await tried(client, workload("Deployment", plain()), path_of("Deployment")),
            ]
            asked = list(stand.asked)
            await stand.stop()
            away = {
                "share": await tried(client, pod()),
                "template": await tried(client, workload("Deployment", pod()), path_of("Deployment")),
                "plain": await tried(client, plain()),
                "plain-template": await tried(client, workload("Deployment", plain()), path_of("Deployment")),
                "label": await answer(client.merge(f"{PODS}/runs", {"metadata": {"labels": {"mine": "1"}}})),
                "status": await answer(client.merge(f"{PODS}/runs/status", {"status": {"phase": "Pending"}})),
                "record": await answer(client.merge(f"{PODS}/runs", {"metadata": {"labels": {SHARED: None}}})),
            }
        for name, labels in (("adm-exempt", {"gpushare.dev/exempt": "true"}), ("adm-normal", {})):
            await client.create({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            await client.until(lambda _: True, account)
            made = pod() | {"metadata": {"name": "p"}}
            away[name] = await tried(client, made, f"/api/v1/namespaces/{name}/pods")
            await client.delete(f"/api/v1/namespaces/{name}")
        system = pod() | {"metadata": {"name": "p"}}
        away["kube-system"] = await tried(client, system, "/api/v1/namespaces/kube-system/pods")
        await stand.start()
        return quiet, asked, away

    quiet, asked, away = asking(plane, story)
    assert (["", "", ""], ["pods"]) == (quiet, asked)
    waits = {"share", "template", "record", "adm-normal"}
    assert waits == {name for name, text in away.items() if text}
    assert all("failed calling webhook" in away[name] for name in waits)


async def silence() -> bytes:
    """The connection stands, and nothing comes."""
    await asyncio.sleep(60)
    return b""


async def nonsense() -> bytes:
    """An answer that is none."""
    return b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {"allowed": true}}'


@pytest.mark.parametrize(("ill", "words"), [(silence, "deadline exceeded"), (nonsense, "response.uid")])
def test_a_webhook_that_answers_nothing_or_nonsense_lets_no_share_in(plane, ill, words):
    """
    Within its deadline; pods without shares never wait for it, and a binding of theirs goes on without it.
    """

    async def story(client, stand):
        async with stored(client, plain(spec(schedulerName="nobody"))):
            stand.ill = ill
            other = await tried(client, plain() | {"metadata": {"name": "q"}})
            bound = await answer(client.call("POST", f"{PODS}/p/binding", binding("p")))
            shares = await tried(client, pod() | {"metadata": {"name": "q"}})
            stand.ill = None
            return other, bound, shares, list(stand.asked)

    other, bound, shares, asked = asking(plane, story, timeout_seconds=5)
    assert ("", "") == (other, bound)
    assert words in shares
    assert ["bindings", "pods"] == asked


def test_bindings_do_not_depend_on_us(plane):
    """
    While we are away other schedulers go on binding what is theirs.
    """

    async def story(client, stand):
        made = plain(spec(schedulerName="nobody"))
        async with stored(client, made):
            await stand.stop()
            said = await answer(client.call("POST", f"{PODS}/p/binding", binding("p")))
            await stand.start()
            return said

    assert "" == asking(plane, story)
