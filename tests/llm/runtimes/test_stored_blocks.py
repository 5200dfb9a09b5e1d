"""The prefix cache on disk with real runtimes.

A reopened model computes only new prefixes, with the same results; another model has no hits.
"""

import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.engine import stored_blocks
from mindspore_serving.llm.parallel import rank_blocks
from mindspore_serving.stores.file_store import SUFFIX
from tests.llm import checkpoints
from tests.llm.lora_files import ATTENTION, adapter, write
from tests.waiting import PATIENCE

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
OPTIONS = {"dtype": "f32", "num_threads": 1, "kv_cache_memory": 4 << 20, "max_model_len": 256}
WITH_STATES = {"max_num_batched_tokens": 64, "num_speculative_tokens": 0, "max_num_seqs": 4}
BLOCK = 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return checkpoints.build("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(stored_blocks, "CLOSING_SECONDS", PATIENCE)


def ask(directory, runtime, cache, adapter=None, load=None, **options):
    """The answer to a long prompt, and how many of its tokens came from disk.

    An `adapter` may be loaded from the directory `load` first.
    """
    completion, num_cached = complete(directory, runtime, cache, adapter, load, **options)
    return completion.token_ids, num_cached


def complete(directory, runtime, cache, adapter=None, load=None, **options):
    """The same with the completion; `cache` is a directory, or the URL of a store."""
    level = "prefix_cache_store" if isinstance(cache, str) else "prefix_cache_dir"
    options = {**OPTIONS, level: str(cache), **options}
    prompt = list(checkpoints.prompts(1, seed=1, longest=60)[0] * 4)[:150]
    with LLM(directory, runtime, **options) as llm:
        if load is not None:
            llm.load_adapter(adapter, load)
        (answer,) = llm.generate([prompt], PARAMS, False, adapter)
        stats = llm.stats()
        return answer.outputs[0], stats.num_disk_hits + stats.num_store_hits


def check_again(directory, runtime, cache, num_hits, first, **options):
    """Compare the answer of a reopened model, its tokens and their probabilities, with `first`."""
    again, num_cached = complete(directory, runtime, cache, **options)
    assert num_cached == num_hits
    assert again.token_ids == first.token_ids
    chosen = [[row[0].logprob for row in each.logprobs] for each in (again, first)]
    np.testing.assert_allclose(*chosen, rtol=0, atol=1e-4)


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


def test_blocks_of_adapters_are_those_of_their_contents(directory, tmp_path):
    """Whatever their numbers and names; also of adapters that are loaded while the engine runs."""
    first, second = (
        write(tmp_path / f"adapter {seed}", adapter(directory, ATTENTION, seed=seed))
        for seed in (3, 4)
    )
    cache = tmp_path / "cache"
    said, num_cached = ask(directory, "openvino", cache, "a", adapters={"a": first, "b": second})
    assert num_cached == 0
    reordered = {"b": second, "c": first}
    assert ask(directory, "openvino", cache, "c", adapters=reordered) == (said, 128)
    assert ask(directory, "openvino", cache, "a", adapters={"a": second})[1] == 0
    assert ask(directory, "openvino", cache)[1] == 0
    assert ask(directory, "openvino", cache, "d", load=first, max_loras=1) == (said, 128)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "other_ranks"),
    [
        ({"pipeline_parallel": 2}, {"pipeline_parallel": 2, "stage_layers": "1:3"}),
        ({"tensor_parallel": 2}, {}),
    ],
)
def test_ranks_find_blocks_of_ranks_that_divide_the_model_alike(
    directory, tmp_path, monkeypatch, ranks, other_ranks
):
    """In pieces of a part; ranks of another layout, or one process, have no hits."""
    monkeypatch.setattr(rank_blocks, "PART_BYTES", 3000)
    said, num_cached = ask(directory, "openvino", tmp_path, **ranks)
    assert num_cached == 0
    assert ask(directory, "openvino", tmp_path, **ranks) == (said, 128)
    assert ask(directory, "openvino", tmp_path, **other_ranks) == (said, 0)


@pytest.mark.slow
def test_stages_keep_blocks_while_steps_are_in_flight(directory, tmp_path):
    """A shared store gets them between steps; each stage has a thread."""
    common, *tails = checkpoints.prompts(6, seed=1, longest=60)
    prompts = [[*common, *common, *tail] for tail in tails]
    options = OPTIONS | {"prefix_cache_store": f"file://{tmp_path}", "pipeline_parallel": 2}
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    hits = []
    for _ in range(2):
        with LLM(directory, "openvino", pipeline_groups=2, **options) as llm:
            answers = llm.generate(prompts, params, False)
            hits.append(llm.stats().num_store_hits)
        for prompt, answer in zip(prompts, answers, strict=True):
            tokens = answer.outputs[0].token_ids
            assert tokens == checkpoints.likeliest(directory, prompt, tokens)
    assert hits[0] == 0
    assert hits[1] >= 96


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("lfm2", "openvino"),
        ("qwen3-next", "openvino"),
        pytest.param("falcon-h1", "torch", marks=pytest.mark.torch),
    ],
)
def test_a_reopened_model_with_states_goes_on_from_a_stored_state(tmp_path, name, runtime):
    path = checkpoints.build(name, tmp_path)
    first, num_cached = complete(path, runtime, tmp_path / "cache", **WITH_STATES)
    assert num_cached == 0
    check_again(path, runtime, tmp_path / "cache", 128, first, **WITH_STATES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runtime", "division"),
    [
        # The first stage has a state alone, the second one keys and values as well.
        ("qwen3-next", "torch", {"pipeline_parallel": 2, "stage_layers": "1:2"}),
        pytest.param("falcon-h1", "torch", {"tensor_parallel": 2}, marks=pytest.mark.long),
        pytest.param("lfm2", "openvino", {"tensor_parallel": 2}, marks=pytest.mark.long),
    ],
)
def test_ranks_go_on_from_a_state_that_other_ranks_have_stored(tmp_path, name, runtime, division):
    path, store = checkpoints.build(name, tmp_path), f"file://{tmp_path}/store"
    options = WITH_STATES | division
    first, num_cached = complete(path, runtime, store, **options)
    assert num_cached == 0
    check_again(path, runtime, store, 128, first, **options)


@pytest.mark.slow
def test_a_state_is_computed_again_if_the_part_of_a_rank_is_damaged(tmp_path, monkeypatch):
    """Parts of a state go from rank to rank in pieces."""
    monkeypatch.setattr(rank_blocks, "PART_BYTES", 3000)
    path, cache = checkpoints.build("qwen3-next", tmp_path), tmp_path / "cache"
    options = WITH_STATES | {"tensor_parallel": 2}
    first, num_cached = complete(path, "openvino", cache, **options)
    assert num_cached == 0
    check_again(path, "openvino", cache, 128, first, **options)
    files = list(cache.glob(f"*{SUFFIX}"))
    for file in files:
        content = bytearray(file.read_bytes())
        content[-9] ^= 1
        file.write_bytes(content)
    assert len(files) > 4
    check_again(path, "openvino", cache, 0, first, **options)
