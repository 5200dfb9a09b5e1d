"""GGUF files of models with recurrent states.

Greedy tokens, quantised columns in another order, and files that are refused.
"""

from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks
from mindspore_serving.llm.checkpoint.gguf.stored import joined, stored
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models import load_definition
from tests.llm import checkpoints, gguf_states
from tests.llm.gguf_converted import write_converted
from tests.llm.gguf_files import dequantized, random_blocks, write_model
from tests.llm.gguf_states import Named
from tests.llm.models.test_gguf_architectures import CASES
from tests.llm.models.test_gguf_models import assert_equal, torch_logits

pytestmark = pytest.mark.torch
PROMPT = [int(token) for token in np.random.default_rng(5).integers(3, checkpoints.VOCAB, 40)]
STATES = [name for name in CASES if CASES[name] in gguf_states.STATES]
COUNT = 24


@pytest.mark.parametrize("name", STATES)
def test_greedy_tokens_of_a_file_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    directory = checkpoints.build(name, tmp_path)
    path = write_converted(directory, CASES[name], tmp_path / "model.gguf")
    greedy = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    with LLM(path, runtime="torch", device="cpu", kv_cache_memory=2**24) as llm:
        (answer,) = llm.generate([PROMPT], greedy)
    found = tuple(answer.outputs[0].token_ids)
    assert len(found) == COUNT
    assert found == checkpoints.likeliest(directory, PROMPT, found)


def test_older_files_have_gates_beside_queries_keys_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(config: object, layer: str, values: np.ndarray) -> Named:
        yield f"blk.{layer}.ssm_in.weight", values

    monkeypatch.setattr(gguf_states, "_apart", whole)
    directory = checkpoints.build("gguf-qwen3-next", tmp_path)
    path = write_converted(directory, "qwen3next", tmp_path / "model.gguf")
    assert_equal(torch_logits(path, PROMPT), checkpoints.logits(directory, PROMPT))


@pytest.mark.parametrize(
    ("kind", "width", "is_packed"),
    [("Q4_K", 128, True), ("Q6_K", 128, True), ("Q4_1", 32, True), ("Q8_0", 16, False),
     ("Q4_K", 16, False)],
)  # fmt: skip
def test_columns_of_quantised_blocks_change_their_order_exactly(
    kind: str, width: int, is_packed: bool, tmp_path: Path
) -> None:
    rows = random_blocks(kind, 7, 768)
    order = np.random.default_rng(2).permutation(768 // width)
    one = stored(Blocks(kind, (7, 768), rows), columns=order)
    found = Checkpoint(tmp_path, {}, {"w": one})
    expected = dequantized(kind, rows).reshape(7, -1, width)[:, order].reshape(7, 768)
    np.testing.assert_array_equal(found.f32("w"), expected)
    assert (found.packed("w") is not None) == is_packed


@pytest.mark.parametrize(
    ("groups", "rate", "rows", "message"),
    [
        (3, -1.0, 4, r"96, 4 and 3, expected multiples"),
        (2, -1.0, 5, r"'blk.0.ssm_a' has 5 rows, expected 4"),
        (2, 1.0, 4, r"'blk.0.ssm_a' has F32, expected floats of at most 0"),
    ],
)
def test_states_that_do_not_fit_are_refused(
    groups: int, rate: float, rows: int, message: str, tmp_path: Path
) -> None:
    sizes = {"inner_size": 96, "time_step_rank": 4, "state_size": 24, "conv_kernel": 4}
    extra = {f"qwen35.ssm.{key}": value for key, value in {**sizes, "group_count": groups}.items()}
    tensors = {"blk.0.ssm_a": np.full(rows, rate, np.float32)}
    path = write_model(tmp_path / "model.gguf", "qwen35", extra=extra, tensors=tensors)
    with pytest.raises(StartError, match=message):
        Checkpoint.open(path)


@pytest.mark.parametrize("kinds", [("Q4_K", "Q4_K"), ("Q4_K", "Q6_K")])
def test_gates_join_queries_keys_values_of_any_two_types(
    kinds: tuple[str, str], tmp_path: Path
) -> None:
    rows = [random_blocks(kind, 5, 256, seed) for seed, kind in enumerate(kinds)]
    blocks = [Blocks(kind, (5, 256), each) for kind, each in zip(kinds, rows, strict=True)]
    found = Checkpoint(tmp_path, {}, {"w": joined((blocks[0], blocks[1]))})
    expected = [dequantized(kind, each) for kind, each in zip(kinds, rows, strict=True)]
    np.testing.assert_array_equal(found.f32("w"), np.concatenate(expected))
    assert (found.packed("w") is not None) == (kinds[0] == kinds[1])


def test_a_gate_without_the_rest_is_refused(tmp_path: Path) -> None:
    directory = checkpoints.build("gguf-granite-hybrid", tmp_path)
    path = write_converted(directory, "granitehybrid", tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up.", b"blk.9.ffn_up."))
    with pytest.raises(StartError, match=r"'blk.1.ffn_gate.weight' is .*other half None"):
        Checkpoint.open(path)


def test_billions_of_layers_are_refused_without_counting_them(tmp_path: Path) -> None:
    extra = {"lfm2.block_count": 2**32 - 1, "lfm2.shortconv.l_cache": 3}
    path = write_model(tmp_path / "model.gguf", "lfm2", extra=extra, tied=True)
    with pytest.raises(StartError, match="num_hidden_layers 4294967295, expected at most 4096"):
        load_definition(Checkpoint.open(path).config)
