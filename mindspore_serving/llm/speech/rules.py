"""Rules for the tokens that may follow a text, and the choice among them.  Knows no model.

The rules of times are those of Whisper's reference: times come in pairs around a segment, never go
back, and a time is written if all of them together are likelier than any other token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.speech.models import SpeechTokens

Floats = npt.NDArray[np.float32]

PRECISION = 0.02  # seconds between two tokens of time
_LATEST_START = 50  # tokens of time from 0.00 on that may begin a text: 1 s


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A token, and the logarithm of its probability among those that were possible."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Rules for the token after those that are `written`."""

    tokens: SpeechTokens
    written: Sequence[int]
    has_times: bool

    def has_edits(self) -> bool:
        return True

    def edit(self, logits: Floats) -> None:
        """Forbid tokens that may not follow, in place."""
        _forbid(logits, self.written, self.tokens, has_times=self.has_times)
        first = self.tokens.first_time
        if self.has_times:
            scores = np.exp(logits - logits.max())
            if scores[first:].sum() > scores[:first].max():
                logits[:first] = -np.inf


def choose(
    logits: Floats, rules: TokenRules, temperature: float, random: np.random.Generator
) -> TokenChoice:
    """Choose the token by `rules`.  Changes `logits`."""
    rules.edit(logits)
    scores = np.exp(logits - logits.max())
    if temperature > 0:
        noise = random.gumbel(size=len(logits)).astype(np.float32)
        token = int(np.argmax(logits / np.float32(temperature) + noise))
    else:
        token = int(np.argmax(logits))
    return TokenChoice(token, float(np.log(scores[token] / scores.sum() + 1e-30)))


def probability_of(logits: Floats, token: int | None) -> float:
    """Return the probability of a token among all; 0.0 for None."""
    if token is None:
        return 0.0
    scores = np.exp(logits - logits.max())
    return float(scores[token] / scores.sum())


def likeliest_language(logits: Floats, tokens: SpeechTokens) -> str:
    """Return the code of the language whose token is likeliest."""
    return max(tokens.languages, key=lambda code: float(logits[tokens.languages[code]]))


def _forbid(
    logits: Floats, written: Sequence[int], tokens: SpeechTokens, *, has_times: bool
) -> None:
    logits[list(tokens.never)] = -np.inf
    if tokens.no_times >= 0:
        logits[tokens.no_times] = -np.inf
    if not written:
        logits[list(tokens.not_first)] = -np.inf
    first = tokens.first_time
    if not has_times:
        logits[first:] = -np.inf
        return
    ends = bool(written) and written[-1] >= first
    is_pair = len(written) < 2 or written[-2] >= first
    if ends and is_pair:
        logits[first:] = -np.inf  # text follows the time of its start
    elif ends:
        logits[: tokens.end] = -np.inf  # the time of an end precedes a time, or the end
    times = [token for token in written if token >= first]
    if times:  # a segment is not empty, and its end may be the start of the next
        logits[first : times[-1] + (0 if ends and not is_pair else 1)] = -np.inf
    if not written:
        logits[:first] = -np.inf
        logits[first + _LATEST_START + 1 :] = -np.inf
