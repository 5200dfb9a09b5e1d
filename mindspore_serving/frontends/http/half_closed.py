"""A client that sends no more waits for its answers, or has left: TCP says the same of both.

So it is sent what clients of HTTP/1.1 ignore.  Where nobody has the connection any more, the system
resets it, and the next write finds that: of an answer that has begun, or of this again.
"""

import asyncio
from collections import deque

from mindspore_serving.frontends.http.exchange import CONTINUE, Exchange

DELAYS = (0.1, 1.0, 10.0)  # seconds, the last again and again


def is_asked(transport: asyncio.Transport, exchanges: deque[Exchange]) -> bool:
    """Whether the connection stays for the answers of `exchanges`, until the client is found to
    have left.  False if there are none, if a request is incomplete, and with TLS, which ends both
    ways at once."""
    last = exchanges[-1] if exchanges else None
    if last is None or not last.is_complete or transport.get_extra_info("sslcontext") is not None:
        return False
    last.keep_alive = False
    _write(transport, exchanges, DELAYS)
    return True


def _write(
    transport: asyncio.Transport, exchanges: deque[Exchange], delays: tuple[float, ...]
) -> None:
    """Now and after each of `delays`, unless an answer has begun by then."""
    if transport.is_closing():
        return
    if exchanges and not exchanges[0].has_responded:
        transport.write(CONTINUE)
    loop = asyncio.get_running_loop()
    loop.call_later(delays[0], _write, transport, exchanges, delays[1:] or delays)
