# SPDX-License-Identifier: Apache-2.0
"""
What the providers on clouds' SDKs share: lazy imports with a remedy, and calls that end.

Decides nothing about pools. Credentials come from the SDK's own chain (environment, workload identity, machine
role), never from our configuration.
"""

from __future__ import annotations

import asyncio
import importlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from autoscaler.providers.base import MissingError, ProviderUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from isolation.contract.codec.cursor import At

_T = TypeVar("_T")
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0
"""Of one request, below the deadline of a whole call."""


def read_texts(at: At, provider: str, keys: Sequence[str]) -> list[str]:
    """A pool's settings, which are these and no others; raises CodecError."""
    known = ", ".join(keys)
    for key in keys:
        if not at[key].text():
            raise at[key].wrong(f"missing; settings of provider {provider}: {known}")
    for key, value in at.fields():
        if key not in keys:
            raise value.wrong(
                f"unknown key; settings of provider {provider}: {known} (credentials come from the SDK's default chain)"
            )
    return [at[key].text() for key in keys]


def import_sdk(module: str, extra: str) -> Any:
    """An SDK's module; MissingError says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise MissingError(
            f"{module} is not installed ({exc}); docs/providers.md says how to install provider {extra}"
        ) from exc


async def call_in_thread(executor: Executor, seconds: float, call: Callable[..., _T], **given: object) -> _T:
    """A blocking call beside the loop; what is not done in time goes on unseen, so its outcome is unknown."""
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(executor, partial(call, **given))
    except TimeoutError:
        raise ProviderUnreachableError(f"timed out after {seconds:.0f} s") from None


def is_raised_by(exc: Exception, *packages: str) -> bool:
    """Whether an exception is one of these packages', or the network's; others are faults of ours."""
    return isinstance(exc, OSError) or type(exc).__module__.partition(".")[0] in packages
