"""What the engines are asked to do: tasks as runners.driving takes them, made of random tokens.

The lengths of mixed requests follow what is published of the alpaca set: prompts of 20 tokens on
average and 192 at most, answers of 65 on average, 46 in the median and 504 at most.  Both are drawn
from log-normal distributions with these averages.  A seed makes a task; another seed another, so
that no engine finds the prompts of an earlier round in its cache.
"""

import math
import random
from typing import Any

from benchmarks.llm_model import CONFIG, SPECIAL

Task = dict[str, Any]

PROMPT = 128  # tokens, where nothing else is said
STEPS = 24  # decoding steps that are measured at least
ALPACA_PROMPT = (19.95, 0.6, 4, 192)  # mean, sigma of the logarithm, least, most
ALPACA_ANSWER = (65.39, math.sqrt(2 * math.log(65.39 / 46)), 1, 504)
MESSAGE = (30.0, 0.6, 4, 128)


def decode(streams: int, seed: int) -> Task:
    """So many answers at once.  Who comes first waits for the last one's prompt."""
    random_ids = _Random(seed)
    tokens = STEPS + 3 + streams * PROMPT // 512
    return _together([(random_ids.prompt(PROMPT), tokens) for _ in range(streams)])


def prefill(length: int, seed: int, total: int = 2048) -> Task:
    """Prompts of `length` tokens, `total` together, with an answer of one token each."""
    random_ids = _Random(seed)
    return _together([(random_ids.prompt(length), 1) for _ in range(total // length)])


def mixed(requests: int, seed: int) -> Task:
    """Requests with alpaca's lengths, all at once."""
    random_ids = _Random(seed)
    return _together([random_ids.alpaca() for _ in range(requests)])


def poisson(rate: float, seconds: float, seed: int) -> Task:
    """Requests with alpaca's lengths, `rate` per second on average for so many seconds."""
    random_ids = _Random(seed)
    arrival, conversations = random_ids.random.expovariate(rate), []
    while arrival < seconds:
        conversations.append({"arrival": arrival, "turns": [random_ids.alpaca()]})
        arrival += random_ids.random.expovariate(rate)
    return {"conversations": conversations}


def chat(conversations: int, seed: int, turns: int = 3) -> Task:
    """Conversations that begin with one of two system prompts of 512 tokens, and go on with all
    that was said; each user answers as soon as the model has."""
    random_ids = _Random(seed)
    systems = [random_ids.prompt(512) for _ in range(2)]
    talks = []
    for number in range(conversations):
        said = [(random_ids.prompt(random_ids.length(*MESSAGE)), 48) for _ in range(turns)]
        first, wanted = said[0]
        said[0] = (systems[number % 2] + first, wanted)
        talks.append({"arrival": 0.0, "turns": said})
    return {"conversations": talks}


def warm_up(seed: int) -> Task:
    """Short, with several sizes of steps: what an engine makes ready at first use, it does now."""
    random_ids = _Random(seed)
    return _together([(random_ids.prompt(40), 3 + number) for number in range(8)])


def one(seed: int) -> Task:
    """The shortest question and answer."""
    return _together([(_Random(seed).prompt(16), 1)])


def _together(requests: list[tuple[list[int], int]]) -> Task:
    return {"conversations": [{"arrival": 0.0, "turns": [request]} for request in requests]}


class _Random:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def prompt(self, length: int) -> list[int]:
        vocabulary = range(len(SPECIAL), CONFIG["vocab_size"])
        return self.random.choices(vocabulary, k=length)

    def length(self, mean: float, sigma: float, least: int, most: int) -> int:
        """Log-normal around a median that gives this mean."""
        median = mean / math.exp(sigma * sigma / 2)
        drawn = round(self.random.lognormvariate(math.log(median), sigma))
        return max(least, min(most, drawn))

    def alpaca(self) -> tuple[list[int], int]:
        return self.prompt(self.length(*ALPACA_PROMPT)), self.length(*ALPACA_ANSWER)
