# SPDX-License-Identifier: Apache-2.0
"""A new release of the agent, with another library, under pods that run: on a real kubelet."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from realkubelet.harness import REPOSITORY, play, real_node
from realkubelet.pods import GIB, PODS, container, facts, pod_of
from support.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def stage(plane, tmp_path_factory):
    """A real node whose agent serves two cards of 14 units."""
    with real_node(plane, tmp_path_factory.mktemp("n")) as made:
        yield made


def release_with_another_library(folder):
    """The packages, with a library that does the same and has another checksum."""
    shutil.copytree(REPOSITORY / "isolation", folder / "isolation", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "isolation/lib/libgpushare.so").open("ab") as library:
        library.write(b"another release")
    return folder


def sources_of(stage, pod):
    """Where the library of a running container lies on the node, by the kernel."""
    box = stage.node.containers(pod["metadata"]["uid"])["main"]
    said = stage.node.execute(box, "/bin/cat", "/proc/self/mountinfo")
    return [line.split()[3] for line in said.splitlines() if line.split()[4] == "/run/gpushare/lib/libgpushare.so"]


def libraries(stage):
    """Versions that the node keeps."""
    return {path.name for path in stage.node.machine.path("/var/lib/gpushare/lib").iterdir()}


async def until_libraries(stage, count):
    """The versions, once there are so many."""
    end = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while len(libraries(stage)) != count and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 (another process's files)
        await asyncio.sleep(0.2)
    return libraries(stage)


def test_old_and_new_library_run_side_by_side_until_nobody_needs_the_old_one(stage, tmp_path):
    """
    Who runs keeps the old one, who starts gets the new one, also when it is the same container again; the old one
    goes when no container names it any more.
    """
    new_release = release_with_another_library(tmp_path)

    async def story(client):
        await stage.place(client, pod_of("stays", container("main", 3, "100")), 0)
        await stage.place(client, pod_of("dies", container("main", 4, "100")), 0)
        stays, dies = await stage.running_pod(client, "stays"), await stage.running_pod(client, "dies")
        before = libraries(stage)
        stage.stop_agent()
        stage.start_agent(new_release)
        await stage.ready(client)
        await stage.place(client, pod_of("next", container("main", 2, "100", "3000")), 0)
        new = await stage.running_pod(client, "next")
        stage.node.ctr("tasks", "kill", "-s", "SIGKILL", stage.node.containers(dies["metadata"]["uid"])["main"])
        await stage.running_pod(client, "dies", restarts=1)
        both = libraries(stage)
        used = {name: sources_of(stage, pod) for name, pod in (("stays", stays), ("dies", dies), ("next", new))}
        reports = facts(stage.said(new)), facts(stage.said(dies, restarts=1))
        await client.delete(f"{PODS}/stays")
        await stage.only_stand(2)
        stage.stop_agent()
        stage.start_agent(new_release)  # it sweeps when it begins, and each ten minutes
        await stage.ready(client)
        return before, both, used, reports, await until_libraries(stage, 1)

    before, both, used, (new, again), after = play(stage, story)
    (old,) = before
    (fresh,) = both - before
    versions = {name: fresh if fresh in path else old if old in path else path for name, (path,) in used.items()}
    assert {"stays": old, "dies": fresh, "next": fresh} == versions
    assert ([str(2 * GIB)], ["0", "2"]) == (new["total"], new["take"])
    assert [str(4 * GIB)] == again["total"]
    assert {fresh} == after
