"""The Triton kernels in Triton's interpreter, which has to be asked for before Triton is imported:

`TRITON_INTERPRET=1 python -m tests.llm.torch_interpreted cases` prints, as JSON, the error of each
of `torch_cases.CASES`, as `attention`, and, as `fused`, those of `fused_cases.CASES` in float32
and bfloat16; `... tokens PATH COUNT` what the checkpoint there answers to PROMPTS, and how many
steps were graphs.
"""

import json
import sys
from pathlib import Path

import torch

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.layout import RunnerLimits
from mindspore_serving.llm.runtimes.torch.opening import open_model
from mindspore_serving.llm.runtimes.torch.paged import PagedPath
from mindspore_serving.llm.runtimes.torch.runner import TorchRunner
from tests.llm import fused_cases, torch_cases
from tests.llm.running import generate_staggered, texts
from tests.llm.torch_graph import Again

BLOCK = 8
PROMPTS = (tuple(range(3, 36)), (7,), tuple(range(100, 116)))


def errors() -> dict[str, float]:
    return {name: torch_cases.kernel_error(case, "cpu") for name, case in torch_cases.CASES.items()}


def fused_errors() -> dict[str, dict[str, float]]:
    return {
        str(dtype): {name: fused_cases.error(name, dtype, "cpu") for name in fused_cases.CASES}
        for dtype in (torch.float32, torch.bfloat16)
    }


def tokens(path: Path, count: int) -> dict[str, object]:
    """By the kernels; three texts that start after each other, prompts in pieces, and graphs of
    one, two and four sequences."""
    model = open_model(path, EngineConfig(device="cpu", block_size=BLOCK))
    spec = model.spec
    limits = RunnerLimits(BLOCK, 40, spec.vocab_size, 100)
    kernels = PagedPath.of(spec.attention(0), model.dtype, BLOCK, num_processors=1)
    runner = TorchRunner(model, limits, kernels)
    graphs = Again()
    runner.use_graphs(graphs, 4)
    answers = generate_staggered(runner, texts(runner, PROMPTS, count), count, chunk=13)
    return {"answers": answers, "graphs": graphs.num_runs}


def main() -> None:
    torch.set_num_threads(1)
    task, *arguments = sys.argv[1:]
    if task == "cases":
        result: object = {"attention": errors(), "fused": fused_errors()}
    else:
        result = tokens(Path(arguments[0]), int(arguments[1]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
