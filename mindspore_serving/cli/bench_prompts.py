"""Prompts of `bench`: from a file, or random words of a length in tokens.  Pure.

The number of tokens per word depends on the model, and is measured by two requests: `Lengths`.
"""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from mindspore_serving.errors import InvalidInputs

_WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work night point home
water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city name
team minute idea body back parent face others level office door health person art war history
party result change morning reason research girl guy moment air teacher force boy age policy
music market sense service plan college interest death experience effect use class control care
field development role effort rate heart drug show leader light voice wife police mind price
report decision son view relation town road arm difference value building action
"""
WORDS = _WORDS.split()


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """Text of a request, and the length of its answer in tokens."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Linear model of the length of a prompt: n words have `before` + n * `per_word` tokens."""

    before: float = 0.0
    per_word: float = 1.0

    def words(self, tokens: float) -> int:
        """Return the number of words of a prompt with `tokens`; at least one."""
        return max(1, round((tokens - self.before) / self.per_word))


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths of generated prompts and answers, in tokens.

    `spread` is the sigma of log-normal lengths with these means; all prompts begin with the same
    `shared` tokens.
    """

    input_tokens: int
    output_tokens: int
    spread: float = 0.0
    shared: int = 0


def to_lengths(short: tuple[int, int], long: tuple[int, int]) -> Lengths:
    """Compute `Lengths` from two prompts, each (words, tokens)."""
    per_word = max((long[1] - short[1]) / (long[0] - short[0]), 0.1)
    return Lengths(short[1] - per_word * short[0], per_word)


def generate(mix: Mix, lengths: Lengths, seed: int) -> Iterator[BenchPrompt]:
    """Iterate over endless random prompts; the same `seed` gives the same prompts."""
    draw = random.Random(seed)
    num_shared = round(mix.shared / lengths.per_word)
    shared = phrase(random.Random(f"shared {seed}"), num_shared)
    while True:
        tokens = _length(draw, mix.input_tokens, mix.spread)
        text = phrase(draw, max(1, lengths.words(tokens) - num_shared))
        max_tokens = round(_length(draw, mix.output_tokens, mix.spread))
        yield BenchPrompt(f"{shared} {text}".strip(), max(1, max_tokens))


def phrase(draw: random.Random, count: int) -> str:
    """Return `count` random words."""
    return " ".join(draw.choices(WORDS, k=count))


def from_lines(text: str, output_tokens: int) -> list[BenchPrompt]:
    """Read a prompt from each line {"prompt": ..., "max_tokens": ...}.

    `output_tokens` is the default of max_tokens. Raises InvalidInputs naming the line that is
    wrong.
    """
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidInputs(f"line {number} is not JSON: {error}") from error
        prompt = row.get("prompt") if isinstance(row, dict) else None
        max_tokens = row.get("max_tokens", output_tokens) if isinstance(row, dict) else None
        if not isinstance(prompt, str) or type(max_tokens) is not int or max_tokens < 1:
            raise InvalidInputs(
                f'line {number}: expected {{"prompt": TEXT}}, and "max_tokens" 1 or more if given'
            )
        prompts.append(BenchPrompt(prompt, max_tokens))
    if not prompts:
        raise InvalidInputs("the file has no prompt")
    return prompts


def _length(draw: random.Random, mean: int, spread: float) -> float:
    """Draw a log-normal length with this mean, at most eight times the mean."""
    if not spread:
        return mean
    return min(draw.lognormvariate(math.log(mean) - spread**2 / 2, spread), 8.0 * mean)
