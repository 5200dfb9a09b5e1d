"""What a whole answer looks like to who waits for all of it.  Plain data, and its collecting."""

from dataclasses import dataclass, field

from mindspore_serving.core.generation import FinishReason, Generated, TokenLogprob
from mindspore_serving.llm.engine.readout import PROMPT

Logprobs = tuple[tuple[TokenLogprob, ...], ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """One of the answers to a prompt.

    `logprobs` has, for each token, its own first and then the alternatives, best first; None if
    not asked for.  If `finish_reason` is ERROR, `stop_reason` says what went wrong.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: Logprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and the `n` answers to it.  `prompt` is None if token ids were given.

    `prompt_logprobs` has an entry for each token of the prompt, empty for the first; None if not
    asked for.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: Logprobs | None
    outputs: tuple[Completion, ...]


@dataclass(slots=True)
class Collected:
    """An answer in the making."""

    prompt: str | None
    prompt_ids: list[int]
    num_open: int
    _parts: dict[int, list[Generated]] = field(default_factory=dict)

    def take(self, generated: Generated) -> bool:
        """Add a piece; whether it was the last."""
        self._parts.setdefault(generated.index, []).append(generated)
        self.num_open -= generated.finish_reason is not None
        return self.num_open == 0

    def answer(self) -> Answer:
        """All of it, once the last piece is there."""
        scored = self._parts.pop(PROMPT, None)
        return Answer(
            prompt=self.prompt,
            prompt_token_ids=tuple(self.prompt_ids),
            prompt_logprobs=_logprobs(scored) if scored else None,
            outputs=tuple(_completion(index, self._parts[index]) for index in sorted(self._parts)),
        )


def _completion(index: int, parts: list[Generated]) -> Completion:
    last = parts[-1]
    assert last.finish_reason is not None, "This is a bug: an answer without an end"
    return Completion(
        index=index,
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        logprobs=_logprobs(parts),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


def _logprobs(parts: list[Generated]) -> Logprobs | None:
    if all(part.logprobs is None for part in parts):
        return None
    return tuple(entry for part in parts for entry in part.logprobs or ())
