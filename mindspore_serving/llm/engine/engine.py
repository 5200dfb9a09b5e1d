"""The engine: requests in, one step after another, pieces of answers out.

A step guesses, schedules, runs the model, samples and hands out the tokens.  It has no thread and
no socket: its owner calls `step` as long as there is work, always from one thread.
"""

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import Any, Literal

from mindspore_serving import log
from mindspore_serving.core.sampling_params import FinishReason, Generated, SamplingParams
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.adapters import EngineAdapters
from mindspore_serving.llm.engine.branch import PROMPT, Branch, SamplingBatch
from mindspore_serving.llm.engine.cache import SequenceCache
from mindspore_serving.llm.engine.disk_cache import DiskCache
from mindspore_serving.llm.engine.embedding import Embedder
from mindspore_serving.llm.engine.images import PromptImages
from mindspore_serving.llm.engine.pinning import Beginning, pin
from mindspore_serving.llm.engine.readout import Readout
from mindspore_serving.llm.engine.request import ModelLimits, make_request
from mindspore_serving.llm.engine.request_table import RequestTable
from mindspore_serving.llm.engine.scheduler import Scheduler
from mindspore_serving.llm.engine.sequence import Scheduled, Sequence
from mindspore_serving.llm.engine.speculation import Speculation
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.grammar.state import MaskThread
from mindspore_serving.llm.sampling.sampler import Sampled
from mindspore_serving.llm.step import Runner, RunnerLost
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

__all__ = ["PROMPT", "Engine"]

Outputs = list[tuple[str, Any]]
"""(request id, output): `Generated`; of `add_embedding` a vector or a ServingError."""


