"""Responses that run in the background: `background: true`, and streams that are resumed.

Such a response goes on when its client disconnects.  It is stored when it begins, and with its
events when it ends.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace

from starlette.requests import Request

from mindspore_serving import log
from mindspore_serving.errors import InvalidField, Overloaded
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.fields import unexpected
from mindspore_serving.frontends.keys import owner_of
from mindspore_serving.frontends.openai.answers import OpenAIResponse
from mindspore_serving.frontends.openai.response_writing import ResponseBuilder
from mindspore_serving.frontends.response_store import StoredResponse, to_stored
from mindspore_serving.frontends.state.claims import RENEWAL_SECONDS

MAX_RUNNING = 64  # responses in the background per API key
_END = b"\n\n"  # of an event


class BackgroundResponse:
    """A response that runs: its events so far, each with the index that is its number."""

    def __init__(self, builder: ResponseBuilder, items: tuple[bytes, ...]) -> None:
        self.items = items
        self._builder = builder
        self.events: list[bytes] = []
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def add(self, data: bytes) -> None:
        """Add the events in a piece of the stream."""
        self.events += [event + _END for event in data.split(_END) if event]
        self._wake()

    def to_object(self) -> OpenAIResponse:
        """Return the response in its present state."""
        return self._builder.to_object()

    def end(self, status: str) -> StoredResponse:
        """End the events; return what is to be stored.

        With a `status` ("cancelled", "failed") the response ends before the model has ended it.
        """
        self.is_over = True
        self._wake()
        if status:
            self._builder.end(status)
        response = self.to_object()
        stored = to_stored(response, response.output, self.items)
        return replace(stored, events=tuple(self.events))

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """Iterate over the events whose numbers are over `after`, until the response ends."""
        position = after + 1
        while True:
            changed = self._changed
            if position < len(self.events):
                yield b"".join(self.events[position:])
                position = len(self.events)
            elif self.is_over:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def start(
    state: AppState,
    http: Request,
    response: BackgroundResponse,
    events: AsyncIterator[bytes],
    stack: ExitStack,
) -> None:
    """Run a response that has begun; `stack` is closed at its end.

    Raises Overloaded if too many of the key run.
    """
    owner = owner_of(http.scope)
    running = state.background
    name, limits = response.to_object().id, state.models.limits
    count = sum(each == owner for each, _ in running)
    if count >= MAX_RUNNING:
        stack.close()
        raise Overloaded(f"{count} responses run in the background, which is the limit; wait")
    first = response.to_object()
    stored = to_stored(first, first.output, response.items)
    state.responses.add(owner, name, stored, limits, is_open=True)

    async def renew() -> None:
        while state.store.is_shared:
            await asyncio.sleep(RENEWAL_SECONDS)
            state.responses.renew(name)

    async def run() -> None:
        status = "cancelled"
        renewing = asyncio.create_task(renew())
        try:
            with stack:
                async for data in events:
                    response.add(data)
            status = ""
        except Exception:
            status = "failed"
            log.error("a background response failed", exc_info=True)
        finally:
            renewing.cancel()
            state.responses.add(owner, name, response.end(status), limits)
            running.pop((owner, name), None)

    response.task = asyncio.create_task(run())
    running[owner, name] = response


def find(state: AppState, http: Request) -> BackgroundResponse | None:
    """Return the response that the path names, if it runs."""
    return state.background.get((owner_of(http.scope), http.path_params["name"]))


async def stop(state: AppState, http: Request) -> None:
    """Cancel the response that the path names, if it runs, and wait for its end."""
    response = find(state, http)
    if response is not None and response.task is not None:
        response.task.cancel()
        await asyncio.wait([response.task])


def resume(
    response: BackgroundResponse | None, stored: StoredResponse, after: int
) -> AsyncIterator[bytes]:
    """Return the events whose numbers are over `after`, of a response that runs or has ended.

    Raises InvalidField if it did not run in the background.
    """
    if response is not None:
        return response.follow(after)
    if not stored.events:
        problem = "is true, expected false: only responses of background: true can be streamed"
        raise InvalidField("stream", problem)
    return _replay(stored.events[after + 1 :])


async def _replay(events: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    if events:
        yield b"".join(events)


def starting_after(http: Request) -> int:
    """Return the number of the last event that a client has; -1 for none.  Raises InvalidField."""
    text = http.query_params.get("starting_after", "-1")
    if text != "-1" and not (text.isdecimal() and len(text) < 10):
        raise unexpected("starting_after", text, "the sequence_number of an event")
    return int(text)
