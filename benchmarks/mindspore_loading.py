"""How much memory the weights of the mindspore runtime take while they are loaded, on a CPU.

`python -m benchmarks.mindspore_loading [DIRECTORY] --dtype bfloat16` loads the weights of a
checkpoint, by default that of `llm_model`, as the parameters of a graph for Ascend, which is not
compiled; with float32, of one for the CPU.  The baseline is the process with MindSpore imported and
an operator computed.  "own" is anonymous memory, "peak" is the largest resident memory, in which
pages of mapped files are counted that the system takes when it wants.  Ratios are of what is above
the baseline, over the size of the parameters.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.llm_model import FLOAT
from benchmarks.report import print_json, print_table

MB = 1e6
MAX_MODEL_LEN, BLOCK_SIZE = 1024, 128


def memory() -> dict[str, float]:
    """Return MB of this process: now, at most since `forget_peak`, and of its own."""
    fields = {"VmRSS": "now", "VmHWM": "peak", "RssAnon": "own"}
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {
        fields[name]: int(value.split()[0]) * 1024 / MB
        for name, _, value in lines
        if name in fields
    }


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def load(directory: Path, dtype: str) -> float:
    """Load the weights; return the MB of the parameters."""
    from mindspore_serving.llm.models.opening import open_definition
    from mindspore_serving.llm.runtimes.mindspore import nodes, recording
    from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights

    checkpoint, spec, decoder = open_definition(directory, max_model_len=MAX_MODEL_LEN)
    weights = GraphWeights(checkpoint, f"mindspore.{dtype}")
    filling = nodes.COMPOSED if dtype == "float32" else nodes.ASCEND
    layers = tuple(spec.attention_layers)
    ops = recording.GraphOps(weights, nodes.PREFILL, filling, BLOCK_SIZE, layers)
    recording.record(spec, decoder, ops)
    return sum(float(parameter.nbytes) for parameter in weights.parameters.values()) / MB


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", nargs="?", type=Path, default=FLOAT)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    arguments = parser.parse_args()
    from mindspore_serving.llm.runtimes.mindir.library import CPU, mindspore, use_device

    use_device(CPU)
    mindspore.Tensor(np.ones(4, np.float32)).astype(mindspore.bfloat16).asnumpy()
    forget_peak()
    before = memory()
    size = load(arguments.directory, arguments.dtype)
    after = memory()
    added = {"peak": after["peak"] - before["now"], "own": after["own"] - before["own"]}
    ratios = {name: megabytes / size for name, megabytes in added.items()}
    rows = [[name, f"{added[name]:.0f}", f"{ratio:.3f}"] for name, ratio in ratios.items()]
    print_table([f"{arguments.dtype}, {size:.0f} MB", "MB", "ratio"], rows)
    measured = {"dtype": arguments.dtype, "MB": size, "baseline": before["now"]}
    print_json("mindspore_loading", **measured, **ratios)


if __name__ == "__main__":
    main()
