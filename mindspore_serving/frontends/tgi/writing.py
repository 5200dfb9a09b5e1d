"""The events of a model as the answer to a request: token by token, or all at once.

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
    """When, by `perf_counter`, a request came, was ready to be computed, and was done; how many
    tokens there were; and the seconds that it waited, once ready, for its first step.
    """

    started: float = field(default_factory=perf_counter)
    begun: float = 0.0
    ended: float = 0.0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    queued: float = 0.0
    is_capped: bool = False

    def begin(self, started: Started) -> None:
        """Of several answers, the first that is accepted."""
        if not self.begun:
            self.begun = perf_counter() - started.queue_seconds
            self.num_prompt_tokens = started.num_prompt_tokens
            self.is_capped = started.is_capped

    @property
    def inference(self) -> float:
        """Seconds in the model."""
        return max(0.0, self.ended - self.begun - self.queued)

    def end(self, num_generated_tokens: int) -> None:
        self.ended = perf_counter()
        self.num_generated_tokens = num_generated_tokens


class Speller:
    """Spells tokens so that their texts together are the text: bytes of a character that is not
    complete wait for the others.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def spell(self, token: GeneratedToken, *, is_last: bool = False) -> TokenDetails:
        text = self._decode(token.data, is_last)
        return TokenDetails(token.id, text, token.logprob, token.is_special)


def top_tokens(token: GeneratedToken) -> list[TokenDetails]:
    return [TokenDetails(top.id, top.text, top.logprob, top.is_special) for top in token.top]


class StreamWriter:
    """The events of one answer, made of chunks as they come."""

    def __init__(self, request: CheckedRequest, started: Started) -> None:
        self._request = request
        self._started = started
        self._speller = Speller()
        self._texts = [request.prefix]
        self.count = 0

    def write(self, chunk: Chunk) -> bytes:
        """An event for each token of `chunk`.  Raises TgiError if the model failed."""
        self._texts.append(chunk.text)
        tokens = chunk.tokens or ()
        last = len(tokens) - 1 if chunk.finish_reason is not None else -1
        if chunk.finish_reason is not None:
            check_end(chunk, is_stream=True)
        events = []
        for place, token in enumerate(tokens):
            self.count += 1
            spelled = self._speller.spell(token, is_last=place == last)
            tops = top_tokens(token) if self._request.top_n else UNSET
            if place == last:
                text, details = "".join(self._texts), self._details(chunk)
                found = StreamEvent(self.count, spelled, tops, text, details)
            else:
                found = StreamEvent(self.count, spelled, tops)
            events.append(sse.event(encode(found)))
        return b"".join(events)

    def _details(self, chunk: Chunk) -> StreamDetails | None:
        if not self._request.has_details:
            return None
        reason = finish_reason(chunk, self.count, self._request, self._started)
        seed = self._started.seed if self._request.is_sampled else None
        return StreamDetails(reason, self.count, seed, self._started.num_prompt_tokens)


def check_end(chunk: Chunk, *, is_stream: bool) -> None:
    """Raises TgiError if the last chunk says that the model failed."""
    if chunk.finish_reason == "error":
        text = str(chunk.stop_reason)
        raise invalid(text) if chunk.blames_request else failed(text)
    if chunk.finish_reason == "abort" or (is_stream and not chunk.tokens):
        raise incomplete(is_stream=is_stream)


def finish_reason(chunk: Chunk, count: int, request: CheckedRequest, started: Started) -> str:
    """Of a text that ends for several reasons at once, length comes first."""
    room = request.model.card.max_model_len - started.num_prompt_tokens
    if chunk.finish_reason == "length" or count >= (request.max_new_tokens or room):
        return "length"
    return "stop_sequence" if isinstance(chunk.stop_reason, str) else "eos_token"


async def write_stream(
    generation: Generation, writer: StreamWriter, times: Times
) -> AsyncGenerator[bytes, None]:
    """The events of the answer of `generation`, which has begun.  `times` are complete once the
    last was made.  Raises ServingError.
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


async def write_whole(request: CheckedRequest, times: Times) -> GenerateResponse:
    """The answer, the best of `best_of`.  Raises ServingError."""
    with ExitStack() as stack:
        generations = [
            stack.enter_context(request.model.generate(request.generate, request.options))
            for _ in range(request.best_of)
        ]
        written = [await _read(generation, request, times) for generation in generations]
    best = max(written, key=_mean_logprob) if request.best_of > 1 else written[0]
    others = [one for one in written if one is not best]
    times.end(best.generated_tokens)
    if not request.has_details:
        return GenerateResponse(best.generated_text)
    fields = msgspec.structs.asdict(best)
    text = fields.pop("generated_text")
    return GenerateResponse(text, TgiDetails(**fields, best_of_sequences=others or UNSET))


def _mean_logprob(written: BestOfSequence) -> float:
    if not written.tokens:
        return float("-inf")
    return sum(token.logprob or 0.0 for token in written.tokens) / len(written.tokens)


async def _read(generation: Generation, request: CheckedRequest, times: Times) -> BestOfSequence:
    started = await generation.begin()
    times.begin(started)
    prompt: list[GeneratedToken] = []
    written = None
    async for event in generation:
        if isinstance(event, PromptScored):
            prompt += event.tokens
        elif isinstance(event, Chunk):
            written = _to_sequence(event, prompt, request, started)
        elif isinstance(event, Finished):
            times.queued = max(times.queued, event.queue_seconds)
    if written is None:
        raise incomplete(is_stream=False)
    return written


def _to_sequence(
    chunk: Chunk, prompt: list[GeneratedToken], request: CheckedRequest, started: Started
) -> BestOfSequence:
    check_end(chunk, is_stream=False)
    tokens, speller = chunk.tokens or (), Speller()
    last, count = len(tokens) - 1, len(chunk.token_ids)
    return BestOfSequence(
        request.prefix + chunk.text,
        finish_reason(chunk, count, request, started),
        count,
        started.seed if request.is_sampled else None,
        [PrefillToken(token.id, token.text, token.logprob) for token in prompt],
        [speller.spell(token, is_last=place == last) for place, token in enumerate(tokens)],
        [top_tokens(token) for token in tokens] if request.top_n else UNSET,
    )
