"""What a model says of a job, as the job's answer: token by token, or all at once.

Knows no HTTP.
"""

import codecs
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter

from msgspec import UNSET, UnsetType

from mindspore_serving.core.llm_messages import Chunk, Finished, PromptScored, Started, Token
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.language import Stream
from mindspore_serving.frontends.tgi.answers import (
    BestOfSequence,
    Details,
    GenerateAnswer,
    PrefillToken,
    StreamDetails,
    StreamEvent,
    TokenAnswer,
    encode,
)
from mindspore_serving.frontends.tgi.checks import Job
from mindspore_serving.frontends.tgi.errors import failed, incomplete


@dataclass(slots=True)
class Times:
    """When, by `perf_counter`, a job came, was ready to be computed, and was done; how much there
    was; and the seconds that it waited, once ready, for its first step."""

    started: float = field(default_factory=perf_counter)
    begun: float = 0.0
    ended: float = 0.0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    queued: float = 0.0

    def begin(self, begun: Started) -> None:
        """Of several answers, the first that is taken."""
        if not self.begun:
            self.begun = perf_counter() - begun.queue_seconds
            self.num_prompt_tokens = begun.num_prompt_tokens

    @property
    def inference(self) -> float:
        """Seconds in the model."""
        return max(0.0, self.ended - self.begun - self.queued)

    def end(self, num_generated_tokens: int) -> None:
        self.ended = perf_counter()
        self.num_generated_tokens = num_generated_tokens


class Speller:
    """Spells tokens so that their texts together are the text: bytes of a character that is not
    complete wait for the others."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def spell(self, token: Token, *, is_last: bool = False) -> TokenAnswer:
        text = self._decode(token.data, is_last)
        return TokenAnswer(token.id, text, token.logprob, token.is_special)


def top_tokens(token: Token) -> list[TokenAnswer]:
    return [TokenAnswer(top.id, top.text, top.logprob, top.is_special) for top in token.top]


class StreamWriter:
    """The events of one job, made of pieces as they come."""

    def __init__(self, job: Job, begun: Started) -> None:
        self._job = job
        self._begun = begun
        self._speller = Speller()
        self._texts = [job.prefix]
        self.count = 0

    def write(self, piece: Chunk) -> bytes:
        """An event for each token of `piece`.  Raises TgiError if it tells of a failure."""
        self._texts.append(piece.text)
        tokens = piece.tokens or ()
        last = len(tokens) - 1 if piece.finish_reason is not None else -1
        if piece.finish_reason is not None:
            check_end(piece, is_stream=True)
        events = []
        for place, token in enumerate(tokens):
            self.count += 1
            spelled = self._speller.spell(token, is_last=place == last)
            tops = top_tokens(token) if self._job.top_n else UNSET
            if place == last:
                text, details = "".join(self._texts), self._details(piece)
                found = StreamEvent(self.count, spelled, tops, text, details)
            else:
                found = StreamEvent(self.count, spelled, tops)
            events.append(sse.event(encode(found)))
        return b"".join(events)

    def _details(self, piece: Chunk) -> StreamDetails | None:
        if not self._job.has_details:
            return None
        reason = finish_reason(piece, self.count, self._job, self._begun)
        seed = self._begun.seed if self._job.is_sampled else None
        return StreamDetails(reason, self.count, seed, self._begun.num_prompt_tokens)


def check_end(piece: Chunk, *, is_stream: bool) -> None:
    """Raises TgiError if the last piece tells of a failure."""
    if piece.finish_reason == "error":
        raise failed(str(piece.stop_reason))
    if piece.finish_reason == "abort" or (is_stream and not piece.tokens):
        raise incomplete(is_stream=is_stream)


def finish_reason(piece: Chunk, count: int, job: Job, begun: Started) -> str:
    """Of a text that ends for several reasons at once, length comes first."""
    room = job.model.card.max_model_len - begun.num_prompt_tokens
    if piece.finish_reason == "length" or count >= (job.max_new_tokens or room):
        return "length"
    return "stop_sequence" if isinstance(piece.stop_reason, str) else "eos_token"


async def write_stream(job: Job, times: Times) -> AsyncGenerator[bytes, None]:
    """The events of `job`.  `times` are complete once the last was made.  Raises ServingError."""
    with job.model.generate(job.ask) as stream:
        begun = await stream.begin()
        times.begin(begun)
        writer = StreamWriter(job, begun)
        is_complete = False
        async for event in stream:
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


async def write_whole(job: Job, times: Times) -> GenerateAnswer:
    """The answer to `job`, the best of as many as it wants.  Raises ServingError."""
    with ExitStack() as stack:
        streams = [stack.enter_context(job.model.generate(job.ask)) for _ in range(job.best_of)]
        written = [await _read(stream, job, times) for stream in streams]
    best = max(written, key=_mean_logprob) if job.best_of > 1 else written[0]
    others = [one.to_sequence() for one in written if one is not best]
    times.end(best.count)
    if not job.has_details:
        return GenerateAnswer(best.text)
    details = Details(
        best.reason,
        best.count,
        best.seed,
        best.prefill,
        best.tokens,
        others or UNSET,
        best.top_tokens,
    )
    return GenerateAnswer(best.text, details)


@dataclass(frozen=True, slots=True)
class Written:
    """One finished answer; tokens and prefill as far as they were asked for."""

    text: str
    reason: str
    count: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[TokenAnswer]
    top_tokens: list[list[TokenAnswer]] | UnsetType

    def to_sequence(self) -> BestOfSequence:
        return BestOfSequence(
            self.text,
            self.reason,
            self.count,
            self.seed,
            self.prefill,
            self.tokens,
            self.top_tokens,
        )


def _mean_logprob(written: Written) -> float:
    if not written.tokens:
        return float("-inf")
    return sum(token.logprob or 0.0 for token in written.tokens) / len(written.tokens)


async def _read(stream: Stream, job: Job, times: Times) -> Written:
    begun = await stream.begin()
    times.begin(begun)
    prompt: list[Token] = []
    written = None
    async for event in stream:
        if isinstance(event, PromptScored):
            prompt += event.tokens
        elif isinstance(event, Chunk):
            written = _to_written(event, prompt, job, begun)
        elif isinstance(event, Finished):
            times.queued = max(times.queued, event.queue_seconds)
    if written is None:
        raise incomplete(is_stream=False)
    return written


def _to_written(piece: Chunk, prompt: list[Token], job: Job, begun: Started) -> Written:
    check_end(piece, is_stream=False)
    tokens, speller = piece.tokens or (), Speller()
    last, count = len(tokens) - 1, len(piece.token_ids)
    return Written(
        job.prefix + piece.text,
        finish_reason(piece, count, job, begun),
        count,
        begun.seed if job.is_sampled else None,
        [PrefillToken(token.id, token.text, token.logprob) for token in prompt],
        [speller.spell(token, is_last=place == last) for place, token in enumerate(tokens)],
        [top_tokens(token) for token in tokens] if job.top_n else UNSET,
    )
