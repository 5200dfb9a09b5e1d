"""Choices of completions: text, optionally behind its prompt, and log-probabilities.

A choice is written complete, or as the chunks of a stream that merges the answers to several
prompts.
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
from mindspore_serving.frontends.chat.logprobs import (
    CompletionLogprobs,
    concatenate,
    to_prompt_logprobs,
)
from mindspore_serving.frontends.chat.models import Generation, finish_reason
from mindspore_serving.frontends.openai.answers import ChunkHead, CompletionChoice
from mindspore_serving.frontends.openai.envelope import DONE, ChunkWriter, encode, to_usage

MAX_UNREAD = 64  # events buffered for a client that reads more slowly than the models write

Queue: TypeAlias = "asyncio.Queue[tuple[int, Event] | Exception | None]"


@dataclass(frozen=True, slots=True)
class CompletionResponseOptions:
    """Parts of an answer that the client chooses: choices, echo, log-probabilities, token ids.

    Each prompt gets `n` choices.  `echo` puts the prompt before the answer; `is_cut` says that it
    lacks its beginning.  Without `has_answer` the prompt is all there is.  `shows_special` keeps
    special tokens in the text.  `has_ids` adds token ids, `num_prompt_logprobs` that many
    alternatives for each token of the prompt.
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
        """Return the requested fields about the prompt, which each of its choices repeats."""
        fields: dict[str, Any] = {}
        if self.num_prompt_logprobs is not None:
            fields["prompt_logprobs"] = to_prompt_logprobs(echo.tokens, self.num_prompt_logprobs)
        if self.has_ids:
            fields["prompt_token_ids"] = echo.ids
        return fields

    def of_answer(self, chunk: Chunk) -> dict[str, Any]:
        if not self.has_ids:
            return {}
        return {"token_ids": chunk.token_ids if self.has_answer else ()}


@dataclass(slots=True)
class Echo:
    """The prompt, as it stands before its answers.

    `tokens` are the prompt's tokens with log-probabilities, as they arrive; `ids` all its token
    ids, if they were requested.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)


def to_echo(prompt: str | list[int], started: Started, options: CompletionResponseOptions) -> Echo:
    """Return the echo of a prompt.

    `started` has the prompt's tokens if the text cannot be repeated as it was sent.
    """
    ids = [token.id for token in started.prompt or ()] if options.has_ids else []
    if not options.echo:
        return Echo(ids=ids)
    if isinstance(prompt, str) and not options.is_cut:
        return Echo(prompt, ids)
    shown = [
        token.data
        for token in started.prompt or ()
        if options.shows_special or not token.is_special
    ]
    return Echo(b"".join(shown).decode("utf-8", "replace"), ids)


def to_choice(
    index: int, chunk: Chunk, echo: Echo, options: CompletionResponseOptions
) -> CompletionChoice:
    """Return the choice of a complete answer.

    Raises ServingError if the model failed.
    """
    logprobs = None
    if options.has_logprobs:
        before = _prompt_logprobs(echo, options)
        answer = (chunk.tokens or ()) if options.has_answer else ()
        logprobs = concatenate([before, _answer_logprobs(echo, options).take(answer)])
    text = echo.text + (chunk.text if options.has_answer else "")
    more = {**options.of_prompt(echo), **options.of_answer(chunk)}
    return CompletionChoice(index, text, logprobs, _reason_of(chunk, options), **more)


def _reason_of(chunk: Chunk, options: CompletionResponseOptions) -> str | None:
    reason = finish_reason(chunk)
    return reason if options.has_answer or reason is None else "length"


def _prompt_logprobs(echo: Echo, options: CompletionResponseOptions) -> dict[str, Any]:
    return CompletionLogprobs(shows_special=options.shows_special).take(echo.tokens)


def _answer_logprobs(echo: Echo, options: CompletionResponseOptions) -> CompletionLogprobs:
    """Return the builder of log-probabilities of the tokens behind the prompt."""
    return CompletionLogprobs(shows_special=options.shows_special, start=len(echo.text))


def best(chunks: Sequence[Chunk], n: int) -> list[Chunk]:
    """Return the `n` completions with the largest mean log-probability of a token, best first.

    If there are no more than `n`, return all in order of their index.
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
    """Iterate over the events of the answers of `generations`, which have begun."""
    try:
        async with aclosing(merge(generations)) as events:
            async for prompt_index, event in events:
                data = chunks.take(prompt_index, event)
                if data:
                    yield data
        yield chunks.end()
    except Exception as error:
        yield to_event(error)


