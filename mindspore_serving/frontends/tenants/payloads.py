"""Log of the content of requests and answers as CloudEvents, sampled and redacted.

Events have the types of KServe's logger of payloads.  They are made and sent on a thread.
"""

import base64
import json
import random
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import CODEC, Chunk, decode_events, decode_request
from mindspore_serving.core.service import Reply, Request

MAX_PAYLOAD = 256 << 10  # bytes of a request or an answer; longer ones are logged without data
REDACTED = "(redacted)"
SOURCE = "mindspore-serving"
SEND_TIMEOUT = 5.0  # seconds
_TYPE = "org.kubeflow.serving.inference."


class Payload(msgspec.Struct, array_like=True):
    """A request or an answer in the queue; `parts` are None if they are too long."""

    kind: str
    id: str
    time: str
    servable: str
    method: str
    key: str
    codec: str
    parts: list[bytes] | None


class PayloadLog:
    """Log of a share of all requests, from 0 to 1; `put` takes encoded payloads."""

    def __init__(
        self, put: Callable[[bytes], None], rate: float, draw: Callable[[], float] = random.random
    ) -> None:
        self._put = put
        self._rate = rate
        self._draw = draw

    def begin(self, request: Request, request_id: str, key: str) -> "LoggedAnswer | None":
        """Log a request, and return the log of its answer; None if it is not in the sample."""
        if self._draw() >= self._rate:
            return None
        names = (request_id, request.servable, request.method, key, request.codec)
        body = request.body
        is_bytes = isinstance(body, bytes | bytearray | memoryview)
        self.add("request", names, [bytes(body)] if is_bytes and len(body) <= MAX_PAYLOAD else None)
        return LoggedAnswer(self, names)

    def add(self, kind: str, names: tuple[str, ...], parts: list[bytes] | None) -> None:
        """Queue a payload."""
        request_id, servable, method, key, codec = names
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        payload = Payload(kind, request_id, time, servable, method, key, codec, parts)
        self._put(msgspec.msgpack.encode(payload))


class LoggedAnswer:
    """Answer that is logged when it is complete."""

    def __init__(self, payloads: PayloadLog, names: tuple[str, ...]) -> None:
        self._payloads = payloads
        self._names = names
        self._parts: list[bytes] | None = []
        self._size = 0

    def take(self, reply: Reply) -> None:
        """Copy the instances of a reply, and log the answer after the last."""
        self._size += sum(map(len, reply.instances))
        if self._size > MAX_PAYLOAD:
            self._parts = None
        elif self._parts is not None:
            self._parts += map(bytes, reply.instances)
        if reply.is_last:
            self._payloads.add("response", self._names, self._parts)


class CloudEventWriter:
    """Makes CloudEvents of payloads, for a `write` of JSON texts.

    Fields with the names `redacted` have no value, at any depth.
    """

    def __init__(self, write: Callable[[Sequence[bytes]], None], redacted: Iterable[str]) -> None:
        self._write = write
        self._redacted = frozenset(redacted)

    def __call__(self, payloads: Sequence[bytes]) -> None:
        self._write(
            [self._to_event(msgspec.msgpack.decode(data, type=Payload)) for data in payloads]
        )

    def _to_event(self, payload: Payload) -> bytes:
        event: dict[str, Any] = {
            "specversion": "1.0",
            "id": payload.id,
            "source": SOURCE,
            "type": f"{_TYPE}{payload.kind}",
            "time": payload.time,
            "inferenceservicename": payload.servable,
            "method": payload.method,
            "key": payload.key,
        }
        data = None if payload.parts is None else self._data_of(payload, payload.parts)
        if payload.parts is None:
            event["truncated"] = True
        elif isinstance(data, bytes):
            event["data_base64"] = base64.b64encode(data).decode()
        else:
            event |= {"datacontenttype": "application/json", "data": redact(data, self._redacted)}
        return json.dumps(event).encode() + b"\n"

    def _data_of(self, payload: Payload, parts: list[bytes]) -> Any:
        """Return JSON, or bytes that are none: these only if no fields are to be redacted."""
        if payload.codec == CODEC:
            if payload.kind == "request":
                return msgspec.to_builtins(decode_request(payload.method, parts[0]))
            return _answer_of(parts)
        try:
            values = [json.loads(part) for part in parts]
        except ValueError:
            return REDACTED if self._redacted else b"".join(parts)
        return values[0] if payload.kind == "request" else values


def _answer_of(parts: list[bytes]) -> list[Any]:
    """Return the texts of an answer by their index, or its events if it has none."""
    events = [event for part in parts for event in decode_events(part)]
    texts: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, Chunk):
            row = texts.setdefault(event.index, {"index": event.index, "text": "", "reasoning": ""})
            row["text"] += event.text
            row["reasoning"] += event.reasoning
            row["finish_reason"] = event.finish_reason
            calls = [msgspec.structs.asdict(call) for call in event.tool_calls]
            row["tool_calls"] = [*row.get("tool_calls", ()), *calls]
    return list(texts.values()) or [type(event).__name__ for event in events]


def redact(value: Any, names: frozenset[str]) -> Any:
    """Return JSON in which fields with `names` have no value."""
    if isinstance(value, dict):
        return {
            name: REDACTED if name in names else redact(inner, names)
            for name, inner in value.items()
        }
    return [redact(inner, names) for inner in value] if isinstance(value, list | tuple) else value


def poster(url: str) -> Callable[[Sequence[bytes]], None]:
    """Return a function that sends events to `url`, as a batch of CloudEvents."""

    def post(events: Sequence[bytes]) -> None:
        body = b"[" + b",".join(events) + b"]"
        headers = {"content-type": "application/cloudevents-batch+json"}
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=SEND_TIMEOUT):
            pass

    return post
