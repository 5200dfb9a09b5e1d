"""A batch: requests that run when nobody waits, and what became of them.

Knows no protocol: a `LineFormat` reads the lines of one, and writes its results.
"""

from typing import Protocol

import msgspec

KINDS = ("batch", "message_batch")
"""Kinds of records: batches of OpenAI's and of Anthropic's protocol."""
ACTIVE = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class BatchProblem(msgspec.Struct):
    """Reason why a batch or a line failed; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None


class Counts(msgspec.Struct):
    """Numbers of requests by what became of them; those that remain are in no other count."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def num_ended(self) -> int:
        """Number of requests with a result."""
        return self.completed + self.failed + self.cancelled + self.expired


class Batch(msgspec.Struct, kw_only=True):
    """Body of a batch's record; `times` has seconds since 1970 by the name of the event.

    The record's pieces are the lines without a result.  The results are the pieces of the records
    `output` and `errors`, which become files when the batch ends.
    """

    id: str
    owner: str
    kind: str
    path: str
    input: str
    output: str
    errors: str
    window: str
    created: int
    deadline: int
    status: str = "validating"
    times: dict[str, int] = msgspec.field(default_factory=dict)
    counts: Counts = msgspec.field(default_factory=Counts)
    problems: list[BatchProblem] = msgspec.field(default_factory=list)
    metadata: dict[str, str] | None = None
    results_expire: int | None = None

    @property
    def is_active(self) -> bool:
        """True until the batch has ended."""
        return self.status in ACTIVE


class BatchProgress(msgspec.Struct):
    """Numbers of requests of a batch, and its age in seconds; no name and no text of a client."""

    kind: str
    path: str
    status: str
    total: int
    done: int
    failed: int
    age: int


class Line(msgspec.Struct):
    """A request of a batch: its name, the path it is sent to, and its body, as JSON."""

    name: str | None
    path: str
    body: bytes


class LineError(Exception):
    """A line that is no request; `name` is its custom_id, if it has one."""

    def __init__(self, text: str, name: str | None = None) -> None:
        super().__init__(text)
        self.name = name


class LineAnswer(msgspec.Struct):
    """Answer to a request: status of HTTP and body."""

    status: int
    body: bytes
    request_id: str = ""


class LineFormat(Protocol):
    """The lines of a protocol's batches and results; with `has_joint_file` errors are results."""

    has_joint_file: bool

    def read(self, line: bytes, path: str) -> Line:
        """Return the request of a line in a batch for `path`.  Raises LineError."""
        ...

    def write(self, name: str | None, answer: LineAnswer) -> bytes:
        """Return the line of an answer."""
        ...

    def refuse(self, name: str | None, problem: BatchProblem) -> bytes:
        """Return the line of a request without an answer; b"" leaves it out."""
        ...


decode = msgspec.json.Decoder(Batch).decode
encode = msgspec.json.Encoder().encode

_PROMPT_FIELDS = ("model", "instructions", "system", "tools", "prompt", "input", "messages")
_MAX_KEY = 1024  # bytes


class _Prompt(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")


_decode_prompt = msgspec.json.Decoder(_Prompt).decode


def prefix_key(body: bytes) -> bytes:
    """Return the beginning of a request's prompt, by which lines are sorted.

    Prompts that begin alike follow one another then, and share their beginning in the prefix cache.
    """
    prompt = _decode_prompt(body)
    return b"\0".join(bytes(getattr(prompt, name)) for name in _PROMPT_FIELDS)[:_MAX_KEY]


class LineSplitter:
    """Cuts pieces of a file at line ends; lines over `max_line` bytes are None."""

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._rest = bytearray()
        self._is_long = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines that `data` completes."""
        *parts, rest = data.split(b"\n")
        lines = [self._end(part) for part in parts]
        self._add(rest)
        return lines

    def end(self) -> list[bytes | None]:
        """Return the last line, if it has no line end."""
        return [self._end(b"")] if self._rest or self._is_long else []

    def _add(self, data: bytes) -> None:
        self._is_long = self._is_long or len(self._rest) + len(data) > self._max_line
        if self._is_long:
            self._rest.clear()
        else:
            self._rest += data

    def _end(self, data: bytes) -> bytes | None:
        self._add(data)
        line = None if self._is_long else bytes(self._rest)
        self._rest, self._is_long = bytearray(), False
        return line
