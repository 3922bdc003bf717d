# SPDX-License-Identifier: Apache-2.0
"""Reviews as the API server sends them, and what admission says to them."""

from __future__ import annotations

import base64
import json
from typing import Any

from isolation.scheduler.admission.core.webhook import ReviewContext, review


def world(**given: Any) -> ReviewContext:
    """A cluster that knows no pods."""
    return ReviewContext(**{"is_shared": lambda _namespace, _name: False, **given})


def asked(
    thing: dict[str, Any] | None,
    operation: str = "CREATE",
    old: dict[str, Any] | None = None,
    *,
    resource: str = "pods",
    sub: str = "",
    user: str = "someone",
    **request: Any,
) -> bytes:
    """A review as the API server sends it."""
    plural, _, group = resource.partition(".")
    body = {
        "uid": "u-1",
        "kind": {"group": group, "version": "v1", "kind": (thing or {}).get("kind", "")},
        "resource": {"group": group, "version": "v1", "resource": plural},
        "operation": operation,
        "userInfo": {"username": user},
        "namespace": "default",
        "object": thing,
        "oldObject": old,
        "dryRun": False,
    }
    if sub:
        body["subResource"] = sub
    return json.dumps(
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body | request}
    ).encode()


def respond(body: bytes, world: ReviewContext) -> dict[str, Any]:
    """The response, with its patch decoded."""
    answer = json.loads(review(body, world))
    assert ("admission.k8s.io/v1", "AdmissionReview") == (answer["apiVersion"], answer["kind"])
    response: dict[str, Any] = answer["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return response | {"patch": patch, "message": response.get("status", {}).get("message", "")}
