"""MindFormers' `predict_*.yaml` stands in for files that a model directory does not have."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.mindformers.settings import find_weights, text_directory
from mindspore_serving.llm.checkpoint.model_files import (
    find_config,
    read_eos_ids,
    read_recommended,
)
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.storage.fingerprint import fingerprint
from mindspore_serving.servable.foreign import formats
from mindspore_serving.servable.repository import is_language_model

SIZES = {"num_layers": 2, "num_heads": 4, "hidden_size": 64, "type": "LlamaConfig"}
EMBEDDING = "model.tok_embeddings.embedding_weight"


def write(directory: Path, settings: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "predict_llama.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def of_model(**changes: Any) -> dict[str, Any]:
    return {"model": {"model_config": {**SIZES, **changes}}}


def test_sizes_have_mindformers_defaults(tmp_path: Path) -> None:
    write(tmp_path, of_model())
    config = find_config(tmp_path)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["num_attention_heads"]) == (2, 4)
    assert config["intermediate_size"] == 256  # 2/3 of 4 * 64, up to a multiple of 256
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 10000.0)
    assert config["max_position_embeddings"] == 2048


def test_sizes_are_translated(tmp_path: Path) -> None:
    scaling = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    scaling["original_max_position_embedding"] = 8192
    model = of_model(n_kv_heads=2, theta=5e5, qkv_has_bias=True, extend_method="LLAMA3")
    model["model"]["model_config"]["scaling_factor"] = scaling
    write(tmp_path, model)
    config = find_config(tmp_path)
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert (config["num_key_value_heads"], config["rope_theta"]) == (2, 5e5)
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert config["rope_scaling"]["original_max_position_embeddings"] == 8192


def test_sampling_is_recommended(tmp_path: Path) -> None:
    write(tmp_path, of_model(top_k=3, top_p=0.9, repetition_penalty=1.1, eos_token_id=[2, 7]))
    assert read_recommended(tmp_path) == {"top_k": 3, "top_p": 0.9, "repetition_penalty": 1.1}
    assert read_eos_ids(tmp_path) == (2, 7)


def test_decoding_without_sampling_is_greedy(tmp_path: Path) -> None:
    write(tmp_path, of_model(do_sample=False, top_k=3))
    assert read_recommended(tmp_path) == {"temperature": 0.0}


def test_files_beside_the_settings_replace_them(tmp_path: Path) -> None:
    write(tmp_path, of_model())
    (tmp_path / "config.json").write_text('{"architectures": ["MistralForCausalLM"]}')
    (tmp_path / "generation_config.json").write_text('{"top_k": 9}')
    assert find_config(tmp_path) == {"architectures": ["MistralForCausalLM"]}
    assert read_recommended(tmp_path) == {"top_k": 9}


def test_files_of_the_pretrained_model_are_read(tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (published / "tokenizer.json").write_text("{}")
    save_file({"w": np.ones(2, np.float32)}, published / "model.safetensors")
    directory = tmp_path / "model"
    write(directory, {"pretrained_model_dir": "../published", "load_checkpoint": ""})
    assert find_config(directory) == {"architectures": ["Qwen3ForCausalLM"]}
    assert text_directory(directory, ("tokenizer.json",)).samefile(published)
    assert Checkpoint.open(directory).f32("w").tolist() == [1, 1]


def test_weights_elsewhere_change_the_fingerprint(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    write(directory, {**of_model(), "load_checkpoint": "../weights"})
    (tmp_path / "weights" / "rank_0").mkdir(parents=True)
    hashes = set()
    for value in (1, 2):
        path = tmp_path / "weights" / "rank_0" / "net-1_1.safetensors"
        save_file({EMBEDDING: np.full((2, 2), value, np.float32)}, path)
        assert find_weights(directory) is not None
        assert Checkpoint.open(directory).f32("model.embed_tokens.weight")[0, 0] == value
        hashes.add(fingerprint(directory, tmp_path))
    assert len(hashes) == 2


def lora(directory: Path) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"weight": (6, 4), "mindpet_delta_lora_a": (2, 4), "mindpet_delta_lora_b": (6, 2)}
    module = "model.layers.0.attention.wq"
    parts = {name: random.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    tensors = {f"{module}.{name}": array for name, array in parts.items()}
    save_file({EMBEDDING: np.ones((2, 2), np.float32), **tensors}, directory / "a.safetensors")
    return parts


def test_lora_in_the_weights_is_added(tmp_path: Path) -> None:
    parts = lora(tmp_path)
    write(tmp_path, of_model(pet_config={"pet_type": "lora", "lora_rank": 2, "lora_alpha": 16}))
    checkpoint = Checkpoint.open(tmp_path)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert sorted(checkpoint.names()) == ["model.embed_tokens.weight", name]
    product = parts["mindpet_delta_lora_b"] @ parts["mindpet_delta_lora_a"]
    np.testing.assert_allclose(checkpoint.f32(name), parts["weight"] + 8 * product, rtol=1e-6)


def test_lora_without_its_settings_is_refused(tmp_path: Path) -> None:
    lora(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(StartError, match="has LoRA in its weights.*lora_rank and lora_alpha"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (of_model(type="GLMConfig"), "is for GLMConfig, .* expected one of LlamaConfig"),
        ({}, "is for a model of no type"),
        (of_model(extend_method="YARN"), "extend_method is 'YARN', expected None, PI or LLAMA3"),
        (of_model(moe_config={"expert_num": 8}), "has moe_config of several experts"),
        (of_model(hidden_size="large"), "hidden_size, .* are 'large', None and 256"),
        (of_model() | {"load_checkpoint": "absent"}, "load_checkpoint is 'absent', which does not"),
        (["a"], "predict_llama.yaml holds a list, expected settings by name"),
    ],
)
def test_settings_that_are_not_supported_are_refused(
    tmp_path: Path, settings: Any, problem: str
) -> None:
    write(tmp_path, settings)
    read = find_weights if "load_checkpoint" in settings else find_config
    with pytest.raises(StartError, match=problem):
        read(tmp_path)


def test_settings_are_served_by_their_path_or_directory(tmp_path: Path) -> None:
    path = write(tmp_path, {**of_model(), "parallel_config": {"model_parallel": 4}})
    for location in (path, tmp_path):
        assert is_language_model(str(location))
        model = formats.language_model(str(location))
        assert model is not None
        assert model.language_path == str(tmp_path)
        assert model.options == {"alias": "llama"}
        assert "model_parallel 4 (--llm-option tensor_parallel" in model.without_effect[0]
    (tmp_path / "predict_other.yaml").write_text("{}")
    assert not is_language_model(str(tmp_path))
    with pytest.raises(StartError, match="has several predict_.*put the one to serve into"):
        formats.language_model(str(path))
