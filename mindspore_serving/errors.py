"""Errors for users, with the code that is sent to clients.

The root is a `RuntimeError`, which scripts for the original catch. The statuses of a code (gRPC,
HTTP, the original's number) are one table in `wire.status`; this module knows no protocol.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache, wraps
from itertools import islice
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MAX_LENGTH, _MAX_NAMES = 64, 256  # of suggestions, which clients request, too


class Code(IntEnum):
    """Kind of an error.  0 to 5 are the original's numbers."""

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
    WRONG_TYPE = 19
    CONFLICT = 20


_BY_CODE: dict[Code, "type[ServingError]"] = {}  # the first class of each code


class ServingError(RuntimeError):
    """Root of all errors; `code` is the kind."""

    code = Code.FAILED

    def __init_subclass__(cls) -> None:
        if "code" in vars(cls):
            _BY_CODE.setdefault(cls.code, cls)


class InvalidInputs(ServingError):
    """Wrong request or argument; the text has the cause, and what is accepted."""

    code = Code.INVALID_INPUTS


class NoInstances(InvalidInputs):
    """Request without an instance, which only the end of a sequence may be."""


class InvalidField(InvalidInputs):
    """Wrong field of a request; "" for the request as a whole.

    The text is the field and the problem ("is 3, expected 0 to 1"), or `text` instead.
    """

    def __init__(self, field: str, problem: str = "", *, text: str = "") -> None:
        super().__init__(text or f"{field} {problem}")
        self.field = field

    def renamed(self, field: str) -> "InvalidField":
        """Return the error for a protocol in which the field has another name."""
        text = str(self).replace(self.field, field, 1) if self.field else str(self)
        return InvalidField(field, text=text)


class NotFound(InvalidInputs):
    """Missing servable, version or method."""

    code = Code.NOT_FOUND


class TooLarge(InvalidInputs):
    """Message or tensor over a limit."""

    code = Code.TOO_LARGE


class InvalidTensor(InvalidInputs):
    """Value that does not fit the model; a reply tells of which instance."""

    code = Code.INVALID_TENSOR


class StageFailed(ServingError):
    """Error of a stage, or a wrong count or type of its results."""

    code = Code.SYSTEM_ERROR


class WorkerUnavailable(ServingError):
    """Death of the worker that had the request."""

    code = Code.WORKER_UNAVAILABLE


