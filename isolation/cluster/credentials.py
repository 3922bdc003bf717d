"""
Who we are to the API server, read as the official client reads it.

Decides where: a pod's service account where there is one and no $KUBECONFIG, else a kubeconfig
with certificates, tokens or an exec plugin. When to read again is the business of `access`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import yaml
from kubernetes.aio import config as official_config
from kubernetes.aio.client import Configuration

if TYPE_CHECKING:
    from pathlib import Path

UNUSABLE: Final = (
    official_config.ConfigException,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    TimeoutError,
    yaml.YAMLError,
)
"""What the official client raises over a kubeconfig that is none."""


async def configuration_of(kubeconfig: Path | None, context: str | None) -> Configuration:
    """The credentials as they are now; raises one of `UNUSABLE`."""
    configuration = Configuration()
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
        official_config.load_incluster_config(configuration)
    else:
        file = None if kubeconfig is None else str(kubeconfig)
        await official_config.load_kube_config(
            config_file=file, context=context, client_configuration=configuration, persist_config=False
        )
    return configuration


async def headers_of(configuration: Configuration) -> dict[str, str]:
    """Who we are, a service account's token read again by the official client every minute."""
    headers = {"Accept": "application/json"}
    token = await configuration.get_api_key_with_prefix("BearerToken")
    if token:
        headers["Authorization"] = token
    return headers
