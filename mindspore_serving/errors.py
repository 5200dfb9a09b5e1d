"""Every error a user can meet, with the code that travels to clients.

The root is a `RuntimeError`, because that is what scripts written for the original catch.  How a
code looks on the wire (gRPC status, HTTP status, the original's number) is one table in
`wire.status`; nothing here knows a protocol.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import wraps
from itertools import islice
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_GUESS, _MOST_GUESSES = 64, 256  # characters, and names: clients ask too


class Code(IntEnum):
    """What went wrong, by kind.  0 to 5 are the original's numbers; the rest are ours."""

    OK = 0
    FAILED = 1
    INVALID_INPUTS = 2
    SYSTEM_ERROR = 3
    WORKER_UNAVAILABLE = 4
    SERVABLE_UNAVAILABLE = 5
    NOT_FOUND = 6
    TOO_LARGE = 7
    OVERLOADED = 8
    DEADLINE_EXCEEDED = 9
    CANCELLED = 10
    UNAUTHORIZED = 11
    FORBIDDEN = 12
    NO_ROUTE = 13
    WRONG_VERB = 14
    INVALID_TENSOR = 15
    UNSUPPORTED = 16
    UPSTREAM_FAILED = 17
    UPSTREAM_LATE = 18


_BY_CODE: dict[Code, "type[ServingError]"] = {}  # the first class of each


class ServingError(RuntimeError):
    """The root, for what has no better class; `code` says what kind."""

    code = Code.FAILED

    def __init_subclass__(cls) -> None:
        if "code" in vars(cls):
            _BY_CODE.setdefault(cls.code, cls)


class InvalidInputs(ServingError):
    """The request, or an argument, cannot be used: the text says what, and what is accepted."""

    code = Code.INVALID_INPUTS


class InvalidField(InvalidInputs):
    """A field of a request that cannot be used; "" for the request as a whole.

    The text is the field and the problem ("is 3, expected 0 to 1"), or `text` in their place.
    """

    def __init__(self, field: str, problem: str = "", *, text: str = "") -> None:
        super().__init__(text or f"{field} {problem}")
        self.field = field

    def renamed(self, field: str) -> "InvalidField":
        """The same for a reader who knows the field by another name."""
        text = str(self).replace(self.field, field, 1) if self.field else str(self)
        return InvalidField(field, text=text)


class NotFound(InvalidInputs):
    """No such servable, version or method."""

    code = Code.NOT_FOUND


class TooLarge(InvalidInputs):
    """A message or tensor over a limit."""

    code = Code.TOO_LARGE


class InvalidTensor(InvalidInputs):
    """A value of an instance does not fit the model; a reply says of which instance."""

    code = Code.INVALID_TENSOR


class StageFailed(ServingError):
    """A stage raised, or returned a wrong count or type."""

    code = Code.SYSTEM_ERROR


class WorkerUnavailable(ServingError):
    """The worker died while it had the request."""

    code = Code.WORKER_UNAVAILABLE


class Temporary(ServingError):
    """May succeed when it is sent again: `retry_after` seconds from now, if that is known."""

    def __init__(self, text: str = "", retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class ServableUnavailable(Temporary):
    """The servable is known, but no worker runs it now; one may come back."""

    code = Code.SERVABLE_UNAVAILABLE


class Overloaded(Temporary):
    """Too much is waiting already; try again later."""

    code = Code.OVERLOADED


class DeadlineExceeded(ServingError):
    """The caller's time is up."""

    code = Code.DEADLINE_EXCEEDED


class UpstreamFailed(ServingError):
    """Another server, which has the model, failed or sent what is no answer."""

    code = Code.UPSTREAM_FAILED


class UpstreamLate(DeadlineExceeded):
    """Another server, which has the model, did not answer in time."""

    code = Code.UPSTREAM_LATE


class Cancelled(ServingError):
    """The caller has left."""

    code = Code.CANCELLED


class Unauthorized(ServingError):
    """The API key is missing or wrong."""

    code = Code.UNAUTHORIZED


class Forbidden(ServingError):
    """The operator does not let this client do that."""

    code = Code.FORBIDDEN


class NoRoute(ServingError):
    """No protocol of this server has the path."""

    code = Code.NO_ROUTE


class WrongVerb(ServingError):
    """The path takes other methods of HTTP: `allowed`."""

    code = Code.WRONG_VERB

    def __init__(self, text: str, allowed: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.allowed = allowed


class Unsupported(ServingError):
    """The protocol has it, and this server does not."""

    code = Code.UNSUPPORTED


class StartError(ServingError):
    """A server, a worker or a servable could not start; the text names file, line and cause."""


class AlreadyRunning(StartError):
    """There is such a server; it goes on."""


class ResourceShortage(StartError):
    """There are no descriptors, processes or memory for it now."""


class NoFreeMachine(ResourceShortage):
    """No machine has a free slot or device for the worker now."""


def printable(text: str) -> str:
    """`text` with escapes in place of halves of characters, which no message can hold; Python has
    them for bytes of names of files.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """ "; did you mean 'NAME'?" for the name in `known` that is nearest to `given`; "" if none is
    near.  Capital letters do not count.  Of long names and many, nothing is said.
    """
    if len(given) > _LONGEST_GUESS:
        return ""
    from difflib import get_close_matches  # slow to import, and seldom needed

    names = {name.lower(): name for name in islice(known, _MOST_GUESSES)}
    near = get_close_matches(given.lower(), names, 1)
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def shortened(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, whose errors of ours show no more of the stack than the caller's line."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ServingError as error:
            raise error.with_traceback(None) from None

    return call


def from_code(code: int, text: str, retry_after: float | None = None) -> ServingError:
    """The error that another process reported."""
    kind = _BY_CODE.get(Code(code), ServingError)
    return kind(text, retry_after) if issubclass(kind, Temporary) else kind(text)
