"""Decompression of bodies, within a memory quota until they are answered.

Small bodies are decompressed at once, larger ones one at a time, by address in turn.
"""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer
from mindspore_serving.errors import InvalidInputs, Overloaded
from mindspore_serving.frontends.bodies import read_body, too_large
from mindspore_serving.frontends.fair_queue import FairQueue
from mindspore_serving.frontends.memory import ANONYMOUS, NO_MEMORY, MemoryPeer, Quota

FORMATS = {"gzip": 31, "deflate": 15}  # Content-Encoding: wbits of zlib
STEP = 1 << 20  # bytes that are decompressed in one step
MAX_WAIT = 10.0  # seconds
_PIECE = 64 << 10  # bytes of input for zlib, which copies unused input


class BodyDecompressor:
    """Decompresses the bodies of one server, to at most `limit` bytes in all."""

    def __init__(self, limit: int) -> None:
        self._queue = FairQueue("large bodies are decompressed one at a time", MAX_WAIT)
        self._quota = Quota(limit)

    @property
    def num_bytes(self) -> int:
        """Decompressed bytes of all bodies."""
        return self._quota.used

    @asynccontextmanager
    async def body(self, http: Request, max_body: int) -> AsyncIterator[Buffer]:
        """Read and decompress a body, which counts in the quota until the context ends.

        Raises InvalidInputs, Overloaded, and TooLarge before there are more than `max_body` bytes.
        """
        body = await read_body(http, max_body)
        encoding = http.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("", "identity"):
            yield body
            return
        if encoding not in FORMATS:
            raise InvalidInputs(f"content-encoding {encoding[:32]!r}, expected gzip or deflate")
        decompression = _Decompression(body, encoding, max_body)
        self._quota.largest = max_body
        peer = _peer_of(http)
        try:
            await self._fill(decompression, peer)
            del body
            yield decompression.data
        finally:
            self._quota.give_back(peer, decompression.num_counted)

    async def _fill(self, decompression: "_Decompression", peer: MemoryPeer) -> None:
        await self._step(decompression, peer)
        if not decompression.is_complete:
            async with self._queue.turn(peer.address):
                while not decompression.is_complete:
                    await self._step(decompression, peer)

    async def _step(self, decompression: "_Decompression", peer: MemoryPeer) -> None:
        num_bytes = await on_thread("compression", decompression.step)
        if not self._quota.take(peer, num_bytes):
            raise Overloaded(NO_MEMORY)
        decompression.num_counted += num_bytes


class _Decompression:
    """A body that is decompressed in steps, to at most `limit` bytes."""

    def __init__(self, body: Buffer, encoding: str, limit: int) -> None:
        self.data = bytearray()
        self.num_counted = 0  # bytes
        self.is_complete = False
        self._input = memoryview(body)
        self._encoding = encoding
        self._limit = limit
        self._decoder = zlib.decompressobj(FORMATS[encoding])

    def step(self) -> int:
        """Decompress about STEP bytes; return their number.  Raises InvalidInputs and TooLarge."""
        decoder, before = self._decoder, len(self.data)
        while not decoder.eof and len(self.data) - before < STEP:
            if not (self._input or decoder.unconsumed_tail):
                raise self._broken()
            self._feed()
        self.is_complete = decoder.eof
        if decoder.unused_data or (decoder.eof and self._input):
            raise self._broken()
        return len(self.data) - before

    def _feed(self) -> None:
        piece: bytes | memoryview = self._decoder.unconsumed_tail
        if not piece:
            piece, self._input = self._input[:_PIECE], self._input[_PIECE:]
        try:
            self.data += self._decoder.decompress(piece, STEP)
        except zlib.error as error:
            raise InvalidInputs(f"the body is not {self._encoding}: {error}") from None
        if len(self.data) > self._limit:
            raise too_large(self._limit)

    def _broken(self) -> InvalidInputs:
        return InvalidInputs(f"the body is incomplete {self._encoding}, or has data after it")


def _peer_of(http: Request) -> MemoryPeer:
    client = http.scope.get("client")
    return ANONYMOUS if client is None else MemoryPeer(client[0], tuple(client))
