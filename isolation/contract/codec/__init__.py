# SPDX-License-Identifier: Apache-2.0
"""
Kubernetes JSON <-> model: what the modules of this package offer.

Pure, and total over untrusted input: every function returns a value of the model, a
Refusal, or raises CodecError with the path of what has the wrong shape; nothing else.
"""

from isolation.contract.codec.allocation import (
    Allocation,
    decode_allocation,
    decode_classic,
    decode_vendor,
    encode_allocation,
    encode_vendor,
)
from isolation.contract.codec.cursor import CodecError
from isolation.contract.codec.isolation import decode_isolation, encode_isolation
from isolation.contract.codec.node import decode_cards, encode_cards, node_of
from isolation.contract.codec.pod import pod_of
from isolation.contract.codec.request import owner_of, owner_uid_of, request_of
from isolation.contract.codec.workloads import Planned, Skipped, objects_in, pods_of

__all__ = [
    "Allocation",
    "CodecError",
    "Planned",
    "Skipped",
    "decode_allocation",
    "decode_cards",
    "decode_classic",
    "decode_isolation",
    "decode_vendor",
    "encode_allocation",
    "encode_cards",
    "encode_isolation",
    "encode_vendor",
    "node_of",
    "objects_in",
    "owner_of",
    "owner_uid_of",
    "pod_of",
    "pods_of",
    "request_of",
]
