"""Several generations under way, read as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from mindspore_serving.core.llm_messages import Event, Started
from mindspore_serving.frontends.language import Stream

MOST_UNREAD = 64  # events that are held for a reader that is slower than the models


async def begin_all(streams: Sequence[Stream]) -> list[Started]:
    """The first event of each.  Raises what the first refused one raises."""
    return [await stream.begin() for stream in streams]


async def merged(streams: Sequence[Stream]) -> AsyncGenerator[tuple[int, Event], None]:
    """Events as they come, each with the place of its stream; all have begun.  Raises
    ServingError if the model is lost.  Close it if it is left early."""
    if len(streams) == 1:
        async for event in streams[0]:
            yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Event] | Exception | None] = asyncio.Queue(MOST_UNREAD)
    pumps = [
        asyncio.ensure_future(_pump(place, stream, queue)) for place, stream in enumerate(streams)
    ]
    try:
        num_open = len(pumps)
        while num_open:
            entry = await queue.get()
            if entry is None:
                num_open -= 1
            elif isinstance(entry, Exception):
                raise entry
            else:
                yield entry
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    place: int, stream: Stream, queue: "asyncio.Queue[tuple[int, Event] | Exception | None]"
) -> None:
    try:
        async for event in stream:
            await queue.put((place, event))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
