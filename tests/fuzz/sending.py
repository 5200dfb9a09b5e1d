"""Sends cases to a server over real sockets, and collects what comes back."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import grpc
import grpc.aio

from mindspore_serving.frontends.mindspore.grpc import SERVICE
from tests.fuzz.case import H2, HTTP, Case
from tests.fuzz.http_reading import HUNG, Answer, AnswerReader, Requests, requests_in
from tests.waiting import PATIENCE

BOUND = PATIENCE  # seconds after which a request counts as hung
_QUIET = 0.05
_MOST_REPLIES = 60  # of a stream, beyond which the client leaves
_OPTIONS = [("grpc.max_receive_message_length", 1 << 28), ("grpc.use_local_subchannel_pool", 1)]


@dataclass(slots=True)
class Exchanged:
    """What became of a case.

    Attributes:
        requests, answers: of HTTP, in order; there may be more answers than complete requests.
        replies, status: of gRPC; the name of the call's status.
        seconds: until all of it had come.
    """

    requests: Requests = field(default_factory=Requests)
    answers: list[Answer] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    status: str = ""
    seconds: float = 0.0


class Lane:
    """One client, which keeps its connections as long as the server does."""

    def __init__(self, http: int, rpc: int) -> None:
        self._http, self._rpc = http, rpc
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._reader: AnswerReader | None = None
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{rpc}", options=_OPTIONS)

    async def send(self, case: Case) -> Exchanged:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if case.channel == HTTP:
            found = await self._send_http(case.data, began + BOUND)
        elif case.channel == H2:
            found = await self._send_bytes(case.data)
        else:
            found = await self._call(case)
        found.seconds = loop.time() - began
        return found

    async def aclose(self) -> None:
        await self._disconnect()
        await self._channel.close()

    # --- HTTP ---

    async def _send_http(self, data: bytes, until: float) -> Exchanged:
        found = Exchanged(requests_in(data))
        if self._stream is None or not found.requests.is_whole:
            await self._connect()
        assert self._stream is not None
        assert self._reader is not None
        writing = asyncio.ensure_future(_write(self._stream[1], data))
        for verb, _ in found.requests.lines:
            answer = await self._reader.read(verb, until)
            found.answers.append(answer)
            if not self._reader.can_go_on:
                break
        if not found.requests.is_whole and found.requests.is_clear:
            found.answers += await self._reader.rest(until)
        writing.cancel()
        if not found.requests.is_whole or not self._reader.can_go_on:
            await self._disconnect()
        return found

    async def _connect(self) -> None:
        await self._disconnect()
        self._stream = await asyncio.open_connection("127.0.0.1", self._http)
        self._reader = AnswerReader(self._stream[0])

    async def _disconnect(self) -> None:
        if self._stream is not None:
            await _close(self._stream[1])
        self._stream = self._reader = None

    # --- gRPC ---

    async def _send_bytes(self, data: bytes) -> Exchanged:
        """To the gRPC port.  Nothing need come back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._rpc)
        await _write(writer, data)
        with suppress(TimeoutError, ConnectionError):
            while await asyncio.wait_for(reader.read(1 << 16), _QUIET):
                pass
        await _close(writer)
        return Exchanged()

    async def _call(self, case: Case) -> Exchanged:
        found = Exchanged(status="OK")
        path = f"/{SERVICE}/{case.channel}"
        try:
            if case.channel == "Predict":
                call = self._channel.unary_unary(path)(case.data, timeout=BOUND)
                found.replies.append(await call)
            else:
                stream = self._channel.unary_stream(path)(case.data, timeout=BOUND)
                async for reply in stream:
                    found.replies.append(reply)
                    if len(found.replies) >= _MOST_REPLIES:
                        stream.cancel()
                        break
        except grpc.aio.AioRpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            found.status = HUNG if is_late else f"{error.code().name}: {error.details()}"
        return found


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
