"""An encoder that belongs to a step loop, for a thread of another."""

from collections.abc import Sequence
from typing import Any

from mindspore_serving.llm.engine.encoder import Encoder
from mindspore_serving.llm.serving.engine_loop import EngineLoop, ask
from mindspore_serving.llm.step import Vectors


class LoopRunner:
    """An `EncoderRunner`: a pass is a command of the loop, for which the caller waits."""

    def __init__(self, encoder: Encoder, loop: EngineLoop[Any]) -> None:
        runner = encoder.runner
        self.vocab_size = runner.vocab_size
        self.hidden_size = runner.hidden_size
        self.max_model_len = runner.max_model_len
        self.num_types = runner.num_types
        self._loop = loop

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        def compute(engine: Any) -> Vectors:
            states: Vectors = engine.encoder.runner.run(prompts, types).copy()
            return states

        return ask(self._loop, compute).result()

    def close(self) -> None:
        """The loop closes the encoder."""
