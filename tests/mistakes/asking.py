"""Mistakes of clients, as lines of text, done to a real server; and what each is answered."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from mindspore_serving.frontends.v2.service import SERVICE as V2_SERVICE
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls
from tests.waiting import PATIENCE

TABLE = Path(__file__).parent / "requests.txt"
# What a row would repeat, or could not show.
SHORT = {
    "$CHAT": '[{"role": "user", "content": "Hi"}]',
    "$LONG": '"' + "word " * 300 + '"',
    "$HUGE": '"' + "x" * (1 << 20) + '"',
    "$MANY": "[" + '"x", ' * 200 + '"x"]',
    "$DEEP": "[" * 200 + "]" * 200,
}
_HEADER = re.compile(r"\[([\w-]+): ([^\]]*)\] ?")


@dataclass(frozen=True, slots=True)
class Row:
    """A mistake: how it is made, what is sent, and the status and text of the answer."""

    way: str
    target: str
    body: str
    answer: str

    @property
    def name(self) -> str:
        return f"{self.way} {self.target} {self.body}"[:100]


def rows(table: Path = TABLE) -> Iterator[Row]:
    """Read the table: a line for what is done, a line for the answer; # begins a remark."""
    lines = [line for line in table.read_text().splitlines() if line and not line.startswith("#")]
    for request, answer in zip(lines[::2], lines[1::2], strict=True):
        way, target, body = (*request.split(" ", 2), "")[:3]
        yield Row(way, target, body, answer)


def answer_of(calls: Calls, row: Row) -> str:
    """Make the mistake; return the status and the text of the answer."""
    body = row.body
    for name, text in SHORT.items():
        body = body.replace(name, text)
    if row.way == "Client":
        servable, method = row.target.split(":")
        return str(calls.client(servable, method).infer(json.loads(body)))
    if row.way == "v2-gRPC":
        return _by_v2(calls, row.target, body)
    return _by_http(calls, row.way, row.target, body)


def _by_http(calls: Calls, verb: str, path: str, body: str) -> str:
    headers = {"Content-Type": "application/json"} if body else {}
    while found := _HEADER.match(body):
        headers[found[1]], body = found[2], body[found.end() :]
    status, answer = calls.http_call(verb, path, body.encode() or None, headers)
    return f"{status} {text_of(answer)}".strip()


def _by_v2(calls: Calls, call: str, body: str) -> str:
    request, reply = getattr(pb, f"{call}Request"), getattr(pb, f"{call}Response")
    message = json_format.Parse(body, request())
    with grpc.insecure_channel(calls.grpc) as channel:
        method = channel.unary_unary(
            f"/{V2_SERVICE}/{call}", request.SerializeToString, reply.FromString
        )
        try:
            answer = method(message, timeout=PATIENCE)
        except grpc.RpcError as error:
            code: Any = error.code()
            return f"{code.name} {error.details()}"
    return f"OK {json_format.MessageToJson(answer, indent=None)}"


def text_of(answer: bytes) -> str:
    """Return the error in the form of its protocol, in short; the whole of any other answer."""
    text = answer.decode()
    try:
        found = json.loads(text)
    except ValueError:
        return text.strip().replace("\n", "⏎")
    return (
        _of_connect(found)
        or _of_gemini(found)
        or _of_form(found)
        or json.dumps(found, ensure_ascii=False)
    )


def _of_connect(found: Any) -> str:
    match found:
        case {"code": str(code), "message": message, **rest} if not rest:
            return f"Connect {code}: {message}"
    return ""


def _of_gemini(found: Any) -> str:
    match found:
        case {"error": {"code": int(), "message": message, "status": kind, **rest}} if not rest:
            return f"Gemini {kind}: {message}"
    return ""


def _of_form(found: Any) -> str:
    match found:
        case {"type": "error", "error": {"type": kind, "message": message}, **rest}:
            assert set(rest) == {"request_id"}, rest
            return f"Anthropic {kind}: {message}"
        case {"error": {"message": message, "type": kind, "param": param, "code": code}, **rest}:
            assert not rest, rest
            where = f" of {param}" if param else ""
            return f"OpenAI {code or kind}{where}: {message}"
        case {"error": str(message), "error_type": kind, **rest}:
            assert set(rest) <= {"message"}, rest
            return f"TGI {kind}: {message}"
        case {"error": str(message), **rest} if not rest:
            return f"error: {message}"
        case {"error_msg": str(message), **rest} if not rest:
            return f"error_msg: {message}"
        case {"detail": [{"loc": loc, "msg": message, "type": _}], **rest}:
            assert not rest, rest
            return f"detail {'.'.join(map(str, loc))}: {message}"
        case {"detail": str(message), **rest} if not rest:
            return f"detail: {message}"
        case {"message": str(message), **rest} if set(rest) <= {"id"}:
            return f"message: {message}"
        case {"instances": [{"error_msg": message}, *others]} if not others:
            return f"instance: {message}"
    return ""
