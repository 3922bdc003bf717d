# SPDX-License-Identifier: Apache-2.0
"""
Whether words of a provider mean that it has no machine, or will not give another.

Pure. Clouds put this into texts for people, asynchronously, on the way to a machine; the phrases are those that
their documentation lists. What is not recognised is no stock-out: it stays a note.

Sources: AWS EC2 "Error codes" and EC2 Auto Scaling "Troubleshoot: Amazon EC2 instance launch failure"; Alibaba
Cloud ECS and ESS error codes; Azure "Allocation failures"; Google Cloud "Resource availability errors".
"""

from __future__ import annotations

from typing import Final

from isolation.contract.text import printable

LONGEST: Final = 300
"""Letters of a provider's text that are kept."""
_NONE_LEFT: Final = (
    "insufficientinstancecapacity",
    "insufficient instance capacity",
    "insufficient capacity",
    "insufficienthostcapacity",
    "insufficientreservedinstancecapacity",
    "do not have sufficient",
    "does not have sufficient",
    "no spot capacity available",
    "spotmaxpricetoolow",
    "unfulfillablecapacity",
    "operationdenied.nostock",
    "nostock",
    "out of stock",
    "zone_resource_pool_exhausted",
    "resource_pool_exhausted",
    "does not have enough resources available",
    "allocationfailed",
    "skunotavailable",
    "no valid host was found",
)
_NOT_GIVEN: Final = (
    "vcpulimitexceeded",
    "instancelimitexceeded",
    "maxspotinstancecountexceeded",
    "more vcpu capacity than your current vcpu limit",
    "quotaexceed",
    "quota exceeded",
    "exceeded quota",
    "quota_exceeded",
    "exceeds quota",
)


def is_out_of_stock(text: str) -> bool:
    """Whether this says that no machine can be had now."""
    low = text.lower()
    return any(phrase in low for phrase in (*_NONE_LEFT, *_NOT_GIVEN))


def shorten_error(text: str) -> str:
    """A provider's text, short and on one line."""
    return " ".join(printable(text, LONGEST * 2, " ").split())[:LONGEST]
