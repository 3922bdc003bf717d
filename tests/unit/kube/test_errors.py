# SPDX-License-Identifier: Apache-2.0
"""One class of error per status of the API server."""

from __future__ import annotations

import pytest

from isolation.kube.core.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    RefusedError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    refusal,
)

CLASSES = {
    400: RefusedError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: RefusedError,
    422: InvalidError,
    429: TooManyRequestsError,
    500: ServerError,
    503: ServerError,
}


@pytest.mark.parametrize(("status", "expected"), CLASSES.items())
def test_a_status_is_a_class_of_error(status, expected):
    """
    By an answer, by an ERROR event whose status is inside, and where one is raised by hand.
    """
    inside = b'{"kind": "Status", "code": %d, "reason": "R", "message": "m"}' % status
    made = (refusal(status, b"{}"), refusal(0, inside), RefusedError(status, "R", "m", retry_after=1.0))
    assert [expected] * 3 == [type(error) for error in made]
    assert [status] * 3 == [error.status for error in made]
    assert (f"{status} R: m", 1.0) == (str(made[2]), made[2].retry_after)
