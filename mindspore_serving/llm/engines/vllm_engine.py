"""Engine of vLLM, by its asynchronous engine: token ids in, token ids out.

Each completion is a request of vLLM's, so one that ends by a stop string is aborted there alone.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.sampling_params import SamplingParams as VllmParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from mindspore_serving import log
from mindspore_serving.core.sampling_params import (
    FinishReason,
    Generated,
    TokenLogprob,
    join,
)
from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.adapters import AdapterNames
from mindspore_serving.llm.engine.completion import PROMPT
from mindspore_serving.llm.engine.request import GenerationRequest, ModelLimits
from mindspore_serving.llm.engine.stats import EngineStats, FirstStep
from mindspore_serving.llm.engines import vllm_sampling
from mindspore_serving.llm.engines.base import EngineModel, ForeignEngine, Outputs
from mindspore_serving.llm.engines.vllm_stats import StepStats
from mindspore_serving.llm.tokenization.stopping import StopChecker
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

_FAILED = "the model failed; see the log"
_CHECK_INTERVAL = 1.0


@dataclass(slots=True, eq=False)
class _Running:
    """A request that vLLM computes."""

    request: GenerationRequest
    adapter: LoRARequest | None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    has_begun: bool = False
    num_cached: int = 0


class VllmEngine(ForeignEngine):
    """Engine of vLLM, a `base.TaskEngine`."""

    is_stepped: Literal[False] = False

    def __init__(
        self, llm: AsyncLLM, model: EngineModel, config: EngineConfig, stats: StepStats
    ) -> None:
        vllm_config = llm.vllm_config
        limits = ModelLimits(
            vocab_size=vllm_config.model_config.get_vocab_size(),
            max_model_len=vllm_config.model_config.max_model_len,
            adapters=range(1, 1 + len(config.adapters)),
            eos_ids=model.eos_ids,
            tokenizer=model.tokenizer,
        )
        super().__init__(config, limits)
        self._llm = llm
        self._stats = stats
        self.block_size: int = vllm_config.cache_config.block_size
        self.num_blocks: int = vllm_config.cache_config.num_gpu_blocks or 0
        self.on_step: Callable[[int], None] | None = None
        self._special_ids = _special_ids(model.tokenizer)
        self.adapters = AdapterNames(config.adapters)
        self._adapters = [
            LoRARequest(name, number, str(path))
            for number, (name, path) in enumerate(config.adapters.items(), 1)
        ]
        self._running: dict[str, _Running] = {}
        self._deliver: Callable[[Outputs], None] = lambda _: None
        self._fail: Callable[[BaseException], None] = lambda _: None

    @property
    def num_open(self) -> int:
        return len(self._running)

    def describe(self, stored: str = "as stored") -> str:
        capacity = self.num_blocks * self.block_size
        vllm_config = self._llm.vllm_config
        return (
            f"weights {self.config.quantization or 'as stored'}, {vllm_config.model_config.dtype}; "
            f"cache of {capacity:,} tokens ({self.num_blocks:,} blocks of {self.block_size}); at "
            f"most {vllm_config.scheduler_config.max_num_seqs} sequences and "
            f"{vllm_config.scheduler_config.max_num_batched_tokens} tokens in a step"
        )

    async def begin(
        self, deliver: Callable[[Outputs], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Start on the running event loop, as `base.TaskEngine.begin` does."""
        self._deliver, self._fail = deliver, fail
        self._stats.on_step = self.on_step
        for adapter in self._adapters:  # a request for a broken adapter would end vLLM
            try:
                await self._llm.add_lora(adapter)
            except Exception as error:
                text = f"engine vllm cannot load the adapter {adapter.lora_name!r}: {error}"
                raise StartError(text) from error
        self._check_processes()

    def _check(self, request: GenerationRequest) -> None:
        vllm_sampling.check(request.params)

    def _accepted(self) -> list[GenerationRequest]:
        return [running.request for running in self._running.values()]

    def _start(self, request: GenerationRequest) -> None:
        lora = self._adapters[request.adapter - 1] if request.adapter else None
        running = _Running(request, lora)
        sampling = [self._to_vllm(request, index) for index in range(request.params.n)]
        self._running[request.request_id] = running
        self._stats.num_prompt_tokens += len(request.prompt_ids)
        loop = asyncio.get_running_loop()
        for index, params in enumerate(sampling):
            running.tasks.append(loop.create_task(self._generate(running, index, params)))

    def abort(self, request_id: str) -> bool:
        running = self._running.pop(request_id, None)
        for task in running.tasks if running else ():
            task.cancel()
        return running is not None

    def stats(self) -> EngineStats:
        return self._stats.read(self.num_blocks)

    def close(self) -> None:
        self._llm.shutdown()

    def _check_processes(self) -> None:
        """Check whether vLLM's processes run: vLLM reports their end only to requests."""
        if self._llm.errored:
            self._fail(EngineDeadError())
        else:
            asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._check_processes)

    def _to_vllm(self, request: GenerationRequest, index: int) -> VllmParams:
        forms = vllm_sampling.structured(request, self._special_ids)
        try:
            return VllmParams(
                **vllm_sampling.translate(request, index),
                output_kind=RequestOutputKind.DELTA,
                structured_outputs=None if forms is None else StructuredOutputsParams(**forms),
            )
        except (VLLMClientError, ValueError) as error:
            raise InvalidInputs(f"engine vllm refuses the parameters: {error}") from None

    async def _generate(self, running: _Running, index: int, params: VllmParams) -> None:
        """Deliver one completion, up to its end."""
        request, answer = running.request, running.request.begin_text(index)
        prompt = tokens_input(request.prompt_ids, cache_salt=request.cache_salt or None)
        name = f"{request.request_id}/{index}"
        outputs = self._llm.generate(
            prompt, params, name, priority=request.priority, lora_request=running.adapter
        )
        try:
            async for output in outputs:
                self._take(running, answer, output)
                if answer.is_finished:
                    break
            if not answer.is_finished:
                self._put(running, answer.end(FinishReason.ERROR, _FAILED))
        except EngineDeadError as error:
            self._fail(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._refuse(running, error)
        finally:
            await outputs.aclose()  # aborts the request if it goes on

    def _refuse(self, running: _Running, error: Exception) -> None:
        """End the request, which vLLM has ended by `error`."""
        reason: ServingError = ServingError(_FAILED)
        if isinstance(error, VLLMClientError | ValueError):
            reason = InvalidInputs(f"engine vllm refuses the request: {error}")
        else:
            log.error("vLLM failed: %s", error, exc_info=True)
        request_id = running.request.request_id
        if self.abort(request_id):
            self._deliver([(request_id, reason)])

    def _take(self, running: _Running, answer: StopChecker, output: Any) -> None:
        if not running.has_begun:
            running.has_begun = True
            at = getattr(output.metrics, "scheduled_ts", 0.0) or time.monotonic()
            self._deliver([(running.request.request_id, FirstStep(at))])
        running.num_cached = max(running.num_cached, output.num_cached_tokens or 0)
        if output.prompt_logprobs and running.request.num_scored == 0:
            self._score(running, output.prompt_logprobs)
        (new,) = output.outputs
        logprobs = None
        if new.logprobs is not None:
            logprobs = [_entry(*pair) for pair in zip(new.token_ids, new.logprobs, strict=True)]
        written = answer.check_all(new.token_ids, logprobs)
        self._stats.num_generated += len(new.token_ids)
        if new.finish_reason is not None and not answer.is_finished:
            kind = FinishReason.ABORT if new.finish_reason == "abort" else FinishReason.ERROR
            known = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
            kind = known.get(new.finish_reason, kind)
            cause = _FAILED if kind is FinishReason.ERROR else None
            last = answer.end(kind, cause)
            written = last if written is None else join([written, last])
        if written is not None:
            self._put(running, written)

    def _score(self, running: _Running, scored: list[Any]) -> None:
        """Deliver the log-probabilities of the prompt, whose first token follows nothing."""
        ids = running.request.prompt_ids
        running.request.num_scored = len(ids)
        pairs = zip(ids, scored, strict=True)
        entries = tuple(() if rows is None else _entry(token_id, rows) for token_id, rows in pairs)
        piece = Generated(PROMPT, tuple(ids), "", entries)
        self._deliver([(running.request.request_id, piece)])

    def _put(self, running: _Running, generated: Generated) -> None:
        request = running.request
        if request.request_id not in self._running:
            return  # aborted
        if generated.finish_reason is not None:
            generated = replace(generated, num_cached_tokens=running.num_cached)
            request.open.discard(generated.index)
            if not request.open:
                del self._running[request.request_id]
        self._deliver([(request.request_id, generated)])


def _entry(token_id: int, logprobs: Mapping[int, Any]) -> tuple[TokenLogprob, ...]:
    """Return the token's own log-probability, then the likeliest; vLLM counts ranks from 1."""
    chosen = TokenLogprob(token_id, logprobs[token_id].logprob, logprobs[token_id].rank - 1)
    rows = sorted(logprobs.items(), key=lambda pair: pair[1].rank)
    # The chosen token is always among vLLM's rows, but among the likeliest only by its rank.
    is_likely = chosen.rank < len(rows) - 1 or [*logprobs][0] != token_id
    likeliest = [
        TokenLogprob(candidate, row.logprob, row.rank - 1)
        for candidate, row in rows
        if candidate != token_id or is_likely
    ]
    return (chosen, *likeliest)


def _special_ids(tokenizer: Tokenizer | None) -> dict[str, int]:
    """Return the ids of the special tokens by their texts."""
    if tokenizer is None:
        return {}
    ids = filter(tokenizer.is_special, range(tokenizer.vocab_size))
    return {tokenizer.token_bytes(id_).decode("utf-8", "replace"): id_ for id_ in ids}
