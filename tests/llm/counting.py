"""A toy that counts what it computes, and what an engine answers to prompts that come together."""

from collections import Counter

from mindspore_serving.core.sampling_params import SamplingParams
from tests.llm.toy import ToyRunner

BLOCK = 4
PROMPT = list(range(42))  # ten full blocks, and two tokens


class Counting(ToyRunner):
    """Counts how often each position of a prompt is computed."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks, BLOCK)
        self.computed = Counter()

    def run(self, step):
        for row in step.rows:
            self.computed.update(range(row.start, row.start + len(row.tokens)))
        return super().run(step)


def ask(engine, prompts, count=3, each=None, **options):
    """The answers, and how many tokens of each prompt were in the cache.  `each` has options that
    differ: a list of one for each prompt."""
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        own = {name: values[index] for name, values in (each or {}).items()}
        engine.add(f"{index}", prompt, params, **options, **own)
    said, cached = [[] for _ in prompts], [0] * len(prompts)
    while engine.has_work:
        for name, one in engine.step():
            said[int(name)] += one.token_ids
            if one.finish_reason is not None:
                cached[int(name)] = one.num_cached_tokens
    return said, cached
