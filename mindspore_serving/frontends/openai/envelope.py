"""What every object of an answer has around its choices: id, time, model, counts of tokens."""

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mindspore_serving import __version__
from mindspore_serving.core.llm_messages import Chunk, Finished
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.language import LanguageModel, LanguageModels
from mindspore_serving.frontends.openai.errors import WrongField


@dataclass(frozen=True, slots=True)
class Head:
    """The same in every chunk of an answer.  `created` is in seconds since 1970."""

    id: str
    created: int
    model: str
    fingerprint: str

    def to_object(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def make_head(prefix: str, model: LanguageModel) -> Head:
    """A new answer of `model`; `prefix` begins its id."""
    name = f"{prefix}-{secrets.token_hex(16)}"
    return Head(name, int(time.time()), model.name, fingerprint(model.card))


@lru_cache(maxsize=64)
def fingerprint(card: ModelCard) -> str:
    """What the same seed gives the same answer with."""
    made_of = (__version__, card.architecture, card.runtime, card.dtype, card.quantization)
    return "fp_" + hashlib.sha256(repr(made_of).encode()).hexdigest()[:10]


def to_usage(ended: Sequence[Finished], *, has_answer: bool = True) -> dict[str, Any]:
    """`usage` of an answer to as many prompts; of the prompts alone if not `has_answer`."""
    num_prompt = sum(one.num_prompt_tokens for one in ended)
    num_generated = sum(one.num_generated_tokens for one in ended) if has_answer else 0
    num_cached = sum(one.num_cached_tokens for one in ended)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def find_generator(models: LanguageModels, name: str | None) -> LanguageModel:
    """The model `name`.  Raises NotFound, or WrongField if it generates no text."""
    model = models.find(name)
    if not model.card.can_generate:
        raise WrongField("model", f"the model {model.name} embeds texts, and generates none")
    return model


def finish_reason(piece: Chunk, *, has_calls: bool = False) -> str | None:
    """`finish_reason` of a choice; clients know no others.  Raises ServingError if the model
    failed."""
    reason = piece.finish_reason
    if reason == "error":
        raise ServingError(f"the model failed: {piece.stop_reason}")
    if reason == "abort":
        raise ServingError("the answer was ended by the server")
    return "tool_calls" if reason == "stop" and has_calls else reason
