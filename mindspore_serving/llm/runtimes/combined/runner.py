"""Runner of steps by two runtimes over one cache."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock

from mindspore_serving.llm.runtimes.combined.choice import Choice, choose
from mindspore_serving.llm.runtimes.combined.measuring import measure
from mindspore_serving.llm.runtimes.combined.packing import Check, Packing
from mindspore_serving.llm.runtimes.layout import LimitedRunner, RunnerLimits, SharedCache
from mindspore_serving.llm.runtimes.native.runner import NativeRunner
from mindspore_serving.llm.step import EmbeddingRunner, Logits, Step, Vectors

OpenShared = Callable[[SharedCache], EmbeddingRunner]


class CombinedRunner(LimitedRunner):
    """A `StoringRunner` that also embeds.

    Args:
        native: computes all steps until another runner is opened, and those of few tokens then.
        limits: those of `native` without its last block, in which steps are measured.
    """

    def __init__(self, native: NativeRunner, limits: RunnerLimits) -> None:
        super().__init__(limits)
        self._native = native
        self._with_spare_block = replace(limits, num_blocks=limits.num_blocks + 1)
        self._alone = Lock()  # held while a step is computed
        self.packing: Packing | None = None
        self.num_native_steps = 0
        self.block_bytes = native.block_bytes
        self.block_format = f"combined {native.block_format}"
        self.cache_memory = native.cache_memory
        self.hidden_size, self.rope_switch = native.hidden_size, native.rope_switch

    def pack(
        self, name: str, prepare: Callable[[], None], opens: OpenShared, max_tokens: int
    ) -> None:
        """Open another runner in the background; `max_tokens` are those of the largest step."""
        limits = self._with_spare_block

        def opened(check: Check) -> EmbeddingRunner:
            return opens(SharedCache(limits, self._native.arrays, check))

        def measured(runner: EmbeddingRunner, check: Check) -> Choice:
            times, both = [], (self._native, runner)
            for each in measure(both, self.num_blocks, max_tokens, self._alone):
                times.append(each)
                check()
            return choose(times)

        self.packing = Packing(name, prepare, opened, measured)

    @property
    def decision(self) -> str:
        """Text that says which runtime computes which steps, and why."""
        return "native computes all steps" if self.packing is None else self.packing.decision

    def call_when_decided(self, call: Callable[[], None]) -> None:
        """Call `call`, on any thread, when `decision` is the last one; perhaps at once."""
        if self.packing is not None:
            self.packing.call_when_done(call)

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does."""
        return self._compute(step, embeds=False)

    def embed(self, step: Step) -> Vectors:
        """Run a step as `EmbeddingRunner.embed` does."""
        return self._compute(step, embeds=True)

    def read_block(self, block: int) -> memoryview:
        return self._native.read_block(block)

    def write_block(self, block: int, content: memoryview) -> None:
        self._native.write_block(block, content)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        self._native.release_blocks(blocks)

    def close(self) -> None:
        """Close both runners.  A closed runner refuses every step."""
        if self.packing is not None:
            self.packing.close()
        self._native.close()

    def _compute(self, step: Step, *, embeds: bool) -> Vectors:
        with self._alone:
            packing = self.packing
            runner = self._native if packing is None else self._chosen(packing, step.num_tokens)
            self.num_native_steps += runner is self._native
            output = runner.embed(step) if embeds else runner.run(step)
            # Until the choice is made, a step that is measured would overwrite it.
            return output if packing is None or packing.is_done else output.copy()

    def _chosen(self, packing: Packing, num_tokens: int) -> EmbeddingRunner:
        choice, runner = packing.choice, packing.runner
        if choice is None or runner is None or num_tokens <= choice.last_native:
            return self._native
        return runner
