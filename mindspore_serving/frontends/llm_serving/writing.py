"""Collection of the chunks of an answer for llm-serving, and its texts for failures.

Knows no HTTP and no frames.
"""

import codecs
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from mindspore_serving.core.llm_messages import Chunk, GeneratedToken, RequestRefused, Started
from mindspore_serving.errors import (
    DeadlineExceeded,
    NotFound,
    Overloaded,
    ServableUnavailable,
    ServingError,
    UpstreamFailed,
)
from mindspore_serving.frontends.chat.models import Generation
from mindspore_serving.frontends.llm_serving.answers import (
    LlmServingAnswer,
    LlmServingChunk,
    LlmServingDetails,
    LlmServingToken,
)


@dataclass(frozen=True, slots=True)
class LlmServingFault:
    """A failure in the form of an answer: a text, a token id, a finish reason."""

    text: str
    token_id: int
    finish_reason: str

    def to_chunk(self) -> LlmServingChunk:
        token = LlmServingToken(self.token_id, 0.0, not self.text, self.text)
        return LlmServingChunk(None, self.text, token, [token])


OUT_OF_RANGE = LlmServingFault("Error202: prompt out of range", -202, "prompt_out_of_range")
EMPTY = LlmServingFault("Error203: prompt token empty", -203, "prompt_token_ids_empty")
FAILED = LlmServingFault(
    "error304: generation task stop abnormally!, please retry!", -1, "predict_failed"
)


_BY_STATUS = (NotFound, Overloaded, ServableUnavailable, DeadlineExceeded, UpstreamFailed)


def to_fault(error: ServingError) -> LlmServingFault:
    """Return the failure to answer with; raise `error` if it has a status of HTTP."""
    if isinstance(error, RequestRefused):
        if error.refused.reason == "context":
            return OUT_OF_RANGE
        if error.refused.reason == "empty":
            return EMPTY
        raise error
    if isinstance(error, _BY_STATUS):
        raise error
    return FAILED


@dataclass(slots=True)
class Writer:
    """Collects an answer.

    `started` is None if the model refused the request; `seed` is that of the request.
    """

    started: Started | None
    seed: int = 0
    has_details: bool = False
    text: str = ""
    finish_reason: str = ""
    num_generated: int = 0
    tokens: list[LlmServingChunk] = field(default_factory=list)

    def write(self, chunk: Chunk) -> list[LlmServingChunk]:
        """Add a chunk of a stream; return its tokens, of which the last has the text of all."""
        tokens = chunk.tokens or ()
        shown = [_to_chunk(token, "") for token in tokens[:-1]]
        if tokens:
            shown.append(_to_chunk(tokens[-1], chunk.text))
        return self._add(chunk, shown)

    def write_whole(self, chunk: Chunk) -> None:
        """Add a chunk of an answer that is not streamed: each token has its own text."""
        texts = _texts(chunk.tokens or ())
        pairs = zip(chunk.tokens or (), texts, strict=True)
        self._add(chunk, [_to_chunk(token, text) for token, text in pairs])

    def _add(self, chunk: Chunk, shown: list[LlmServingChunk]) -> list[LlmServingChunk]:
        self.text += chunk.text
        self.num_generated += len(chunk.token_ids)
        self.tokens += shown
        if chunk.finish_reason in ("error", "abort"):
            return [*shown, self.fail(FAILED)]
        if chunk.finish_reason == "length":
            self.finish_reason = "length"
        elif chunk.finish_reason is not None:
            is_text = isinstance(chunk.stop_reason, str)
            self.finish_reason = "stop_sequence" if is_text else "eos"
        return shown

    def fail(self, fault: LlmServingFault) -> LlmServingChunk:
        """End the answer with the text of `fault`."""
        shown = fault.to_chunk()
        self.text += fault.text
        self.finish_reason = fault.finish_reason
        self.tokens.append(shown)
        return shown

    def answer(self) -> LlmServingAnswer:
        """Return the full answer.

        As in the original, its `prefill` is the prompt if that was requested, else the first token
        of the answer, and so are `top_tokens` if no likelier tokens were requested.
        """
        started, tokens = self.started, [chunk.tokens for chunk in self.tokens]
        prompt = started.prompt if started else None
        tops = [
            chunk.top_tokens for chunk in self.tokens if chunk.top_tokens[0] is not chunk.tokens
        ]
        details = None
        if started and self.has_details:
            counts = self.num_generated, self.seed, started.num_prompt_tokens
            details = LlmServingDetails(self.finish_reason, *counts)
        return LlmServingAnswer(
            generated_text=self.text,
            finish_reason=self.finish_reason,
            generated_tokens=self.num_generated,
            prefill=tokens[:1] if prompt is None else _with_texts(prompt),
            seed=self.seed,
            tokens=tokens,
            top_tokens=tops or [chunk.top_tokens for chunk in self.tokens[:1]],
            details=details,
        )


async def chunks_of(
    generation: Generation, writer: Writer, *, raises: tuple[type[ServingError], ...] = ()
) -> AsyncIterator[Chunk]:
    """Iterate over the chunks of `generation`.

    If it fails, raises errors of the types `raises`; for other errors the last chunk has the finish
    reason "error".
    """
    try:
        async for event in generation:
            if isinstance(event, Chunk):
                yield event
    except ServingError as error:
        if isinstance(error, raises):
            raise
        yield Chunk(0, "", (), (), "error")
        return
    if not writer.finish_reason:
        yield Chunk(0, "", (), (), "abort")


def _to_chunk(token: GeneratedToken, text: str) -> LlmServingChunk:
    shown = LlmServingToken(token.id, token.logprob or 0.0, not text, text)
    return LlmServingChunk(None, text, shown, _with_texts(token.top) if token.top else [shown])


def _with_texts(tokens: Iterable[GeneratedToken]) -> list[LlmServingToken]:
    """Return tokens with the texts that they have by themselves."""
    return [
        LlmServingToken(token.id, token.logprob or 0.0, not token.text, token.text)
        for token in tokens
    ]


def _texts(tokens: Sequence[GeneratedToken]) -> list[str]:
    """Return the text of each token: "" for special tokens, and for incomplete characters."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    texts = ["" if token.is_special else decode(token.data) for token in tokens]
    incomplete = decode(b"", True)
    if incomplete:
        texts[-1] += incomplete
    return texts
