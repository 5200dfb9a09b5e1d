"""Language models in MindSpore, in float32: eagerly here, as static graphs in `graph`.

For machines that have only MindSpore.  Operators are launched one by one, and attention is composed
of them, so it is slower than the openvino runtime.  On Ascend the operators are those of
`mindspore.mint`; keys and values stay in main memory there too.  It has been run on CPUs only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.models.ops import DecoderInputs
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.capacity import (
    cache_block_bytes,
    check_logits,
    first_step,
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import Layout, LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU, use_device
from mindspore_serving.llm.runtimes.mindspore.attention import MindSporeCache, MindSporePass
from mindspore_serving.llm.runtimes.mindspore.operators import (
    OPERATORS,
    MindSporeWeights,
    Operators,
    tensor,
)
from mindspore_serving.llm.runtimes.mindspore.ops import MindSporeOps
from mindspore_serving.llm.step import Logits, Row, Runner, Step


def open_runner(directory: str | Path, config: EngineConfig) -> Runner:
    """Open the model in `directory`, with its weights loaded.

    Of `config`: `device` "auto", which is "cpu", or "ascend"; `dtype` and `kv_cache_dtype` "auto"
    or "f32", as a CPU has fast kernels for nothing else; `graph_mode` for static graphs, which
    support models shaped like Llama.  Quantised weights are dequantised.

    Raises StartError: an unsupported option, a broken or unknown checkpoint, not enough memory.
    """
    target = ASCEND if config.device == "ascend" else CPU
    if config.graph_mode:
        from mindspore_serving.llm.runtimes.mindspore.graph import open_graphs

        return open_graphs(directory, config, target)
    checkpoint, spec, decoder = open_definition(directory, max_model_len=config.max_model_len)
    use_device(target)
    model = MindSporeModel(spec, decoder, MindSporeWeights(checkpoint), OPERATORS[target])
    _load(model)
    block_bytes = cache_block_bytes(config, spec, element_size=4)
    limits = runner_limits(config, spec, block_bytes, read_main_memory())
    return MindSporeRunner(model, limits)


@dataclass(frozen=True, slots=True)
class MindSporeModel:
    """A definition with its weights, and the operators that compute it."""

    spec: ModelSpec
    decoder: Decoder
    weights: MindSporeWeights
    operators: Operators


class MindSporeRunner(LimitedRunner):
    """A `Runner` in eager MindSpore; its cache is allocated when it is created."""

    def __init__(self, model: MindSporeModel, limits: RunnerLimits) -> None:
        super().__init__(limits)
        spec = model.spec
        heads = {layer: spec.heads[layer] for layer in spec.attention_layers}
        self.rope_switch = spec.rope.switch
        self._model = model
        self._cache = MindSporeCache((limits.num_blocks, limits.block_size), heads)
        self.cache_memory = replace(limits.memory, can_release=True)
        self._ops: MindSporeOps | None = MindSporeOps(model.weights, self._cache, model.operators)

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does.  Raises ServingError, also for MindSpore's errors."""
        if self._ops is None:
            raise ServingError("the runner is closed")
        layout = lay_out(step, self._limits)
        if step.copies:
            source, target = np.array(step.copies).T
            self._cache.copy(source, target)
        if not layout.spans:
            return np.zeros((0, self.vocab_size), np.float32)
        try:
            return self._compute(self._ops, layout)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if isinstance(error, ServingError):
                raise
            raise ServingError(f"a step of {step.num_tokens} tokens failed: {error}") from error

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Return the memory of `blocks` to the system."""
        self._cache.release(blocks)

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        self._ops = None
        self._cache.layers.clear()
        self._model.weights.clear()

    def _compute(self, ops: MindSporeOps, layout: Layout) -> Logits:
        ops.begin(MindSporePass(layout))
        # Operators refuse empty tensors: if no logits are requested, those of one row are dropped.
        rows = layout.rows if len(layout.rows) else np.zeros(1, np.int64)
        arrays = (layout.token_ids, layout.positions, rows, layout.uses_long_rope)
        token_ids, positions, logit_rows, uses_long_rope = (
            tensor(array.astype(np.int32)) for array in arrays
        )
        inputs = DecoderInputs(token_ids, positions, logit_rows, uses_long_rope=uses_long_rope)
        logits: Logits = self._model.decoder(ops, self._model.spec, inputs).asnumpy()
        return logits[: len(layout.rows)]


def _load(model: MindSporeModel) -> None:
    """Load every weight by computing one token.  Raises StartError if the weights do not fit."""
    spec = model.spec
    runner = MindSporeRunner(model, RunnerLimits(1, 1, spec.vocab_size, 1))
    with first_step():
        logits = runner.run(Step((Row([0], 0, [0], 1),)))
    check_logits(logits, spec)
