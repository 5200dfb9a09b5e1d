"""Unary calls by Connect, over HTTP/1.1 and HTTP/2; codes are those of its specification."""

import base64
import gzip
import http.client
import json
from contextlib import closing

import pytest
from google.protobuf import json_format

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Overloaded
from mindspore_serving.frontends.origins import OriginPolicy
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.frontends.grpc.interop.service import ECHOED, ECHOED_BIN, LARGEST, Interop, kind
from tests.frontends.grpc.test_limits import KEY, PREDICT, message
from tests.frontends.http2.peer import Peer
from tests.frontends.http_serving import Client
from tests.waiting import PATIENCE, eventually

UNARY = "/grpc.testing.TestService/UnaryCall"
HEALTH = "/grpc.health.v1.Health/Check"
PROTO, JSON = "application/proto", "application/json"
PAGE = "https://page.example"


@pytest.fixture(scope="module")
def served(background):
    with closing(Interop(background)) as made:
        yield made


class Caller:
    """A client by HTTP/1.1 or by HTTP/2."""

    def __init__(self, port, version=1):
        self.port = port
        self.peer = Peer(port) if version == 2 else None

    def post(self, path, body, content_type=JSON, **fields):
        """The status, the fields and the body of an answer."""
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        named = {"content-type": content_type, **named}
        if self.peer is not None:
            answer = self.peer.read(self.peer.ask(*named.items(), body=body, path=path))
            return answer.status, dict(answer.fields), answer.body
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        ) as connection:
            connection.request("POST", path, body, named)
            response = connection.getresponse()
            answered = {name.lower(): value for name, value in response.getheaders()}
            return response.status, answered, response.read()

    def error(self, path, body, *arguments, **fields):
        """The status of an answer, and the code and the text of its error."""
        status, answered, data = self.post(path, body, *arguments, **fields)
        assert answered["content-type"] == JSON
        error = json.loads(data)
        assert error.keys() <= {"code", "message"}
        return status, error["code"], error.get("message", "")

    def close(self):
        if self.peer is not None:
            self.peer.close()


@pytest.fixture(params=[1, 2])
def caller(request, served):
    with closing(Caller(served.port, request.param)) as made:
        yield made


def simple(size=0, **fields):
    return kind("SimpleRequest")(response_size=size, **fields)


def failing(code, text=""):
    return json_format.MessageToJson(simple(response_status={"code": code, "message": text}))


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_a_call_by_protobuf_is_answered(caller, size):
    status, fields, body = caller.post(UNARY, simple(size).SerializeToString(), PROTO)
    assert (status, fields["content-type"]) == (200, PROTO)
    assert len(kind("SimpleResponse").FromString(body).payload.body) == size


@pytest.mark.parametrize("size", [0, 1, 300_000])
@pytest.mark.parametrize("content_type", [JSON, "application/json; charset=utf-8"])
def test_a_call_by_json_is_answered(caller, size, content_type):
    body = json.dumps({"responseSize": size, "payload": {"body": "YWJj"}})
    status, fields, data = caller.post(UNARY, body.encode(), content_type)
    assert (status, fields["content-type"]) == (200, JSON)
    assert base64.b64decode(json.loads(data)["payload"].get("body", "")) == bytes(size)


def test_a_large_call_by_json_is_read(caller):
    body = json.dumps({"payload": {"body": base64.b64encode(bytes(9_000)).decode()}})
    assert caller.post(UNARY, body.encode())[0] == 200


def test_an_empty_message_is_empty(caller):
    assert caller.post(UNARY, b"", PROTO)[::2] == (200, b"\n\0")
    assert caller.post(UNARY, b"{}")[::2] == (200, b'{"payload": {}}')


def test_the_services_of_the_server_speak_json(caller):
    assert caller.post(HEALTH, b'{"service": ""}')[::2] == (200, b'{"status": "SERVING"}')
    body = json.dumps({"servableSpec": {"name": "add"}, "instances": [{}]}).encode()
    status, _, data = caller.post(PREDICT, body)
    reply = json_format.Parse(data, pb.PredictReply())
    assert (status, reply.servable_spec.name, len(reply.instances)) == (200, "add", 1)


CODES = {  # by the specification: the number of gRPC, the name, the status of HTTP
    1: ("canceled", 499),
    2: ("unknown", 500),
    3: ("invalid_argument", 400),
    4: ("deadline_exceeded", 504),
    5: ("not_found", 404),
    6: ("already_exists", 409),
    7: ("permission_denied", 403),
    8: ("resource_exhausted", 429),
    9: ("failed_precondition", 400),
    10: ("aborted", 409),
    11: ("out_of_range", 400),
    12: ("unimplemented", 501),
    13: ("internal", 500),
    14: ("unavailable", 503),
    15: ("data_loss", 500),
    16: ("unauthenticated", 401),
}


