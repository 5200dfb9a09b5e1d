"""What was answered: counted by protocol and code and, if asked for, a line in the log for each.

A line has no header but the id, no query and nothing of a body.
"""

import time
from collections import defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field

from mindspore_serving import log

CLIENT_LEFT = 499
_SERVICES = {
    "mindspore.serving.proto.MSService": "grpc",
    "inference.GRPCInferenceService": "v2_grpc",
    "grpc.health.v1.Health": "server_grpc",
}


def is_predict(path: str) -> bool:
    """Whether `path` is of KServe's protocol v1, among those of OpenAI's."""
    return path.startswith("/v1/models/") and path.endswith(":predict")


def protocol_of_service(service: str) -> str:
    return _SERVICES.get(service, "other_grpc")


@dataclass(slots=True)
class Entry:
    """One request of the access log.  `path` is that of HTTP or of gRPC."""

    client: str
    verb: str
    path: str
    num_received: int | None = None  # bytes of the body, as far as they are known
    servable: str = ""
    method: str = ""
    request_id: str = ""
    tokens: tuple[int, int] | None = None  # of the prompts and of the answers
    started: float = field(default_factory=time.monotonic)

    def add_tokens(self, num_prompt_tokens: int, num_generated_tokens: int) -> None:
        prompt, generated = self.tokens or (0, 0)
        self.tokens = (prompt + num_prompt_tokens, generated + num_generated_tokens)


current: ContextVar[Entry | None] = ContextVar("access_entry", default=None)
"""Of the request that is served now, if there is an access log."""


def note(servable: str, method: str) -> None:
    """The request that is served now goes to a method."""
    entry = current.get()
    if entry is not None:
        entry.servable, entry.method = servable, method


def note_received(num_bytes: int) -> None:
    """A message of the request that is served now was read."""
    entry = current.get()
    if entry is not None:
        entry.num_received = (entry.num_received or 0) + num_bytes


def note_tokens(num_prompt_tokens: int, num_generated_tokens: int) -> None:
    """The request that is served now had a generation."""
    entry = current.get()
    if entry is not None:
        entry.add_tokens(num_prompt_tokens, num_generated_tokens)


class Responses:
    """Counts for one process; `is_logged` if there is an access log."""

    def __init__(self, *, is_logged: bool = False) -> None:
        self.counts: defaultdict[tuple[str, int | str], int] = defaultdict(int)
        self.is_logged = is_logged

    def add(self, protocol: str, code: int | str, entry: Entry | None, num_sent: int) -> None:
        """A response with so many bytes of body was sent, or its client left."""
        self.counts[protocol, code] += 1
        if entry is not None:
            log.event("response", _to_fields(protocol, code, entry, num_sent))


def _to_fields(protocol: str, code: int | str, entry: Entry, num_sent: int) -> dict[str, object]:
    prompt, generated = entry.tokens or (None, None)
    fields = {
        "protocol": protocol,
        "verb": entry.verb,
        "path": entry.path,
        "servable": entry.servable,
        "method": entry.method,
        "code": code,
        "seconds": round(time.monotonic() - entry.started, 6),
        "bytes_received": entry.num_received,
        "bytes_sent": num_sent,
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "client": entry.client,
        "request_id": entry.request_id,
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}
