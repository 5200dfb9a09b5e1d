"""The engine: requests in, one step after another, pieces of answers out.

A step drafts, schedules, runs the model, samples and hands out the tokens.  The engine has no
thread and no socket: its owner calls `step` as long as there is work, always from one thread.
"""

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import Any, Literal, cast

from mindspore_serving import log
from mindspore_serving.core.sampling_params import FinishReason, Generated, SamplingParams
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.adapters import EngineAdapters
from mindspore_serving.llm.engine.cache import SequenceCache
from mindspore_serving.llm.engine.cache_budget import CacheBudget
from mindspore_serving.llm.engine.completion import PROMPT, CompletionState
from mindspore_serving.llm.engine.embedding import Embedder
from mindspore_serving.llm.engine.handoff import Exports, Imports
from mindspore_serving.llm.engine.pinning import PinnedPrefix, pin
from mindspore_serving.llm.engine.pooler import Pooler
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.engine.request import Encoding, ModelLimits, make_request
from mindspore_serving.llm.engine.request_table import RequestTable
from mindspore_serving.llm.engine.scheduler import Scheduler
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence
from mindspore_serving.llm.engine.speculation import Speculation
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.engine.steps_in_flight import StepsInFlight
from mindspore_serving.llm.engine.stored_blocks import StoredBlocks
from mindspore_serving.llm.sampling.sampler import Sampled
from mindspore_serving.llm.step import Runner, RunnerLost, StoringRunner
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

__all__ = ["PROMPT", "Engine"]

Outputs = list[tuple[str, Any]]
"""(request id, output): `Generated`; of `add_embedding` a vector or a ServingError."""


