"""Calls that need no task, byte by byte: messages, limits, deadlines, keys, cancellation, logs."""

import asyncio
import gzip

import grpc
import pytest

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import HIT, Reply
from mindspore_serving.errors import Overloaded
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from mindspore_serving.frontends.keys import ApiKey, Keys
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from mindspore_serving.frontends.tenants.limits import Limits
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.frontends.grpc.test_limits import KEY, PREDICT, message
from tests.frontends.grpc.test_messages import framed, send
from tests.frontends.http2.peer import Peer
from tests.frontends.http_serving import Inference
from tests.waiting import eventually

LARGEST = 4 << 20
LARGE = 600_000  # received in memory of the pool
Code = grpc.StatusCode
AUTHORIZED = ("authorization", f"Bearer {KEY}")


class Served:
    """A server of Predict over an inference that the test answers, and its clients."""

    def __init__(self, background, keys=(), *, is_logged=False, **limits):
        self.background, self.inference = background, Inference()
        bounds = ServerLimits(**limits)
        self.keys = Keys(keys)
        handler = ms_grpc.handler(self.inference, CallGate(self.keys, bounds, LARGEST))
        self.responses = ResponseCounter(is_logged=is_logged)
        address = Address("127.0.0.1:0", "127.0.0.1", 0)
        self.server = Http2GrpcServer(
            address, GrpcMethods([handler], LARGEST), bounds, self.responses
        )
        background.run(self.server.start(None))
        self.peers = []

    def peer(self):
        self.peers.append(Peer(self.server.port))
        return self.peers[-1]

    def sweep(self, seconds):
        """Let the server look for late clients now, and as if so many seconds had passed."""

        async def look():
            now = asyncio.get_running_loop().time()
            self.server.end_late_connections(now)
            self.server.end_late_connections(now + seconds)

        self.background.run(look())

    @property
    def num_held(self):
        return self.server.shared.memory.used

    def close(self):
        for peer in self.peers:
            peer.close()
        self.background.run(self.server.stop(0.0))


@pytest.fixture
def serve(background):
    made = []

    def start(*keys, **options):
        made.append(Served(background, keys, **options))
        return made[-1]

    yield start
    for served in made:
        served.close()


@pytest.fixture
def served(serve):
    return serve()


@pytest.fixture
def peer(served):
    return served.peer()


def begin(peer, *headers):
    content = ("content-type", "application/grpc")
    return peer.ask(content, *headers, path=PREDICT, method="POST", is_last=False)


def upload(peer, number, data, *, is_last=True):
    """Send data as fast as the windows allow."""
    while data:
        room = min(peer.h2.local_flow_control_window(number), 16_384)
        if room:
            send(peer, number, data[:room], is_last=False)
            data = data[room:]
        else:
            peer.read(until=lambda: peer.h2.local_flow_control_window(number))
    send(peer, number, is_last=is_last)


def status_of(peer, number):
    """The status of an answer, and its fields."""
    answer = peer.answers[number]
    peer.read(until=lambda: "grpc-status" in dict(answer.fields))
    fields = dict(answer.fields)
    return next(code for code in Code if str(code.value[0]) == fields["grpc-status"]), fields


def instance_of(peer, number):
    """The only instance of an answer, and its fields."""
    code, fields = status_of(peer, number)
    assert code is Code.OK
    body = peer.answers[number].body
    assert int.from_bytes(body[1:5], "big") == len(body) - 5
    return pb.PredictReply.FromString(body[5:]), fields


def echoed(peer, number, body):
    """Whether an answer has `body` as the bytes of its instance, as the fake inference answers."""
    answer = peer.answers[number]
    assert status_of(peer, number)[0] is Code.OK
    peer.read(number)
    return answer.body.endswith(body)


