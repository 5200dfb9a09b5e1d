"""Edits of requests in HTTP/1.1: their framing, and the line and the headers of one.

`edit_framing` makes bytes of which nobody need know where a request ends; `edit_head` a request
that is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tests.fuzz import byte_edits, odd_values
from tests.fuzz.case import Request

_LINES = (
    *(b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: +5", b"Content-Length: 0x5"),
    *(
        b"Content-Length: 99999999999999999999",
        b"Content-Length: 5, 5",
        b"Content-Length:",
        b"Content-Length: 1e3",
    ),
    *(
        b"Content-Length: 200000000",
        b"Content-Length : 5",
        b"content-length:5\t",
        b"Content-Length: 5\x0b",
    ),
    *(
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: identity",
    ),
    *(
        b"Transfer-Encoding:\x0bchunked",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: xchunked",
    ),
    *(b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: CHUNKED", b"TE: trailers"),
    *(
        b"Connection: close",
        b"Connection: keep-alive, close",
        b"Connection: \xff",
        b"Connection: upgrade",
    ),
    *(b"Expect: 100-continue", b"Expect: 200-ok", b"Upgrade: websocket", b"Upgrade: h2c"),
    *(
        b"Host: b.example",
        b"Origin: http://b.example",
        b"Sec-Fetch-Site: cross-site",
        b"Host:",
        b"X: a\x00b",
        b"X: a\rb",
        b" folded",
        b"\tfolded",
        b": none",
        b"no colon",
    ),
    *(b"X: " + b"a" * 7000, b"X: " + b"a" * 70_000, b"\xff\xfe: x", b"(x): y", b"X\x00: y"),
    *(
        b"Accept: text/html",
        b"Accept-Encoding: gzip",
        b"Content-Encoding: gzip",
        b"Range: bytes=0-1",
    ),
    *(
        b"Content-Type: text/plain",
        b"Content-Type: \xff",
        b"X-Request-Id: \xff",
        b"X-Request-Id: a b",
    ),
    *(
        b"X-Request-Timeout: 0",
        b"X-Request-Timeout: nan",
        b"X-Request-Timeout: 1e-9",
        b"Authorization: Basic =",
    ),
)
_SIZES = (
    b"0",
    b"00",
    b"1",
    b"-1",
    b"+5",
    b"0x5",
    b"5 ",
    b" 5",
    b"5;",
    b'5;a="b',
    b"g",
    b"",
    b"FFFFFFFF",
)
_HUGE = (
    b"FFFFFFFFFFFFFFFF",
    b"10000000000000005",
    b"5" * 100,
    b"5;" + b"x" * 70_000,
    b"7fffffff",
    b"5\n",
)
_VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"HTTP/1.2",
    b"HTTP/11",
    b"http/1.1",
    b"",
)
_TARGETS = (
    *(
        b"/",
        b"*",
        b"",
        b"/%",
        b"/%00",
        b"/%ff",
        b"/..%2f..%2fetc/passwd",
        b"//",
        b"/a//b",
        b"/model/",
    ),
    *(
        b"/model/good:",
        b"/model/:double",
        b"/model/good/version/-1:double",
        b"/model/good:double?a=b#c",
    ),
    *(
        b"/model/good/version/99999999999:double",
        b"/model/good/version/x:double",
        b"/model/%67ood:double",
    ),
    *(
        b"/model/good:double_stream",
        b"/model/tiny:generate",
        b"/model/tiny:@generate",
        b"/v1/models/../x",
    ),
    *(
        b"/model/" + b"a" * 5000 + b":x",
        b"/" + b"a" * 70_000,
        b"/models/x/generate",
        b"/models/%2e%2e",
    ),
    *(
        b"http://a/health",
        b"/health?" + b"&" * 2000,
        b"/static/../../x",
        b"/v1",
        b"/v1/responses/abc",
    ),
)
_VERBS = (
    b"GET",
    b"POST",
    b"HEAD",
    b"PUT",
    b"DELETE",
    b"PATCH",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"get",
    b"M-SEARCH",
)


def edit_framing(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """`data`, one request or several, after one to three edits; `others` are more of them."""
    for _ in range(random.choice((1, 1, 2, 3))):
        data = random.choice(_EDITS)(data, others, random)
    return data


def edit_head(request: Request, random: Random) -> Request:
    """Another verb, target, or header."""
    kind = random.randrange(3)
    if kind == 0:
        return replace(request, verb=random.choice(_VERBS))
    if kind == 1:
        return replace(request, target=_target(request.target, random))
    line = random.choice([line for line in _LINES if line[:1].isalpha() and b": " in line])
    return replace(request, headers=(*request.headers, tuple(line.split(b": ", 1))))  # type: ignore[arg-type]


def _target(given: bytes, random: Random) -> bytes:
    if random.random() < 0.6:
        return random.choice(_TARGETS)
    at = random.randrange(len(given) + 1)
    return given[:at] + odd_values.text(random)[:40].encode().replace(b" ", b"") + given[at:]


def _add_line(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    """A header at the start, the end, or anywhere: among trailers, too."""
    places = [at for at in range(len(data)) if data.startswith(b"\r\n", at)] or [0]
    at = random.choice((places[0], *places))
    count = random.choice((1, 1, 1, 1, 2, 99, 120))
    return data[:at] + (b"\r\n" + random.choice(_LINES)) * count + data[at:]


def _change_chunk(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    """Another size of a chunk, or a chunk more."""
    start = data.find(b"chunked\r\n")
    places = [at for at in range(max(start, 0), len(data)) if data.startswith(b"\r\n", at)]
    if not places:
        return data
    at = random.choice(places) + 2
    end = data.find(b"\r\n", at)
    size = random.choice(_SIZES * 3 + _HUGE)
    if random.random() < 0.5 and end >= 0:
        return data[:at] + size + data[end:]
    return data[:at] + size + b"\r\n" + random.randbytes(5) + b"\r\n" + data[at:]


def _change_line(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    line, end, rest = data.partition(b"\r\n")
    words = line.split(b" ")
    choices = (_VERBS, _TARGETS, _VERSIONS)
    at = random.randrange(min(len(words), 3))
    words[at] = random.choice(choices[at])
    return random.choice((b" ", b" ", b" ", b"\t", b"  ")).join(words) + end + rest


def _pipeline(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    count = random.choice((1, 2, 3, 20))
    return b"".join([data, *(random.choice((data, *others)) for _ in range(count))])


def _cut(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _line_ends(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    return data.replace(
        b"\r\n", random.choice((b"\n", b"\r", b"\n\r", b"\r\r\n")), random.choice((1, -1))
    )


def _bytes(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    return byte_edits.edit(data, random)


_EDITS: tuple[Callable[[bytes, Sequence[bytes], Random], bytes], ...] = (
    *(_add_line, _add_line, _add_line, _change_chunk, _change_chunk, _change_line, _change_line),
    *(_pipeline, _pipeline, _cut, _line_ends, _bytes, _bytes),
)
