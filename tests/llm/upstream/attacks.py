"""What a hostile server may send in place of an answer, by name: the bytes, and what is said of
them.  The scripts that do not end go on until the connection is closed.
"""

import gzip
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.llm.upstream.faulty import DONE, HEAD, Asked, Script, event, piece, usage, whole

KIB, MIB = 1 << 10, 1 << 20
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
WRONG, ENDLESS = "it sent an invalid chunk", "it sent over"
BEYOND = "but an answer has at most 8"
GOOD = (piece("Good "), piece("day", "stop"), usage(3, 2), DONE)


def sends(*pieces: bytes) -> Script:
    return lambda _: pieces


def forever(data: bytes, *before: bytes) -> Script:
    """`before`, then `data` as often as it is taken."""

    def script(asked: Asked) -> Iterator[bytes]:
        yield from before
        yield from endless(asked, data)

    return script


def endless(asked: Asked, data: bytes) -> Iterator[bytes]:
    while not asked.closed.is_set():
        yield data


def slowly(data: bytes, *before: bytes) -> Script:
    """`before`, then `data` again and again, with pauses that are shorter than every limit."""

    def script(asked: Asked) -> Iterator[bytes]:
        yield from before
        while not asked.closed.wait(0.02):
            yield data

    return script


def choice(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "text": "a", **fields}])


def call(name: str, arguments: str) -> bytes:
    function = {"name": name, "arguments": arguments}
    return event(choices=[{"delta": {"tool_calls": [{"function": function}]}}])


