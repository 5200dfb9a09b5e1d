"""Engine of OpenVINO GenAI, by its continuous batching: token ids in, token ids out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import openvino
import openvino_genai

from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.core.sampling_params import (
    SAMPLING,
    FinishReason,
    Generated,
    SamplingParams,
    TokenLogprob,
    join,
)
from mindspore_serving.errors import InvalidField, InvalidInputs, StartError
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.request import GenerationRequest, ModelLimits
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.engines import check_options
from mindspore_serving.llm.engines.base import EngineModel, ForeignEngine, Outputs
from mindspore_serving.llm.tokenization.stopping import StopChecker

_BLOCK = 32  # tokens, on CPUs
_HALF = 2  # bytes of a number in the cache, at most
_DEFAULT_MEMORY = 1 << 30
_SAME = ("repetition_penalty", "frequency_penalty", "presence_penalty", "min_p", "top_p")
_ABSENT = (
    "typical_p", "top_n_sigma", "xtc_probability", "dry_multiplier", "mirostat",
    "logit_bias", "bad_words",
    "allowed_token_ids", "prompt_logprobs", "thinking_token_budget", "num_beams",
    "no_repeat_ngram_size",
)  # fmt: skip
_MAX_SEED = 2**63 - 1
_STATUS = openvino_genai.GenerationStatus
_ENDS = (_STATUS.IGNORED, _STATUS.FINISHED, _STATUS.CANCEL, _STATUS.STOP)


@dataclass(slots=True, eq=False)
class _Running:
    """A completion that the pipeline computes."""

    request: GenerationRequest
    answer: StopChecker
    handle: Any
    has_begun: bool = False


class GenaiEngine(ForeignEngine):
    """Engine of OpenVINO GenAI, stepped like our own; see `base.LanguageEngine`."""

    is_stepped: Literal[True] = True
    block_size = _BLOCK

    def __init__(
        self, pipeline: Any, model: EngineModel, config: EngineConfig, num_blocks: int, length: int
    ) -> None:
        vocab_size = int(find_config(model.directory)["vocab_size"])
        super().__init__(
            config, ModelLimits(vocab_size, length, (), model.eos_ids, model.tokenizer)
        )
        self.num_blocks = num_blocks
        self.started: list[str] = []
        self.on_compute: Callable[[list[str], int], None] | None = None
        self._pipeline = pipeline
        self._running: dict[int, _Running] = {}  # by the pipeline's id
        self._num_added = self._num_steps = self._num_prompt_tokens = self._num_generated = 0

    def describe(self, stored: str = "as stored") -> str:
        capacity = self.num_blocks * _BLOCK
        return (
            f"weights {stored}; cache of {capacity:,} tokens ({self.num_blocks:,} blocks of "
            f"{_BLOCK}); at most {self.config.max_num_seqs} sequences and "
            f"{self.config.max_num_batched_tokens} tokens in a step"
        )

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def _check(self, request: GenerationRequest) -> None:
        _check(request.params)
        if request.priority not in (0, BACKGROUND) or request.cache_salt:
            raise InvalidInputs("engine genai supports neither priority nor cache_salt")

    def _accepted(self) -> list[GenerationRequest]:
        return [running.request for running in self._running.values()]

    def _start(self, request: GenerationRequest) -> None:
        configs = [_to_genai(request, index) for index in range(request.params.n)]
        prompt = openvino.Tensor(np.array([request.prompt_ids], np.int64))
        self._num_prompt_tokens += len(request.prompt_ids)
        for index, config in enumerate(configs):
            self._num_added += 1
            handle = self._pipeline.add_request(self._num_added, prompt, config)
            self._running[self._num_added] = _Running(request, request.begin_text(index), handle)

    def abort(self, request_id: str) -> bool:
        keys = [
            key
            for key, running in self._running.items()
            if running.request.request_id == request_id
        ]
        for key in keys:
            self._running.pop(key).handle.cancel()
        return bool(keys)

    def step(self) -> Outputs:
        """Compute one step and return what it added to each completion."""
        ids = list(dict.fromkeys(request.request_id for request in self._accepted()))
        if self.on_compute is not None:
            ids = ids[: self.config.max_num_seqs]
            self.on_compute(ids, len(ids))
        self._num_steps += 1
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        self.started = []
        outputs = []
        for key, running in list(self._running.items()):
            written = self._read(running)
            if written is None:
                continue
            request_id = running.request.request_id
            if not running.has_begun and request_id not in self.started:
                self.started += [request_id] if running.answer.index == 0 else []
            running.has_begun = True
            self._num_generated += len(written.token_ids)
            if running.answer.is_finished:
                del self._running[key]
                running.handle.cancel()
            outputs.append((request_id, written))
        return outputs

    def stats(self) -> EngineStats:
        metrics = self._pipeline.get_metrics()
        used = metrics.cache_usage / 100  # percent
        return EngineStats(
            num_running=metrics.scheduled_requests if self._running else 0,
            num_waiting=max(0, len(self._running) - metrics.scheduled_requests),
            num_blocks=self.num_blocks,
            num_free_blocks=round(self.num_blocks * (1 - used)),
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated,
        )

    def do_idle_work(self) -> None:
        """Do nothing: there is nothing that can wait."""

    def close(self) -> None:
        self._pipeline = None

    def _read(self, running: _Running) -> Generated | None:
        """Return what the pipeline has added to a completion since the last call, or None."""
        parts = []
        answer, has_logprobs = running.answer, running.request.params.logprobs is not None
        while running.handle.can_read() and not answer.is_finished:
            for output in running.handle.read().values():
                ids = output.generated_ids
                scores = output.generated_log_probs if has_logprobs else None
                # The rank is not known; of greedy answers it is 0.
                rows = None
                if scores is not None:
                    pairs = zip(ids, scores, strict=True)
                    rows = [(TokenLogprob(*pair, 0),) for pair in pairs]
                written = answer.check_all(ids, rows)
                parts += [written] if written is not None else []
        has_more = answer.is_finished or running.handle.can_read()
        if not has_more and running.handle.get_status() in _ENDS:
            parts.append(answer.end(FinishReason.ERROR, "the cache has no room for the answer"))
        return join(parts) if parts else None


def _check(params: SamplingParams) -> None:
    """Raise InvalidField for a parameter that GenAI does not have."""
    for name in _ABSENT:
        default, value = SAMPLING[name].default, getattr(params, name)
        if value != default and (value or default):  # an empty list is an empty tuple
            raise InvalidField(name, f"is {value!r}, but engine genai supports only {default!r}")
    if params.logprobs:
        accepted = "expected 0 for engine genai: it returns the chosen token's only"
        raise InvalidField("logprobs", f"is {params.logprobs}, {accepted}")


def _to_genai(request: GenerationRequest, index: int) -> Any:
    """Return the configuration of a completion; stops and end tokens are checked by us as well."""
    params = request.params
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request.max_tokens
    config.min_new_tokens = params.min_tokens
    config.ignore_eos = True  # all end tokens are in stop_token_ids
    config.stop_token_ids = set(request.end_ids)
    config.do_sample = params.temperature > 0
    if config.do_sample:
        config.temperature = params.temperature
        config.rng_seed = request.seed_of(index) & _MAX_SEED
        if params.top_k:
            config.top_k = params.top_k
        config.min_p, config.top_p = params.min_p, params.top_p
    for name in _SAME[:3]:
        setattr(config, name, getattr(params, name))
    config.logprobs = 0 if params.logprobs is None else 1
    form = _form(request)
    if form is not None:
        config.structured_output_config = openvino_genai.StructuredOutputConfig(**form)
    return config


def _form(request: GenerationRequest) -> dict[str, str] | None:
    if request.grammar is None:
        return None
    grammar = request.grammar.grammar
    if grammar.kind == "lark":
        raise InvalidInputs("engine genai supports no Lark grammars, and so no forced tool calls")
    if grammar.kind == "regex":
        return {"regex": grammar.source}
    return {"json_schema": grammar.source or '{"type": "object"}'}


def open_engine(
    model: EngineModel, config: EngineConfig, options: Mapping[str, Any]
) -> GenaiEngine:
    """Open the model.  `options` are properties of OpenVINO's device.

    Raises StartError if the model cannot be read.
    """
    known = openvino.Core().get_property("CPU", "SUPPORTED_PROPERTIES")
    check_options("genai", options, frozenset(known))
    described = find_config(model.directory)
    length = int(described["max_position_embeddings"])
    length = min(length, config.max_model_len or length)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = config.max_num_batched_tokens
    scheduler.max_num_seqs = config.max_num_seqs
    scheduler.enable_prefix_caching = config.enable_prefix_caching
    memory = config.kv_cache_memory or _DEFAULT_MEMORY
    scheduler.num_kv_blocks = max(1, memory // (_BLOCK * _token_bytes(described)))
    properties = {name: str(value) for name, value in options.items()}
    if config.num_threads is not None:
        properties["INFERENCE_NUM_THREADS"] = str(config.num_threads)
    if config.dtype != "auto":
        properties["INFERENCE_PRECISION_HINT"] = config.dtype
        properties["KV_CACHE_PRECISION"] = config.dtype
    try:
        pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model.directory), scheduler, "CPU", properties
        )
    except (RuntimeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"engine genai cannot open the model: {lines[-1] if lines else repr(error)}"
        raise StartError(text) from error
    return GenaiEngine(pipeline, model, config, scheduler.num_kv_blocks, length)


def _token_bytes(config: Mapping[str, Any]) -> int:
    """Return the maximum number of bytes that a token takes of the cache."""
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    kept = int(config.get("num_key_value_heads") or heads) * size
    return 2 * _HALF * kept * int(config["num_hidden_layers"])