class Temporary(ServingError):
    """Error of a request that may succeed later: after `retry_after` seconds, if known."""

    def __init__(self, text: str = "", retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class ServableUnavailable(Temporary):
    """Known servable without a worker now; one may start again."""

    code = Code.SERVABLE_UNAVAILABLE


class Overloaded(Temporary):
    """Full queue; the client may try again later."""

    code = Code.OVERLOADED


class DeadlineExceeded(ServingError):
    """Deadline of the caller that has passed."""

    code = Code.DEADLINE_EXCEEDED


class UpstreamFailed(ServingError):
    """Failure of another server that has the model, or an invalid answer of it."""

    code = Code.UPSTREAM_FAILED


class UpstreamLate(DeadlineExceeded):
    """Timeout of another server that has the model."""

    code = Code.UPSTREAM_LATE


class Cancelled(ServingError):
    """Request that its caller cancelled."""

    code = Code.CANCELLED


class Unauthorized(ServingError):
    """Missing or wrong API key."""

    code = Code.UNAUTHORIZED


class Forbidden(ServingError):
    """Request that the operator does not allow this client."""

    code = Code.FORBIDDEN


class NoRoute(ServingError):
    """Path that no protocol of this server has."""

    code = Code.NO_ROUTE


class WrongVerb(ServingError):
    """Path that has other methods of HTTP: `allowed`."""

    code = Code.WRONG_VERB

    def __init__(self, text: str, allowed: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.allowed = allowed


class WrongType(ServingError):
    """Content type that the route does not read."""

    code = Code.WRONG_TYPE


class Conflict(ServingError):
    """Change of something that another request is changing; the client may try again later."""

    code = Code.CONFLICT


class SequenceLost(Conflict):
    """Request of a sequence whose state is lost; the client has to begin it again."""


class Unsupported(ServingError):
    """Feature of a protocol that this server does not have."""

    code = Code.UNSUPPORTED


class StartError(ServingError):
    """Failed start of a server, a worker or a servable; the text has file, line and cause."""


class AlreadyRunning(StartError):
    """Second start of a kind of server that is running, and stays as it is."""


class ResourceShortage(StartError):
    """Temporary lack of descriptors, processes or memory."""


class NoFreeMachine(ResourceShortage):
    """No machine has a free slot or device for the worker now."""


def printable(text: str) -> str:
    """Return `text` with escapes for surrogates, which no message can contain.

    Python has surrogates for undecodable bytes in file names.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def reason(error: Exception) -> str:
    """Return the cause of an error without Python's number and the path, which our texts have."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start}"
    return getattr(error, "strerror", None) or str(error)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'NAME'?" for the name in `known` that is nearest to `name`.

    "" if none is near, or for long names and many. Case does not matter.
    """
    if len(name) > _MAX_LENGTH:
        return ""
    names = list(islice(known, _MAX_NAMES))
    near = misspelt(name, names)
    if not near:
        from difflib import get_close_matches  # slow to import, and seldom needed

        lowered = {known_name.lower(): known_name for known_name in names}
        near = next((lowered[low] for low in get_close_matches(name.lower(), lowered, 1)), "")
    return f"; did you mean '{near}'?" if near else ""


def misspelt(name: str, known: Iterable[str]) -> str:
    """Return the name in `known` of which `name` is a misspelling, "" if there is none.

    It is one edit away (see `edit_distance`), or two in a name of nine letters and more; names
    under five letters must be equal.  Case, "_" and "-" do not count.
    """
    letters = letters_of(name[:_MAX_LENGTH])
    mask = _mask_of(letters)
    limit = (len(letters) >= 5) + (len(letters) >= 9)
    near, best = "", limit + 1
    for known_name in islice(known, _MAX_NAMES):
        other, other_mask = _spelling_of(known_name)
        if (mask ^ other_mask).bit_count() <= 2 * limit:  # an edit changes two letters at most
            distance = edit_distance(letters, other, best - 1)
            if distance < best:
                near, best = known_name, distance
    return near


@lru_cache(4096)
def _spelling_of(known_name: str) -> tuple[str, int]:
    letters = letters_of(known_name)
    return letters, _mask_of(letters)


def _mask_of(letters: str) -> int:
    """Return a bit for each letter that occurs."""
    mask = 0
    for letter in letters:
        mask |= 1 << (ord(letter) & 63)
    return mask


def edit_distance(name: str, other: str, limit: int) -> int:
    """Return the edits between two names, up to `limit` + 1.

    An edit adds, drops or replaces a letter, or swaps two neighbours (optimal string alignment).
    """
    if abs(len(name) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(name, 1):
        before, last, row = row, before, [i]
        for j, other_letter in enumerate(other, 1):
            edits = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other_letter))
            if i > 1 and j > 1 and name[i - 2 : i] == other[j - 1] + other[j - 2]:
                edits = min(edits, last[j - 2] + 1)
            row.append(edits)
        if min(row) > limit:
            return limit + 1
    return min(row[-1], limit + 1)


def letters_of(name: str) -> str:
    """Return `name` without its spelling's conventions: maxTokens and max_tokens are equal."""
    return name.replace("_", "").replace("-", "").lower()


def shortened(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap `function` so that its errors show only the caller's line of the stack."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ServingError as error:
            raise error.with_traceback(None) from None

    return call


def from_code(code: int, text: str, retry_after: float | None = None) -> ServingError:
    """Return the error that another process reported."""
    error_type = _BY_CODE.get(Code(code), ServingError)
    return error_type(text, retry_after) if issubclass(error_type, Temporary) else error_type(text)
