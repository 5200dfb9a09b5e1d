"""Calls by gRPC-Web, over HTTP/1.1 and HTTP/2: clients are http.client, h2 and raw sockets."""

import base64
import gzip
import http.client
import struct
from contextlib import closing

import pytest

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Overloaded
from mindspore_serving.frontends.origins import OriginPolicy
from tests.frontends.grpc.interop.service import ECHOED, ECHOED_BIN, LARGEST, Interop, kind
from tests.frontends.grpc.test_limits import KEY, PREDICT, message
from tests.frontends.http2.peer import Peer
from tests.frontends.http_serving import Client
from tests.waiting import PATIENCE, eventually

UNARY = "/grpc.testing.TestService/UnaryCall"
STREAM = "/grpc.testing.TestService/StreamingOutputCall"
WEB, TEXT = "application/grpc-web+proto", "application/grpc-web-text"
PAGE = "https://page.example"


@pytest.fixture(scope="module")
def served(background):
    with closing(Interop(background)) as made:
        yield made


def framed(data, flag=0):
    return struct.pack(">BI", flag, len(data)) + data


def simple(size=0, **fields):
    return kind("SimpleRequest")(response_size=size, **fields).SerializeToString()


def outputs(*sizes):
    request = kind("StreamingOutputCallRequest")()
    for size in sizes:
        request.response_parameters.add(size=size)
    return request.SerializeToString()


class Web:
    """A client of gRPC-Web by HTTP/1.1 or, with a `peer`, by HTTP/2."""

    def __init__(self, port, content_type=WEB, version=1):
        self.content_type, self.is_text = content_type, "text" in content_type
        self.peer = Peer(port) if version == 2 else None
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def post(self, path, body, **metadata):
        """The status of HTTP, the fields, and the body."""
        fields = {name.replace("_", "-"): value for name, value in metadata.items()}
        fields = {"content-type": self.content_type, **fields}
        if self.peer is not None:
            answer = self.peer.read(self.peer.ask(*fields.items(), body=body, path=path))
            return answer.status, dict(answer.fields), answer.body
        self.connection.request("POST", path, body, fields)
        response = self.connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return response.status, fields, response.read()

    def call(self, path, *messages, **metadata):
        """The fields, the messages and the trailers of an answer."""
        body = b"".join(map(framed, messages))
        body = base64.b64encode(body) if self.is_text else body
        status, fields, data = self.post(path, body, **metadata)
        assert status == 200, data
        return fields, *self.frames_of(data)

    def frames_of(self, data):
        if self.is_text:
            groups = data.replace(b"=", b"= ").replace(b"= =", b"==").split()
            data = b"".join(map(base64.b64decode, groups))
        messages, trailers = [], None
        while data:
            flag, size = struct.unpack_from(">BI", data)
            part, data = data[5 : 5 + size], data[5 + size :]
            assert trailers is None
            if flag & 0x80:
                trailers = dict(line.split(": ", 1) for line in part.decode().splitlines())
            else:
                messages.append(part)
        assert trailers is not None
        return messages, trailers

    def close(self):
        self.connection.close()
        if self.peer is not None:
            self.peer.close()


@pytest.fixture(params=[(WEB, 1), (WEB, 2), (TEXT, 1), (TEXT, 2)], ids=lambda each: str(each))
def web(request, served):
    with closing(Web(served.port, *request.param)) as made:
        yield made


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_a_unary_call_is_answered(web, size):
    fields, messages, trailers = web.call(UNARY, simple(size))
    assert [len(kind("SimpleResponse").FromString(each).payload.body) for each in messages] == [
        size
    ]
    assert trailers == {"grpc-status": "0"}
    assert fields["content-type"] == (f"{TEXT}+proto" if web.is_text else WEB)


def test_a_stream_is_answered_in_messages(web):
    _, messages, trailers = web.call(STREAM, outputs(1, 70_000, 0, 5))
    response = kind("StreamingOutputCallResponse")
    sizes = [len(response.FromString(each).payload.body) for each in messages]
    assert (sizes, trailers) == ([1, 70_000, 0, 5], {"grpc-status": "0"})


def test_calls_of_a_connection_follow_each_other(web):
    for size in range(20):
        assert web.call(UNARY, simple(size))[2] == {"grpc-status": "0"}


def test_a_status_is_in_the_trailers(web):
    status = {"code": 3, "message": "line\r\nend and ünïcode"}
    _, messages, trailers = web.call(UNARY, simple(response_status=status))
    text = "line%0D%0Aend and %C3%BCn%C3%AFcode"
    assert (messages, trailers) == ([], {"grpc-status": "3", "grpc-message": text})


