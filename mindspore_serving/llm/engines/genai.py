"""OpenVINO GenAI behind our processing: token ids in, token ids out, by its continuous batching."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import openvino
import openvino_genai

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
    "typical_p", "top_n_sigma", "xtc_probability", "logit_bias", "bad_words",
    "allowed_token_ids", "prompt_logprobs",
)  # fmt: skip
_MOST_SEED = 2**63 - 1
_STATUS = openvino_genai.GenerationStatus
_ENDS = (_STATUS.IGNORED, _STATUS.FINISHED, _STATUS.CANCEL, _STATUS.STOP)


@dataclass(slots=True, eq=False)
class _Running:
    """One answer that the pipeline has."""

    request: GenerationRequest
    answer: StopChecker
    handle: Any
    has_begun: bool = False


class GenaiEngine(ForeignEngine):
    """See `base.LanguageEngine`; stepped like our own."""

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
        self.on_compute: Callable[[list[str]], None] | None = None
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
        if request.priority or request.cache_salt:
            raise InvalidInputs("engine genai has no priorities and no salts of its cache")

    def _taken(self) -> list[GenerationRequest]:
        return [one.request for one in self._running.values()]

    def _start(self, request: GenerationRequest) -> None:
        own = [_to_genai(request, index) for index in range(request.params.n)]
        prompt = openvino.Tensor(np.array([request.prompt_ids], np.int64))
        self._num_prompt_tokens += len(request.prompt_ids)
        for index, one in enumerate(own):
            self._num_added += 1
            handle = self._pipeline.add_request(self._num_added, prompt, one)
            self._running[self._num_added] = _Running(request, request.begin_text(index), handle)

    def abort(self, request_id: str) -> bool:
        found = [key for key, one in self._running.items() if one.request.request_id == request_id]
        for key in found:
            self._running.pop(key).handle.cancel()
        return bool(found)

    def step(self) -> Outputs:
        """Compute one step: what was added to each answer."""
        ids = list(dict.fromkeys(one.request.request_id for one in self._running.values()))
        if self.on_compute is not None:
            self.on_compute(ids[: self.config.max_num_seqs])
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

    def rest(self) -> None:
        """There is nothing that can wait."""

    def close(self) -> None:
        self._pipeline = None

    def _read(self, running: _Running) -> Generated | None:
        """What the pipeline has added to an answer since; None for nothing."""
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
            parts.append(answer.end(FinishReason.ERROR, "the cache has no room for it"))
        return join(parts) if parts else None


def _check(params: SamplingParams) -> None:
    """Raises InvalidField for a parameter that GenAI has not."""
    for name in _ABSENT:
        default, given = SAMPLING[name].default, getattr(params, name)
        if given != default and (given or default):  # an empty list is an empty tuple
            raise InvalidField(name, f"is {given!r}, but engine genai has only {default!r}")
    if params.logprobs:
        accepted = "expected 0 of engine genai: the chosen token's alone"
        raise InvalidField("logprobs", f"is {params.logprobs}, {accepted}")


def _to_genai(request: GenerationRequest, index: int) -> Any:
    """The configuration of one answer; its stops and end tokens are seen by us as well."""
    params = request.params
    own = openvino_genai.GenerationConfig()
    own.max_new_tokens = request.max_tokens
    own.min_new_tokens = params.min_tokens
    own.ignore_eos = True  # all ends are named
    own.stop_token_ids = set(request.end_ids)
    own.do_sample = params.temperature > 0
    if own.do_sample:
        own.temperature = params.temperature
        own.rng_seed = request.seed_of(index) & _MOST_SEED
        if params.top_k:
            own.top_k = params.top_k
        own.min_p, own.top_p = params.min_p, params.top_p
    for name in _SAME[:3]:
        setattr(own, name, getattr(params, name))
    own.logprobs = 0 if params.logprobs is None else 1
    form = _form(request)
    if form is not None:
        own.structured_output_config = openvino_genai.StructuredOutputConfig(**form)
    return own


def _form(request: GenerationRequest) -> dict[str, str] | None:
    if request.grammar is None:
        return None
    grammar = request.grammar.grammar
    if grammar.kind == "lark":
        raise InvalidInputs("engine genai has no grammars in Lark's form, and so no forced tools")
    if grammar.kind == "regex":
        return {"regex": grammar.source}
    return {"json_schema": grammar.source or '{"type": "object"}'}


def open_engine(
    model: EngineModel, config: EngineConfig, options: Mapping[str, Any]
) -> GenaiEngine:
    """`options` are properties of OpenVINO's device.  Raises StartError if it cannot be read."""
    known = openvino.Core().get_property("CPU", "SUPPORTED_PROPERTIES")
    check_options("genai", options, frozenset(known))
    found = find_config(model.directory)
    length = int(found["max_position_embeddings"])
    length = min(length, config.max_model_len or length)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = config.max_num_batched_tokens
    scheduler.max_num_seqs = config.max_num_seqs
    scheduler.enable_prefix_caching = config.enable_prefix_caching
    memory = config.kv_cache_memory or _DEFAULT_MEMORY
    scheduler.num_kv_blocks = max(1, memory // (_BLOCK * _token_bytes(found)))
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
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"engine genai cannot open the model: {said[-1] if said else repr(error)}"
        raise StartError(text) from error
    return GenaiEngine(pipeline, model, config, scheduler.num_kv_blocks, length)


def _token_bytes(config: Mapping[str, Any]) -> int:
    """What a token takes of the cache, at most."""
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    kept = int(config.get("num_key_value_heads") or heads) * size
    return 2 * _HALF * kept * int(config["num_hidden_layers"])
