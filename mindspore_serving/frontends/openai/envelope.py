"""Fields around the choices of every answer: id, time, model and token counts.

They are written as an object, or as the bytes of a stream's events.
"""

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from mindspore_serving import __version__
from mindspore_serving.core.llm_messages import Finished
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.openai.answers import (
    ChunkHead,
    CompletionDetails,
    PromptDetails,
    Usage,
)
from mindspore_serving.frontends.sse import event

DONE = event(b"[DONE]")
encode = msgspec.json.Encoder().encode


def make_head(prefix: str, kind: str, model: ServedModel) -> ChunkHead:
    """Return the head of a new answer; `kind` is its `object`, `prefix` begins its id."""
    return ChunkHead(
        id=f"{prefix}-{secrets.token_hex(16)}",
        object=kind,
        created=int(time.time()),
        model=model.name,
        system_fingerprint=fingerprint(model.card),
    )


@lru_cache(maxsize=64)
def fingerprint(card: ModelCard) -> str:
    """Return the `system_fingerprint`: with it and a seed equal, answers are equal."""
    parts = (__version__, card.architecture, card.runtime, card.dtype, card.quantization)
    return "fp_" + hashlib.sha256(repr(parts).encode()).hexdigest()[:10]


def to_usage(finished: Sequence[Finished], *, has_answer: bool = True) -> Usage:
    """Return the `usage` of an answer to one or several prompts.

    Without `has_answer` only the prompts' tokens count.
    """
    num_prompt = sum(event.num_prompt_tokens for event in finished)
    answered = finished if has_answer else ()
    num_generated = sum(event.num_generated_tokens for event in answered)
    num_draft = sum(event.num_draft_tokens for event in answered)
    num_accepted = sum(event.num_accepted_tokens for event in answered)
    num_reasoning = sum(event.num_reasoning_tokens for event in answered)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_generated,
        total_tokens=num_prompt + num_generated,
        prompt_tokens_details=PromptDetails(sum(event.num_cached_tokens for event in finished)),
        completion_tokens_details=CompletionDetails(
            num_reasoning, num_accepted, num_draft - num_accepted
        ),
    )


class ChunkWriter:
    """Writes the events of one stream.

    The constant parts are encoded once, as there is an event for every token.
    """

    def __init__(self, head: ChunkHead, *, has_usage: bool) -> None:
        self.has_usage = has_usage
        self._start = b"data: " + encode(head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"

    def of_choice(self, choice: bytes, beside: Mapping[str, object] | None = None) -> bytes:
        """Return an event of one choice, given as JSON; `beside` has more fields of the event."""
        if not beside:
            return b"%b%b%b" % (self._start, choice, self._end)
        return b"%b%b],%b%b" % (self._start, choice, encode(beside)[1:-1], self._end[1:])

    def frame(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """Return the constant bytes around a choice's only changing part.

        The choice itself is `before`, that part and `after`.
        """
        return self._start + before, after + self._end

    def usage(self, usage: Usage) -> bytes:
        """Return the event without choices that has the token counts."""
        return b'%b],"usage":%b}\n\n' % (self._start, encode(usage))
