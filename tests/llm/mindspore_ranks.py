"""Computes logits of a model over two ranks of MindSpore, and kills one: in a process of its own.

MindSpore connects a process with ranks once, so the process of a test cannot do it.
"""

import json
import os
import signal
import sys

import numpy as np

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, RunnerLost, Step
from tests.llm.running import generate, texts


def main() -> None:
    """Write logits of the first prompt; print the greedy tokens of all, and the end of a rank."""
    directory, prompts, target, sizes = (*sys.argv[1:4], json.loads(sys.argv[4]))
    prompts = json.loads(prompts)
    config = EngineConfig(block_size=8, kv_cache_memory=2**21, **sizes)
    runner = open_runner(directory, "mindspore", config)
    blocks = list(range(-(-len(prompts[0]) // runner.block_size)))
    step = Step((Row(prompts[0], 0, blocks, len(prompts[0])),))
    np.save(target, runner.run(step))
    answers = generate(runner, texts(runner, prompts, 8), 8)
    os.kill(runner._ranks.processes[0].process.pid, signal.SIGKILL)
    lost = ""
    try:
        runner.run(step)
    except RunnerLost as error:
        lost = str(error)
    runner.close()
    print(json.dumps({"answers": answers, "lost": lost}))


if __name__ == "__main__":
    main()
