"""HTTP/1.1 as h11 reads it: which requests bytes hold, and the answers that come back.

h11 is no part of the server, so the two can be compared.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import h11

HUNG = "hung"  # there was no answer within the bound
CUT = "cut"  # the connection ended inside an answer
BROKEN = "broken"  # what came is no HTTP
_MOST_HEAD = 1 << 20
_MOST_KEPT = 1 << 20  # bytes of an answer, beyond which the client leaves
_MOST_EVENTS = 300  # pieces of an answer, the same
_QUIET = 0.05  # seconds after which nothing more is expected of what is no request


@dataclass(slots=True)
class Requests:
    """The complete requests at the beginning of some bytes.

    Attributes:
        lines: verb and target of each.
        is_whole: nothing follows them, and the connection goes on.
        is_clear: what follows can have no answer without its body, as HEAD has.
    """

    lines: list[tuple[bytes, bytes]] = field(default_factory=list)
    is_whole: bool = False
    is_clear: bool = True


@dataclass(slots=True)
class Answer:
    """`problem` is HUNG, CUT or BROKEN and why; "" if it is complete, or was given up for its
    length (`is_long`).  `has_continue`: "100 Continue" came before it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    problem: str = ""
    is_long: bool = False
    has_continue: bool = False


def requests_in(data: bytes) -> Requests:
    """What a server must answer in `data`, at least."""
    found = Requests(is_clear=b"HEAD" not in data)
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_HEAD)
    parser.receive_data(data)
    with suppress(h11.RemoteProtocolError):
        while True:
            event = parser.next_event()
            if isinstance(event, h11.Request):
                if event.method == b"PRI":  # begins HTTP/2, if more comes
                    return found
                line = event.method, event.target
            elif isinstance(event, h11.EndOfMessage):
                found.lines.append(line)
                if not _go_on(parser):
                    return found
            elif event is h11.NEED_DATA:
                is_between = parser.their_state is h11.IDLE
                found.is_whole = is_between and not parser.trailing_data[0]
                return found
            elif not isinstance(event, h11.Data):
                return found
    return found


def _go_on(parser: h11.Connection) -> bool:
    """Whether another request may follow the one just read."""
    if parser.their_state not in (h11.DONE, h11.MIGHT_SWITCH_PROTOCOL):
        return False
    parser.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
    parser.send(h11.EndOfMessage())
    if parser.our_state is not h11.DONE:
        return False
    parser.start_next_cycle()
    return True


class AnswerReader:
    """The answers that come over one connection."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD)

    @property
    def can_go_on(self) -> bool:
        """Whether the server has left the connection open behind the last answer."""
        return (self._parser.our_state, self._parser.their_state) == (h11.IDLE, h11.IDLE)

    async def read(self, verb: bytes, until: float, *, is_whole: bool = True) -> Answer:
        """The answer to a request of `verb`, at the time `until` at the latest.  One that is not
        whole need not be answered."""
        self._parser.send(h11.Request(method=verb, target="/", headers=[("Host", "fuzz")]))
        self._parser.send(h11.EndOfMessage())
        answer = Answer()
        try:
            await self._read(answer, until, is_whole=is_whole)
        except TimeoutError:
            answer.problem = HUNG
        except (ConnectionError, asyncio.IncompleteReadError):
            answer.problem = CUT
        except h11.RemoteProtocolError as error:
            is_end = "closed" in str(error) or "peer" in str(error)
            answer.problem = CUT if is_end else f"{BROKEN}: {error}"
        return answer

    async def _read(self, answer: Answer, until: float, *, is_whole: bool) -> None:
        num_pieces = 0
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                left = max(0.01, until - asyncio.get_running_loop().time())
                if answer.has_continue and not answer.status and not is_whole:
                    left = _QUIET
                data = await asyncio.wait_for(self._stream.read(1 << 16), left)
                self._parser.receive_data(data)
            elif isinstance(event, h11.InformationalResponse):
                answer.has_continue = True
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.headers = {k.decode(): v.decode("latin-1") for k, v in event.headers}
            elif isinstance(event, h11.Data):
                num_pieces += 1
                answer.body += bytes(event.data)
                if len(answer.body) > _MOST_KEPT or num_pieces > _MOST_EVENTS:
                    answer.is_long = True
                    return
            elif isinstance(event, h11.EndOfMessage):
                self._start_next()
                return
            elif isinstance(event, h11.ConnectionClosed):
                answer.problem = CUT
                return

    def _start_next(self) -> None:
        if (self._parser.our_state, self._parser.their_state) == (h11.DONE, h11.DONE):
            self._parser.start_next_cycle()

    async def rest(self, until: float) -> list[Answer]:
        """The answers to what is no whole request: until the connection is closed, or quiet."""
        found: list[Answer] = []
        while self.can_go_on and await self._has_more():
            answer = await self.read(b"GET", until, is_whole=False)
            if not answer.status and (answer.problem == CUT or answer.has_continue):
                break  # closed between two answers, or the server waits for the body
            found.append(answer)
            if answer.problem or answer.is_long:
                break
        return found

    async def _has_more(self) -> bool:
        if self._parser.trailing_data[0]:
            return True
        try:
            data = await asyncio.wait_for(self._stream.read(1 << 16), _QUIET)
        except (TimeoutError, ConnectionError):
            return False
        if data:
            self._parser.receive_data(data)
        return bool(data)