class Engine:
    """Generates text for many requests at once on one runner.

    Args:
        runner: computes steps; the engine closes it.
        draft: computes draft tokens; None for none.  The engine closes it, too.
        tokenizer: None if only tokens are wanted: texts are "" and stop strings are refused.
        config: the operator's options.
        eos_ids: the model's end tokens.

    `max_model_len` is how many tokens a prompt and its answer may have together.  `on_compute` is
    called with the requests that a step is about to compute; `clock` gives seconds.
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
        self.config, self._clock = config, clock
        self.runner, self.vocab_size = runner, runner.vocab_size
        self.num_blocks, self.block_size = runner.num_blocks, runner.block_size
        self._speculation = Speculation(config, runner, draft, clock)
        self._table = RequestTable(self._speculation)
        self.adapters = EngineAdapters(runner, config, self._table.has_adapter)
        self._limits = ModelLimits(
            runner.vocab_size, self.max_model_len, self.adapters, tuple(eos_ids), tokenizer
        )
        self.cache = SequenceCache(config, runner)
        self.pool = self.cache.pool
        self._scheduler = Scheduler(config, self.cache)
        self.started: list[str] = []  # requests of which the last step was the first
        self.on_compute: Callable[[list[str]], None] | None = None
        self._masks = MaskThread()
        self._aborted: Outputs = []  # of the next step
        self.embedder = Embedder(runner, self._scheduler, self._limits, config)
        self._num_arrivals = self._num_steps = self._num_prompt_tokens = self._num_generated = 0

    @property
    def embedding_size(self) -> int:
        """Of the vectors; 0 if the runtime has no embeddings."""
        return self.embedder.size

    @property
    def readout(self) -> Readout:
        return self.embedder.readout

    def pin(self, beginnings: SequenceOf[Beginning]) -> int:
        """As `pinning.pin`."""
        return pin(self, beginnings)

    def describe(self, stored: str = "as stored") -> str:
        """In words: the options, what the cache can hold, how weights are that are `stored` so."""
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
        """Whether a step would do anything."""
        has_ends = bool(self._aborted or self.adapters.leaving)
        return has_ends or self._scheduler.has_work or self.embedder.has_work

    def add(
        self,
        request_id: str,
        prompt_ids: Iterable[int],
        params: SamplingParams,
        *,
        images: PromptImages | None = None,
        **options: Any,
    ) -> None:
        """Queue a request.  One that is queued ends with `params.n` finish reasons.

        With `params.prompt_logprobs` the prompt comes back as well, in pieces with index PROMPT.
        `images` are those of the prompt, `options` those of `make_request`.

        Raises InvalidInputs saying what is wrong, Overloaded if too many requests wait.
        """
        request = make_request(request_id, prompt_ids, params, self._limits, **options)
        if request_id in self._table:
            raise InvalidInputs(f"request_id {request_id!r} is in use")
        self._scheduler.check_room(len(request.prompt_ids))
        sequence = Sequence(
            tokens=request.prompt_ids[:], max_len=len(request.prompt_ids) + request.max_tokens,
            order=(request.priority, self._num_arrivals, 0), salt=request.cache_salt,
            adapter=request.adapter, images=images,
            wanted_from=-1 if params.prompt_logprobs is None else 0,
        )  # fmt: skip
        self._num_arrivals += 1
        self._num_prompt_tokens += len(request.prompt_ids)
        self._table.add(request, sequence)
        self._scheduler.add(sequence)
        self.cache.disk.look_up(sequence)

    def add_embedding(self, request_id: str, prompt_ids: Iterable[int], **options: Any) -> None:
        """Queue a prompt: a step gives a vector, or ServingError.  Raises as `add`."""
        self.embedder.add(request_id, prompt_ids, **options)

    def abort(self, request_id: str) -> bool:
        """End a request: the next step frees its blocks and gives ABORT for each unfinished
        answer.  False if there is no such request (it may just have ended).
        """
        found = self._table.find(request_id)
        if found is None:
            return self.embedder.has_work and self.embedder.abort(request_id)
        request, branches = found
        for branch in branches:
            del self._table.branches[branch.sequence]
            self._scheduler.abort(branch.sequence)
            self._aborted.append((request_id, branch.end(FinishReason.ABORT)))
        self._aborted += self._table.end_pending(request, FinishReason.ABORT)
        request.open.clear()
        return True

    def step(self) -> Outputs:
        """Compute one step: its outputs.

        A step that fails ends its requests with ERROR and the cause as `stop_reason`; others go on.
        Raises RunnerLost if the runner can compute no further one.
        """
        self.adapters.free()
        self.cache.disk.deliver()
        outputs, self._aborted = self._aborted, []
        for request_id, _ in outputs:
            self._table.remove_request(request_id)
        outputs += self.embedder.step()
        began = self._clock()
        self._scheduler.num_reserved = self.embedder.num_lacking
        branches = self._table.branches
        self._speculation.guess(self._scheduler.running, branches)
        scheduled = self._scheduler.schedule()
        self.started = [branches[one].request.request_id for one in self._scheduler.admitted]
        if not scheduled.step.rows:
            if not outputs:
                self.cache.disk.wait()
            return outputs
        self._num_steps += 1
        if self.on_compute is not None:
            self.on_compute([branches[one].request.request_id for one in scheduled.sequences])
        try:
            batch, forks = self._read(scheduled)
            logits = self._masks.run_with_masks(batch.constrained, self.runner.run, scheduled.step)
            outputs += batch.score(logits)
            sampled = batch.sample(logits)
        except RunnerLost:
            raise
        except Exception as error:  # whatever a runtime raises must not end the other requests
            return outputs + self._fail(scheduled, error)
        outputs += self._write(scheduled, batch.counts, sampled, forks)
        self._speculation.observe(scheduled.step, self._clock() - began)
        return outputs

    def stats(self) -> EngineStats:
        """Count what there is now, and what was done since the start."""
        cache = self.cache
        num_read, num_written = cache.disk.num_bytes
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks=cache.pool.num_blocks,
            num_free_blocks=cache.pool.num_free,
            num_cached_blocks=cache.pool.num_cached,
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated,
            num_cache_queries=cache.num_queries,
            num_cache_hits=cache.num_hits,
            num_preemptions=self._scheduler.num_preemptions,
            num_guesses=self._speculation.num_guesses,
            num_right_guesses=self._speculation.num_right,
            num_disk_hits=cache.disk.num_tokens,
            num_disk_bytes_read=num_read,
            num_disk_bytes_written=num_written,
        )

    def keep_blocks(self, disk: DiskCache) -> None:
        """From now on keep the blocks of prompts on disk as well; the engine closes it."""
        self.cache.disk = disk

    def rest(self) -> float | None:
        """As `EngineLoop` wants it."""
        return self.cache.disk.save_next()

    def close(self) -> None:
        """Close the runners; nothing may be called afterwards."""
        self.cache.disk.close()
        self._masks.close()
        self._speculation.close()
        self.runner.close()

    def _read(self, scheduled: Scheduled) -> tuple[SamplingBatch, dict[Branch, list[Branch]]]:
        """What to sample, and the pending branches that begin in this step, by the first one."""
        batch, forks = SamplingBatch(), {}
        for row, sequence in zip(scheduled.step.rows, scheduled.sequences, strict=True):
            branch = self._table.branches[sequence]
            siblings: list[Branch] = []
            is_computed = row.start + len(row.tokens) >= len(sequence.tokens)
            if branch.request.num_to_fork and is_computed:
                siblings = forks[branch] = self._table.pending(branch)
            batch.add(branch, row, siblings)
        return batch, forks

    def _write(
        self,
        scheduled: Scheduled,
        counts: list[int],
        sampled: list[Sampled],
        forks: dict[Branch, list[Branch]],
    ) -> Outputs:
        """Give the tokens to the branches and the scheduler; the outputs.  Of `sampled` each row of
        the step has as many as `counts` says: its own, or its first and those of its siblings.
        """
        tokens: list[list[int]] = []
        written: list[tuple[Branch, Generated]] = []
        begin = 0
        step = zip(scheduled.step.rows, scheduled.sequences, counts, strict=True)
        for row, sequence, count in step:
            if not count:
                tokens.append([])
                continue
            first, *others = sampled[begin : begin + count]
            begin += count
            branch = self._table.branches[sequence]
            guesses = row.tokens[len(sequence.tokens) - row.start :]
            if guesses:
                generated = branch.write_guessed([first, *others], guesses)
                self._speculation.count(branch, len(guesses), len(generated.token_ids) - 1)
            else:
                generated = branch.write(first)
            tokens.append(list(generated.token_ids))
            written.append((branch, generated))
            for sibling, token in zip(forks.get(branch, ()), others, strict=False):
                written.append((sibling, sibling.write(token)))
        self._scheduler.finish_step(scheduled, tokens)
        self._fork(forks)
        return [self._output(branch, generated) for branch, generated in written]

    def _fork(self, forks: dict[Branch, list[Branch]]) -> None:
        for first, siblings in forks.items():
            first.request.num_to_fork = 0
            for sibling in siblings:
                if sibling.output_ids:  # else its first token could not be sampled
                    sequence = self._table.fork(sibling, sibling.output_ids[0])
                    self._scheduler.fork(first.sequence, sequence)

    def _output(self, branch: Branch, generated: Generated) -> tuple[str, Generated]:
        self._num_generated += len(generated.token_ids)
        if generated.finish_reason is not None:
            generated = branch.counted(generated)
            self._close(branch)
        elif branch.guesser is not None:
            branch.guesser.extend(generated.token_ids)
        return branch.request.request_id, generated

    def _fail(self, scheduled: Scheduled, error: Exception) -> Outputs:
        log.error("a step of %d tokens failed: %s", scheduled.step.num_tokens, error, exc_info=True)
        cause = str(error) if isinstance(error, ServingError) else "the model failed; see the log"
        outputs: Outputs = []
        for sequence in scheduled.sequences:
            branch = self._table.branches[sequence]
            outputs.append((branch.request.request_id, branch.end(FinishReason.ERROR, cause)))
            outputs += self._table.end_pending(branch.request, FinishReason.ERROR, cause)
            self._close(branch)
        return outputs

    def _close(self, branch: Branch) -> None:
        self._speculation.end(branch.sequence.scope, branch.output_ids)
        sequence = self._table.remove(branch)
        if sequence is not None:
            self._scheduler.finish(sequence)