def chunked(*parts: bytes, trailers: bytes = b"") -> list[bytes]:
    return [*(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n", trailers, b"\r\n"]


def number(text: str, at: str) -> Script:
    """The event `at`, with `text` in place of %."""
    return sends(HEAD, b"data: " + at.replace("%", text).encode() + b"\n\n", *GOOD)


PLACES = {
    "prompt tokens": '{"choices":[],"usage":{"prompt_tokens":%}}',
    "generated tokens": '{"choices":[],"usage":{"completion_tokens":%}}',
    "cached tokens": '{"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":%}}}',
    "reasoning tokens": '{"usage":{"completion_tokens_details":{"reasoning_tokens":%}}}',
    "token id": '{"choices":[{"text":"a","token_ids":[%]}]}',
    "stop reason": '{"choices":[{"text":"a","finish_reason":"stop","stop_reason":%}]}',
    "answer": '{"choices":[{"index":%,"text":"a"}]}',
    "call": '{"choices":[{"delta":{"tool_calls":[{"index":%,"function":{"name":"f"}}]}}]}',
    "byte": '{"choices":[{"logprobs":{"content":[{"token":"a","logprob":0,"bytes":[%]}]}}]}',
}
NUMBERS = {"2^63": str(2**63), "2^66": str(2**66), "-1": "-1", "1e400": "1e400", "5000": "9" * 5000}
SENT_NUMBERS = {
    f"{place} {name}": (number(text, at), WRONG)
    for place, at in PLACES.items()
    for name, text in NUMBERS.items()
}

DEEP = b"[" * 60_000 + b"]" * 60_000  # Python 3.13 reads 5,000 levels
BOMB = gzip.compress(b"data: " + b" " * (64 * MIB))
LATER = piece("smuggled")
EVENTS: dict[str, tuple[Script, str]] = {
    "logprob 1e400": (number("1e400", '{"choices":[{"logprobs":{"token_logprobs":[%]}}]}'), WRONG),
    "half a character": (number('"\\ud800"', '{"choices":[{"text":%}]}'), WRONG),
    "no UTF-8": (sends(HEAD, b'data: {"choices":[{"text":"\xff"}]}\n\n'), WRONG),
    "depth": (sends(HEAD, b'data: {"x":' + b"[" * 200_000 + b"\n\n"), WRONG),
    "deep error": (sends(HEAD, b'data: {"error":' + DEEP + b"}\n\n"), WRONG),
    "many answers": (sends(HEAD, event(choices=[{}] * 90_000)), WRONG),
    "many ids": (sends(HEAD, choice(token_ids=[1] * 70_000)), WRONG),
    "a long name": (sends(HEAD, call("f" * 2 * KIB, "{}")), WRONG),
    "unknown end": (sends(HEAD, choice(finish_reason="burnt")), "unknown finish_reason 'burnt'"),
    "tokens beyond max_tokens": (sends(HEAD, *[choice(token_ids=[1, 2, 3])] * 20), BEYOND),
    "an endless answer": (forever(piece("more ") * 100, HEAD), BEYOND),
    "endless long pieces": (forever(piece("a" * 100 * KIB), HEAD), BEYOND),
    "endless reasoning": (
        forever(event(choices=[{"delta": {"reasoning": "hm" * KIB}}]), HEAD),
        BEYOND,
    ),
    "endless arguments": (forever(call("f", "a" * KIB), HEAD), BEYOND),
    "endless events without content": (forever(event(choices=[]) * 100, HEAD), BEYOND),
    "endless usage": (forever(usage(1, 1) * 100, HEAD), BEYOND),
    "endless comments": (forever(b": wait\n" * KIB, HEAD), ENDLESS),
    "endless empty lines": (forever(b"\n" * 64 * KIB, HEAD), ENDLESS),
    "an endless line": (forever(b"a" * 64 * KIB, HEAD, b"data: "), "a line of over 1,048,576"),
    "an endless word behind the end": (forever(b"a" * 64 * KIB, HEAD, *GOOD[:2]), "a line of over"),
}
FRAMES: dict[str, tuple[Script, str]] = {
    "an endless header": (forever(b"a" * 64 * KIB, OK, b"A: "), "a head of over 65,536"),
    "endless headers": (forever(b"A: b\r\n" * KIB, OK), "a head of over 65,536"),
    "an endless status": (forever(b"a" * KIB, b"HTTP/1.1 200 "), "a head of over 65,536"),
    "endless 100": (forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 100), "a head of over 65,536"),
    "another protocol": (
        sends(b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
        "101 to switch protocols",
    ),
    "no HTTP": (sends(b"SSH-2.0-OpenSSH\r\n\r\n"), "does not speak HTTP"),
    "status 9999": (sends(b"HTTP/1.1 9999 OK\r\n\r\n"), "does not speak HTTP"),
    "HTTP/2": (sends(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "does not speak HTTP"),
    "a length of 40 digits": (sends(OK, b"Content-Length: " + b"9" * 40 + b"\r\n\r\n"), "HTTP"),
    "a negative length": (sends(OK, b"Content-Length: -1\r\n\r\n"), "does not speak HTTP"),
    "two lengths": (sends(OK, b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), "HTTP"),
    "a huge chunk": (sends(CHUNKED, b"f" * 17 + b"\r\na"), "does not speak HTTP"),
    "an endless extension": (forever(b"a" * 64 * KIB, CHUNKED, b"5;"), "outside its body"),
    "endless trailers": (forever(b"A: b\r\n" * KIB, CHUNKED, b"0\r\n"), "outside its body"),
    "an endless trailer": (forever(b"a" * 64 * KIB, CHUNKED, b"0\r\nA: "), "outside its body"),
    "a bomb": (sends(whole(200, BOMB, "Content-Encoding: gzip")), "a compressed body"),
    "a bomb by its transfer": (
        sends(OK, b"Transfer-Encoding: gzip, chunked\r\n\r\n", *chunked(BOMB)),
        "ended its reply early",
    ),
    "an endless error": (forever(b"a" * 64 * KIB, b"HTTP/1.1 500 X\r\n\r\n"), "a body of over"),
    "a redirect to itself": (
        sends(whole(307, b"", "Location: /v1/completions")),
        "a redirect to /v1",
    ),
    "a long redirect": (sends(whole(301, b"", "Location: " + "a" * 50 * KIB)), "a redirect to aaa"),
}
SLOW: dict[str, tuple[Script, str]] = {
    "silence": (slowly(b""), "no content for"),
    "a slow head": (slowly(b"A: b\r\n", OK), "no content for"),
    "slow comments": (slowly(b": wait\n", HEAD), "no content for"),
    "slow empty lines": (slowly(b"\n\n", HEAD, piece("Good ")), "no content for"),
    "slow roles": (slowly(event(choices=[{"delta": {"role": "x"}}]), HEAD), "no content for"),
    "slow empty texts": (slowly(piece(""), HEAD, piece("Good ")), "no content for"),
    "a slow line": (slowly(b"a", HEAD, b"data: "), "no content for"),
    "a slow end": (slowly(b"\n", HEAD, *GOOD[:2]), "no content for"),
    "a slow error": (slowly(b"a", b"HTTP/1.1 500 X\r\n\r\n"), "no content for"),
    "a late gateway": (sends(whole(504, {"error": "too late"})), "504: too late"),
}
ODD: dict[str, Script] = {
    "another answer behind its own": sends(
        whole(200, b"".join(GOOD)) + whole(500, LATER),
    ),
    "1xx before it": sends(b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n", HEAD, *GOOD),
    "trailers": sends(CHUNKED, *chunked(*GOOD, trailers=b"A: b\r\n")),
    "lowest log-probabilities": sends(
        HEAD,
        choice(logprobs={"tokens": ["Good "], "token_logprobs": [-3.4e38]}, text="Good "),
        *GOOD[1:],
    ),
    "comments between": sends(HEAD, b": hello\n\n", GOOD[0], b":\r\n\r\n", *GOOD[1:]),
}
"""What is an answer all the same, "Good day"."""


def by_prompt(attacks: dict[str, Script]) -> Script:
    """The attack whose name is the prompt; for any other prompt an answer, "Good day"."""

    def script(asked: Asked) -> Iterable[bytes]:
        body = asked.body
        name = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        answer: Callable[[Asked], Iterable[bytes]] = attacks.get(name, sends(HEAD, *GOOD))
        return answer(asked)

    return script


MODELS: dict[str, bytes] = {
    "another protocol": b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "no HTTP": b"\0" * 100,
    "a long body": whole(200, b"[" + b" " * 2 * MIB),
    "1e400": whole(200, b'{"data":[{"id":"far","max_model_len":1e400}]}'),
    "5000 digits": whole(200, b'{"data":[{"id":"far","max_model_len":' + b"9" * 5000 + b"}]}"),
    "depth": whole(200, b'{"data":' + b"[" * 100_000),
    "a long name": whole(200, {"data": [{"id": "f" * 100_000}]}),
    "a number for a name": whole(200, {"data": [{"id": 2**66}]}),
    "half a character": whole(200, b'{"data":[{"id":"\\ud800"}]}'),
    "a bomb": whole(200, BOMB, "Content-Encoding: gzip"),
    "headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
}
"""Answers to the look at /models that say nothing."""
