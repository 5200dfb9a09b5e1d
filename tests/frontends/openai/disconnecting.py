"""Clients that do not wait for the end."""

import json
import socket
from collections.abc import Sequence
from typing import Any

from mindspore_serving.core.llm_messages import Event
from tests.frontends.openai.serving import Web
from tests.waiting import PATIENCE


def leave(
    web: Web, path: str, body: Any, *, said: Sequence[Event] = (), until: bytes = b""
) -> None:
    """Send a request, have the model say `said` to all that is call, read up to `until`, and hang
    up."""
    sent = json.dumps(body).encode()
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (
        path.encode(),
        len(sent),
    )
    prompts = body.get("prompt", "")
    count = len(prompts) if isinstance(prompts, list) else 1
    with socket.create_connection(("127.0.0.1", web.port), timeout=PATIENCE) as stream:
        stream.sendall(head + sent)
        web.inference.wait(lambda: len(web.inference.calls) == count)
        for call in web.inference.calls:
            call.say(said, is_last=False)
        got = b""
        while until not in got:
            received = stream.recv(1 << 16)
            assert received, got
            got += received
