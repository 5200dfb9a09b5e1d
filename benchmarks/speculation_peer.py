"""OpenVINO GenAI with prompt lookup, for `speculation`: it guesses from the text of a request.

It runs in its own environment and process, as in the other benchmarks of language models, and reads
the same file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.llm_contenders import Contender
from benchmarks.llm_process import Process, Reply
from benchmarks.processes import end_on_sigterm

FORM = "gguf"
GUESSES, NGRAM = 5, 3  # what its documentation shows


@contextmanager
def running(model: Path, num_guesses: int) -> Iterator[Process]:
    """GenAI with `model`, a GGUF file or a directory of its own, at rest until it is asked."""
    lookup = {"num_assistant_tokens": num_guesses, "max_ngram_size": NGRAM}
    options = {"KV_CACHE_PRECISION": "f16", "lookup": lookup, "cache_size": 1}
    module, place = "benchmarks.runners.genai", "llm_genai"
    contender = Contender("genai lookup", "genai", FORM, module, place, 0.0, options)
    end_on_sigterm()
    process = Process(contender, None, model)
    try:
        yield process
    finally:
        process.close()


def ask(
    process: Process, prompts: list[list[int]], tokens: int
) -> tuple[float, float, list[list[int]]]:
    """Greedy answers of so many tokens: as `speculation.answer`."""
    talks = [{"arrival": 0.0, "turns": [[prompt, tokens]]} for prompt in prompts]
    return figures(process.ask({"conversations": talks}), len(prompts), tokens)


def figures(reply: Reply, streams: int, tokens: int) -> tuple[float, float, list[list[int]]]:
    """Tokens per second and per step and stream while all go on; and the answers."""
    began = max(first for ((_, _, first, _),) in reply["turns"])
    ended = min(last for ((_, _, _, last),) in reply["turns"])
    after = [(end, count) for end, count in reply["steps"] if began < end <= ended]
    count = sum(count for _, count in after)
    texts = zip(reply["turns"], reply["said"], strict=True)
    answers = [said[begin:][:tokens] for ((begin, *_),), said in texts]
    return count / (after[-1][0] - began), count / len(after) / streams, answers
