"""Engine of llama.cpp for GGUF files: it computes the steps of our engine.

Scheduling, sampling, grammars and texts are ours, so every sampling parameter is supported.  A
cache block is a whole sequence of llama.cpp's, so prompts share no cache.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from typing import Any

import llama_cpp
import numpy as np

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engines import check_options
from mindspore_serving.llm.engines.base import EngineModel
from mindspore_serving.llm.runtimes.layout import LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.step import Logits, Step

_MAX_SEQUENCES = 256  # of a context of llama.cpp
_DEFAULT_LENGTH = 4096  # tokens of a sequence, if the model was trained for more
_DEFAULT_MEMORY = 1 << 30  # bytes for keys and values
_HALF = 2  # bytes of a number there
_WARNING, _ERROR = 3, 4  # levels of ggml's log
_PLAIN = (ctypes.c_bool, ctypes.c_int32, ctypes.c_uint32, ctypes.c_float)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _print(level: int, text: bytes, _: object) -> None:
    """Print warnings and errors of llama.cpp, which logs thousands of other lines."""
    if _WARNING <= level <= _ERROR:
        sys.stderr.write(text.decode(errors="replace"))


class LlamaRunner(LimitedRunner):
    """A `Runner` over one context of llama.cpp."""

    def __init__(self, model: Any, context: Any, limits: RunnerLimits, max_tokens: int) -> None:
        super().__init__(limits)
        self._model = model
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._batch = llama_cpp.llama_batch_init(max_tokens, 0, 1)

    def run(self, step: Step) -> Logits:
        """Compute `step`, see `Runner.run`."""
        lay_out(step, self._limits)  # refuses rows that cannot be computed
        for source, target in step.copies:
            llama_cpp.llama_memory_seq_rm(self._memory, target, -1, -1)
            llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        count = num_logits = 0
        for row in step.rows:
            sequence = row.blocks[0]
            # Remove tokens of another sequence, and rejected draft tokens.
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, row.start, -1)
            first_logits = len(row.tokens) - row.num_logits
            num_logits += row.num_logits
            for index, token in enumerate(row.tokens):
                position = row.start + index
                self._put(count, token, position, sequence, has_logits=index >= first_logits)
                count += 1
        self._batch.n_tokens = count
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status:
            raise ServingError(f"llama.cpp computed no step: llama_decode returned {status}")
        if not num_logits:
            return np.empty((0, self.vocab_size), np.float32)
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (num_logits, self.vocab_size))

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def _put(
        self, index: int, token: int, position: int, sequence: int, *, has_logits: bool
    ) -> None:
        batch = self._batch
        batch.token[index] = token
        batch.pos[index] = position
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = sequence
        batch.logits[index] = has_logits


def open_engine(model: EngineModel, config: EngineConfig, options: Mapping[str, Any]) -> Engine:
    """Open the GGUF file.  Raises StartError if llama.cpp cannot read it, or has no such option."""
    kinds = (llama_cpp.llama_model_params, llama_cpp.llama_context_params)
    known = frozenset(name for kind in kinds for name, *_ in _plain_fields(kind))
    check_options("llama.cpp", options, known)
    llama_cpp.llama_log_set(_print, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    _set(params, options)
    loaded = llama_cpp.llama_model_load_from_file(os.fsencode(model.directory), params)
    if not loaded:
        raise StartError(f"llama.cpp cannot read {str(model.directory)!r}; see the worker's log")
    runner = _open_context(loaded, config, options)
    return Engine(runner, model.tokenizer, config, model.eos_ids)


def _open_context(loaded: Any, config: EngineConfig, options: Mapping[str, Any]) -> LlamaRunner:
    trained = llama_cpp.llama_model_n_ctx_train(loaded)
    length = min(trained, config.max_model_len or _DEFAULT_LENGTH)
    memory = config.kv_cache_memory or _DEFAULT_MEMORY
    count = min(config.max_num_seqs, _MAX_SEQUENCES, memory // (length * _token_bytes(loaded)))
    if not count:
        raise StartError(
            f"kv_cache_memory is {memory} bytes, but a sequence of {length} tokens needs "
            f"{length * _token_bytes(loaded)} bytes: raise it, or lower max_model_len"
        )
    threads = config.num_threads or len(os.sched_getaffinity(0))
    params = llama_cpp.llama_context_default_params()
    _set(params, {"n_threads": threads, "n_threads_batch": threads, "n_seq_max": count, **options})
    max_tokens = config.max_num_batched_tokens
    sizes = dict.fromkeys(("n_batch", "n_outputs_max", "n_outputs_max_per_seq"), max_tokens)
    _set(params, {"n_ctx": count * length, **sizes})
    context = llama_cpp.llama_init_from_model(loaded, params)
    if not context:
        raise StartError("llama.cpp has no memory for the context; see the worker's log")
    vocabulary = llama_cpp.llama_model_get_vocab(loaded)
    size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    length = min(length, llama_cpp.llama_n_ctx_seq(context))
    limits = RunnerLimits(length, count, size, length)
    return LlamaRunner(loaded, context, limits, max_tokens)


def _token_bytes(loaded: Any) -> int:
    """Return the maximum number of bytes that a token takes of the cache."""
    heads = llama_cpp.llama_model_n_head(loaded)
    size = llama_cpp.llama_model_n_embd(loaded) // heads
    kept = llama_cpp.llama_model_n_head_kv(loaded) * size
    return int(2 * _HALF * kept * llama_cpp.llama_model_n_layer(loaded))


def _plain_fields(kind: Any) -> list[tuple[str, Any]]:
    """Return the names and types of the fields that are numbers or truth values."""
    return [(name, type_) for name, type_, *_ in kind._fields_ if type_ in _PLAIN]


def _set(params: Any, options: Mapping[str, Any]) -> None:
    for name, _ in _plain_fields(type(params)):
        if name in options:
            setattr(params, name, options[name])
