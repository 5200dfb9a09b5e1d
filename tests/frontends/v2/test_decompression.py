"""Compressed bodies that come at once: each is answered or refused, and small ones do not wait."""

import asyncio
import gzip
import zlib
from contextlib import AsyncExitStack
from typing import Any

import pytest
from starlette.requests import Request

from mindspore_serving.errors import InvalidInputs, Overloaded, TooLarge
from mindspore_serving.frontends.fair_queue import FairQueue
from mindspore_serving.frontends.v2 import decompression
from mindspore_serving.frontends.v2.decompression import STEP, BodyDecompressor

MOST = 64 << 20
LARGE = 4 * STEP


def request(body: bytes, encoding: str = "gzip", host: str = "10.0.0.1", port: int = 1) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-encoding", encoding.encode())]
    scope = {"type": "http", "method": "POST", "headers": headers, "client": (host, port)}
    return Request(scope, receive)


async def inflate(made: BodyDecompressor, http: Request, most: int = MOST) -> bytes:
    async with made.body(http, most) as body:
        return bytes(body)


@pytest.mark.parametrize("size", [0, 1, 1000, STEP - 1, STEP, STEP + 1, LARGE + 7])
@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_compressed_bodies_are_decompressed(size: int, encoding: str, compress: Any) -> None:
    text = bytes(range(251)) * (size // 251 + 1)
    made = BodyDecompressor(MOST)
    assert await inflate(made, request(compress(text[:size]), encoding)) == text[:size]
    assert made.num_bytes == 0


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (gzip.compress(bytes(LARGE))[:-9], InvalidInputs),
        (gzip.compress(bytes(LARGE)) + b"more", InvalidInputs),
        (gzip.compress(bytes(2 * LARGE)), TooLarge),
        (b"", InvalidInputs),
    ],
    ids=["half", "more", "large", "nothing"],
)
async def test_a_large_body_that_is_wrong_is_refused_and_gives_its_turn_back(
    body: bytes, error: type[Exception]
) -> None:
    made = BodyDecompressor(MOST)
    with pytest.raises(error):
        await inflate(made, request(body), LARGE)
    assert made.num_bytes == 0
    assert len(await inflate(made, request(gzip.compress(bytes(LARGE))))) == LARGE


async def test_a_body_of_the_largest_size_is_decompressed_if_memory_is_free() -> None:
    http = request(gzip.compress(bytes(LARGE)))
    assert len(await inflate(BodyDecompressor(LARGE), http, LARGE)) == LARGE


async def test_of_many_large_bodies_each_is_decompressed_or_refused() -> None:
    """Those that are not let go count; a small one is decompressed all the same."""
    made, body = BodyDecompressor(MOST), gzip.compress(bytes(LARGE))
    async with AsyncExitStack() as held:

        async def hold(port: int) -> bool:
            try:
                await held.enter_async_context(made.body(request(body, port=port), LARGE))
            except Overloaded:
                return False
            return True

        found = await asyncio.gather(*map(hold, range(40)))
        assert 8 <= sum(found) <= 12  # three quarters of what there is
        assert made.num_bytes == sum(found) * LARGE
        other = request(gzip.compress(bytes(LARGE)), host="10.0.0.2")
        assert len(await inflate(made, other)) == LARGE
    assert made.num_bytes == 0


async def test_a_large_body_whose_turn_does_not_come_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decompression, "MAX_WAIT", 0.0)
    made = BodyDecompressor(MOST)
    bodies = [inflate(made, request(gzip.compress(bytes(LARGE)), port=port)) for port in range(40)]
    small = inflate(made, request(gzip.compress(b"small")))
    *found, last = await asyncio.gather(*bodies, small, return_exceptions=True)
    assert last == b"small"
    assert {type(one) for one in found} == {bytes, Overloaded}


async def test_addresses_take_turns() -> None:
    turns, order = FairQueue("tests run", 60.0), list[str]()

    async def work(name: str) -> None:
        async with turns.turn(name[0]):
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(*map(work, ("a0", "a1", "a2", "a3", "b0", "b1", "c0")))
    assert order == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


async def test_a_turn_that_nobody_waits_for_any_more_is_passed_on() -> None:
    turns, order = FairQueue("tests run", 60.0), list[str]()

    async def work(name: str) -> None:
        async with turns.turn(name):
            order.append(name)

    async with turns.turn("first"):
        waiting = [asyncio.create_task(work(name)) for name in "abc"]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
    waiting[0].cancel()  # whose turn it is
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["c"]
    await work("d")
