"""Recording of the inputs of a model's matrices, in float32, for calibration.

The model's graph gets one more result for each input that is recorded.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.part import open_part
from mindspore_serving.llm.runtimes.openvino.attention import check_paged_attention
from mindspore_serving.llm.runtimes.openvino.nodes import Node
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.runner import OpenVINORunner
from mindspore_serving.llm.runtimes.openvino.states_check import check_states
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.step import Row, Step

NUM_LOGITS = 64  # tokens of a prompt for which the output matrix is computed


class _Recording(OpenVINOOps):
    """`Ops` that keep the input of every matrix, by the matrix's name."""

    def __init__(self, weights: OpenVINOWeights, **options: Any) -> None:
        super().__init__(weights, **options)
        self.read_by: dict[str, Node] = {}

    def linears(self, x: Node, weights: Sequence[str], *rest: Any, **options: Any) -> list[Node]:
        self.read_by |= dict.fromkeys(weights, x)
        return super().linears(x, weights, *rest, **options)

    def dense(self, x: Node, block: Callable[[Node], Node]) -> Node:
        return block(x)


def record(
    directory: str | Path, prompts: Sequence[Sequence[int]]
) -> Iterator[list[tuple[list[str], npt.NDArray[np.float32]]]]:
    """Iterate over `prompts` (token ids); each item has the inputs of matrices, [tokens, in].

    An item is a list of (names of the matrices with the same input, input); of the output matrix it
    has only some tokens.  The arrays are overwritten by the next item.

    Raises StartError as `opening.open_runner` does.
    """
    longest = max(map(len, prompts))
    config = EngineConfig(
        dtype="f32", kv_cache_dtype="f32", max_model_len=longest + 1, max_num_seqs=1,
        max_num_batched_tokens=longest, max_images=0, max_audios=0,
    )  # fmt: skip
    part = open_part(directory, config)
    options = options_from(config, ())
    check_paged_attention(has_types=False)
    if part.spec.state:
        check_states(options.precision)
    weights = OpenVINOWeights(part.checkpoint, options.precision)
    ops = _Recording(weights, switches=bool(part.spec.rope.switch))
    results = {"logits": part.decoder(ops, part.spec, ops.inputs)}
    names: dict[Node, list[str]] = {}
    for name, node in ops.read_by.items():
        names.setdefault(node, []).append(name)
    results |= {f"read by {group[0]}": node for node, group in names.items()}
    compiled = compile_graph(ops.graph_of(results), options.properties(0))
    runner = OpenVINORunner(compiled, part, config, weights)
    for prompt in prompts:
        blocks = range(-(-len(prompt) // runner.block_size))
        runner.run(Step((Row(prompt, 0, blocks, min(NUM_LOGITS, len(prompt))),)))
        yield [(group, runner.output(f"read by {group[0]}")) for group in names.values()]
    runner.close()