class CompletionChunks:
    """Writes the events of a stream; `echoes` has one entry for each prompt."""

    def __init__(
        self,
        head: ChunkHead,
        options: CompletionResponseOptions,
        echoes: Sequence[Echo],
        *,
        has_usage: bool,
    ) -> None:
        self._writer = ChunkWriter(head, has_usage=has_usage)
        self._prompts = [
            _Prompt(self._writer, prompt_index * options.n, echo, options)
            for prompt_index, echo in enumerate(echoes)
        ]
        self._options = options
        self._finished: list[Finished] = []

    def take(self, prompt_index: int, event: Event) -> bytes:
        """Return the bytes of an event of a prompt, b"" if the client gets nothing of it.

        Raises ServingError if the model failed.
        """
        if isinstance(event, Chunk):
            return self._prompts[prompt_index].take(event)
        if isinstance(event, PromptScored):
            self._prompts[prompt_index].echo.tokens += event.tokens
        elif isinstance(event, Finished):
            self._finished.append(event)
        return b""

    def end(self) -> bytes:
        """Return the last events: token counts, if requested, and [DONE]."""
        if not self._writer.has_usage:
            return DONE
        usage = to_usage(self._finished, has_answer=self._options.has_answer)
        return self._writer.usage(usage) + DONE


class _Prompt:
    """Choices of one prompt; `first` is the index of its first choice."""

    def __init__(
        self, writer: ChunkWriter, first: int, echo: Echo, options: CompletionResponseOptions
    ) -> None:
        self.echo = echo
        self._has_begun = not (options.echo or options.has_ids)
        self._choices = [_Choice(writer, first + i, echo, options) for i in range(options.n)]

    def take(self, chunk: Chunk) -> bytes:
        data = self._choices[chunk.index].take(chunk)
        if self._has_begun:
            return data
        self._has_begun = True  # all of the prompt is scored before the first chunk
        return b"".join([choice.begin() for choice in self._choices]) + data


class _Choice:
    def __init__(
        self, writer: ChunkWriter, index: int, echo: Echo, options: CompletionResponseOptions
    ) -> None:
        self._writer = writer
        self._index = index
        self._echo = echo
        self._options = options
        self._logprobs = _answer_logprobs(echo, options) if options.has_logprobs else None
        self._before, self._after = writer.frame(
            b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        """Return the chunk with the prompt."""
        options = self._options
        logprobs = _prompt_logprobs(self._echo, options) if options.has_logprobs else None
        return self._chunk(self._echo.text, logprobs, None, options.of_prompt(self._echo))

    def take(self, chunk: Chunk) -> bytes:
        options, text = self._options, chunk.text
        is_text = self._logprobs is None and chunk.finish_reason is None and not options.has_ids
        if is_text and options.has_answer:
            return b"%b%b%b" % (self._before, encode(text), self._after) if text else b""
        reason = _reason_of(chunk, options)
        if not options.has_answer:
            return self._chunk("", None, reason) if reason else b""
        logprobs = self._logprobs.take(chunk.tokens or ()) if self._logprobs else None
        return self._chunk(text, logprobs, reason, options.of_answer(chunk))

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
    """Return the first event of each generation.

    Raises what the first refused generation raises.
    """
    return [await generation.begin() for generation in generations]


async def merge(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[int, Event], None]:
    """Iterate over the events of all generations, each with the index of its generation.

    Events come in the order in which they arrive. All generations have begun. Close the iterator
    when leaving it early. Raises ServingError if the model's worker is lost.
    """
    if len(generations) == 1:
        async for event in generations[0]:
            yield 0, event
        return
    queue: Queue = asyncio.Queue(MAX_UNREAD)
    readers = [
        asyncio.ensure_future(_read(prompt_index, generation, queue))
        for prompt_index, generation in enumerate(generations)
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


async def _read(prompt_index: int, generation: Generation, queue: Queue) -> None:
    try:
        async for event in generation:
            await queue.put((prompt_index, event))
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
