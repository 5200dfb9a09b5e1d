"""Status of an error in each protocol, and how the errors of instances are combined.

The table has one row per code.  gRPC statuses are names, so that gRPC is not needed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from mindspore_serving.errors import Code, Temporary, WorkerUnavailable

# (code, text) of a failed instance; None for a good one.
Failure: TypeAlias = "tuple[int, str] | None"


class ErrorStatus(NamedTuple):
    """Status by protocol: error_code of an ErrorMsg, HTTP status, name in grpc.StatusCode."""

    mindspore: int
    http: int
    grpc: str


TABLE = {
    Code.OK: ErrorStatus(0, 200, "OK"),
    Code.FAILED: ErrorStatus(1, 500, "UNKNOWN"),
    Code.INVALID_INPUTS: ErrorStatus(2, 400, "INVALID_ARGUMENT"),
    Code.SYSTEM_ERROR: ErrorStatus(3, 500, "INTERNAL"),
    Code.WORKER_UNAVAILABLE: ErrorStatus(4, 503, "UNAVAILABLE"),
    Code.SERVABLE_UNAVAILABLE: ErrorStatus(5, 503, "UNAVAILABLE"),
    # The original server knew 0 to 5 only; its clients get the number that they got then.
    Code.INVALID_TENSOR: ErrorStatus(2, 400, "INVALID_ARGUMENT"),
    Code.NOT_FOUND: ErrorStatus(2, 404, "NOT_FOUND"),
    Code.TOO_LARGE: ErrorStatus(2, 413, "RESOURCE_EXHAUSTED"),
    Code.OVERLOADED: ErrorStatus(1, 429, "RESOURCE_EXHAUSTED"),
    Code.DEADLINE_EXCEEDED: ErrorStatus(1, 504, "DEADLINE_EXCEEDED"),
    Code.CANCELLED: ErrorStatus(1, 499, "CANCELLED"),
    Code.UNAUTHORIZED: ErrorStatus(1, 401, "UNAUTHENTICATED"),
    Code.FORBIDDEN: ErrorStatus(1, 403, "PERMISSION_DENIED"),
    Code.NO_ROUTE: ErrorStatus(2, 404, "UNIMPLEMENTED"),
    Code.WRONG_VERB: ErrorStatus(2, 405, "UNIMPLEMENTED"),
    Code.WRONG_TYPE: ErrorStatus(2, 415, "INVALID_ARGUMENT"),
    Code.CONFLICT: ErrorStatus(1, 409, "ABORTED"),
    Code.UNSUPPORTED: ErrorStatus(1, 501, "UNIMPLEMENTED"),
    Code.UPSTREAM_FAILED: ErrorStatus(1, 502, "UNAVAILABLE"),
    Code.UPSTREAM_LATE: ErrorStatus(1, 504, "DEADLINE_EXCEEDED"),
}


def of(code: int) -> ErrorStatus:
    """Return the row of `code`; an unknown number counts as FAILED."""
    return TABLE.get(code, TABLE[Code.FAILED])  # type: ignore[call-overload, no-any-return]


def retry_after(error: Exception | None) -> str | None:
    """Return the value of the header Retry-After for `error`: whole seconds, at least 1.

    None if the same request would fail again.
    """
    if not isinstance(error, Temporary | WorkerUnavailable):
        return None
    return seconds_of(getattr(error, "retry_after", None))


def seconds_of(retry_after: float | None) -> str:
    """Return the value of Retry-After for a number of seconds, or 1 if that is unknown."""
    return str(max(1, math.ceil(retry_after or 0)))


def common_failure(failures: Sequence[Failure]) -> Failure:
    """Return the failure, code and text, that every instance has; None if they differ.

    The reply of a classic request then consists of this error alone.
    """
    first = failures[0] if failures else None
    return first if first is not None and all(other == first for other in failures) else None


def numbered(failures: Sequence[Failure]) -> list[Failure]:
    """Add the index of the instance to errors about values that do not fit the model."""
    return [
        (failure[0], with_index(failure[1], index))
        if failure is not None and failure[0] == Code.INVALID_TENSOR
        else failure
        for index, failure in enumerate(failures)
    ]


def with_index(text: str, index: int) -> str:
    """Append the index of the instance that `text` is about."""
    return f"{text} (instance {index}, counted from 0)"