@pytest.mark.parametrize("code", CODES)
def test_an_error_has_its_name_and_status(caller, code):
    name, status = CODES[code]
    assert caller.error(UNARY, failing(code, "tëxt").encode()) == (status, name, "tëxt")
    assert caller.error(UNARY, failing(code).encode()) == (status, name, "")


def test_metadata_comes_back_with_an_answer(caller):
    sent = base64.b64encode(b"\xab\xab\xab").decode()
    fields = caller.post(UNARY, b"{}", **{ECHOED: "value", ECHOED_BIN: sent})[1]
    assert (fields[ECHOED], fields[f"trailer-{ECHOED_BIN}"]) == ("value", sent)


def test_metadata_comes_back_with_an_error(caller):
    sent = base64.b64encode(b"\xab\xab\xab").decode()
    fields = caller.post(UNARY, failing(5).encode(), **{ECHOED: "value", ECHOED_BIN: sent})[1]
    assert (fields[ECHOED], fields[ECHOED_BIN]) == ("value", sent)


def test_a_compressed_call_is_read(caller):
    body = gzip.compress(b'{"responseSize": 3}')
    status, _, data = caller.post(UNARY, body, content_encoding="gzip")
    assert (status, json.loads(data)) == (200, {"payload": {"body": "AAAA"}})


def test_a_compressed_call_over_the_limit_is_refused(caller):
    body = gzip.compress(bytes(LARGEST + 1))
    assert caller.error(UNARY, body, PROTO, content_encoding="gzip")[:2] == (
        429,
        "resource_exhausted",
    )


def test_a_compressed_call_that_is_cut_is_refused(caller):
    assert caller.error(UNARY, b"\x1f\x8bxx", PROTO, content_encoding="gzip")[0] == 500


REFUSED = {
    "version": ({"connect_protocol_version": "2"}, 400, "connect-protocol-version is '2'"),
    "encoding": ({"content_encoding": "br"}, 501, "the content encoding is 'br', expected gzip"),
    "timeout": ({"connect_timeout_ms": "soon"}, 400, "connect-timeout-ms is 'soon', expected"),
    "long timeout": ({"connect_timeout_ms": "1" * 11}, 400, "expected up to 10 digits"),
    "type": ({"content_type": "text/html"}, 415, "expected application/json, application/proto"),
}


@pytest.mark.parametrize(("fields", "status", "text"), REFUSED.values(), ids=REFUSED)
def test_a_call_that_is_not_of_the_protocol_is_refused(caller, fields, status, text):
    answer = caller.error(UNARY, b"{}", **fields)
    assert answer[0] == status
    assert text in answer[2]


def test_a_refusal_names_accepted_values(caller):
    fields = caller.post(UNARY, b"", content_type="text/html")[1]
    assert fields["accept-post"] == "application/json, application/proto"
    assert caller.post(UNARY, b"", content_encoding="br")[1]["accept-encoding"] == "gzip, identity"


@pytest.mark.parametrize("content_type", ["application/connect+json", "application/connect+proto"])
def test_a_stream_is_refused_in_its_last_message(caller, content_type):
    status, fields, data = caller.post(UNARY, b"\0\0\0\0\0", content_type)
    assert (status, fields["content-type"], data[0]) == (200, content_type, 2)
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    error = json.loads(data[5:])["error"]
    assert error["code"] == "unimplemented"
    assert "call streams by gRPC or gRPC-Web" in error["message"]


def test_a_stream_cannot_be_called_as_a_unary_method(caller):
    status, code, text = caller.error("/grpc.testing.TestService/FullDuplexCall", b"{}")
    assert (status, code) == (501, "unimplemented")
    assert "gRPC-Web" in text


def test_an_unknown_method_is_unimplemented(caller):
    assert caller.error("/grpc.testing.TestService/NoCall", b"{}")[:2] == (501, "unimplemented")
    version = {"connect_protocol_version": "1"}
    assert caller.error("/no.Service/Call", b"{}", **version)[:2] == (501, "unimplemented")


def test_other_routes_stay_those_of_http(caller):
    assert caller.post("/no.Service/Call", b"{}")[0] == 404
    assert caller.post("/model/add:m", b'{"instances":[]}')[0] == 200