def test_a_call_makes_no_task(served, peer, background):
    async def names():
        return {task.get_coro().__qualname__ for task in asyncio.all_tasks()}

    served.inference.holds = True
    number = begin(peer)
    send(peer, number, framed(message(1000)))
    asked = served.inference.wait_for(1)
    assert not any("Call" in name or "predict" in name for name in background.run(names()))
    asked.reply(Reply([b""]))
    assert status_of(peer, number)[0] is Code.OK


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 30])
def test_a_message_may_be_cut_anywhere(peer, cut):
    data, number = framed(message(100)), begin(peer)
    send(peer, number, data[:cut], data[cut:])
    assert echoed(peer, number, message(100))


@pytest.mark.parametrize("size", [65_000, 65_600, 200_000, LARGE, 3_000_000])
def test_a_large_message_arrives_whole_and_leaves_nothing(served, peer, size):
    body = message(size)
    number = begin(peer)
    upload(peer, number, framed(body))
    assert echoed(peer, number, body)
    eventually(lambda: served.num_held == 0)


@pytest.mark.parametrize("size", [10, 100_000, LARGE])
def test_a_further_message_is_not_read(served, peer, size):
    body, number = message(size), begin(peer)
    upload(peer, number, framed(body) + framed(b"more") * 3)
    assert echoed(peer, number, body)
    assert len(served.inference.calls) == 1


def test_a_call_may_end_after_its_answer(served, peer):
    number = begin(peer)
    send(peer, number, framed(message()), is_last=False)
    assert status_of(peer, number)[0] is Code.OK
    send(peer, number)
    eventually(lambda: not any(each.streams for each in served.server.shared.connections))
    assert echoed(peer, _called(peer, message(9)), message(9))


def _called(peer, body, *headers):
    number = begin(peer, *headers)
    upload(peer, number, framed(body))
    return number


@pytest.mark.parametrize("data", [b"", b"\0\0", framed(message(50))[:-1]])
def test_a_call_without_a_whole_message_is_refused(served, peer, data):
    number = begin(peer)
    send(peer, number, *filter(None, [data]))
    code, fields = status_of(peer, number)
    assert (code, fields["grpc-message"]) == (
        Code.INVALID_ARGUMENT,
        "the call has no request message",
    )
    assert not served.inference.calls


def test_a_message_over_the_limit_is_refused_by_its_prefix(served, peer):
    number = begin(peer)
    send(peer, number, b"\0" + (LARGEST + 1).to_bytes(4, "big"), is_last=False)
    code, fields = status_of(peer, number)
    assert code is Code.RESOURCE_EXHAUSTED
    assert f"larger than max ({LARGEST})" in fields["grpc-message"]
    assert not served.inference.calls


def test_an_answer_over_the_limit_is_refused(served, peer):
    served.inference.holds = True
    number = _called(peer, message())
    served.inference.wait_for(1).reply(Reply([bytes(LARGEST)]))
    code, fields = status_of(peer, number)
    assert (code, "larger than max" in fields["grpc-message"]) == (Code.RESOURCE_EXHAUSTED, True)


@pytest.mark.parametrize("size", [100, 300_000])
def test_a_compressed_message_is_read(served, peer, size):
    body, number = message(size), begin(peer, ("grpc-encoding", "gzip"))
    send(peer, number, framed(gzip.compress(body), True))
    assert echoed(peer, number, body)


def test_a_plain_message_of_a_call_that_can_compress_is_read(peer):
    number = begin(peer, ("grpc-encoding", "gzip"))
    send(peer, number, framed(message(10)))
    assert echoed(peer, number, message(10))


