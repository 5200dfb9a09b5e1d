"""The choices of completions: text, perhaps behind the prompt, and log-probabilities; as a whole,
or as the chunks of a stream in which the answers to several prompts are read as one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from math import fsum
from typing import Any, TypeAlias

from mindspore_serving.core.llm_messages import (
    Chunk,
    Event,
    Finished,
    GeneratedToken,
    PromptScored,
    Started,
)
from mindspore_serving.frontends.chat.errors import to_event
from mindspore_serving.frontends.chat.logprobs import CompletionLogprobs, joined, of_prompt
from mindspore_serving.frontends.chat.models import Generation, finish_reason
from mindspore_serving.frontends.openai.answers import ChunkHead, CompletionChoice
from mindspore_serving.frontends.openai.envelope import DONE, ChunkWriter, encode, to_usage

MOST_UNREAD = 64  # events that are held for a reader that is slower than the models

Queue: TypeAlias = "asyncio.Queue[tuple[int, Event] | Exception | None]"


@dataclass(frozen=True, slots=True)
class CompletionResponseOptions:
    """What is shown to a client.

    `n` choices for each prompt; the prompt before the answer if `echo`, which lacks its beginning
    if `is_cut`, and only it if not `has_answer`; special tokens in the text if `shows_special`;
    token ids if `has_ids`; `num_prompt_logprobs` alternatives for each token of the prompt.
    """

    n: int
    echo: bool
    has_logprobs: bool
    shows_special: bool
    has_answer: bool
    is_cut: bool = False
    has_ids: bool = False
    num_prompt_logprobs: int | None = None

    def of_prompt(self, echo: "Echo") -> dict[str, Any]:
        """The fields of the prompt that were asked for, in each of its choices."""
        found: dict[str, Any] = {}
        if self.num_prompt_logprobs is not None:
            found["prompt_logprobs"] = of_prompt(echo.tokens, self.num_prompt_logprobs)
        if self.has_ids:
            found["prompt_token_ids"] = echo.ids
        return found

    def of_answer(self, chunk: Chunk) -> dict[str, Any]:
        if not self.has_ids:
            return {}
        return {"token_ids": chunk.token_ids if self.has_answer else ()}


@dataclass(slots=True)
class Echo:
    """What stands before the answers to a prompt.  `tokens` are those of the prompt with their
    log-probabilities, as they come; `ids` all of them, if they are wanted.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)


def to_echo(prompt: str | list[int], started: Started, showing: CompletionResponseOptions) -> Echo:
    """`started` has the tokens of the prompt if it cannot be shown as it was given."""
    ids = [token.id for token in started.prompt or ()] if showing.has_ids else []
    if not showing.echo:
        return Echo(ids=ids)
    if isinstance(prompt, str) and not showing.is_cut:
        return Echo(prompt, ids)
    shown = [
        token.data
        for token in started.prompt or ()
        if showing.shows_special or not token.is_special
    ]
    return Echo(b"".join(shown).decode("utf-8", "replace"), ids)


def to_choice(
    index: int, chunk: Chunk, echo: Echo, showing: CompletionResponseOptions
) -> CompletionChoice:
    """The choice of an answer that is there.  Raises ServingError if the model failed."""
    logprobs = None
    if showing.has_logprobs:
        before = _prompt_logprobs(echo, showing)
        answer = (chunk.tokens or ()) if showing.has_answer else ()
        logprobs = joined([before, _answer_logprobs(echo, showing).take(answer)])
    text = echo.text + (chunk.text if showing.has_answer else "")
    more = {**showing.of_prompt(echo), **showing.of_answer(chunk)}
    return CompletionChoice(index, text, logprobs, _reason_of(chunk, showing), **more)


def _reason_of(chunk: Chunk, showing: CompletionResponseOptions) -> str | None:
    reason = finish_reason(chunk)
    return reason if showing.has_answer or reason is None else "length"


def _prompt_logprobs(echo: Echo, showing: CompletionResponseOptions) -> dict[str, Any]:
    return CompletionLogprobs(shows_special=showing.shows_special).take(echo.tokens)


