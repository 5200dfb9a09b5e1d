"""MindIR files in the form of llm-serving, against the reference implementation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

import mindspore
from mindspore import nn, ops

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.mindir.graphs import dynamic
from mindspore_serving.llm.runtimes.mindir.paged_files import find_paged_files
from mindspore_serving.llm.step import Row, Runner, Step
from mindspore_serving.server.llm_config import read_llm_config
from tests.llm import checkpoints
from tests.llm.llm_serving_files import export_like_llm_serving
from tests.llm.running import generate_staggered, texts

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
COUNT = 12  # greedy tokens


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints")
    return checkpoints.build("llama", directory, num_hidden_layers=1)


@pytest.fixture(scope="module")
def any_size(source: Path) -> Path:
    """Prompts and batches of any size, int32 lengths."""
    target = source.parent / "any"
    export_like_llm_serving(source, target)
    return target


@pytest.fixture(scope="module")
def fixed_size(source: Path) -> Path:
    """Prompts of 48 tokens, batches of 2, int64 lengths."""
    target = source.parent / "fixed"
    export_like_llm_serving(source, target, prompt=48, batch=2, lengths="int64")
    return target


@pytest.fixture(scope="module")
def runner(any_size: Path) -> Runner:
    return open_runner(any_size, "mindir", EngineConfig())


def test_cache_and_sizes_are_those_of_the_files(runner: Runner) -> None:
    """40 blocks of 8 tokens, one of them reserved; 12 blocks in a row of the block tables."""
    assert (runner.num_blocks, runner.block_size, runner.max_model_len) == (39, 8, 96)


def test_another_size_of_blocks_than_that_of_the_files_is_refused(any_size: Path) -> None:
    with pytest.raises(StartError, match="block_size is 16, but .* has blocks of 8: leave"):
        open_runner(any_size, "mindir", EngineConfig(block_size=16))


def check_greedy(runner: Runner, source: Path) -> None:
    """Three prompts that come one after another, the longer ones in pieces."""
    prompts = checkpoints.prompts(3)
    answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=50)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(source, prompt, answer)


def test_greedy_tokens_are_those_of_the_reference(runner: Runner, source: Path) -> None:
    check_greedy(runner, source)


def test_prompts_and_batches_are_padded_to_fixed_sizes(fixed_size: Path, source: Path) -> None:
    """A prompt of 60 tokens exceeds the 48 of the file, three sequences its batch of 2."""
    check_greedy(open_runner(fixed_size, "mindir", EngineConfig()), source)


def test_logits_of_several_tokens_of_a_prompt_are_returned(runner: Runner, source: Path) -> None:
    prompts = checkpoints.prompts(2, longest=9)
    rows = [
        Row(text.tokens, 0, text.blocks, count)
        for text, count in zip(texts(runner, prompts, 0), (4, 1), strict=True)
    ]
    logits = runner.run(Step(tuple(rows)))
    expected = [checkpoints.logits(source, prompts[0])[-4:]]
    expected += [checkpoints.logits(source, prompts[1])[-1:]]
    np.testing.assert_allclose(logits, np.concatenate(expected), atol=1e-4)


def test_copied_blocks_continue_like_their_source(runner: Runner, source: Path) -> None:
    prompt = checkpoints.prompts(1, longest=5)[0]
    runner.run(Step((Row(prompt, 0, [7], 0),)))
    row = Row([3], len(prompt), [30], 1)
    logits = runner.run(Step((row,), copies=((7, 30),)))
    expected = checkpoints.logits(source, [*prompt, 3])[-1:]
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def configure(directory: Path, prefill: str, decode: str) -> Path:
    file = directory / "config.yaml"
    file.write_text(
        f"model_path: {{prefill_model: [{prefill}], decode_model: [{decode}]}}\n"
        "model_config: {model_name: llama, seq_length: [64], decode_batch_size: [2],\n"
        "  page_attention: True}\n"
        "pa_config: {num_blocks: 40, block_size: 8, decode_seq_length: 96}\n"
        "serving_config: {server_port: 9800}\n"
    )
    return file


def test_the_configuration_of_llm_serving_selects_the_files(any_size: Path) -> None:
    config = read_llm_config(configure(any_size, "llama_prefill.mindir", "llama_inc.mindir"))
    assert (config.directory, config.runtime) == (any_size, "mindir")
    assert config.options == {
        "max_model_len": 64,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": False,
    }


def test_files_of_the_same_name_are_in_two_directories(any_size: Path, tmp_path: Path) -> None:
    """As MindFormers writes them; config.json is above both."""
    (tmp_path / "config.json").write_text((any_size / "config.json").read_text())
    for folder, name in (("full", "llama_prefill"), ("inc", "llama_inc")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank_0_graph.mindir").symlink_to(any_size / f"{name}.mindir")
    path = configure(tmp_path, "full/rank_0_graph.mindir", "inc/rank_0_graph.mindir")
    assert read_llm_config(path).directory == tmp_path
    files = find_paged_files(tmp_path)
    assert files
    assert (files.prefill.path.parent.name, files.num_blocks) == ("full", 40)


class Unpaged(nn.Cell):  # type: ignore[misc]
    """Inputs of llm-serving without page attention."""

    def construct(self, input_ids: Any, batch_valid_length: Any, batch_index: Any) -> Any:
        return input_ids + batch_valid_length + batch_index


class Kernels(nn.Cell):  # type: ignore[misc]
    """The operator with which MindFormers writes the cache."""

    def __init__(self) -> None:
        super().__init__()
        cache = mindspore.Tensor(np.zeros((4, 8, 1, 16), np.float16))
        self.key_cache = mindspore.Parameter(cache, name="attention.key_cache")
        self.write = ops.auto_generate.ReshapeAndCache()

    def construct(
        self, input_ids: Any, batch_valid_length: Any, block_tables: Any, slot_mapping: Any
    ) -> Any:
        key = ops.ones((1, 16), mindspore.float16)
        return self.write(key, key, self.key_cache, self.key_cache, slot_mapping)


def export(cell: Any, path: Path, count: int) -> None:
    inputs = [dynamic((1,), mindspore.int32)] * count
    mindspore.export(cell, *inputs, file_name=str(path), file_format="MINDIR")


def test_files_without_page_attention_are_refused_by_their_inputs(tmp_path: Path) -> None:
    export(Unpaged(), tmp_path / "full", 3)
    with pytest.raises(StartError, match="no prefill file, which has the inputs .*batch_index.*"):
        find_paged_files(tmp_path)


def test_operators_of_ascend_are_refused_on_a_cpu(any_size: Path, tmp_path: Path) -> None:
    export(Kernels(), tmp_path / "inc", 4)
    for name in ("config.json", "llama_prefill.mindir"):
        (tmp_path / name).symlink_to(any_size / name)
    with pytest.raises(StartError, match="inc.mindir has ReshapeAndCache, which only Ascend"):
        open_runner(tmp_path, "mindir", EngineConfig())


def test_a_second_file_of_a_kind_is_refused(any_size: Path, tmp_path: Path) -> None:
    for name in ("a.mindir", "b.mindir"):
        (tmp_path / name).symlink_to(any_size / "llama_prefill.mindir")
    with pytest.raises(StartError, match="has 2 prefill files, a.mindir, b.mindir: keep one"):
        find_paged_files(tmp_path)
