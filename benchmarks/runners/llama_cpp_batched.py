"""llama.cpp by its C interface, in llm_llama_cpp: llama_cpp_batched FILE [OPTIONS as JSON].

llama-cpp-python decodes one text at a time; llama.cpp's own server, which the package has not,
batches as this does: a step has a token of every text that decodes and pieces of prompts up to
`n_batch` tokens.  As there, a new prompt takes the free slot whose text begins most alike.
"""

import ctypes
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import llama_cpp as lib
import numpy as np

from benchmarks.runners.driving import Engine, serve

NUM_SLOTS = 64
N_CTX = 64 * 1024
N_BATCH = 512


@dataclass(slots=True)
class Slot:
    sequence: int
    tokens: list[int] = field(default_factory=list)  # what its cache holds, or will
    num_computed: int = 0
    number: int = -1  # of the request, -1 while it is free
    wanted: int = 0


class LlamaCpp:
    def __init__(self, path: str, options: dict[str, Any]) -> None:
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            path.encode(), lib.llama_model_default_params()
        )
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = N_CTX, NUM_SLOTS
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_threads = params.n_threads_batch = os.cpu_count()
        for name, value in options.items():
            setattr(params, name, value)
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit("llama.cpp made no context")
        self._memory = lib.llama_get_memory(self._context)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self._vocab_size = lib.llama_vocab_n_tokens(self._vocab)
        self._batch = lib.llama_batch_init(N_BATCH, 0, 1)
        self._slots = [Slot(sequence) for sequence in range(NUM_SLOTS)]
        self._waiting: list[tuple[int, list[int], int]] = []
        self._piece = ctypes.create_string_buffer(256)

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        self._waiting.append((number, prompt, max_tokens))

    def step(self) -> Iterable[tuple[int, list[int]]]:
        self._admit()
        busy = [slot for slot in self._slots if slot.number >= 0]
        busy.sort(key=lambda slot: len(slot.tokens) - slot.num_computed)  # who decodes goes first
        self._batch.n_tokens = 0
        sampled = [slot for slot in busy if self._fill(slot)]
        if lib.llama_decode(self._context, self._batch):
            raise RuntimeError("llama_decode failed")
        for slot, token in zip(sampled, self._best(len(sampled)), strict=True):
            self._write(token)
            number = slot.number
            slot.tokens.append(token)
            slot.wanted -= 1
            if slot.wanted == 0:
                slot.number = -1
            yield number, [token]

    def _admit(self) -> None:
        while self._waiting and any(slot.number < 0 for slot in self._slots):
            number, prompt, wanted = self._waiting.pop(0)
            free = [slot for slot in self._slots if slot.number < 0]
            slot = max(free, key=lambda slot: (_shared(slot, prompt), -len(slot.tokens)))
            slot.num_computed = min(_shared(slot, prompt), len(prompt) - 1)
            lib.llama_memory_seq_rm(self._memory, slot.sequence, slot.num_computed, -1)
            slot.tokens, slot.number, slot.wanted = prompt[:], number, wanted

    def _fill(self, slot: Slot) -> bool:
        """Put what fits of the slot's tokens into the batch; whether they are all its tokens."""
        batch = self._batch
        first = batch.n_tokens
        end = min(len(slot.tokens), slot.num_computed + N_BATCH - first)
        for position in range(slot.num_computed, end):
            place = batch.n_tokens
            batch.token[place] = slot.tokens[position]
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = slot.sequence
            batch.logits[place] = position == len(slot.tokens) - 1
            batch.n_tokens = place + 1
        slot.num_computed = end
        return end == len(slot.tokens) and batch.n_tokens > first

    def _best(self, count: int) -> list[int]:
        if not count:
            return []
        logits = np.ctypeslib.as_array(
            lib.llama_get_logits(self._context), (count, self._vocab_size)
        )
        best: list[int] = logits.argmax(1).tolist()
        return best

    def _write(self, token: int) -> bytes:
        length = lib.llama_token_to_piece(self._vocab, token, self._piece, 256, 0, True)
        return self._piece.raw[:length]


def _shared(slot: Slot, prompt: list[int]) -> int:
    known = slot.tokens[: slot.num_computed]
    for place, (ours, theirs) in enumerate(zip(known, prompt, strict=False)):
        if ours != theirs:
            return place
    return min(len(known), len(prompt))


def load(arguments: list[str]) -> tuple[Engine, dict[str, Any]]:
    options = json.loads(arguments[1]) if len(arguments) > 1 else {}
    began = time.perf_counter()
    engine = LlamaCpp(arguments[0], options)
    return engine, {"loaded": time.perf_counter() - began}


if __name__ == "__main__":
    serve(load)
