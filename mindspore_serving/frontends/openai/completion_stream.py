"""The chunks of a completion's stream: the answers to several prompts, read as one."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, PromptScored, Started
from mindspore_serving.frontends.language import Generation
from mindspore_serving.frontends.openai.completion_choices import (
    Echo,
    Showing,
    answer_logprobs,
    prompt_logprobs,
    reason_of,
)
from mindspore_serving.frontends.openai.envelope import DONE, ChunkWriter, Head, encode, to_usage
from mindspore_serving.frontends.openai.errors import to_failure

MOST_UNREAD = 64  # events that are held for a reader that is slower than the models

Queue: TypeAlias = "asyncio.Queue[tuple[int, Event] | Exception | None]"


async def stream_completions(
    generations: Sequence[Generation], chunks: "CompletionChunks"
) -> AsyncIterator[bytes]:
    """The events of the answers of `generations`, which have begun."""
    try:
        async with aclosing(merged(generations)) as events:
            async for place, event in events:
                made = chunks.take(place, event)
                if made:
                    yield made
        yield chunks.end()
    except Exception as error:
        yield to_failure(error).to_event()


class CompletionChunks:
    """Makes chunks of events; `echoes` has one entry for each prompt."""

    def __init__(
        self, head: Head, showing: Showing, echoes: Sequence[Echo], *, has_usage: bool
    ) -> None:
        self._writer = ChunkWriter(head, "text_completion", has_usage=has_usage)
        self._prompts = [
            _Prompt(self._writer, place * showing.n, echo, showing)
            for place, echo in enumerate(echoes)
        ]
        self._showing = showing
        self._finished: list[Finished] = []

    def take(self, place: int, event: Event) -> bytes:
        """What an event of prompt `place` makes, perhaps nothing.  Raises ServingError if the
        model failed."""
        if isinstance(event, Chunk):
            return self._prompts[place].take(event)
        if isinstance(event, PromptScored):
            self._prompts[place].echo.tokens += event.tokens
        elif isinstance(event, Finished):
            self._finished.append(event)
        return b""

    def end(self) -> bytes:
        if not self._writer.has_usage:
            return DONE
        usage = to_usage(self._finished, has_answer=self._showing.has_answer)
        return self._writer.usage(usage) + DONE


class _Prompt:
    """The choices of one prompt; `first` is the index of the first of them."""

    def __init__(self, writer: ChunkWriter, first: int, echo: Echo, showing: Showing) -> None:
        self.echo = echo
        self._has_begun = not showing.echo
        self._choices = [_Choice(writer, first + i, echo, showing) for i in range(showing.n)]

    def take(self, chunk: Chunk) -> bytes:
        made = self._choices[chunk.index].take(chunk)
        if self._has_begun:
            return made
        self._has_begun = True  # all of the prompt is scored before the first chunk
        return b"".join([choice.begin() for choice in self._choices]) + made


class _Choice:
    def __init__(self, writer: ChunkWriter, index: int, echo: Echo, showing: Showing) -> None:
        self._writer = writer
        self._index = index
        self._echo = echo
        self._showing = showing
        self._logprobs = answer_logprobs(echo, showing) if showing.has_logprobs else None
        self._before, self._after = writer.frame(
            b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        """The prompt."""
        showing = self._showing
        logprobs = prompt_logprobs(self._echo, showing) if showing.has_logprobs else None
        return self._chunk(self._echo.text, logprobs, None)

    def take(self, chunk: Chunk) -> bytes:
        showing, text = self._showing, chunk.text
        if self._logprobs is None and chunk.finish_reason is None and showing.has_answer:
            return b"%b%b%b" % (self._before, encode(text), self._after) if text else b""
        reason = reason_of(chunk, showing)
        if not showing.has_answer:
            return self._chunk("", None, reason) if reason else b""
        logprobs = self._logprobs.take(chunk.tokens or ()) if self._logprobs else None
        return self._chunk(text, logprobs, reason)

    def _chunk(self, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> bytes:
        choice = {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        return self._writer.of_choice(encode(choice))


async def begin_all(generations: Sequence[Generation]) -> list[Started]:
    """The first event of each.  Raises what the first refused one raises."""
    return [await generation.begin() for generation in generations]


async def merged(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[int, Event], None]:
    """Events as they come, each with the place of its generation; all have begun.  Raises
    ServingError if the model is lost.  Close it if it is left early."""
    if len(generations) == 1:
        async for event in generations[0]:
            yield 0, event
        return
    queue: Queue = asyncio.Queue(MOST_UNREAD)
    readers = [
        asyncio.ensure_future(_read(place, generation, queue))
        for place, generation in enumerate(generations)
    ]
    try:
        num_open = len(readers)
        while num_open:
            entry = await queue.get()
            if entry is None:
                num_open -= 1
            elif isinstance(entry, Exception):
                raise entry
            else:
                yield entry
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(place: int, generation: Generation, queue: Queue) -> None:
    try:
        async for event in generation:
            await queue.put((place, event))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
