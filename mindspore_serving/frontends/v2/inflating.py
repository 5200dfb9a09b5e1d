"""Compressed bodies: small ones are decompressed at once, larger ones one after another, each
address in its turn, and all of them count until they are answered.
"""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer
from mindspore_serving.errors import InvalidInputs, Overloaded
from mindspore_serving.frontends.bodies import read_body, too_large
from mindspore_serving.frontends.memory import NO_MEMORY, NOBODY, MemoryPeer, Quota
from mindspore_serving.frontends.turns import Turns

FORMATS = {"gzip": 31, "deflate": 15}  # Content-Encoding -> zlib's number for it
STEP = 1 << 20  # bytes that are decompressed before others have their turn
PATIENCE = 10.0  # seconds
_PIECE = 64 << 10  # bytes that are given to zlib, which copies what it does not take


class Inflating:
    """The compressed bodies of one server: at most `most` bytes, decompressed."""

    def __init__(self, most: int) -> None:
        self._turns = Turns("large bodies are decompressed one by one", PATIENCE)
        self._quota = Quota(most)

    @property
    def held(self) -> int:
        """Bytes that count."""
        return self._quota.held

    @asynccontextmanager
    async def body(self, http: Request, max_body: int) -> AsyncIterator[Buffer]:
        """The body, decompressed, which counts until it is let go.  Raises InvalidInputs,
        Overloaded, and TooLarge before more than `max_body` bytes are there.
        """
        body = await read_body(http, max_body)
        encoding = http.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("", "identity"):
            yield body
            return
        if encoding not in FORMATS:
            raise InvalidInputs(f"content-encoding {encoding[:32]!r}, expected gzip or deflate")
        found = _Inflated(body, encoding, max_body)
        self._quota.largest = max_body
        peer = _peer_of(http)
        try:
            await self._fill(found, peer)
            del body
            yield found.data
        finally:
            self._quota.give_back(peer, found.num_counted)

    async def _fill(self, found: "_Inflated", peer: MemoryPeer) -> None:
        await self._step(found, peer)
        if not found.is_whole:
            async with self._turns.turn(peer.address):
                while not found.is_whole:
                    await self._step(found, peer)

    async def _step(self, found: "_Inflated", peer: MemoryPeer) -> None:
        num_bytes = await on_thread("compression", found.step)
        if not self._quota.take(peer, num_bytes):
            raise Overloaded(NO_MEMORY)
        found.num_counted += num_bytes


class _Inflated:
    """A body that is decompressed step by step."""

    def __init__(self, body: Buffer, encoding: str, most: int) -> None:
        self.data = bytearray()
        self.num_counted = 0  # bytes
        self.is_whole = False
        self._left = memoryview(body)
        self._encoding = encoding
        self._most = most
        self._decoder = zlib.decompressobj(FORMATS[encoding])

    def step(self) -> int:
        """How many bytes it gave, about STEP.  Raises InvalidInputs, TooLarge."""
        decoder, before = self._decoder, len(self.data)
        while not decoder.eof and len(self.data) - before < STEP:
            if not (self._left or decoder.unconsumed_tail):
                raise self._broken()
            self._feed()
        self.is_whole = decoder.eof
        if decoder.unused_data or (decoder.eof and self._left):
            raise self._broken()
        return len(self.data) - before

    def _feed(self) -> None:
        piece: bytes | memoryview = self._decoder.unconsumed_tail
        if not piece:
            piece, self._left = self._left[:_PIECE], self._left[_PIECE:]
        try:
            self.data += self._decoder.decompress(piece, STEP)
        except zlib.error as error:
            raise InvalidInputs(f"the body is no {self._encoding}: {error}") from None
        if len(self.data) > self._most:
            raise too_large(self._most)

    def _broken(self) -> InvalidInputs:
        return InvalidInputs(f"the body is no whole {self._encoding}")


def _peer_of(http: Request) -> MemoryPeer:
    client = http.scope.get("client")
    return NOBODY if client is None else MemoryPeer(client[0], tuple(client))
