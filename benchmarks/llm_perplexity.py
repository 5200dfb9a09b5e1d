"""What fewer bits cost: the perplexity of a text, of weights and caches of several precisions.

    python -m benchmarks.llm_perplexity DIRECTORY ... --text FILE [--window 512] [--tokens 8192]
        [--option kv_cache_dtype=u8]

The text is cut into windows, each a prompt of its own; the first token of a window is not counted.
A window longer than `--step` tokens is computed in pieces, which read what is before them from the
cache.  Ratios are to the first directory.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindspore_serving.llm import LLM, SamplingParams


def cut(tokens: Sequence[int], window: int, count: int) -> list[list[int]]:
    """Whole windows of `tokens`, at most `count` tokens together."""
    ends = range(window, min(count, len(tokens)) + 1, window)
    found = [list(tokens[end - window : end]) for end in ends]
    if not found:
        raise SystemExit(f"the text has {len(tokens)} tokens, expected at least {window}")
    return found


def perplexity(directory: str, text: str, window: int, count: int, **options: Any) -> float:
    """Of all tokens but the first of each window."""
    with LLM(directory, enable_prefix_caching=False, **options) as llm:
        prompts = cut(llm.tokenizer.encode(text, add_special=False), window, count)
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        answers = llm.generate(prompts, params)
    scores = [own.logprob for one in answers for own, *_ in one.prompt_logprobs[1:]]
    return math.exp(-sum(scores) / len(scores))


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directories", nargs="+", metavar="DIRECTORY")
    parser.add_argument("--text", type=Path, required=True, help="a file of UTF-8")
    parser.add_argument("--window", type=int, default=512, help="tokens (512)")
    parser.add_argument("--tokens", type=int, default=8192, help="at most so many (8192)")
    parser.add_argument("--step", type=int, default=512, help="tokens of a step (512)")
    parser.add_argument("--option", type=_option, action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    text, first = given.text.read_text("utf-8"), 0.0
    options = {"max_num_seqs": 4, "max_num_batched_tokens": given.step, **dict(given.option)}
    for directory in given.directories:
        found = perplexity(directory, text, given.window, given.tokens, **options)
        first = first or found
        print(f"{directory}: {found:.3f} ({found / first:.4f})", flush=True)


if __name__ == "__main__":
    main()
