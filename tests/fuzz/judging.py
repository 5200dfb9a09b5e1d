"""What is wrong with the answers to a case.  Knows the protocols' forms, and no request's meaning.

A request of the fuzzer is right or its client's fault, so no answer may say that the server failed;
only a servable's own Python function may.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError

from mindspore_serving.proto import ms_service_pb2 as pb
from tests.fuzz.case import H2, HTTP, Case
from tests.fuzz.http_reading import Answer
from tests.fuzz.sending import HUNG, Exchanged

CODES = {
    "classic": {200, 400, 403, 404, 413, 415, 429, 504},
    "openai": {200, 400, 403, 404, 405, 409, 413, 415, 429, 504},
    "anthropic": {200, 400, 403, 404, 405, 413, 415, 429, 504, 529},
    "gemini": {200, 400, 403, 404, 405, 413, 415, 429, 504},
    "ollama": {200, 400, 403, 404, 405, 413, 415, 429, 504},
    "tgi": {200, 400, 403, 404, 405, 413, 415, 422, 429, 504},
    "llm_serving": {200, 403, 404, 413, 415, 422, 429, 504},
}
REFUSALS = {400, 408, 413, 431, 501, 505}  # of what is no HTTP; the connection ends
RPC_CODES = {0, 1, 2, 5}  # error_code of a PredictReply; 3 of a function that raised
INTERNAL = re.compile(
    rb"Traceback|File \\?\"|site-packages|mindspore_serving[/.]|object at 0x|its log says why"
    rb"|Internal Server Error|Predict failed|Failed to construct|error304"
    rb"|\b(Key|Index|Type|Attribute|Value|Unicode\w*|Recursion|Memory|Overflow|Assertion)Error\b"
)
_DEADLINE = "no answer within"  # of the request: it has come when the stream had begun
_OWN_FUNCTION = re.compile("Call Function '(good|toy)\\.")
_ROUTES = (
    ("anthropic", rb"POST /v1/messages(/count_tokens)?$"),
    (
        "gemini",
        rb"POST /v1(beta)?/models/[^/]+:((g|streamG)enerateContent(\?alt=sse)?|countTokens"
        rb"|(batchE|e)mbedContents?)$|GET /v1beta/models(/tiny)?$",
    ),
    ("ollama", rb"POST /api/(chat|generate|show|embed|embeddings)$|GET /api/(tags|ps|version)$"),
    (
        "openai",
        rb"POST (/v1/(chat/completions|completions|responses|embeddings)|/(de)?tokenize)$"
        rb"|POST /invocations$"
        rb"|GET /v1/models(/tiny)?$",
    ),
    (
        "tgi",
        rb"POST /(generate|generate_stream|invocations|chat_tokenize|tokenize)?$"
        rb"|GET /(info|ping)?$",
    ),
    (
        "llm_serving",
        rb"POST /models/[^/]+(/generate|/generate_stream)?$"
        rb"|GET /serving/get_(bs|request_numbers|serverd_model_info)$",
    ),
    ("classic", rb"POST /model/[^/:]+:|GET /(health|servables|metrics)$"),
)
_TARGETS = tuple((name, re.compile(pattern)) for name, pattern in _ROUTES)


def problem_of(case: Case, found: Exchanged) -> str:
    """ "" if all is as it must be."""
    if case.channel == H2:
        return ""
    if case.channel == HTTP:
        return _problem_of_http(found)
    return _problem_of_rpc(found)


# --- HTTP -----------------------------------------------------------------------------------------


def _problem_of_http(found: Exchanged) -> str:
    requests = found.requests
    for place, answer in enumerate(found.answers):
        line = b"%b %b" % requests.lines[place] if place < len(requests.lines) else b""
        problem = answer.problem or _problem_of_answer(answer, line)
        if problem:
            return problem
    has_ended = bool(found.answers) and _ends(found.answers[-1])
    if len(found.answers) < len(requests.lines) and not has_ended:
        return f"{len(found.answers)} answers to {len(requests.lines)} requests"
    if requests.is_whole and len(found.answers) > len(requests.lines):
        return f"{len(found.answers)} answers to {len(requests.lines)} requests"
    return ""


def _ends(answer: Answer) -> bool:
    return answer.headers.get("connection") == "close" or answer.is_long


def _problem_of_answer(answer: Answer, line: bytes) -> str:
    """`line` has verb and target of the request; empty if what was sent is no whole request."""
    if (found := INTERNAL.search(answer.body)) and not _is_own_failure(answer):
        return f"{answer.status} with {found[0].decode()!r}: {answer.body[:300]!r}"
    if answer.status in REFUSALS and _ends(answer) and "text/plain" in _kind(answer):
        return ""  # refused as HTTP
    if line.startswith(b"HEAD "):
        return "" if answer.status < 500 else f"{answer.status} to HEAD"
    if answer.status == 204:  # to OPTIONS
        return "" if "allow" in answer.headers and not answer.body else _wrong_form(answer)
    names = [name for name, where in _TARGETS if where.match(line.partition(b"?")[0])]
    problems = [_FORMS[name](answer) for name in names or _FORMS]
    if not names and answer.status in (404, 405, 307, 308):
        return ""  # of no protocol
    return "" if "" in problems else problems[0]


def _is_own_failure(answer: Answer) -> bool:
    return _OWN_FUNCTION.search(answer.body.decode("utf-8", "replace")) is not None


def _kind(answer: Answer) -> str:
    return answer.headers.get("content-type", "")


def _classic(answer: Answer) -> str:
    if answer.status == 200 and not _is_json(answer) and "event-stream" not in _kind(answer):
        return ""  # health and metrics
    bodies = list(_events(answer)) if "event-stream" in _kind(answer) else [_json(answer.body)]
    for body in bodies:
        if not isinstance(body, dict) or not body.keys() & {"instances", "error_msg", "servables"}:
            return _wrong_form(answer)
    if answer.status == 500 and _is_own_failure(answer):
        return ""
    return _check_code(answer, "classic")


def _openai(answer: Answer) -> str:
    if problem := _check_code(answer, "openai"):
        return problem
    if answer.status != 200:
        body = _json(answer.body)
        error = body.get("error") if isinstance(body, dict) else None
        keys = {"message", "type", "param", "code"}
        is_right = (
            isinstance(error, dict) and error.keys() == keys and isinstance(error["message"], str)
        )
        return "" if is_right else _wrong_form(answer)
    return _check_success(answer, "server_error", ends=b"data: [DONE]\n\n")


def _anthropic(answer: Answer) -> str:
    if problem := _check_code(answer, "anthropic"):
        return problem
    if answer.status != 200:
        body = _json(answer.body)
        is_right = isinstance(body, dict) and body.keys() == {"type", "error", "request_id"}
        return "" if is_right and body["type"] == "error" else _wrong_form(answer)
    return _check_success(answer, "api_error", ends=b'data: {"type":"message_stop"}\n\n')


def _gemini(answer: Answer) -> str:
    if problem := _check_code(answer, "gemini"):
        return problem
    if answer.status == 200:
        return _check_success(answer, "INTERNAL")
    body = _json(answer.body)
    error = body.get("error") if isinstance(body, dict) else None
    is_right = isinstance(error, dict) and error.keys() == {"code", "message", "status"}
    return "" if is_right and error["code"] == answer.status else _wrong_form(answer)


def _ollama(answer: Answer) -> str:
    if problem := _check_code(answer, "ollama"):
        return problem
    if "x-ndjson" in _kind(answer):
        lines = [_json(line) for line in answer.body.splitlines()]
        is_right = all(isinstance(line, dict) for line in lines)
        is_over = bool(lines) and (answer.is_long or lines[-1].get("done") or "error" in lines[-1])
        return "" if is_right and is_over else _wrong_form(answer)
    body = _json(answer.body)
    is_right = isinstance(body, dict) and (answer.status == 200) == ("error" not in body)
    return "" if is_right else _wrong_form(answer)


def _tgi(answer: Answer) -> str:
    if problem := _check_code(answer, "tgi"):
        return problem
    if answer.status in (200, 405):
        return _check_success(answer, "generation") if answer.status == 200 else ""
    if "text/plain" in _kind(answer):  # a body that is no request
        return "" if answer.status in (400, 413, 415, 422) and answer.body else _wrong_form(answer)
    body = _json(answer.body)
    is_right = isinstance(body, dict) and body.keys() == {"error", "error_type"}
    return "" if is_right else _wrong_form(answer)


def _llm_serving(answer: Answer) -> str:
    if problem := _check_code(answer, "llm_serving"):
        return problem
    if answer.status != 200:
        body = _json(answer.body)
        is_right = isinstance(body, dict) and body.keys() == {"detail"}
        return "" if is_right else _wrong_form(answer)
    is_stream = "event-stream" in _kind(answer) or "text/plain" in _kind(answer)
    return "" if is_stream or isinstance(_json(answer.body), dict) else _wrong_form(answer)


_FORMS: dict[str, Callable[[Answer], str]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "ollama": _ollama,
    "tgi": _tgi,
    "llm_serving": _llm_serving,
    "classic": _classic,
}


def _check_code(answer: Answer, protocol: str) -> str:
    if answer.status in CODES[protocol]:
        return ""
    return f"status {answer.status} in {protocol}: {answer.body[:300]!r}"


def _check_success(answer: Answer, failure: str, ends: bytes = b"") -> str:
    """Of JSON, or of a stream in which no event has an error of the kind `failure`."""
    if "event-stream" not in _kind(answer):
        is_cut = answer.is_long or not answer.body
        is_right = is_cut or not _is_json(answer) or _json(answer.body) is not None
        return "" if is_right else _wrong_form(answer)
    events = list(_events(answer))
    if any(event is None for event in events):
        return _wrong_form(answer)
    texts = [json.dumps(event) for event in events if isinstance(event, dict) and "error" in event]
    if any(f'"{failure}"' in text and _DEADLINE not in text for text in texts):
        return f"a stream that failed: {texts[-1][:300]}"
    if ends and not texts and not answer.is_long and not answer.body.endswith((ends, b"}\n\n")):
        return f"a stream without an end: {answer.body[-200:]!r}"
    return ""


def _events(answer: Answer) -> Iterator[Any]:
    """The JSON of each event of a stream; None for one that has none."""
    lines = answer.body.replace(b"\r\n", b"\n").split(b"\n")
    texts = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    if answer.is_long:
        texts = texts[:-1]
    return (_json(text) for text in texts if text != b"[DONE]")


def _is_json(answer: Answer) -> bool:
    return "json" in _kind(answer)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _wrong_form(answer: Answer) -> str:
    return f"{answer.status} of another form: {answer.body[:300]!r}"


# --- gRPC -----------------------------------------------------------------------------------------


def _problem_of_rpc(found: Exchanged) -> str:
    if found.status == HUNG:
        return HUNG
    if found.status != "OK" and not found.status.startswith("RESOURCE_EXHAUSTED"):
        return f"the status of the call is {found.status}"
    for reply in found.replies:
        if problem := _problem_of_reply(reply):
            return problem
    return ""


def _problem_of_reply(reply: bytes) -> str:
    try:
        message = pb.PredictReply.FromString(reply)
        texts = [error.error_msg.decode() for error in message.error_msg]
    except (DecodeError, UnicodeDecodeError) as error:
        return f"no PredictReply: {error}: {reply[:100]!r}"
    for error, text in zip(message.error_msg, texts, strict=True):
        is_own = _OWN_FUNCTION.search(text) is not None
        if error.error_code not in RPC_CODES and not is_own:
            return f"error_code {error.error_code}: {text[:300]}"
        if INTERNAL.search(text.encode()) and not is_own:
            return f"internal text: {text[:300]}"
    return ""