def test_a_status_after_messages_ends_a_stream(web):
    request = kind("StreamingOutputCallRequest").FromString(outputs(1))
    failing = kind("StreamingOutputCallRequest")(response_status={"code": 5, "message": "no"})
    path = STREAM.replace("StreamingOutputCall", "FullDuplexCall")
    _, messages, trailers = web.call(path, *map(bytes_of, (request, failing)))
    assert (len(messages), trailers) == (1, {"grpc-status": "5", "grpc-message": "no"})


def bytes_of(made):
    return made.SerializeToString()


def test_metadata_comes_back_in_the_head_and_the_trailers(web):
    metadata = {ECHOED: "value", ECHOED_BIN: base64.b64encode(b"\xab\xab").decode()}
    fields, _, trailers = web.call(UNARY, simple(), **metadata)
    assert fields[ECHOED] == "value"
    assert base64.b64decode(trailers[ECHOED_BIN] + "=") == b"\xab\xab"


def test_an_unknown_method_is_unimplemented(web):
    assert web.call("/no.Service/Call", b"")[2]["grpc-status"] == "12"


def test_a_message_over_the_limit_is_refused_by_its_size_alone(web):
    body = struct.pack(">BI", 0, LARGEST + 1) + bytes(100)
    _, _, answer = web.post(UNARY, base64.b64encode(body) if web.is_text else body)
    messages, trailers = web.frames_of(answer)
    assert (messages, trailers["grpc-status"]) == ([], "8")
    assert f"larger than max ({LARGEST})" in trailers["grpc-message"]


def test_a_compressed_message_is_read(web):
    data = gzip.compress(simple(7))
    body = framed(data, 1)
    body = base64.b64encode(body) if web.is_text else body
    _, _, answer = web.post(UNARY, body, grpc_encoding="gzip")
    messages, trailers = web.frames_of(answer)
    assert len(kind("SimpleResponse").FromString(messages[0]).payload.body) == 7
    assert trailers == {"grpc-status": "0"}


def test_a_deadline_ends_a_call(web):
    request = kind("StreamingOutputCallRequest")()
    request.response_parameters.add(size=1, interval_us=10**9)
    _, messages, trailers = web.call(STREAM, bytes_of(request), grpc_timeout="20m")
    assert (messages, trailers["grpc-status"]) == ([], "4")


def test_trailers_in_a_request_are_refused(web):
    body = framed(b"a: b\r\n", 0x80)
    _, _, answer = web.post(UNARY, base64.b64encode(body) if web.is_text else body)
    assert web.frames_of(answer)[1]["grpc-status"] == "3"


def test_another_codec_is_refused(web):
    assert web.post(UNARY, b"", content_type="application/grpc-web+json")[0] == 415


# --- text -----------------------------------------------------------------------------------------


def test_base64_may_be_padded_between_frames_and_cut_anywhere(served):
    request = framed(simple(5))
    body = base64.b64encode(request[:1]) + base64.b64encode(request[1:])
    assert body.count(b"=") >= 2
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/grpc-web-text\r\n"
    head = head % UNARY.encode() + b"Content-Length: %d\r\n\r\n" % len(body)
    client = Client(served)
    client.send(head, *[bytes((byte,)) for byte in body])
    status, _, data = client.read()
    with closing(Web(served.port, TEXT)) as web:
        messages, trailers = web.frames_of(data)
    assert (status, trailers) == (200, {"grpc-status": "0"})
    assert len(kind("SimpleResponse").FromString(messages[0]).payload.body) == 5
    client.stream.close()


@pytest.mark.parametrize("body", [b"****", b"AAA=AAA*", b"=AAA", b"A===", b"\xff\xff\xff\xff"])
def test_a_body_that_is_not_base64_is_refused(served, body):
    with closing(Web(served.port, TEXT)) as web:
        _, _, answer = web.post(UNARY, body)
        assert web.frames_of(answer)[1]["grpc-status"] == "3"


# --- keys, limits, clients that leave -------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_key_is_checked_before_a_body_arrives(background, version):
    with closing(Interop(background, keys=[KEY])) as served:
        with closing(Web(served.port, version=version)) as web:
            trailers = web.call(PREDICT, message())[2]
            assert (trailers["grpc-status"], served.inference.calls) == ("16", [])
        with closing(Web(served.port, version=version)) as web:
            assert web.call(PREDICT, message(), authorization=f"Bearer {KEY}")[2] == {
                "grpc-status": "0"
            }
        client = Client(served)
        client.send(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/grpc-web\r\n"
            b"Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n" % PREDICT.encode()
        )
        status, _, data = client.read()
        assert (status, b"grpc-status: 16" in data, served.held) == (200, True, 0)
        client.stream.close()