@pytest.mark.parametrize(
    ("encoding", "data", "code"),
    [
        ("gzip", gzip.compress(bytes(LARGEST + 1)), Code.RESOURCE_EXHAUSTED),
        ("gzip", b"no gzip", Code.INTERNAL),
        ("identity", b"a", Code.INTERNAL),
        ("zstd", b"a", Code.UNIMPLEMENTED),
    ],
    ids=["bomb", "other bytes", "no encoding", "unknown"],
)
def test_compression_that_cannot_be_read_is_refused(served, peer, encoding, data, code):
    number = begin(peer, ("grpc-encoding", encoding))
    send(peer, number, framed(data, True))
    assert status_of(peer, number)[0] is code
    assert not served.inference.calls


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (("grpc-timeout", "1x"), Code.INTERNAL),
        (("x-data-bin", "?"), Code.INVALID_ARGUMENT),
        (("x-large", "y" * ServerLimits().max_metadata), Code.RESOURCE_EXHAUSTED),
    ],
    ids=["timeout", "base64", "size"],
)
def test_wrong_metadata_is_refused(peer, header, code):
    number = begin(peer, header)
    send(peer, number, framed(message()))
    assert status_of(peer, number)[0] is code


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_is_in_the_message_and_tells_when_to_come_again(served, peer):
    served.inference.holds = True
    number = _called(peer, message())
    served.inference.wait_for(1).reply(Reply(failure=Overloaded("no room", retry_after=2)))
    reply, fields = instance_of(peer, number)
    assert reply.error_msg[0].error_msg == b"no room"
    assert reply.servable_spec.name == "add"
    assert fields["retry-after"] == "2"
    assert fields["x-request-id"].startswith("req_")


def test_bytes_that_are_no_request_get_an_error_in_the_message(peer):
    reply, _ = instance_of(peer, _called(peer, b"\xff\xff\xff"))
    assert b"not a PredictRequest" in reply.error_msg[0].error_msg


def test_a_caller_gets_its_request_id_back(peer):
    number = _called(peer, message(), ("x-request-id", "mine"))
    assert status_of(peer, number)[1]["x-request-id"] == "mine"
    assert "x-request-id" not in status_of(peer, _called(peer, message()))[1]


def test_an_answer_tells_of_a_hit_of_the_cache(served, peer):
    served.inference.holds = True
    number = _called(peer, message())
    served.inference.wait_for(1).reply(Reply([b""], cache=HIT))
    assert status_of(peer, number)[1]["x-cache"] == HIT


# --- time and cancellation ------------------------------------------------------------------------


def test_a_deadline_passes_before_the_message_is_there(served, peer):
    number = begin(peer, ("grpc-timeout", "1m"))
    assert status_of(peer, number)[0] is Code.DEADLINE_EXCEEDED
    assert not served.inference.calls


def test_a_deadline_that_passes_cancels_the_request(served, peer):
    served.inference.holds = True
    number = begin(peer, ("grpc-timeout", "200m"))
    send(peer, number, framed(message()))
    assert status_of(peer, number)[0] is Code.DEADLINE_EXCEEDED
    calls = served.inference.calls
    assert all(call.is_cancelled and call.request.timeout < 0.21 for call in calls)
    for call in calls:
        call.reply(Reply([b"late"]))
    assert echoed(peer, _called_now(served, peer), message(3))


def _called_now(served, peer):
    served.inference.holds = False
    return _called(peer, message(3))


def test_a_reset_cancels_the_request_and_frees_its_memory(served, peer):
    served.inference.holds = True
    number = begin(peer)
    upload(peer, number, framed(message(LARGE)))
    asked = served.inference.wait_for(1)
    assert served.num_held >= LARGE
    peer.h2.reset_stream(number, error_code=8)
    peer.send()
    eventually(lambda: asked.is_cancelled)
    eventually(lambda: served.num_held == 0)
    eventually(lambda: served.responses.counts == {("grpc", "CANCELLED"): 1})


