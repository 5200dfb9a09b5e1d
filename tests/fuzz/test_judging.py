"""The fuzzer's judgement: what it must find wrong, it finds wrong."""

import json
import textwrap

import pytest

from mindspore_serving.proto import ms_service_pb2 as pb
from tests.fuzz.case import Case
from tests.fuzz.http_reading import Answer, Requests, requests_in
from tests.fuzz.judging import problem_of
from tests.fuzz.logs import tracebacks
from tests.fuzz.sending import HUNG, Exchanged

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
CHAT = b"/v1/chat/completions"
OPENAI_ERROR = {"error": {"message": "no", "type": "x", "param": None, "code": None}}


def judge(target: bytes, status: int, body: object, headers: dict[str, str] = JSON) -> str:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    requests = Requests([(b"POST", target)], is_whole=True)
    exchanged = Exchanged(requests, [Answer(status, headers, data)])
    return problem_of(Case("any", "http", b""), exchanged)


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        (CHAT, 200, {"choices": []}),
        (CHAT, 400, OPENAI_ERROR),
        (b"/generate", 422, {"error": "no", "error_type": "validation"}),
        (b"/models/tiny/generate", 422, {"detail": []}),
        (b"/model/good:double", 400, {"error_msg": "no"}),
        (b"/model/good:double", 500, {"error_msg": "Call Function 'good.twice' Failed"}),
        (b"/of/nobody", 404, {"error_msg": "no"}),
    ],
)
def test_answers_of_the_form_of_their_protocol_are_right(
    target: bytes, status: int, body: object
) -> None:
    assert judge(target, status, body) == ""


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        (CHAT, 500, OPENAI_ERROR),
        (CHAT, 400, {"error_msg": "of another protocol"}),
        (CHAT, 400, b"no JSON"),
        (CHAT, 400, {"error": {**OPENAI_ERROR["error"], "message": "KeyError: 'x'"}}),
        (b"/generate", 424, {"error": "no", "error_type": "generation"}),
        (b"/models/tiny/generate", 500, {"detail": []}),
        (b"/model/good:double", 500, {"error_msg": "Predict failed"}),
        (b"/model/good:double", 400, {"error_msg": "Traceback (most recent call last)"}),
        (b"/of/nobody", 500, b"Internal Server Error"),
    ],
)
def test_answers_that_tell_of_a_failed_server_are_wrong(
    target: bytes, status: int, body: object
) -> None:
    assert judge(target, status, body) != ""


def test_a_stream_that_ends_with_the_failure_of_the_server_is_wrong() -> None:
    failed = b'data: {"error": {"message": "x", "type": "server_error"}}\n\n'
    assert judge(CHAT, 200, failed, EVENTS) != ""
    assert judge(CHAT, 200, b"data: {}\n\ndata: [DONE]\n\n", EVENTS) == ""


def test_fewer_or_more_answers_than_requests_are_wrong() -> None:
    requests = Requests([(b"GET", b"/health")], is_whole=True)
    answer = Answer(200, {}, b"ready")
    for answers, is_right in (([], False), ([answer], True), ([answer] * 2, False)):
        problem = problem_of(Case("http", "http", b""), Exchanged(requests, answers))
        assert (problem == "") is is_right


def test_no_answer_is_wrong() -> None:
    requests = Requests([(b"GET", b"/health")], is_whole=True)
    exchanged = Exchanged(requests, [Answer(problem=HUNG)])
    assert problem_of(Case("http", "http", b""), exchanged) == HUNG
    assert problem_of(Case("grpc", "Predict", b""), Exchanged(status=HUNG)) == HUNG


@pytest.mark.parametrize(("code", "is_right"), [(0, True), (2, True), (1, True), (3, False)])
def test_the_code_of_a_grpc_reply_distinguishes_client_and_server_errors(
    code: int, is_right: bool
) -> None:
    reply = pb.PredictReply(error_msg=[pb.ErrorMsg(error_code=code, error_msg=b"no")])
    exchanged = Exchanged(replies=[reply.SerializeToString()], status="OK")
    assert (problem_of(Case("grpc", "Predict", b""), exchanged) == "") is is_right


def test_a_status_of_the_call_over_grpc_is_wrong() -> None:
    assert problem_of(Case("grpc", "Predict", b""), Exchanged(status="INTERNAL: x")) != ""


def test_requests_are_counted_as_another_library_reads_them() -> None:
    one = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    assert requests_in(one * 2).lines == [(b"POST", b"/a")] * 2
    assert requests_in(one * 2).is_whole
    assert not requests_in(one + one[:-1]).is_whole
    assert requests_in(one + b"\0\0\r\n\r\n").lines == [(b"POST", b"/a")]


def test_the_tracebacks_of_a_log_are_found_but_for_those_of_servables() -> None:
    start = "E: failed\nTraceback (most recent call last):\n"
    own = f'{start}  File "a/servable_config.py", line 1\nValueError: x\n'
    ours = f'{start}  File "a.py", line 1\nKeyError: x\nI: later\n'
    assert [text.splitlines()[0] for text in tracebacks(own + ours)] == ["KeyError: x"]
    indented = f"E: failed\n{textwrap.indent(ours, '    ')}I: later\n"
    assert [text.splitlines()[0] for text in tracebacks(indented)] == ["KeyError: x"]
