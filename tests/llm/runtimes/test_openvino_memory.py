"""Memory of an open model in the OpenVINO runtime, measured in separate processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.llm import checkpoints
from tests.waiting import PATIENCE

pytestmark = pytest.mark.torch

MB = 2**20
WIDE, TOKENS = 8192, 1024  # of a feed-forward block, and of the largest step
PROGRAM = """
import json, re, sys
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step

def bytes_of():
    text = open("/proc/self/status").read()
    return {name: int(size) * 1024 for name, size in re.findall(r"(\\w+):\\s+(\\d+) kB", text)}

runner = open_runner(sys.argv[1], "openvino", EngineConfig(**json.loads(sys.argv[2])))
for count in (0, 1, 1024):
    if count:
        runner.run(Step((Row([5] * count, 0, list(range(count // 16 + 1)), 1),)))
    print(json.dumps(bytes_of()))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("memory")
    settings = {"intermediate_size": WIDE, "max_position_embeddings": 2 * TOKENS}
    config = transformers.LlamaConfig(**checkpoints.SIZES | settings)
    transformers.LlamaForCausalLM(config).save_pretrained(found)
    return found


def sizes(directory: Path, **options: Any) -> list[dict[str, int]]:
    """Bytes, by names of /proc/PID/status: when the model is open, after a step of one token, and
    after one of TOKENS."""
    given = json.dumps({"dtype": "f32", "max_num_batched_tokens": TOKENS, **options})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, directory, given],
        env=os.environ | {"SERVING_WARM_UP_SECONDS": "9"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_first_step_takes_no_memory_for_a_second_cache(directory: Path) -> None:
    cache = 1024 * MB
    opened, after, _ = sizes(directory, kv_cache_memory=cache)
    assert opened["VmPeak"] > cache
    assert after["VmPeak"] - opened["VmPeak"] < cache / 4


def test_open_model_releases_memory_of_its_largest_step(directory: Path) -> None:
    opened, _, after = sizes(directory, kv_cache_memory=64 * MB)
    product = TOKENS * WIDE * 4  # bytes of what the gate or the other half of a block gives
    assert after["RssAnon"] - opened["RssAnon"] > 2 * product
