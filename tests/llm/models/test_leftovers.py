"""Tensors of checkpoints are read, known to be for training, or refused with the checkpoint."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers
from safetensors.torch import load_file, save_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.pooling import read_pooling
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.tower import Tower
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.encoding import open_encoder_model
from tests.llm import checkpoints, encoders, lora_files, seeing
from tests.llm.gguf_files import write_model
from tests.llm.stepping import all_logits, relative_error

pytestmark = pytest.mark.torch
Tensors = dict[str, torch.Tensor]
PROMPT = checkpoints.prompts(1)[0]


def changed(path: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    """The checkpoint with `tensors` and settings more."""
    file = path / "model.safetensors"
    save_file(load_file(file) | tensors, file, {"format": "pt"})
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(settings | (config or {})))
    return path


def computed(path: Path, runtime: str = "torch") -> np.ndarray:
    options = {"device": "cpu"} if runtime == "torch" else {"dtype": "f32"}
    config = EngineConfig(
        kv_cache_memory=2**21, max_num_seqs=2, max_num_batched_tokens=64, **options
    )
    runner = open_runner(path, runtime, config)
    try:
        return all_logits(runner, list(PROMPT))
    finally:
        runner.close()


UNKNOWN = {
    "lm_head.bias": torch.ones(checkpoints.VOCAB),
    "model.layers.0.self_attn.q_proj.bias": torch.ones(64),
    "model.layers.3.mlp.up_proj.weight": torch.ones(96, 64),
    "model.layers.0.extra.weight": torch.ones(64, 64),
    "adapter.weight": torch.ones(4, 4),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_tensor_that_the_architecture_does_not_have_is_refused_by_name(
    tmp_path: Path, name: str
) -> None:
    path = changed(checkpoints.build("llama", tmp_path), {name: UNKNOWN[name]})
    with pytest.raises(StartError, match=f"1 tensors that LlamaForCausalLM .* '{name}'"):
        open_definition(path)


def as_pickled(path: Path) -> None:
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def as_shards(path: Path) -> None:
    names = list(load_file(path / "model.safetensors"))
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("rewrite", [as_pickled, as_shards])
def test_unknown_tensor_of_other_file_formats_is_refused(
    tmp_path: Path, rewrite: Callable[[Path], None]
) -> None:
    path = changed(checkpoints.build("llama", tmp_path), {"extra.weight": torch.ones(4)})
    rewrite(path)
    with pytest.raises(StartError, match="does not have: 'extra.weight'"):
        open_definition(path)


def test_an_unknown_tensor_beside_integers_is_refused(tmp_path: Path) -> None:
    from mindspore_serving.llm.quantize import quantize

    quantize(checkpoints.build("llama", tmp_path), tmp_path / "int8", "int8")
    open_definition(tmp_path / "int8")
    path = changed(tmp_path / "int8", {"model.norm.scale": torch.ones(4)})
    with pytest.raises(StartError, match="does not have: 'model.norm.scale'"):
        open_definition(path)


def test_gguf_bias_unknown_to_the_architecture_is_refused(
    tmp_path: Path,
) -> None:
    tensors = {"blk.0.ffn_down.bias": np.ones(64, np.float32)}
    path = write_model(tmp_path / "model.gguf", family="qwen2", tensors=tensors)
    with pytest.raises(StartError, match=r"'model\.layers\.0\.mlp\.down_proj\.bias'"):
        open_definition(path)


NOT_FOR_INFERENCE: dict[str, tuple[Tensors, tuple[str, ...]]] = {
    "llama": (
        {
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
            "model.layers.1.self_attn.k_proj.k_scale": torch.ones(1),
            "model.layers.1.self_attn.q_proj.bias": torch.zeros(64),
            "adam_m.model.norm.weight": torch.ones(64),
            "global_step": torch.ones(1),
            "mtp.fc.weight": torch.ones(64, 128),
        },
        (
            "positions.*inv_freq",
            "caches.*k_scale",
            "zeros.*q_proj.bias",
            "1 of an opt",
            "about training.*global_step",
            "mtp.fc",
        ),
    ),
    "gpt2": (
        {
            "transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8),
            "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
        },
        ("2 masks of attention",),
    ),
}


@pytest.mark.parametrize("name", NOT_FOR_INFERENCE)
def test_training_tensors_are_left_out_and_logged_once(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tensors, says = NOT_FOR_INFERENCE[name]
    path = changed(checkpoints.build(name, tmp_path), {k: v.clone() for k, v in tensors.items()})
    checkpoint, _, _ = open_definition(path)
    assert not set(tensors) & set(checkpoint.names())
    (line,) = [text for text in capfd.readouterr().err.splitlines() if "not for inference" in text]
    assert all(re.search(part, line) for part in says)


def test_a_vector_named_as_a_mask_is_refused(tmp_path: Path) -> None:
    path = changed(
        checkpoints.build("llama", tmp_path), {"model.layers.0.attn.bias": torch.ones(9)}
    )
    with pytest.raises(StartError, match=r"model\.layers\.0\.attn\.bias"):
        open_definition(path)


@pytest.mark.parametrize("count", [0, 1])
def test_layer_after_the_last_is_left_out_if_config_says_mtp(tmp_path: Path, count: int) -> None:
    extra = {"model.layers.2.eh_proj.weight": torch.ones(4, 4)}
    path = checkpoints.build("glm4-moe", tmp_path)
    changed(path, extra, {"num_nextn_predict_layers": count})
    if count:
        assert not set(extra) & set(open_definition(path)[0].names())
    else:
        with pytest.raises(StartError, match="eh_proj"):
            open_definition(path)


@pytest.mark.parametrize("is_same", [True, False])
def test_separate_output_matrix_overrides_tied_embeddings(tmp_path: Path, is_same: bool) -> None:
    """As in transformers, if it is not the embedding again."""
    path = checkpoints.build("llama3-tied", tmp_path)
    table = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    changed(path, {"lm_head.weight": table.clone() if is_same else table.flip(0).contiguous()})
    assert open_definition(path)[1].tied_embeddings == is_same
    assert relative_error(computed(path), checkpoints.logits(path, PROMPT)) < 1e-4


@pytest.mark.parametrize("runtime", ["torch", "openvino"])
def test_the_bias_of_ernies_output_matrix_is_added(tmp_path: Path, runtime: str) -> None:
    path = checkpoints.build("ernie4_5-moe-biased", tmp_path)
    assert "lm_head.bias" in load_file(path / "model.safetensors")
    assert relative_error(computed(path, runtime), checkpoints.logits(path, PROMPT)) < 1e-4


def test_gguf_file_with_more_layers_than_declared_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", extra={"llama.block_count": 1})
    with pytest.raises(StartError, match=r"'blk\.1\..*', but block_count 1"):
        open_definition(path)


def test_layers_of_a_gguf_file_that_predict_more_tokens_are_left_out(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", extra={"llama.nextn_predict_layers": 1})
    checkpoint, spec, _ = open_definition(path)
    assert not any(f".layers.{spec.num_layers}." in name for name in checkpoint.names())


def test_a_tensor_that_an_encoder_does_not_have_is_refused(tmp_path: Path) -> None:
    extra = {"encoder.layer.0.attention.self.gate.weight": torch.ones(4)}
    path = changed(encoders.build("bert", tmp_path), extra)
    with pytest.raises(StartError, match=r"attention\.self\.gate\.weight"):
        open_encoder_model(path, EngineConfig())


def test_a_table_of_positions_that_an_encoder_numbers_itself_is_left_out(tmp_path: Path) -> None:
    extra = {"embeddings.position_ids": torch.arange(70)[None]}
    path = changed(encoders.build("bert", tmp_path), extra)
    assert not set(extra) & set(open_encoder_model(path, EngineConfig()).checkpoint.names())


def test_classifier_with_an_unknown_layer_is_refused(
    tmp_path: Path,
) -> None:
    from mindspore_serving.llm.engine.encoder import Encoder

    config = transformers.RobertaConfig(**encoders.SIZES | encoders.ROBERTA)
    transformers.RobertaForSequenceClassification(config).save_pretrained(tmp_path)
    Encoder.open(tmp_path, EngineConfig(), "torch").close()
    changed(tmp_path, {"classifier.middle.weight": torch.ones(64, 64)})
    with pytest.raises(StartError, match=r"'classifier\.middle\.weight', which the head of"):
        Encoder.open(tmp_path, EngineConfig(), "torch")


@pytest.mark.parametrize("extra", ["model.vision_tower.stem.weight", "model.surprise.weight"])
def test_vision_tensors_are_left_out_for_text_only_serving(
    tmp_path: Path, extra: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = changed(checkpoints.build("gemma3n", tmp_path), {extra: torch.ones(4)})
    text = json.loads((path / "config.json").read_text())
    config = {"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}
    (path / "config.json").write_text(json.dumps(config))
    if "vision" in extra:
        assert extra not in open_definition(path)[0].names()
        assert "left out: 1 of images or sounds" in capfd.readouterr().err
    else:
        with pytest.raises(StartError, match=r"does not have: 'model\.surprise\.weight'"):
            open_definition(path)


@pytest.mark.parametrize("kind", ["llava", seeing.SEES_WHOLE])
def test_a_tensor_that_a_vision_tower_does_not_have_is_refused(tmp_path: Path, kind: str) -> None:
    path = seeing.build(tmp_path, kind)
    Tower.open(path, EngineConfig(device="cpu"))
    names = [name for name in load_file(path / "model.safetensors") if "vision" in name]
    stem = names[0].partition(".embeddings.")[0]
    changed(path, {f"{stem}.surprise.weight": torch.ones(4)})
    open_definition(path)  # its part is of texts
    with pytest.raises(StartError, match=r"surprise\.weight', which its towers lack"):
        Tower.open(path, EngineConfig(device="cpu"))


def test_the_audio_tower_is_not_loaded_with_the_vision_tower(tmp_path: Path) -> None:
    path = seeing.build(tmp_path, "gemma4-images")
    config = json.loads((path / "config.json").read_text())
    audio = transformers.Gemma4AudioConfig().to_dict()
    (path / "config.json").write_text(json.dumps({**config, "audio_config": audio}))
    changed(path, {"model.audio_tower.stem.weight": torch.ones(4)})
    assert "model.audio_tower.stem.weight" not in open_definition(path)[0].names()
    Tower.open(path, EngineConfig(device="cpu", max_audios=0))


def test_a_tensor_that_a_dense_module_does_not_have_is_refused(tmp_path: Path) -> None:
    dense = ([[1.0, 2.0]], [0.5], "Identity")
    encoders.describe_modules(tmp_path, {}, normalizes=False, dense=dense)
    assert len(read_pooling(tmp_path, 2).denses) == 1
    file = tmp_path / "2_Dense" / "model.safetensors"
    save_file(load_file(file) | {"gate.weight": torch.ones(2)}, file)
    with pytest.raises(StartError, match=r"has a tensor 'gate\.weight'"):
        read_pooling(tmp_path, 2)


ADAPTED = "base_model.model.model.layers.0.self_attn"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([f"{ADAPTED}.gate.lora_A.weight", f"{ADAPTED}.gate.lora_B.weight"], "cannot be adapted"),
        ([f"{ADAPTED}.q_proj.bias"], "of the adapter is not supported"),
        ([f"{ADAPTED}.q_proj.lora_magnitude_vector"], "of the adapter is not supported"),
    ],
)
def test_a_tensor_of_an_adapter_that_nothing_reads_is_refused(
    tmp_path: Path, names: list[str], says: str
) -> None:
    path = checkpoints.build("llama", tmp_path)
    tensors = lora_files.adapter(path, lora_files.ATTENTION, 1)
    shapes = {".lora_A.weight": (4, 64), ".lora_B.weight": (64, 4)}
    ends = {
        name: next((one for end, one in shapes.items() if name.endswith(end)), (64,))
        for name in names
    }
    tensors |= {name: torch.ones(shape) for name, shape in ends.items()}
    adapter = lora_files.write(tmp_path / "adapter", tensors)
    config = EngineConfig(device="cpu", kv_cache_memory=2**20, adapters={"own": str(adapter)})
    with pytest.raises(StartError, match=says):
        open_runner(path, "torch", config)
