"""transformers' generate, in llm_genai: transformers_generate DIRECTORY OPTIONS as JSON.

It computes a batch of prompts of one length from its first token to its last, so it takes part
only where all requests arrive together and are alike.
"""

import json
import queue
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria

from benchmarks.runners.driving import Engine, serve


class Transformers:
    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._waiting: list[tuple[int, list[int], int]] = []
        self._came: queue.Queue[list[tuple[int, list[int]]]] = queue.Queue()
        self._running = 0

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        self._waiting.append((number, prompt, max_tokens))

    def step(self) -> Iterable[tuple[int, list[int]]]:
        if self._waiting:
            batch, self._waiting = self._waiting, []
            threading.Thread(target=self._generate, args=(batch,), daemon=True).start()
        return self._came.get()

    def _generate(self, batch: list[tuple[int, list[int], int]]) -> None:
        numbers, prompts, wanted = zip(*batch, strict=True)
        ids = torch.tensor(prompts)
        tell = _Tell(numbers, self._came)
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=wanted[0],
                min_new_tokens=wanted[0],
                do_sample=False,
                pad_token_id=1,
                stopping_criteria=[tell],
            )
        self._tokenizer.batch_decode(output[:, ids.shape[1] :])


class _Tell(StoppingCriteria):  # type: ignore[misc]
    """Never stops; is called after each token."""

    def __init__(self, numbers: tuple[int, ...], came: Any) -> None:
        self._numbers = numbers
        self._came = came

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        last = input_ids[:, -1].tolist()
        self._came.put([(n, [token]) for n, token in zip(self._numbers, last, strict=True)])
        return torch.zeros(len(input_ids), dtype=torch.bool)


def load(arguments: list[str]) -> tuple[Engine, dict[str, Any]]:
    dtype = getattr(torch, json.loads(arguments[1])["dtype"])
    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(arguments[0])
    model = AutoModelForCausalLM.from_pretrained(arguments[0], dtype=dtype)
    print(f"loaded in {dtype}", file=sys.stderr)
    return Transformers(model.eval(), tokenizer), {"loaded": time.perf_counter() - began}


if __name__ == "__main__":
    serve(load)
