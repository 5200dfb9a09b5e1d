"""openvino-genai's continuous batching, in llm_genai: genai MODEL [PROPERTIES as JSON].

MODEL is a directory with IR, or a GGUF file.  `lookup` of the properties are settings of requests,
num_assistant_tokens and max_ngram_size, with which tokens are guessed from the request's own text.
"""

import json
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.runners.driving import Engine, serve


class GenAI:
    def __init__(self, pipe: Any, lookup: dict[str, int]) -> None:
        self._pipe, self._lookup = pipe, lookup
        self._tokenizer = pipe.get_tokenizer()
        self._handles: dict[int, Any] = {}
        self._tokens: dict[int, list[int]] = {}
        self._wanted: dict[int, int] = {}
        self._serial = 0

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        for name, value in self._lookup.items():
            setattr(config, name, value)
        self._serial += 1
        ids = ov.Tensor(np.array([prompt], np.int64))
        self._handles[number] = self._pipe.add_request(self._serial, ids, config)
        self._tokens[number], self._wanted[number] = [], max_tokens

    def step(self) -> Iterable[tuple[int, list[int]]]:
        self._pipe.step()
        for number, handle in list(self._handles.items()):
            new: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    new += output.generated_ids
            if not new:
                continue
            tokens = self._tokens[number]
            tokens += new
            if len(tokens) >= self._wanted[number]:
                # Text as a whole, once: cheaper than piece by piece as its streamer makes it.
                self._tokenizer.decode(tokens)
                del self._handles[number]
            yield number, new


def load(arguments: list[str]) -> tuple[Engine, dict[str, Any]]:
    given = json.loads(arguments[1]) if len(arguments) > 1 else {}
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = given.pop("max_num_batched_tokens", 512)
    scheduler.cache_size = given.pop("cache_size", 2)  # GB
    lookup = given.pop("lookup", {})
    if lookup:
        given["prompt_lookup"] = True
    began = time.perf_counter()
    pipe = genai.ContinuousBatchingPipeline(arguments[0], scheduler, "CPU", given)
    return GenAI(pipe, lookup), {"loaded": time.perf_counter() - began}


if __name__ == "__main__":
    serve(load)