class Engine:
    """Generates text for many requests at once on one runner.

    Args:
        runner: computes the steps; the engine closes it.
        draft: a draft model, or the prediction head of `runner` if `config.mtp`; the engine closes
            it.  None if there is neither.
        tokenizer: None if only tokens are requested: texts are "" and stop strings are refused.
        config: the operator's options.
        eos_ids: the model's end tokens.
        clock: returns seconds.

    `max_model_len` is the maximum number of tokens of a prompt and its answer together,
    `max_prompt_len` of a prompt that an encoder reads; 0 without one.
    `on_compute` is called before a step: with all requests in flight, and its number of sequences.
    """

    can_generate: Literal[True] = True
    is_stepped: Literal[True] = True
    encoder = None

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer | None,
        config: EngineConfig,
        eos_ids: Iterable[int] = (),
        *,
        draft: Runner | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        longest = min(runner.max_model_len, runner.num_blocks * runner.block_size)
        self.max_model_len = min(longest, config.max_model_len or longest)
        self.config, self._clock, encoding = config, clock, Encoding.of(runner)
        self.max_prompt_len = encoding.max_prompt_len if encoding else 0
        self.runner, self.vocab_size = runner, runner.vocab_size
        self.num_blocks, self.block_size = runner.num_blocks, runner.block_size
        self._speculation = Speculation(config, runner, draft, clock)
        self._table = RequestTable(self._speculation)
        self.adapters = EngineAdapters(runner, config, self._table.has_adapter)
        self._limits = ModelLimits(
            runner.vocab_size, self.max_model_len, self.adapters, tuple(eos_ids), tokenizer,
            encoding,
        )  # fmt: skip
        self.cache = SequenceCache(config, runner)
        self.pool = self.cache.pool
        self.imports = Imports(cast(StoringRunner, runner), self.cache)
        self.exports = Exports(cast(StoringRunner, runner), self.cache)
        self.memory = CacheBudget(runner, self.pool)
        self._scheduler = Scheduler(config, self.cache)
        self.started: list[str] = []  # requests whose first step was the last step
        self.on_compute: Callable[[list[str], int], None] | None = None
        self._steps = StepsInFlight(runner, config)
        self._aborted: Outputs = []  # outputs of aborted requests, returned by the next step
        self.embedder = Embedder(runner, self._scheduler, self._limits, config)
        self._num_arrivals = self._num_steps = self._num_prompt_tokens = self._num_generated = 0

    @property
    def max_beams(self) -> int:
        """Maximum number of beams of a request."""
        return self._limits.encoding.max_beams if self._limits.encoding else 1

    @property
    def embedding_size(self) -> int:
        """Length of the vectors; 0 if the runtime has no embeddings."""
        return self.embedder.size

    @property
    def pooler(self) -> Pooler:
        """Pooler of the embeddings."""
        return self.embedder.pooler

    def pin(self, prefixes: SequenceOf[PinnedPrefix]) -> int:
        """Pin `prefixes` in the cache, see `pinning.pin`."""
        return pin(self, prefixes)

    def describe(self, stored: str = "as stored") -> str:
        """Describe the options and the capacity of the cache, for people.

        `stored` says how the checkpoint stores its weights.
        """
        capacity = self.num_blocks * self.block_size
        return (
            f"weights {self.config.quantization or stored}; cache of {capacity:,} tokens "
            f"({self.num_blocks:,} blocks of {self.block_size}), "
            f"{capacity / self.max_model_len:.1f} sequences of {self.max_model_len:,}; at most "
            f"{self.config.max_num_seqs} sequences and {self.config.max_num_batched_tokens} "
            "tokens in a step"
        )

    @property
    def has_work(self) -> bool:
        """True if a step would do anything."""
        has_ends = bool(self._aborted or self.adapters.leaving or self.imports.has_work)
        return has_ends or bool(self._steps) or self._scheduler.has_work or self.embedder.has_work

    @property
    def num_running(self) -> int:
        """Number of sequences that steps compute."""
        return len(self._scheduler.running)

    def add(
        self,
        request_id: str,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        *,
        images: PromptImages | None = None,
        **options: Any,
    ) -> None:
        """Queue a request, which ends with `params.n` finish reasons.

        With `params.prompt_logprobs` the prompt is returned as well, in pieces with index PROMPT.
        `images` are those of the prompt, `options` those of `make_request`.

        Raises InvalidInputs saying what is wrong, Overloaded if too many requests wait.
        """
        request = make_request(request_id, prompt_ids, params, self._limits, **options)
        if request_id in self._table:
            raise InvalidInputs(f"request_id {request_id!r} is in use")
        self._scheduler.check_room(len(request.prompt_ids), request.priority)
        tokens, encoding = [*request.prompt_ids, *request.start_ids], self._limits.encoding
        sequence = Sequence(
            tokens=tokens, max_len=len(tokens) + request.max_tokens,
            num_encoded=0 if encoding is None else len(request.prompt_ids),
            order=(request.priority, self._num_arrivals, 0), salt=request.cache_salt,
            tenant=request.tenant, adapter=request.adapter, images=images,
            adapter_digest=self.adapters.digests.get(request.adapter, b""),
            logits_from=-1 if params.prompt_logprobs is None else 0,
            search=request.begin_search(),
        )  # fmt: skip
        self._num_arrivals += 1
        self._num_prompt_tokens += len(request.prompt_ids)
        self._table.add(request, sequence)
        self._scheduler.add(sequence)
        self.cache.stored.look_up(sequence)

    def add_embedding(self, request_id: str, prompt_ids: Iterable[int], **options: Any) -> None:
        """Queue a prompt to embed; a step returns a vector or ServingError.  Raises as `add`."""
        self.embedder.add(request_id, prompt_ids, **options)

    def abort(self, request_id: str) -> bool:
        """End a request: the next step frees its blocks and returns ABORT for each open completion.

        Returns False if there is no such request (it may just have ended).
        """
        entry = self._table.find(request_id)
        if entry is None:
            return self.embedder.has_work and self.embedder.abort(request_id)
        request, completions = entry
        for completion in completions:
            del self._table.completions[completion.sequence]
            self._scheduler.abort(completion.sequence)
            self._aborted.append((request_id, completion.end(FinishReason.ABORT)))
        self._aborted += self._table.end_pending(request, FinishReason.ABORT)
        request.open.clear()
        self.exports.end(request_id)
        return True

    def step(self) -> Outputs:
        """Compute one step and return its outputs; begin further ones if the runner can.

        A step that fails ends its requests with ERROR and the cause as `stop_reason`; other
        requests go on. Raises RunnerLost if the runner can compute no further step.
        """
        self.adapters.free()
        self.cache.stored.deliver()
        outputs, self._aborted = self._aborted, []
        for request_id, _ in outputs:
            self._table.remove_request(request_id)
        if self.imports.has_work:
            outputs += self.imports.deliver(self)
        while self.embedder.has_work and self._steps:
            outputs += self._end_step()
        outputs += self.embedder.step()
        self._scheduler.num_reserved = self.embedder.num_lacking
        self.started = []
        while num_groups := self._steps.num_groups(self._scheduler):
            if not self._begin_step(num_groups, outputs):
                break
        if self._steps:
            outputs += self._end_step()
        elif not outputs:
            self.cache.stored.wait()
        return outputs

    def stats(self) -> EngineStats:
        """Return the present state of the engine, and sums since its start."""
        cache = self.cache
        num_expert_tokens, num_peak = getattr(self.runner, "count_experts", lambda: (0, 0))()
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks=cache.pool.num_blocks,
            num_free_blocks=cache.pool.num_free,
            num_cached_blocks=cache.pool.num_cached,
            num_steps=self._num_steps,
            num_native_steps=getattr(self.runner, "num_native_steps", 0),
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated,
            num_cache_queries=cache.num_queries,
            num_cache_hits=cache.num_hits,
            num_preemptions=self._scheduler.num_preemptions,
            num_draft_tokens=self._speculation.num_draft_tokens,
            num_accepted_tokens=self._speculation.num_accepted,
            num_forced_tokens=self._speculation.num_forced,
            num_expert_tokens=num_expert_tokens,
            num_expert_tokens_peak=num_peak,
            **self.memory.counts(),
            **cache.stored.counts(),
            **self.imports.counts(),
            **self.exports.counts(),
        )

    def keep_blocks(self, stored: StoredBlocks) -> None:
        """Keep the blocks of prompts in the levels of `stored` as well; the engine closes it."""
        self.cache.stored = stored

    def do_idle_work(self) -> float | None:
        """Store a block while nothing runs; see `EngineLoop`."""
        return self.cache.stored.save_next()

    def close(self) -> None:
        """Close the runners; nothing may be called afterwards."""
        self.cache.stored.close()
        self._steps.close()
        self._speculation.close()
        self.runner.close()

    def _begin_step(self, num_groups: int, outputs: Outputs) -> bool:
        """Begin a step; return False if there is nothing to compute, or if it failed."""
        began, completions, scheduler = self._clock(), self._table.completions, self._scheduler
        num_decoding = scheduler.num_decoding
        self._speculation.draft(scheduler.running, completions)
        scheduled = scheduler.schedule(num_groups, self._steps.max_tokens(num_groups))
        self.started += [completions[key].request.request_id for key in scheduler.admitted]
        if not scheduled.step.rows:
            return False
        self._num_steps += 1
        if self.on_compute is not None:
            in_flight = [*scheduled.sequences, *self._steps.sequences()]
            ids = [completions[key].request.request_id for key in in_flight if key in completions]
            self.on_compute(ids, len(scheduled.sequences))
        try:
            self._steps.begin(scheduled, num_groups, num_decoding, began)
        except RunnerLost:
            raise
        except Exception as error:  # whatever a runtime raises must not end the other requests
            outputs += self._fail(scheduled, error)
            return False
        return True

    def _end_step(self) -> Outputs:
        """Compute what is left of the step that ends next, and return its outputs."""
        step, scheduled = self._steps.take()
        try:
            batch, forks = self._table.read(scheduled)
            scores, sampled = self._steps.sample(step, batch)
        except RunnerLost:
            raise
        except Exception as error:  # whatever a runtime raises must not end the other requests
            self._steps.drop(step)
            return self._fail(scheduled, error)
        outputs = scores + self._write(scheduled, batch.counts, sampled, forks)
        self._speculation.observe(scheduled, self._steps.observe(step, self._clock()))
        return outputs

    def _write(
        self,
        scheduled: Scheduled,
        counts: list[int],
        sampled: list[Sampled],
        forks: dict[CompletionState, list[CompletionState]],
    ) -> Outputs:
        """Give the tokens to the completions and the scheduler; return the outputs.

        `counts` says how many of `sampled` belong to each row of the step: the tokens of its
        completion, or the first one and those of its siblings.
        """
        tokens: list[list[int]] = []
        written: list[tuple[CompletionState, Generated]] = []
        searched: list[CompletionState] = []
        begin = 0
        step = zip(scheduled.step.rows, scheduled.sequences, counts, strict=True)
        for row, sequence, count in step:
            if not count:
                tokens.append(sequence.search.tokens[:1] if sequence.search else [])
                if sequence.search is not None and sequence.search.is_done:
                    searched.append(self._table.completions[sequence])
                continue
            first, *following = sampled[begin : begin + count]
            begin += count
            completion = self._table.completions[sequence]
            draft_tokens = row.tokens[len(sequence.tokens) - row.start :]
            if draft_tokens:
                generated = completion.write_draft([first, *following], draft_tokens)
                self._speculation.count(completion, len(draft_tokens), len(generated.token_ids) - 1)
            else:
                generated = completion.write(first)
            tokens.append(list(generated.token_ids))
            written.append((completion, generated))
            for sibling, token in zip(forks.get(completion, ()), following, strict=False):
                written.append((sibling, sibling.write(token)))
        self._scheduler.finish_step(scheduled, tokens)
        self._fork(forks)
        outputs = [self._output(completion, generated) for completion, generated in written]
        exported = self.exports.collect(self.cache.stored.cost.seconds)
        return exported + outputs + [row for each in searched for row in self._end_search(each)]

    def _end_search(self, completion: CompletionState) -> Outputs:
        request, answers = completion.request, completion.write_search()
        request.open = {completion.index}  # all answers end together
        self._num_generated += sum(len(answer.token_ids) for answer in answers)
        self._close(completion)
        return [(request.request_id, completion.with_counts(answer)) for answer in answers]

    def _fork(self, forks: dict[CompletionState, list[CompletionState]]) -> None:
        for first, siblings in forks.items():
            first.request.num_to_fork = 0
            for sibling in siblings:
                if sibling.output_ids:  # empty if its first token could not be sampled
                    sequence = self._table.fork(sibling, sibling.output_ids[0])
                    self._scheduler.fork(first.sequence, sequence)

    def _output(self, completion: CompletionState, generated: Generated) -> tuple[str, Generated]:
        self._num_generated += len(generated.token_ids)
        if generated.finish_reason is not None:
            generated = completion.with_counts(generated)
            self._close(completion)
        elif completion.draft_state is not None:
            completion.draft_state.extend(generated.token_ids)
        return completion.request.request_id, generated

    def _fail(self, scheduled: Scheduled, error: Exception) -> Outputs:
        log.error("a step of %d tokens failed: %s", scheduled.step.num_tokens, error, exc_info=True)
        cause = str(error) if isinstance(error, ServingError) else "the model failed; see the log"
        outputs: Outputs = []
        for sequence in scheduled.sequences:
            sequence.is_in_step = False
            completion = self._table.completions.get(sequence)
            if completion is None:
                continue
            outputs.append(
                (completion.request.request_id, completion.end(FinishReason.ERROR, cause))
            )
            outputs += self._table.end_pending(completion.request, FinishReason.ERROR, cause)
            self.exports.end(completion.request.request_id)
            self._close(completion)
        return outputs

    def _close(self, completion: CompletionState) -> None:
        self._speculation.end(completion.sequence.scope, completion.output_ids)
        self.exports.finish(completion.request.request_id)
        sequence = self._table.remove(completion)
        if sequence is not None:
            self._scheduler.finish(sequence)
