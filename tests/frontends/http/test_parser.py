"""The parser of requests: how the bytes are cut into reads makes no difference."""

from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends.http.exchange import Exchange
from mindspore_serving.frontends.http.head import HeadRefusal
from mindspore_serving.frontends.http.parser import RequestParser

UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


class Seen(Exchange):
    """A request as it was parsed."""

    def __init__(self, head):
        super().__init__(None, head.keep_alive)
        self.head, self.body = head, b""

    def feed(self, data):
        self.body += data

    def facts(self):
        head = self.head
        return head.method, head.target, head.headers, self.keep_alive, self.body, self.is_complete


def parse(reads):
    """The facts of every request, and the status of the refusal at the end if there is one."""
    seen = []

    def open_exchange(head):
        seen.append(Seen(head))
        return seen[-1]

    parser = RequestParser(ServerLimits(max_headers=10), open_exchange)
    status = None
    try:
        for read in reads:
            parser.feed(memoryview(read))
    except HeadRefusal as refusal:
        status = refusal.status
    return [each.facts() for each in seen], status


def chunked(parts, trailers):
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"


headers = st.sampled_from([b"", b"A: b\r\n", b"A:\r\n", b"X: y\r\n" * 9, b"X: y\r\n" * 12, UPGRADE])
bodies = st.one_of(
    st.just(b"\r\n"),
    st.binary(max_size=20).map(lambda body: b"Content-Length: %d\r\n\r\n%b" % (len(body), body)),
    st.builds(chunked, st.lists(st.binary(max_size=8), max_size=3), headers),
)
lines = st.sampled_from([b"GET / HTTP/1.1\r\n", b"POST /model/a:b HTTP/1.1\r\n", b"\r\n"])
nonsense = st.sampled_from([b"", b"\n", b"GET\r\n\r\n", b"\0", b"GET / HTTP/2.0\r\n\r\n"])
requests = st.builds(lambda *parts: b"".join(parts), lines, headers, bodies)
streams = st.builds(
    lambda parts, end: b"".join(parts) + end, st.lists(requests, max_size=4), nonsense
)


@given(streams, st.lists(st.integers(0, 400), max_size=6))
def test_cuts_make_no_difference(stream, cuts):
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reads = [stream[start:end] for start, end in zip(places, places[1:], strict=False)]
    assert parse(reads) == parse([stream])


@given(streams)
def test_single_bytes_make_no_difference(stream):
    assert parse([stream[at : at + 1] for at in range(len(stream))]) == parse([stream])


@given(st.lists(st.tuples(headers, st.binary(max_size=20)), min_size=1, max_size=4))
def test_every_request_is_found_with_its_body(found):
    stream = b"".join(
        b"POST / HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (header, len(body), body)
        for header, body in found
    )
    seen, status = parse([stream])
    allowed = [body for header, body in found if len(header) < len(b"X: y\r\n" * 10)]
    if len(allowed) == len(found):
        assert status is None
        assert [facts[4] for facts in seen] == allowed
    else:
        assert status == 431
