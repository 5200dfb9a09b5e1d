"""Complete answers, as the offline interface returns them."""

from dataclasses import dataclass, field

from mindspore_serving.core.sampling_params import FinishReason, Generated, TokenLogprob, join
from mindspore_serving.llm.engine.completion import PROMPT

Logprobs = tuple[tuple[TokenLogprob, ...], ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion, one of the `n` answers to a prompt.

    `logprobs` has, for each token, its own first and then the alternatives, best first; None if not
    requested.  If `finish_reason` is ERROR, `stop_reason` says what went wrong.
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

    `prompt_logprobs` has an entry for each token of the prompt, empty for the first; or None.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: Logprobs | None
    outputs: tuple[Completion, ...]


@dataclass(slots=True)
class PendingAnswer:
    """An answer that is being generated."""

    prompt: str | None
    prompt_ids: list[int]
    num_open: int
    _parts: dict[int, list[Generated]] = field(default_factory=dict)

    def take(self, generated: Generated) -> bool:
        """Add a part, and return whether it was the last."""
        self._parts.setdefault(generated.index, []).append(generated)
        self.num_open -= generated.finish_reason is not None
        return self.num_open == 0

    def answer(self) -> Answer:
        """Return the answer, after the last part."""
        scored = self._parts.pop(PROMPT, None)
        return Answer(
            prompt=self.prompt,
            prompt_token_ids=tuple(self.prompt_ids),
            prompt_logprobs=join(scored).logprobs if scored else None,
            outputs=tuple(_completion(join(self._parts[index])) for index in sorted(self._parts)),
        )


def _completion(generated: Generated) -> Completion:
    assert generated.finish_reason is not None, "This is a bug: an answer without a finish reason"
    return Completion(
        index=generated.index,
        text=generated.text,
        token_ids=generated.token_ids,
        logprobs=generated.logprobs,
        finish_reason=generated.finish_reason,
        stop_reason=generated.stop_reason,
    )
