# SPDX-License-Identifier: Apache-2.0
"""
AdmissionReview v1 on the wire: bodies into requests, decisions into responses.

Whoever reaches the port may have written a body, so each gets an answer, under the same uid wherever one can be read.
The decision itself is `webhook`'s.

Source: Kubernetes, "Dynamic Admission Control" and `k8s.io/api/admission/v1`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from isolation.contract.codec.cursor import At, CodecError
from isolation.contract.text import printable

MAX_OBJECT_BYTES: Final = 3 << 20
"""Of one object: what the API server reads of a request (`MaxRequestBodyBytes`, k8s.io/apiserver/pkg/server/config.go,
twice etcd's `--max-request-bytes` of 1.5 MiB)."""
MAX_BYTES: Final = 2 * MAX_OBJECT_BYTES + (64 << 10)
"""Of a review: the new object, the old one at an update, and who asks for what."""
MAX_VALUES: Final = 1 << 19
"""JSON values in a review: a value of two bytes takes up to a hundred times as many in memory."""
GROUP_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
_LONGEST_UID: Final = 128
_MAX_MESSAGE: Final = 2000
_MAX_WARNING: Final = 250  # characters: above 256 the API server may cut them
_MAX_WARNINGS: Final = 8


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One request that the API server has not accepted yet."""

    uid: str
    resource: str
    """`pods`, `deployments.apps`."""
    sub: str
    """Subresource, or empty."""
    operation: str
    user: str
    namespace: str
    name: str
    new: At
    old: At
    """What was stored before; absent at CREATE."""
    size: int = 0
    """Bytes of the whole review."""


@dataclass(frozen=True, slots=True)
class InvalidReview:
    """A body that is no AdmissionReview."""

    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """The decision about one request."""

    allowed: bool
    message: str = ""
    """Why not."""
    code: int = 200
    patch: tuple[dict[str, Any], ...] = ()
    """JSON patch (RFC 6902)."""
    warnings: tuple[str, ...] = ()
    """Shown to whoever sent the object."""


ALLOWED: Final = AdmissionResponse(allowed=True)
FORBIDDEN: Final = 403
INVALID: Final = 422
_REASONS: Final = {FORBIDDEN: "Forbidden", INVALID: "Invalid"}


def deny(message: str, code: int = FORBIDDEN) -> AdmissionResponse:
    """Deny with a reason."""
    return AdmissionResponse(allowed=False, message=message, code=code)


def read_review(body: bytes) -> AdmissionRequest | InvalidReview:
    """Read a body."""
    if len(body) > MAX_BYTES:
        return InvalidReview("", f"the {KIND} has {len(body)} bytes; at most {MAX_BYTES} are accepted")
    # Commas and openers inside of strings count too: more than there are, and cheap to count.
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_VALUES:
        return InvalidReview("", f"the {KIND} has too many values; at most {MAX_VALUES} are accepted")
    try:
        review = At(msgspec.json.decode(body))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return InvalidReview("", "the request body is not JSON, or is nested too deeply")
    uid = ""
    try:
        uid = _read_uid(review)
        if (review["apiVersion"].text(), review["kind"].text()) != (GROUP_VERSION, KIND):
            raise review.wrong(f"the request body is not an {KIND} of {GROUP_VERSION}")
        return _read_request(uid, review["request"], len(body))
    except CodecError as exc:
        return InvalidReview(uid, str(exc))


def _read_uid(review: At) -> str:
    request = review["request"]
    uid = request["uid"].text()
    if not 0 < len(uid) <= _LONGEST_UID:
        raise request["uid"].wrong(f"a uid of 1 to {_LONGEST_UID} characters is required")
    return uid


def _read_request(uid: str, request: At, size: int) -> AdmissionRequest:
    resource = request["resource"]
    plural, group = resource["resource"].text(), resource["group"].text()
    if not plural or not request["operation"].text():
        raise request.wrong("resource and operation are required")
    new = request["object"]
    return AdmissionRequest(
        uid=uid,
        resource=f"{plural}.{group}" if group else plural,
        sub=request["subResource"].text(),
        operation=request["operation"].text(),
        user=request["userInfo"]["username"].text(),
        namespace=request["namespace"].text(),
        # The older way to bind names the pod in the object alone.
        name=request["name"].text() or (At(new.value)["metadata"]["name"].text() if new else ""),
        new=At(new.value),
        old=At(request["oldObject"].value),
        size=size,
    )


def encode_response(uid: str, verdict: AdmissionResponse) -> bytes:
    """The answer as the API server expects it."""
    response: dict[str, Any] = {"uid": uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        reason = _REASONS.get(verdict.code, "BadRequest")
        message = _clean(verdict.message, _MAX_MESSAGE)
        response["status"] = {"code": verdict.code, "reason": reason, "status": "Failure", "message": message}
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(verdict.patch)).decode()
    if verdict.warnings:
        response["warnings"] = [_clean(text, _MAX_WARNING) for text in verdict.warnings[:_MAX_WARNINGS]]
    return msgspec.json.encode({"apiVersion": GROUP_VERSION, "kind": KIND, "response": response})


def _clean(text: str, most: int) -> str:
    """One printable line of bounded length."""
    return printable(text, most) if len(text) <= most else f"{printable(text, most - 3)}..."