def test_a_held_back_body_is_asked_for(served):
    body = framed(simple(3))
    client = Client(served)
    client.send(
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/grpc-web\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (UNARY.encode(), len(body))
    )
    assert client.read()[0] == 100
    client.send(body)
    assert client.read()[0] == 200
    client.stream.close()


def test_bodies_count_in_the_memory_limit(background):
    with closing(Interop(background, max_body_memory=LARGEST)) as served:
        served.inference.holds = True
        with closing(Web(served.port)) as web:
            web.connection.request(
                "POST", PREDICT, framed(message(LARGEST // 2)), {"content-type": WEB}
            )
            asked = served.inference.wait_for(1)
            with closing(Web(served.port)) as other:
                trailers = other.call(PREDICT, message(LARGEST // 2))[2]
                assert trailers["grpc-status"] == "8"
                assert trailers["retry-after"] == "1"
            asked.reply(Reply(failure=Overloaded("no")))
            assert web.connection.getresponse().status == 200
        eventually(lambda: served.held == 0)


@pytest.mark.parametrize("version", [1, 2])
def test_a_client_that_leaves_cancels_its_call(background, version):
    with closing(Interop(background)) as served:
        served.inference.holds = True
        web = Web(served.port, version=version)
        if web.peer is None:
            web.connection.request("POST", PREDICT, framed(message()), {"content-type": WEB})
        else:
            web.peer.ask(("content-type", WEB), body=framed(message()), path=PREDICT)
        asked = served.inference.wait_for(1)
        web.close()
        eventually(lambda: asked.is_cancelled)
        assert served.held == 0


def test_pipelined_calls_are_answered_in_order(served):
    client = Client(served)
    calls = []
    for size in (1, 2, 3):
        body = framed(simple(size))
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/grpc-web\r\n"
        calls.append(head % UNARY.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    too_large = framed(b"")[:1] + struct.pack(">I", LARGEST + 1)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/grpc-web\r\n"
    calls.append(head % UNARY.encode() + b"Content-Length: 5\r\n\r\n" + too_large)
    client.send(b"".join(calls))
    answers = [client.read()[2] for _ in calls]
    sizes = [int.from_bytes(answer[1:5], "big") for answer in answers[:3]]
    assert sizes == [
        len(bytes_of(kind("SimpleResponse")(payload={"body": bytes(size)}))) for size in (1, 2, 3)
    ]
    assert b"grpc-status: 8" in answers[3]
    client.stream.close()


def test_a_stream_to_a_client_of_http_1_0_ends_with_the_connection(served):
    body = framed(outputs(1, 2))
    client = Client(served)
    client.send(
        b"POST %b HTTP/1.0\r\nContent-Type: application/grpc-web\r\nContent-Length: %d\r\n\r\n"
        % (STREAM.encode(), len(body))
        + body
    )
    data = b""
    while part := client.stream.recv(65536):
        data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert rest.endswith(b"grpc-status: 0\r\n")
    client.stream.close()


# --- pages of other sites -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(background):
    with closing(Interop(background, origins=OriginPolicy("127.0.0.1", ["test"], [PAGE]))) as made:
        yield made


@pytest.mark.parametrize("version", [1, 2])
def test_a_page_of_an_allowed_origin_may_read_an_answer(guarded, version):
    with closing(Web(guarded.port, version=version)) as web:
        fields, messages, _ = web.call(UNARY, simple(1), origin=PAGE)
        assert fields["access-control-allow-origin"] == PAGE
        assert fields["access-control-expose-headers"] == "*"
        assert len(messages) == 1


def test_a_page_of_an_allowed_origin_may_ask_before(guarded):
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=PATIENCE)
    fields = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,x-grpc-web,grpc-timeout",
    }
    connection.request("OPTIONS", UNARY, headers=fields)
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "grpc-timeout" in response.headers["access-control-allow-headers"]
    connection.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_page_of_another_origin_is_refused(guarded, version):
    with closing(Web(guarded.port, version=version)) as web:
        origin = "https://other.example"
        status, fields, body = web.post(UNARY, framed(simple()), origin=origin)
        assert status == 403
        assert "access-control-allow-origin" not in fields
        assert origin.encode() in body
