"""What is around the choices of every answer: id, time, model, counts of tokens; as an object, and
as the bytes of the events of a stream.
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
    """A new answer of `model`, which is a `kind`; `prefix` begins its id."""
    return ChunkHead(
        id=f"{prefix}-{secrets.token_hex(16)}",
        object=kind,
        created=int(time.time()),
        model=model.name,
        system_fingerprint=fingerprint(model.card),
    )


@lru_cache(maxsize=64)
def fingerprint(card: ModelCard) -> str:
    """What the same seed gives the same answer with."""
    made_of = (__version__, card.architecture, card.runtime, card.dtype, card.quantization)
    return "fp_" + hashlib.sha256(repr(made_of).encode()).hexdigest()[:10]


def to_usage(finished: Sequence[Finished], *, has_answer: bool = True) -> Usage:
    """`usage` of an answer to as many prompts; of the prompts alone if not `has_answer`."""
    num_prompt = sum(one.num_prompt_tokens for one in finished)
    answered = finished if has_answer else ()
    num_generated = sum(one.num_generated_tokens for one in answered)
    num_draft_tokens = sum(one.num_draft_tokens for one in answered)
    num_right = sum(one.num_accepted_tokens for one in answered)
    num_reasoning = sum(one.num_reasoning_tokens for one in answered)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_generated,
        total_tokens=num_prompt + num_generated,
        prompt_tokens_details=PromptDetails(sum(one.num_cached_tokens for one in finished)),
        completion_tokens_details=CompletionDetails(
            num_reasoning, num_right, num_draft_tokens - num_right
        ),
    )


class ChunkWriter:
    """Writes the events of one stream.

    What is the same in all of them is encoded once, for an event is made for every token.
    """

    def __init__(self, head: ChunkHead, *, has_usage: bool) -> None:
        self.has_usage = has_usage
        self._start = b"data: " + encode(head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"

    def of_choice(self, choice: bytes, beside: Mapping[str, object] | None = None) -> bytes:
        """An event of one choice, which is JSON; `beside` are further fields of the event."""
        if not beside:
            return b"%b%b%b" % (self._start, choice, self._end)
        return b"%b%b],%b%b" % (self._start, choice, encode(beside)[1:-1], self._end[1:])

    def frame(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """What stands around the only part that changes, if a choice is `before`, that part and
        `after`.
        """
        return self._start + before, after + self._end

    def usage(self, usage: Usage) -> bytes:
        """The event without choices that counts."""
        return b'%b],"usage":%b}\n\n' % (self._start, encode(usage))
