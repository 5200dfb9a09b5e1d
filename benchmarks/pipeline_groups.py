"""Decoding over two pipeline stages that wait in place of computing: what overlapping them gives.

    python -m benchmarks.pipeline_groups [--step-ms 20] [--row-ms 2.5] [--streams 4,8,16]
        [--rounds 5]

Each stage computes a tiny model, and then waits until its step has taken `step-ms`, for weights,
and `row-ms` for each token, as if it had a machine of its own.  So other work of this machine
disturbs little; everything else is real: processes, exchanges, scheduling, sampling.  Printed are
tokens a second of one process that waits for both stages, of stages one after the other, and in
groups; then their shares of twice the one process, and the share that two groups can reach.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import print_json, print_table

NUM_TOKENS = 32
OPTIONS: dict[str, Any] = {
    "dtype": "f32", "num_threads": 1, "kv_cache_memory": 16 << 20, "max_num_seqs": 16,
    "enable_prefix_caching": False, "max_model_len": 256, "num_speculative_tokens": 0,
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "one process": {},
    "stages in turn": {"pipeline_parallel": 2, "pipeline_groups": 1},
    "in groups": {"pipeline_parallel": 2},
}
SITE = """\
import sys
if "mindspore_serving.llm.runtimes.rank" in sys.orig_argv:
    from benchmarks.pipeline_groups import wait_in_stages
    wait_in_stages(lambda: 1)
"""


def wait_in_stages(count: Callable[[], int]) -> None:
    """Let runners of this process wait for `count()` stages."""
    from mindspore_serving.llm.runtimes.openvino.runner import OpenVINORunner
    from mindspore_serving.llm.step import Step, Vectors

    step_ms, row_ms = map(float, os.environ["STAGE_MS"].split(","))
    compute = OpenVINORunner.compute

    def wait(self: OpenVINORunner, step: Step, *arguments: Any, **options: Any) -> Vectors:
        began = time.perf_counter()
        vectors = compute(self, step, *arguments, **options)
        seconds = count() * (step_ms + row_ms * step.num_tokens) / 1000
        time.sleep(max(0.0, began + seconds - time.perf_counter()))
        return vectors

    OpenVINORunner.compute = wait  # type: ignore[method-assign]


def main() -> None:
    from mindspore_serving.llm import LLM, SamplingParams
    from tests.llm import checkpoints

    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--row-ms", type=float, default=2.5)
    parser.add_argument("--streams", default="4,8,16")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["STAGE_MS"] = f"{arguments.step_ms},{arguments.row_ms}"
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    num_stages, rows = 0, []
    wait_in_stages(lambda: num_stages)
    with tempfile.TemporaryDirectory() as name:
        directory = checkpoints.build("llama", Path(name))
        (Path(name) / "sitecustomize.py").write_text(SITE)
        os.environ["PYTHONPATH"] = os.pathsep.join([name, *filter(None, sys.path)])
        models = {
            label: LLM(directory, "openvino", **OPTIONS, **run) for label, run in RUNS.items()
        }
        for count in map(int, arguments.streams.split(",")):
            prompts = [[2 + index, 3, 4, 5] for index in range(count)]
            rates: dict[str, list[float]] = {label: [] for label in RUNS}
            for _ in range(2 + arguments.rounds):  # two rounds measure numbers of groups
                for label, model in models.items():
                    num_stages = 1 if RUNS[label] else 2
                    began = time.perf_counter()
                    model.generate(prompts, params, False)
                    rates[label].append(count * NUM_TOKENS / (time.perf_counter() - began))
            single, *both = (statistics.median(rate[2:]) for rate in rates.values())
            whole, half = (arguments.step_ms + arguments.row_ms * n for n in (count, count / 2))
            cells = [single, *both, *(rate / (2 * single) for rate in both)]
            ideal = min(1.0, max(0.5, whole / (2 * half)))
            rows.append([f"{count} streams", *(f"{x:.2f}" for x in (*cells, ideal))])
            print(*rows[-1], flush=True)
        for model in models.values():
            model.close()
    header = ["tokens/s", *RUNS, "share of twice, in turn", "in groups", "at most"]
    print_table(header, rows)
    print_json("pipeline_groups", **{row[0]: row[1:] for row in rows})


if __name__ == "__main__":
    main()
