"""Conversion of checkpoint tensors to the layout that the definitions read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.layouts import convert_layout
from mindspore_serving.llm.models.positions import alibi_slopes
from tests.llm import checkpoints

pytestmark = pytest.mark.torch


def opened(path: Path) -> Checkpoint:
    return convert_layout(Checkpoint.open(path))


def renamed(path: Path, rename: dict[str, str]) -> Path:
    """The checkpoint with the prefixes of its tensors replaced."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    for before, after in rename.items():
        tensors = {
            after + name.removeprefix(before) if name.startswith(before) else name: tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors, file)
    return path


def test_alibi_slopes_of_a_power_of_two_are_a_geometric_series() -> None:
    assert alibi_slopes(8) == tuple(2.0**-i for i in range(1, 9))


def test_alibi_slopes_of_other_numbers_fill_up_from_the_next_power() -> None:
    """As published for 6 heads: four of 4, then the first and the third of 8."""
    assert alibi_slopes(6) == (2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3)


def test_the_fused_rows_of_internlm2_are_cut_by_kind(tmp_path: Path) -> None:
    """Two key-value heads with two queries each and head size 1: q q k v, q q k v."""
    config = {
        "architectures": ["InternLM2ForCausalLM"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows = np.array([[10], [11], [20], [30], [12], [13], [21], [31]], np.float32)
    name = "model.layers.0.attention.wqkv.weight"
    save_file({name: rows}, tmp_path / "model.safetensors")
    checkpoint = opened(tmp_path)
    cut = {kind: checkpoint.f32(f"model.layers.0.attention.{kind}.weight") for kind in
           ("wq", "wk", "wv")}  # fmt: skip
    assert cut["wq"].tolist() == [[10], [11], [12], [13]]
    assert cut["wk"].tolist() == [[20], [21]]
    assert cut["wv"].tolist() == [[30], [31]]
    assert not checkpoint.has(name)


def test_the_key_and_value_rows_of_telechat2_are_cut_by_head(tmp_path: Path) -> None:
    """Two key-value heads of size 2: k k v v, k k v v."""
    config = {
        "architectures": ["TeleChat2ForCausalLM"],
        "n_head": 4,
        "num_key_value_heads": 2,
        "hidden_size": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows = np.array([[20], [21], [30], [31], [22], [23], [32], [33]], np.float32)
    attention = "transformer.h.0.self_attention"
    save_file({f"{attention}.key_value.weight": rows}, tmp_path / "model.safetensors")
    checkpoint = opened(tmp_path)
    assert checkpoint.names() == [f"{attention}.key.weight", f"{attention}.value.weight"]
    assert checkpoint.f32(f"{attention}.key.weight").tolist() == [[20], [21], [22], [23]]
    assert checkpoint.f32(f"{attention}.value.weight").tolist() == [[30], [31], [32], [33]]


def test_fused_rows_of_another_count_are_refused(tmp_path: Path) -> None:
    config = {"architectures": ["InternLM2ForCausalLM"], "num_attention_heads": 4, "hidden_size": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    fused = {"layers.0.attention.wqkv.weight": np.zeros((9, 4), np.float32)}
    save_file(fused, tmp_path / "model.safetensors")
    with pytest.raises(StartError, match=r"wqkv.weight' has shape .* expected 12 rows"):
        opened(tmp_path)


def test_matrices_of_gpt2_are_turned(tmp_path: Path) -> None:
    path = checkpoints.build("gpt2", tmp_path)
    stored = load_file(path / "model.safetensors")["transformer.h.1.mlp.c_fc.weight"]
    turned = opened(path).f32("transformer.h.1.mlp.c_fc.linear.weight")
    assert turned.shape == (256, 64)
    np.testing.assert_array_equal(turned, stored.T)


def test_gpt2_without_the_prefix_of_its_body_is_the_same(tmp_path: Path) -> None:
    path = checkpoints.build("gpt2", tmp_path)
    expected = set(opened(path).names())
    assert set(opened(renamed(path, {"transformer.": ""})).names()) == expected


def test_the_output_rows_of_baichuan_2_have_length_1(tmp_path: Path) -> None:
    path = checkpoints.build("baichuan2-7b", tmp_path)
    head = opened(path).f32("lm_head.weight")
    np.testing.assert_allclose(np.linalg.norm(head, axis=1), 1, rtol=1e-6)


def test_the_output_rows_of_the_first_baichuan_stay(tmp_path: Path) -> None:
    path = checkpoints.build("baichuan2-7b", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"vocab_size": 64000}))
    stored = load_file(path / "model.safetensors")["lm_head.weight"]
    np.testing.assert_array_equal(opened(path).f32("lm_head.weight"), stored)


@pytest.mark.parametrize("prefixes", [("language_model.model.", "language_model.lm_head."),
                                      ("model.language_model.", "lm_head.")])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("gemma3", "Gemma3"),
        ("gemma3n", "Gemma3n"),
        ("gemma4", "Gemma4"),
        ("ministral3", "Mistral3"),
        ("llama4", "Llama4"),
    ],
)
def test_text_model_is_read_beside_the_vision_tower(
    tmp_path: Path, name: str, architecture: str, prefixes: tuple[str, str]
) -> None:
    path = checkpoints.build(name, tmp_path)
    expected = set(opened(path).names())
    config = json.loads((path / "config.json").read_text())
    alone, _ = load_definition(config)
    text = {"architectures": [f"{architecture}ForConditionalGeneration"], "text_config": config}
    found, _ = load_definition(text)
    architecture_row = replace(found.architecture, variant=alone.architecture.variant)
    same = {"architecture_name": alone.architecture_name, "architecture": architecture_row}
    assert replace(found, **same) == alone
    (path / "config.json").write_text(json.dumps(text))
    renamed(path, {"model.": prefixes[0], "lm_head.": prefixes[1]})
    assert set(opened(path).names()) == expected


@pytest.mark.parametrize(
    ("name", "prefix"), [("bloom", "transformer."), ("falcon", "transformer."), ("opt", "model.")]
)
def test_the_prefix_of_a_body_may_be_left_out(tmp_path: Path, name: str, prefix: str) -> None:
    path = checkpoints.build(name, tmp_path)
    expected = set(opened(path).names())
    assert set(opened(renamed(path, {prefix: ""})).names()) == expected


def test_first_gpt_neox_checkpoint_has_same_tensors(tmp_path: Path) -> None:
    config = checkpoints.configuration("gpt-neox")
    old = {key: value for key, value in config.items() if key != "rope_parameters"}
    old |= {"rotary_pct": 0.25, "rotary_emb_base": 10000}
    assert load_definition(old)[0] == load_definition(config)[0]


def test_a_window_for_layers_in_turn_may_be_letters() -> None:
    config = checkpoints.configuration("exaone4")
    config |= {"layer_types": None, "num_hidden_layers": 6, "sliding_window_pattern": "LLLG"}
    assert load_definition(config)[0].windows == (24, 24, 24, 0, 24, 24)


def test_converted_checkpoint_is_not_converted_again(tmp_path: Path) -> None:
    for name in ("gpt2", "baichuan2-13b", "llama", "opt", "falcon-new", "gpt-oss"):
        once = opened(checkpoints.build(name, tmp_path))
        twice = convert_layout(once)
        assert twice.names() == once.names()
        for tensor in once.names():
            np.testing.assert_allclose(twice.f32(tensor), once.f32(tensor), rtol=1e-6)
