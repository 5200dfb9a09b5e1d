"""The chunks of a completion's stream."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, PromptScored
from mindspore_serving.frontends.language import Stream
from mindspore_serving.frontends.openai.chunks import DONE, Chunks, encode
from mindspore_serving.frontends.openai.completion_choices import (
    Echo,
    Showing,
    answer_logprobs,
    prompt_logprobs,
    reason_of,
)
from mindspore_serving.frontends.openai.envelope import Head, to_usage
from mindspore_serving.frontends.openai.errors import to_failure
from mindspore_serving.frontends.openai.merging import merged


async def stream_completions(
    streams: Sequence[Stream], chunks: "CompletionChunks"
) -> AsyncIterator[bytes]:
    """The events of the answers of `streams`, which have begun."""
    try:
        async with aclosing(merged(streams)) as events:
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
        self._chunks = Chunks(head, "text_completion", has_usage=has_usage)
        self._prompts = [
            _Prompt(self._chunks, place * showing.n, echo, showing)
            for place, echo in enumerate(echoes)
        ]
        self._showing = showing
        self._ended: list[Finished] = []

    def take(self, place: int, event: Event) -> bytes:
        """What an event of prompt `place` makes, perhaps nothing.  Raises ServingError if the
        model failed."""
        if isinstance(event, Chunk):
            return self._prompts[place].take(event)
        if isinstance(event, PromptScored):
            self._prompts[place].echo.tokens += event.tokens
        elif isinstance(event, Finished):
            self._ended.append(event)
        return b""

    def end(self) -> bytes:
        if not self._chunks.has_usage:
            return DONE
        usage = to_usage(self._ended, has_answer=self._showing.has_answer)
        return self._chunks.usage(usage) + DONE


class _Prompt:
    """The choices of one prompt; `first` is the index of the first of them."""

    def __init__(self, chunks: Chunks, first: int, echo: Echo, showing: Showing) -> None:
        self.echo = echo
        self._has_begun = not showing.echo
        self._choices = [_Choice(chunks, first + i, echo, showing) for i in range(showing.n)]

    def take(self, piece: Chunk) -> bytes:
        made = self._choices[piece.index].take(piece)
        if self._has_begun:
            return made
        self._has_begun = True  # all of the prompt is scored before the first piece
        return b"".join([choice.begin() for choice in self._choices]) + made


class _Choice:
    def __init__(self, chunks: Chunks, index: int, echo: Echo, showing: Showing) -> None:
        self._chunks = chunks
        self._index = index
        self._echo = echo
        self._showing = showing
        self._logprobs = answer_logprobs(echo, showing) if showing.has_logprobs else None
        self._before, self._after = chunks.frame(
            b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        """The prompt."""
        showing = self._showing
        logprobs = prompt_logprobs(self._echo, showing) if showing.has_logprobs else None
        return self._chunk(self._echo.text, logprobs, None)

    def take(self, piece: Chunk) -> bytes:
        showing, text = self._showing, piece.text
        if self._logprobs is None and piece.finish_reason is None and showing.has_answer:
            return b"%b%b%b" % (self._before, encode(text), self._after) if text else b""
        reason = reason_of(piece, showing)
        if not showing.has_answer:
            return self._chunk("", None, reason) if reason else b""
        logprobs = self._logprobs.take(piece.tokens or ()) if self._logprobs else None
        return self._chunk(text, logprobs, reason)

    def _chunk(self, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> bytes:
        choice = {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        return self._chunks.of_choice(encode(choice))
