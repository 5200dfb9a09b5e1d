"""Answers made from a model's events: token by token, or complete.

Knows no HTTP.
"""

import codecs
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter

import msgspec
from msgspec import UNSET

from mindspore_serving.core.llm_messages import (
    Chunk,
    Finished,
    GeneratedToken,
    PromptScored,
    Started,
)
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.chat.models import Generation
from mindspore_serving.frontends.tgi.answers import (
    BestOfSequence,
    GenerateResponse,
    PrefillToken,
    StreamDetails,
    StreamEvent,
    TgiDetails,
    TokenDetails,
    encode,
)
from mindspore_serving.frontends.tgi.checks import CheckedRequest
from mindspore_serving.frontends.tgi.errors import failed, incomplete, invalid


@dataclass(slots=True)
class Times:
    """Times of a request, by `perf_counter`, and token counts.

    `started` is its arrival, `begun` when it was ready to be computed, `ended` the end of its
    answer; `queued` is the number of seconds between ready and its first step.
    """

    started: float = field(default_factory=perf_counter)
    begun: float = 0.0
    ended: float = 0.0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    queued: float = 0.0
    is_capped: bool = False

    def begin(self, started: Started) -> None:
        """Record the start; of several answers the first that is accepted counts."""
        if not self.begun:
            self.begun = perf_counter() - started.queue_seconds
            self.num_prompt_tokens = started.num_prompt_tokens
            self.is_capped = started.is_capped

    @property
    def inference(self) -> float:
        """Seconds in the model."""
        return max(0.0, self.ended - self.begun - self.queued)

    def end(self, num_generated_tokens: int) -> None:
        """Record the end of the answer."""
        self.ended = perf_counter()
        self.num_generated_tokens = num_generated_tokens


class TokenDecoder:
    """Decodes tokens to texts that concatenate to the answer.

    Bytes of an incomplete character wait for the following tokens.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def decode(self, token: GeneratedToken, *, is_last: bool = False) -> TokenDetails:
        """Return a token with its text."""
        text = self._decode(token.data, is_last)
        return TokenDetails(token.id, text, token.logprob, token.is_special)


def top_tokens(token: GeneratedToken) -> list[TokenDetails]:
    """Return the alternatives of a token."""
    return [TokenDetails(top.id, top.text, top.logprob, top.is_special) for top in token.top]


class StreamWriter:
    """Writes the events of one answer, chunk by chunk."""

    def __init__(self, request: CheckedRequest, started: Started) -> None:
        self._request = request
        self._started = started
        self._decoder = TokenDecoder()
        self._texts = [request.prefix]
        self.count = 0

    def write(self, chunk: Chunk) -> bytes:
        """Return an event for each token of `chunk`.

        Raises TgiError if the model failed.
        """
        self._texts.append(chunk.text)
        tokens = chunk.tokens or ()
        last = len(tokens) - 1 if chunk.finish_reason is not None else -1
        if chunk.finish_reason is not None:
            check_end(chunk, is_stream=True)
        events = []
        for index, token in enumerate(tokens):
            self.count += 1
            decoded = self._decoder.decode(token, is_last=index == last)
            tops = top_tokens(token) if self._request.top_n else UNSET
            if index == last:
                text, details = "".join(self._texts), self._details(chunk)
                stream_event = StreamEvent(self.count, decoded, tops, text, details)
            else:
                stream_event = StreamEvent(self.count, decoded, tops)
            events.append(sse.event(encode(stream_event)))
        return b"".join(events)

    def _details(self, chunk: Chunk) -> StreamDetails | None:
        if not self._request.has_details:
            return None
        reason = finish_reason(chunk, self.count, self._request, self._started)
        seed = self._started.seed if self._request.is_sampled else None
        return StreamDetails(reason, self.count, seed, self._started.num_prompt_tokens)


def check_end(chunk: Chunk, *, is_stream: bool) -> None:
    """Check whether the last chunk reports a failure.

    Raises TgiError.
    """
    if chunk.finish_reason == "error":
        text = str(chunk.stop_reason)
        raise invalid(text) if chunk.blames_request else failed(text)
    if chunk.finish_reason == "abort" or (is_stream and not chunk.tokens):
        raise incomplete(is_stream=is_stream)


def finish_reason(chunk: Chunk, count: int, request: CheckedRequest, started: Started) -> str:
    """Return why the answer ended; length takes precedence over other reasons."""
    room = request.model.card.max_model_len - started.num_prompt_tokens
    if chunk.finish_reason == "length" or count >= (request.max_new_tokens or room):
        return "length"
    return "stop_sequence" if isinstance(chunk.stop_reason, str) else "eos_token"


async def write_stream(
    generation: Generation, writer: StreamWriter, times: Times
) -> AsyncGenerator[bytes, None]:
    """Iterate over the events of the answer of `generation`, which has begun.

    `times` are complete once the last event was returned.  Raises ServingError.
    """
    is_complete = False
    async for event in generation:
        if isinstance(event, Chunk):
            events = writer.write(event)
            if event.finish_reason is not None:
                is_complete = True
                times.end(writer.count)
            yield events
        elif isinstance(event, Finished):
            times.queued = event.queue_seconds
    if not is_complete:
        raise incomplete(is_stream=True)


async def collect_answer(request: CheckedRequest, times: Times) -> GenerateResponse:
    """Return the answer, the best of `best_of`.

    Raises ServingError.
    """
    with ExitStack() as stack:
        generations = [
            stack.enter_context(request.model.generate(request.generate, request.options))
            for _ in range(request.best_of)
        ]
        answers = [await _read(generation, request, times) for generation in generations]
    best = max(answers, key=_mean_logprob) if request.best_of > 1 else answers[0]
    remaining = [answer for answer in answers if answer is not best]
    times.end(best.generated_tokens)
    if not request.has_details:
        return GenerateResponse(best.generated_text)
    fields = msgspec.structs.asdict(best)
    text = fields.pop("generated_text")
    return GenerateResponse(text, TgiDetails(**fields, best_of_sequences=remaining or UNSET))


def _mean_logprob(sequence: BestOfSequence) -> float:
    if not sequence.tokens:
        return float("-inf")
    return sum(token.logprob or 0.0 for token in sequence.tokens) / len(sequence.tokens)


async def _read(generation: Generation, request: CheckedRequest, times: Times) -> BestOfSequence:
    started = await generation.begin()
    times.begin(started)
    prompt: list[GeneratedToken] = []
    sequence = None
    async for event in generation:
        if isinstance(event, PromptScored):
            prompt += event.tokens
        elif isinstance(event, Chunk):
            sequence = _to_sequence(event, prompt, request, started)
        elif isinstance(event, Finished):
            times.queued = max(times.queued, event.queue_seconds)
    if sequence is None:
        raise incomplete(is_stream=False)
    return sequence


def _to_sequence(
    chunk: Chunk, prompt: list[GeneratedToken], request: CheckedRequest, started: Started
) -> BestOfSequence:
    check_end(chunk, is_stream=False)
    tokens, decoder = chunk.tokens or (), TokenDecoder()
    last, count = len(tokens) - 1, len(chunk.token_ids)
    return BestOfSequence(
        request.prefix + chunk.text,
        finish_reason(chunk, count, request, started),
        count,
        started.seed if request.is_sampled else None,
        [PrefillToken(token.id, token.text, token.logprob) for token in prompt],
        [decoder.decode(token, is_last=index == last) for index, token in enumerate(tokens)],
        [top_tokens(token) for token in tokens] if request.top_n else UNSET,
    )
