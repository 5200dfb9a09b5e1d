"""GGUF files of many architectures, converted from checkpoints, against transformers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile
from mindspore_serving.llm.checkpoint.gguf.tensors import read_tensors
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from tests.llm import checkpoints
from tests.llm.gguf_converted import write_converted
from tests.llm.models.test_gguf_models import assert_equal, openvino_logits, torch_logits

pytestmark = pytest.mark.torch
TOKENS = [int(token) for token in np.random.default_rng(3).integers(3, checkpoints.VOCAB, 80)]
# A tiny checkpoint -> llama.cpp's architecture.
CASES = {
    "arcee": "arcee",
    "baichuan2-7b": "baichuan",
    "gemma": "gemma",
    "gemma4": "gemma4",
    "gemma4-large": "gemma4",
    "gemma4-moe": "gemma4",
    "glm4": "glm4",
    "gpt2": "gpt2",
    "granite": "granite",
    "granite-moe": "granitemoe",
    "internlm2": "internlm2",
    "llama-biased": "llama",
    "ministral3": "mistral3",
    "mixtral": "llama",
    "nemotron": "nemotron",
    "olmo": "olmo",
    "olmo3": "olmo2",
    "pangu-embedded": "pangu-embedded",
    "qwen2-moe": "qwen2moe",
    "seed-oss": "seed_oss",
    "stablelm": "stablelm",
    "stablelm-parallel": "stablelm",
    "gguf-bloom": "bloom",
    "gguf-cohere2": "cohere2",
    "gguf-command-r": "command-r",
    "gguf-command-r-plus": "command-r",
    "gguf-deepseek2-lite": "deepseek2",
    "gguf-deepseek3": "deepseek2",
    "gguf-dots1": "dots1",
    "gguf-ernie4_5": "ernie4_5",
    "gguf-ernie4_5-moe": "ernie4_5-moe",
    "gguf-exaone4": "exaone4",
    "gguf-falcon": "falcon",
    "gguf-falcon-new": "falcon",
    "gguf-falcon-h1": "falcon-h1",
    "gguf-falcon-h1-normed": "falcon-h1",
    "gguf-gemma3n": "gemma3n",
    "gguf-glm4moe": "glm4moe",
    "gguf-gpt-oss": "gpt-oss",
    "gguf-gptneox": "gptneox",
    "gguf-granite-hybrid": "granitehybrid",
    "gguf-granite-hybrid-moe": "granitehybrid",
    "gguf-bamba": "granitehybrid",
    "gguf-hunyuan": "hunyuan-dense",
    "gguf-lfm2": "lfm2",
    "gguf-lfm2-moe": "lfm2moe",
    "gguf-llama4": "llama4",
    "gguf-mamba2": "mamba2",
    "gguf-minicpm3": "minicpm3",
    "gguf-nemotron-h": "nemotron_h",
    "gguf-nemotron-h-moe": "nemotron_h_moe",
    "gguf-olmo2": "olmo2",
    "gguf-olmoe": "olmoe",
    "gguf-phi2": "phi2",
    "gguf-qwen3-next": "qwen3next",
    "gguf-qwen35": "qwen35",
    "gguf-qwen35-moe": "qwen35moe",
    "gguf-smollm3": "smollm3",
    "gguf-starcoder2": "starcoder2",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("converted")


def built(name: str, root: Path) -> Path:
    """Once for all tests."""
    return root / name if (root / name).exists() else checkpoints.build(name, root)


@pytest.mark.parametrize(
    "computed",
    [
        pytest.param(torch_logits, id="torch"),
        # Of the same tensors; `test_architectures` has its graphs, and some are below.
        pytest.param(openvino_logits, id="openvino", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_converted_checkpoint_matches_transformers(
    name: str, computed: Callable[[Path, list[int]], np.ndarray], root: Path
) -> None:
    directory = built(name, root)
    path = root / f"{name}.gguf"
    if not path.exists():
        write_converted(directory, CASES[name], path)
    expected = checkpoints.logits(directory, TOKENS)
    found = computed(path, TOKENS)
    assert_equal(found, expected)
    np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gguf-gpt-oss", "MXFP4"),
        ("gguf-deepseek2-lite", "Q8_0"),
        ("gguf-falcon", "Q4_1"),
        ("gemma4-moe", "Q8_0"),
        ("gguf-gemma3n", "Q8_0"),
        ("granite-moe", "Q8_0"),
        ("gpt2", "Q8_0"),
        ("gguf-granite-hybrid-moe", "Q8_0"),
        ("gguf-qwen35", "Q8_0"),
    ],
)
def test_quantised_file_matches_its_dequantised_floats(name: str, kind: str, root: Path) -> None:
    directory, architecture = built(name, root), CASES[name]
    path = write_converted(directory, architecture, root / f"{name}-{kind}.gguf", kind=kind)
    floats = root / f"{name}-{kind}-floats.gguf"
    write_converted(directory, architecture, floats, kind=kind, is_rounded=True)
    expected = torch_logits(floats, TOKENS)
    assert_equal(torch_logits(path, TOKENS), expected)
    assert_equal(openvino_logits(path, TOKENS), expected)


def test_baichuan_of_40_layers_uses_alibi(root: Path) -> None:
    """No more than that says so in a file."""
    source = checkpoints.build("baichuan2-13b", root)
    directory = root / "deep" / source.name
    directory.mkdir(parents=True)
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 40}))
    tensors = load_file(source / "model.safetensors")
    for name, values in list(tensors.items()):
        if "layers.0." in name:
            small = values * np.float32(0.3 if "o_proj" in name or "down" in name else 1.0)
            tensors |= {name.replace(".0.", f".{i}."): small for i in range(40)}
    save_file(tensors, directory / "model.safetensors")
    path = write_converted(directory, "baichuan", root / "deep.gguf")
    assert_equal(torch_logits(path, TOKENS), checkpoints.logits(directory, TOKENS))


def test_file_without_value_expansion_is_refused(root: Path) -> None:
    directory = built("gguf-deepseek3", root)
    path = write_converted(directory, "deepseek2", root / "whole.gguf")
    path.write_bytes(path.read_bytes().replace(b"attn_v_b", b"attn_v_a"))
    with pytest.raises(StartError, match=r"attn_k_b \[4, 32, 16\] and attn_v_b None"):
        Checkpoint.open(path)


def test_experts_with_unequal_gate_and_up_are_refused(root: Path) -> None:
    directory = built("gemma4-moe", root)
    file = GgufFile(write_converted(directory, "gemma4", root / "uneven.gguf"))
    (name, whole), *_ = [one for one in file.tensors.items() if "ffn_gate_up_exps" in one[0]]
    count, size, width = whole.shape
    rows = whole.rows.reshape(count, size, -1)[:, 1:].reshape(count * (size - 1), -1)
    file.tensors[name] = replace(whole, shape=(count, size - 1, width), rows=rows)
    with pytest.raises(StartError, match=f"has {size - 1} rows for each expert, expected a multip"):
        read_tensors(file)


@pytest.mark.parametrize("count", [None, "x", [1], 0])
def test_a_file_without_a_number_of_layers_or_heads_is_refused(root: Path, count: object) -> None:
    directory = built("ministral3", root)
    path = write_converted(directory, "mistral3", root / "numbers.gguf")
    for key in ("mistral3.block_count", "mistral3.attention.head_count"):
        file = GgufFile(path)
        file.metadata[key] = count
        with pytest.raises(StartError, match="num_hidden_layers|heads"):
            read_tensors(file)