def _answer_logprobs(echo: Echo, showing: CompletionResponseOptions) -> CompletionLogprobs:
    """Those of the tokens behind the prompt, to be taken as they come."""
    return CompletionLogprobs(shows_special=showing.shows_special, start=len(echo.text))


def best(chunks: Sequence[Chunk], n: int) -> list[Chunk]:
    """The `n` likeliest, best first, by the mean log-probability of a token; or all, in order of
    their index, if there are no more.
    """
    if len(chunks) <= n:
        return sorted(chunks, key=lambda chunk: chunk.index)
    return sorted(chunks, key=_mean_logprob, reverse=True)[:n]


def _mean_logprob(chunk: Chunk) -> float:
    tokens = chunk.tokens or ()
    return fsum(token.logprob or 0.0 for token in tokens) / max(1, len(tokens))


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
        yield to_event(error)


class CompletionChunks:
    """Makes chunks of events; `echoes` has one entry for each prompt."""

    def __init__(
        self,
        head: ChunkHead,
        showing: CompletionResponseOptions,
        echoes: Sequence[Echo],
        *,
        has_usage: bool,
    ) -> None:
        self._writer = ChunkWriter(head, has_usage=has_usage)
        self._prompts = [
            _Prompt(self._writer, place * showing.n, echo, showing)
            for place, echo in enumerate(echoes)
        ]
        self._showing = showing
        self._finished: list[Finished] = []

    def take(self, place: int, event: Event) -> bytes:
        """What an event of prompt `place` makes, perhaps nothing.  Raises ServingError if the
        model failed.
        """
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

    def __init__(
        self, writer: ChunkWriter, first: int, echo: Echo, showing: CompletionResponseOptions
    ) -> None:
        self.echo = echo
        self._has_begun = not (showing.echo or showing.has_ids)
        self._choices = [_Choice(writer, first + i, echo, showing) for i in range(showing.n)]

    def take(self, chunk: Chunk) -> bytes:
        made = self._choices[chunk.index].take(chunk)
        if self._has_begun:
            return made
        self._has_begun = True  # all of the prompt is scored before the first chunk
        return b"".join([choice.begin() for choice in self._choices]) + made


class _Choice:
    def __init__(
        self, writer: ChunkWriter, index: int, echo: Echo, showing: CompletionResponseOptions
    ) -> None:
        self._writer = writer
        self._index = index
        self._echo = echo
        self._showing = showing
        self._logprobs = _answer_logprobs(echo, showing) if showing.has_logprobs else None
        self._before, self._after = writer.frame(
            b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        """The prompt."""
        showing = self._showing
        logprobs = _prompt_logprobs(self._echo, showing) if showing.has_logprobs else None
        return self._chunk(self._echo.text, logprobs, None, showing.of_prompt(self._echo))

    def take(self, chunk: Chunk) -> bytes:
        showing, text = self._showing, chunk.text
        is_text = self._logprobs is None and chunk.finish_reason is None and not showing.has_ids
        if is_text and showing.has_answer:
            return b"%b%b%b" % (self._before, encode(text), self._after) if text else b""
        reason = _reason_of(chunk, showing)
        if not showing.has_answer:
            return self._chunk("", None, reason) if reason else b""
        logprobs = self._logprobs.take(chunk.tokens or ()) if self._logprobs else None
        return self._chunk(text, logprobs, reason, showing.of_answer(chunk))

    def _chunk(
        self,
        text: str,
        logprobs: dict[str, Any] | None,
        reason: str | None,
        ids: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._writer.of_choice(encode({**choice, **(ids or {})}))


async def begin_all(generations: Sequence[Generation]) -> list[Started]:
    """The first event of each.  Raises what the first refused one raises."""
    return [await generation.begin() for generation in generations]


async def merged(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[int, Event], None]:
    """Events as they come, each with the place of its generation; all have begun.  Raises
    ServingError if the model is lost.  Close it if it is left early.
    """
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
