"""The choices of a completion: text, perhaps behind the prompt, and log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, Started, Token
from mindspore_serving.frontends.openai.envelope import finish_reason
from mindspore_serving.frontends.openai.logprobs import CompletionLogprobs, joined


@dataclass(frozen=True, slots=True)
class Showing:
    """What is shown to a client.

    `n` choices for each prompt; the prompt before the answer if `echo`, and only it if not
    `has_answer`; special tokens in the text if `shows_special`.
    """

    n: int
    echo: bool
    has_logprobs: bool
    shows_special: bool
    has_answer: bool


@dataclass(slots=True)
class Echo:
    """What stands before the answers to a prompt.  `tokens` are those of the prompt with their
    log-probabilities, as they come."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)


def to_echo(prompt: str | list[int], started: Started, showing: Showing) -> Echo:
    """`started` has the tokens of the prompt if it cannot be shown as it was given."""
    if not showing.echo:
        return Echo()
    if isinstance(prompt, str) and started.prompt is None:
        return Echo(prompt)
    shown = [
        token.data
        for token in started.prompt or ()
        if showing.shows_special or not token.is_special
    ]
    return Echo(b"".join(shown).decode("utf-8", "replace"))


def to_choice(index: int, chunk: Chunk, echo: Echo, showing: Showing) -> dict[str, Any]:
    """The choice of an answer that is there.  Raises ServingError if the model failed."""
    logprobs = None
    if showing.has_logprobs:
        before = prompt_logprobs(echo, showing)
        answer = (chunk.tokens or ()) if showing.has_answer else ()
        logprobs = joined([before, answer_logprobs(echo, showing).take(answer)])
    return {
        "index": index,
        "text": echo.text + (chunk.text if showing.has_answer else ""),
        "logprobs": logprobs,
        "finish_reason": reason_of(chunk, showing),
    }


def reason_of(chunk: Chunk, showing: Showing) -> str | None:
    reason = finish_reason(chunk)
    return reason if showing.has_answer or reason is None else "length"


def prompt_logprobs(echo: Echo, showing: Showing) -> dict[str, Any]:
    return CompletionLogprobs(shows_special=showing.shows_special).take(echo.tokens)


def answer_logprobs(echo: Echo, showing: Showing) -> CompletionLogprobs:
    """Those of the tokens behind the prompt, to be taken as they come."""
    return CompletionLogprobs(shows_special=showing.shows_special, start=len(echo.text))


def best(chunks: Sequence[Chunk], n: int) -> list[Chunk]:
    """The `n` likeliest, best first, by the mean log-probability of a token; or all, in order of
    their index, if there are no more."""
    if len(chunks) <= n:
        return sorted(chunks, key=lambda chunk: chunk.index)
    return sorted(chunks, key=_mean_logprob, reverse=True)[:n]


def _mean_logprob(chunk: Chunk) -> float:
    tokens = chunk.tokens or ()
    return fsum(token.logprob or 0.0 for token in tokens) / max(1, len(tokens))
