"""A T5 of the size of T5-small beside transformers and CTranslate2: same weights, in turns.

    python -m benchmarks.translation [--requests 1 8 32] [--rounds 3]

The weights are random.  Each side answers prompts of 20 to 120 tokens with 64 tokens each, greedily
in float32, all requests of a round together; a side that needs one batch gets it padded.  It prints
tokens per second of time and per second of processor time, the median of the rounds.  CTranslate2
takes part where its package is installed.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.llm import LLM, SamplingParams

NUM_TOKENS = 64
VOCAB, PAD, END = 32128, 0, 1
LENGTHS = (20, 120)
Side = Callable[[list[list[int]]], list[list[int]]]


def build(directory: Path) -> None:
    """Write the checkpoint."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(decoder_start_token_id=PAD)
    T5ForConditionalGeneration(config).eval().save_pretrained(directory)


def ours(directory: Path) -> Side:
    llm = LLM(directory, dtype="f32", max_num_batched_tokens=4096)
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)

    def run(prompts: list[list[int]]) -> list[list[int]]:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run


def transformers(directory: Path) -> Side:
    import torch
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(directory).eval()

    def run(prompts: list[list[int]]) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([prompt + [PAD] * (longest - len(prompt)) for prompt in prompts])
        with torch.inference_mode():
            answers = model.generate(
                ids, attention_mask=(ids != PAD).long(), do_sample=False, num_beams=1,
                min_new_tokens=NUM_TOKENS, max_new_tokens=NUM_TOKENS,
            )  # fmt: skip
        rows: list[list[int]] = answers[:, 1:].tolist()
        return rows

    return run


def ctranslate2(directory: Path) -> Side:
    """Convert the weights by the package's specification of T5, without a tokenizer."""
    import ctranslate2
    from ctranslate2.converters.transformers import T5Loader
    from transformers import T5ForConditionalGeneration

    loader: Any = T5Loader()
    spec = loader.get_model_spec(T5ForConditionalGeneration.from_pretrained(directory))
    tokens = [f"t{number}" for number in range(VOCAB)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token, spec.config.eos_token = tokens[PAD], tokens[END]
    spec.config.unk_token, spec.config.decoder_start_token = tokens[2], tokens[PAD]
    spec.validate()
    target = directory / "ctranslate2"
    target.mkdir()
    spec.save(str(target))
    translator = ctranslate2.Translator(str(target), compute_type="float32", intra_threads=0)

    def run(prompts: list[list[int]]) -> list[list[int]]:
        results = translator.translate_batch(
            [[tokens[token] for token in prompt] for prompt in prompts],
            beam_size=1, max_decoding_length=NUM_TOKENS, min_decoding_length=NUM_TOKENS,
        )  # fmt: skip
        return [[int(token[1:]) for token in result.hypotheses[0]] for result in results]

    return run


def measure(sides: dict[str, Side], count: int, rounds: int) -> None:
    """Print a line for each side with `count` requests at once."""
    random = np.random.default_rng(count)
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        lengths = random.integers(*LENGTHS, count)
        prompts = [random.integers(3, VOCAB, length).tolist() + [END] for length in lengths]
        answers = {}
        for name, run in sides.items():
            begin, processor = time.perf_counter(), time.process_time()
            answers[name] = run(prompts)
            seconds, processor = time.perf_counter() - begin, time.process_time() - processor
            total = sum(map(len, answers[name]))
            if number:  # the first round is to warm up
                rates[name].append((total / seconds, total / processor))
        for name in sides:
            same = sum(a == b for a, b in zip(answers[name], answers["ours"], strict=True))
            if same < count:
                print(f"  {name}: {count - same} of {count} answers differ from ours")
    for name, pairs in rates.items():
        clock, processor = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{count:3} requests  {name:12} {clock:8.0f} tokens/s {processor:8.0f} /s of processor"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        directory = Path(path)
        build(directory)
        sides = {"ours": ours(directory), "transformers": transformers(directory)}
        if find_spec("ctranslate2") is not None:
            sides["ctranslate2"] = ctranslate2(directory)
        for count in arguments.requests:
            measure(sides, count, arguments.rounds)


if __name__ == "__main__":
    main()