def test_a_reset_inside_a_message_frees_its_memory(served, peer):
    number = begin(peer)
    upload(peer, number, framed(message(LARGE))[: LARGE // 2], is_last=False)
    eventually(lambda: served.num_held > LARGE // 4)
    peer.h2.reset_stream(number, error_code=8)
    peer.send()
    eventually(lambda: served.num_held == 0)
    assert not served.inference.asked


def test_a_message_that_arrives_too_slowly_is_refused(serve):
    served = serve(body_timeout=1.0)
    peer = served.peer()
    number = begin(peer)
    send(peer, number, framed(message(50))[:20], is_last=False)
    eventually(
        lambda: any(getattr(each, "streams", ()) for each in served.server.shared.connections)
    )
    served.sweep(2.0)
    code, fields = status_of(peer, number)
    assert (code, fields["grpc-message"]) == (
        Code.DEADLINE_EXCEEDED,
        "the request arrived too slowly",
    )


def test_a_call_that_waits_for_its_answer_is_not_too_slow(serve):
    served = serve(body_timeout=1.0)
    peer = served.peer()
    served.inference.holds = True
    number = begin(peer)
    send(peer, number, framed(message()), is_last=False)
    asked = served.inference.wait_for(1)
    served.sweep(2.0)
    asked.reply(Reply([b""]))
    assert status_of(peer, number)[0] is Code.OK


# --- keys and limits ------------------------------------------------------------------------------


def test_a_caller_without_a_key_is_refused_before_its_message(serve):
    served = serve(KEY)
    peer = served.peer()
    number = begin(peer)
    assert status_of(peer, number)[0] is Code.UNAUTHENTICATED
    assert echoed(peer, _called(peer, message(7), AUTHORIZED), message(7))
    assert len(served.inference.calls) == 1


def test_a_request_has_the_tenant_of_its_key(serve):
    served = serve(KEY)
    peer = served.peer()
    assert echoed(peer, _called(peer, message(7), AUTHORIZED), message(7))
    (tenant,) = served.keys.tenants.values()
    assert served.inference.calls[0].request.tenant == tenant.owner != ""


@pytest.mark.parametrize("end", ["answer", "reset", "deadline"])
def test_a_tenant_is_released_however_its_call_ends(serve, end):
    served = serve(ApiKey(KEY, "small", Limits(max_requests=1)))
    peer = served.peer()
    served.inference.holds = True
    timeout = [("grpc-timeout", "300m")] if end == "deadline" else []
    number = _called(peer, message(), AUTHORIZED, *timeout)
    asked = served.inference.wait_for(1)
    if end == "answer":
        refused = _called(peer, message(), AUTHORIZED)
        code, fields = status_of(peer, refused)
        assert (code, "in flight" in fields["grpc-message"]) == (Code.RESOURCE_EXHAUSTED, True)
        asked.reply(Reply([b""]))
    elif end == "reset":
        peer.h2.reset_stream(number, error_code=8)
        peer.send()
    eventually(lambda: all(not tenant.num_running for tenant in served.keys.tenants.values()))


def test_messages_that_fill_the_memory_are_refused(serve):
    served = serve(max_body_memory=LARGEST)
    peer = served.peer()
    served.inference.holds = True
    first = _called(peer, message(LARGEST // 2 + 100))
    asked = served.inference.wait_for(1)
    number = begin(peer)
    data = framed(message(LARGEST // 2 + 100))
    while data and not peer.answers[number].fields:
        room = min(peer.h2.local_flow_control_window(number), 16_384)
        if room:
            send(peer, number, data[:room], is_last=False)
            data = data[room:]
        else:
            peer.read(until=lambda: peer.h2.local_flow_control_window(number))
    code, fields = status_of(peer, number)
    assert (code, fields["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "1")
    asked.reply(Reply([b""]))
    assert status_of(peer, first)[0] is Code.OK
    eventually(lambda: served.num_held == 0)


# --- the access log -------------------------------------------------------------------------------


def test_a_call_is_in_the_access_log(serve, capfd):
    served = serve(is_logged=True)
    peer = served.peer()
    body = message(20)
    assert echoed(peer, _called(peer, body), body)
    line = ""

    def is_written():
        nonlocal line
        line += capfd.readouterr().err
        return PREDICT in line

    eventually(is_written)
    for text in ('"grpc"', '"add"', '"m"', '"OK"', str(len(body)), "req_"):
        assert text.strip('"') in line