NOT_JSON = {
    "text": b"hello",
    "nothing": b"",
    "another type": b'{"responseSize": "many"}',
    "an unknown field": b'{"responseSizes": 1}',
    "not UTF-8": b'{"payload": {"body": "\xff"}}',
    "a list": b"[]",
    "deep": b'{"payload":' * 50_000,
    "infinite": b'{"responseSize": 1e999}',
    "twice": b'{"responseSize": 1, "responseSize": 2}',
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_a_body_that_is_not_json_of_the_message_is_refused(served, body):
    status, code, text = Caller(served.port).error(UNARY, body)
    assert (status, code) == (400, "invalid_argument")
    assert "the body is not JSON of grpc.testing.SimpleRequest: " in text


def test_a_message_that_grows_over_the_limit_is_refused(served):
    """A number of a tensor is one byte in JSON, and eight bytes in the message."""
    path = "/inference.GRPCInferenceService/ModelInfer"
    numbers = {"contents": {"fp64Contents": [1] * (LARGEST // 4)}}
    served.methods._methods[path.encode()] = served.methods._find(UNARY.encode())
    body = json.dumps({"inputs": [numbers]}, separators=(",", ":")).encode()
    assert len(body) < LARGEST
    status, code, text = Caller(served.port).error(path, body)
    del served.methods._methods[path.encode()]
    assert (status, code) == (429, "resource_exhausted")
    assert f"larger than max ({LARGEST})" in text


def test_a_deadline_ends_a_call(background):
    with closing(Interop(background)) as served:
        served.inference.holds = True
        caller = Caller(served.port)
        answer = caller.error(PREDICT, message(), PROTO, connect_timeout_ms="20")
        assert answer[:2] == (504, "deadline_exceeded")
        eventually(lambda: served.inference.calls[0].is_cancelled)


# --- keys, limits, pages --------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_key_is_checked(background, version):
    with (
        closing(Interop(background, keys=[KEY])) as served,
        closing(Caller(served.port, version)) as caller,
    ):
        assert caller.error(PREDICT, message(), PROTO)[:2] == (401, "unauthenticated")
        key = f"Bearer {KEY}"
        assert caller.post(PREDICT, message(), PROTO, authorization=key)[0] == 200
        assert len(served.inference.calls) == 1


def test_a_key_is_checked_before_a_body_arrives(background):
    with closing(Interop(background, keys=[KEY])) as served:
        client = Client(served)
        client.send(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\n"
            b"Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n" % PREDICT.encode()
        )
        assert client.read()[0] == 401
        assert served.held == 0
        client.stream.close()


def test_a_body_over_the_limit_is_refused_by_its_length(served):
    client = Client(served)
    client.send(
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\n"
        b"Content-Length: %d\r\n\r\n" % (UNARY.encode(), LARGEST + 1)
    )
    assert client.read()[0] == 429
    client.stream.close()


def test_a_body_of_unknown_length_over_the_limit_is_refused(served):
    client = Client(served)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\n" % UNARY.encode()
    client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"8000\r\n%b\r\n" % bytes(0x8000)
    client.stream.sendall(chunk * (LARGEST // 0x8000) + chunk)
    assert client.read()[0] == 429
    client.stream.close()
    eventually(lambda: served.held == 0)


def test_bodies_count_in_the_memory_limit(background):
    with closing(Interop(background, max_body_memory=LARGEST)) as served:
        served.inference.holds = True
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE)
        connection.request("POST", PREDICT, message(LARGEST // 2), {"content-type": PROTO})
        asked = served.inference.wait_for(1)
        refused = Caller(served.port)
        status, fields, _ = refused.post(PREDICT, message(LARGEST // 2), PROTO)
        assert (status, fields["retry-after"]) == (429, "1")
        asked.reply(Reply(failure=Overloaded("no")))
        assert connection.getresponse().status == 200
        connection.close()
        eventually(lambda: served.held == 0)


def test_a_page_of_an_allowed_origin_may_read_answers_and_errors(background):
    origins = OriginPolicy("127.0.0.1", (), [PAGE])
    with closing(Interop(background, origins=origins)) as served:
        caller = Caller(served.port)
        for body, status in ((b"{}", 200), (b"no", 400)):
            answered, fields, _ = caller.post(UNARY, body, origin=PAGE)
            assert (answered, fields["access-control-allow-origin"]) == (status, PAGE)
        status, fields, _ = caller.post(UNARY, b"{}", origin="https://other.example")
        assert (status, "access-control-allow-origin" in fields) == (403, False)


def test_calls_count_as_those_of_grpc(served, caller):
    before = served.responses.counts["grpc", "OK"]
    caller.post(PREDICT, message(), PROTO)
    assert served.responses.counts["grpc", "OK"] == before + 1
