# SPDX-License-Identifier: Apache-2.0
"""What stories about the agent's mind share: it has started, time passes, a pod comes unseen, an init has ended."""

from __future__ import annotations

import asyncio

from support.agent_world import AgentWorld


def run(work):
    """One thing after the other."""
    return asyncio.run(work)


def started():
    """A node in memory whose agent has looked around."""
    made = AgentWorld()
    run(made.agent.start())
    return made


def ticks(node, seconds):
    """Time passes and the agent looks."""
    for _ in range(int(seconds)):
        node.time += 1
        run(node.agent.tick())


def ended(wanted):
    """An init container that has ended well."""
    return type(wanted)(wanted.name, wanted.units, wanted.init, done=wanted.init)


def unseen(node, name, **containers):
    """A pod that is admitted before anybody but the kubelet has heard of it."""
    pod = node.bind(name, watched=False, **containers)
    del node.api[name]
    node.api_up = False
    node.api[name] = pod
    boxes = run(node.admit(name))
    node.api_up = True
    return pod, boxes
