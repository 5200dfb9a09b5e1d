"""The prefix cache on disk with real runtimes.

A reopened model computes only new prefixes, with the same results; another model has no hits.
"""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.engine import stored_blocks
from tests.llm import checkpoints
from tests.waiting import PATIENCE

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
OPTIONS = {"dtype": "f32", "num_threads": 1, "kv_cache_memory": 4 << 20, "max_model_len": 256}
BLOCK = 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return checkpoints.build("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(stored_blocks, "CLOSING_SECONDS", PATIENCE)


def ask(directory, runtime, cache, **options):
    """The answer to a long prompt, and how many of its tokens came from disk."""
    prompt = list(checkpoints.prompts(1, seed=1, longest=60)[0] * 4)[:150]
    with LLM(directory, runtime, prefix_cache_dir=str(cache), **{**OPTIONS, **options}) as llm:
        (answer,) = llm.generate([prompt], PARAMS, False)
        return answer.outputs[0].token_ids, llm.stats().num_disk_hits


@pytest.mark.parametrize(
    ("runtime", "kv_cache_dtype"),
    [
        ("openvino", "f32"),
        ("openvino", "u8"),
        ("native", "u8"),
        pytest.param("torch", "f32", marks=pytest.mark.torch),
        pytest.param("torch", "bf16", marks=pytest.mark.torch),
    ],
)
def test_reopened_model_reads_cached_prefixes(directory, tmp_path, runtime, kv_cache_dtype):
    options = {"kv_cache_dtype": kv_cache_dtype}
    said, found = ask(directory, runtime, tmp_path, **options)
    assert found == 0
    assert ask(directory, runtime, tmp_path, **options) == (said, 128)


def test_changed_checkpoint_or_other_cache_has_no_hits(directory, tmp_path):
    model = shutil.copytree(directory, tmp_path / "model")
    ask(model, "openvino", tmp_path / "cache")
    assert ask(model, "openvino", tmp_path / "cache", kv_cache_dtype="f16")[1] == 0
    (path,) = model.glob("*.safetensors")
    tensors = load_file(path)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, path, {"format": "pt"})
    assert ask(model, "openvino", tmp_path / "cache")[1] == 0
    assert ask(model, "openvino", tmp_path / "cache")[1] == 128
