"""Count of responses by protocol and status code, and the access log.

A line of the log has no header but the request id, no query and nothing of a body.
"""

import time
from collections import defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import Scope

from mindspore_serving import log

CLIENT_LEFT = 499
_SERVICES = {
    "mindspore.serving.proto.MSService": "grpc",
    "inference.GRPCInferenceService": "v2_grpc",
    "grpc.health.v1.Health": "server_grpc",
}


def is_predict(path: str) -> bool:
    """Return whether `path` is that of a call by KServe's protocol v1, not of OpenAI's protocol."""
    return path.startswith("/v1/models/") and path.endswith(":predict")


def is_from_anthropic_client(scope: Scope) -> bool:
    """Return whether one of Anthropic's clients sent the request: all of theirs have the header."""
    return any(name == b"anthropic-version" for name, _ in scope["headers"])


def is_from_google_client(scope: Scope) -> bool:
    """Return whether one of Google's clients for Gemini sent the request, or its key does."""
    return any(name.startswith(b"x-goog-api-") for name, _ in scope["headers"])


def protocol_of_service(service: str) -> str:
    """Return the label of a gRPC service in metrics and in the access log."""
    return _SERVICES.get(service, "other_grpc")


@dataclass(slots=True)
class Entry:
    """Entry of a request in the access log; `path` is that of HTTP or gRPC."""

    client: str
    verb: str
    path: str
    num_received: int | None = None  # bytes of the body; None if unknown
    servable: str = ""
    method: str = ""
    request_id: str = ""
    tokens: tuple[int, int] | None = None  # numbers of prompt tokens and of generated tokens
    started: float = field(default_factory=time.monotonic)

    def add_tokens(self, num_prompt_tokens: int, num_generated_tokens: int) -> None:
        prompt, generated = self.tokens or (0, 0)
        self.tokens = (prompt + num_prompt_tokens, generated + num_generated_tokens)


current: ContextVar[Entry | None] = ContextVar("access_entry", default=None)
"""Entry of the current request; None without an access log."""


def note(servable: str, method: str) -> None:
    """Add the servable and the method to the entry of the current request."""
    entry = current.get()
    if entry is not None:
        entry.servable, entry.method = servable, method


def note_received(num_bytes: int) -> None:
    """Add the bytes of a message to the entry of the current request."""
    entry = current.get()
    if entry is not None:
        entry.num_received = (entry.num_received or 0) + num_bytes


def note_tokens(num_prompt_tokens: int, num_generated_tokens: int) -> None:
    """Add the tokens of a generation to the entry of the current request."""
    entry = current.get()
    if entry is not None:
        entry.add_tokens(num_prompt_tokens, num_generated_tokens)


class ResponseCounter:
    """Counts of the responses of one process; `is_logged` if there is an access log."""

    def __init__(self, *, is_logged: bool = False) -> None:
        self.counts: defaultdict[tuple[str, int | str], int] = defaultdict(int)
        self.is_logged = is_logged

    def add(self, protocol: str, code: int | str, entry: Entry | None, num_sent: int) -> None:
        """Count a response with a body of `num_sent` bytes, or the disconnect of its client."""
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
