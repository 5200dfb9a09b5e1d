"""vLLM's engine on CPUs, in llm_vllm: vllm_cpu DIRECTORY [OPTIONS as JSON]."""

import json
import os
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.processes import HERE

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{(os.cpu_count() or 1) - 1}")  # else fewer
os.environ.setdefault("VLLM_CACHE_ROOT", str(HERE / ".cache" / "vllm"))
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, as the others
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.runners.driving import Engine, serve


class VLLM:
    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._serial = 0
        self._numbers: dict[str, int] = {}

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        self._serial += 1
        name = str(self._serial)
        self._numbers[name] = number
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def step(self) -> Iterable[tuple[int, list[int]]]:
        for output in self._engine.step():
            yield self._numbers[output.request_id], list(output.outputs[0].token_ids)


def load(arguments: list[str]) -> tuple[Engine, dict[str, Any]]:
    options = json.loads(arguments[1]) if len(arguments) > 1 else {}
    began = time.perf_counter()
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=arguments[0],
            max_model_len=4096,
            max_num_seqs=64,
            max_num_batched_tokens=512,
            enable_prefix_caching=True,
            **options,
        )
    )
    return VLLM(engine), {"loaded": time.perf_counter() - began}


if __name__ == "__main__":
    serve(load)
