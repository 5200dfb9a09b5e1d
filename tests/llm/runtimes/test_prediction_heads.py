"""Prediction heads of checkpoints, against a model of one layer of the reference implementation.

A head is that layer on a projection of hidden states and embeddings, so transformers' model of one
layer computes it from `inputs_embeds`.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.draft import open_runners
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.stepping import relative_error, slots_of

pytestmark = pytest.mark.torch
DEEPSEEK = {"": "model.layers.{n}.", "norm": "model.layers.{n}.shared_head.norm"}
QWEN = {
    "": "mtp.layers.0.", "norm": "mtp.norm", "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden", "eh_proj": "mtp.fc",
}  # fmt: skip
MODELS = {
    "deepseek-v3": (DEEPSEEK, {"first_k_dense_replace": 0}, 0),
    "glm4-moe": (DEEPSEEK, {"first_k_dense_replace": 0}, 0),
    "qwen3-next": (QWEN, {"layer_types": ["full_attention"], "mlp_only_layers": []}, 1),
}
RUNTIMES = {"openvino": {"dtype": "f32"}, "torch": {"device": "cpu"}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predicting")


def built(root: Path, name: str) -> tuple[Path, Path]:
    """A checkpoint with a prediction head, and the model of the head's layer."""
    directory, layer = root / name, root / "layer" / name
    if layer.exists():
        return directory, layer
    names, settings, _ = MODELS[name]
    checkpoints.build(name, root)
    checkpoints.build(name, root / "layer", num_hidden_layers=1, **settings)
    config = json.loads((directory / "config.json").read_text())
    count, width = config["num_hidden_layers"], config["hidden_size"]
    tensors = load_file(directory / "model.safetensors")
    for key, tensor in load_file(layer / "model.safetensors").items():
        if key.startswith("model.layers.0."):
            stem = names[""].format(n=count)
            tensors[stem + key.removeprefix("model.layers.0.")] = tensor
        elif key == "model.norm.weight":
            tensors[names["norm"].format(n=count) + ".weight"] = tensor
    generator = torch.Generator().manual_seed(0)
    shapes = {"enorm": (width,), "hnorm": (width,), "eh_proj": (width, 2 * width)}
    for key, shape in shapes.items():
        stem = names.get(key) or f"model.layers.{count}.{key}"
        tensors[f"{stem}.weight"] = torch.randn(shape, generator=generator) * 0.3
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    return directory, layer


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@torch.inference_mode()
def head_logits(root: Path, name: str, tokens: list[int]) -> np.ndarray:
    """The reference's logits of the head for each of `tokens` but the last."""
    directory, layer = built(root, name)
    names, _, plus = MODELS[name]
    load = transformers.AutoModelForCausalLM.from_pretrained
    model, one = (load(path, dtype=torch.float32).eval() for path in (directory, layer))
    tensors = load_file(directory / "model.safetensors")
    count = model.config.num_hidden_layers
    enorm, hnorm, matrix = (
        tensors[(names.get(key) or f"model.layers.{count}.{key}") + ".weight"]
        for key in ("enorm", "hnorm", "eh_proj")
    )
    ids = torch.tensor([tokens])
    hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
    embedded = model.model.embed_tokens(ids[:, 1:])
    joined = torch.cat([normed(embedded, enorm + plus), normed(hidden, hnorm + plus)], -1)
    states = one.model(inputs_embeds=joined @ matrix.T, use_cache=False).last_hidden_state
    return model.lm_head(states)[0].numpy()


def config(runtime: str, **options: object) -> EngineConfig:
    given = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory": 2**21}
    return EngineConfig(**{**given, **RUNTIMES[runtime], "mtp": True, **options})


@pytest.mark.parametrize(
    ("name", "runtime"),
    [("deepseek-v3", "torch"), ("glm4-moe", "openvino"), ("qwen3-next", "openvino")],
)
def test_logits_of_a_head_are_those_of_its_layer(root: Path, name: str, runtime: str) -> None:
    directory, _ = built(root, name)
    model, head = open_runners(directory, runtime, config(runtime), None)
    assert head is not None
    assert head.num_blocks >= model.num_blocks
    (prompt,) = checkpoints.prompts(1)
    found, middle, blocks = [], len(prompt) // 2, [3, 1, 2]
    for begin, end in ((0, middle), (middle, len(prompt) - 1)):
        state = slots_of(model, 0, begin)
        model.run(Step((Row(prompt[begin:end], begin, blocks, 1, state=state),)))
        hidden = model.hidden_states().copy()
        assert hidden.shape == (end - begin, 64)
        row = Row(prompt[begin + 1 : end + 1], begin, blocks, end - begin)
        found.append(head.compute(Step((row,)), hidden).copy())
        assert head.hidden_states().shape == (end - begin, 64)
    model.close()
    head.close()
    expected = head_logits(root, name, list(prompt))
    assert relative_error(np.concatenate(found), expected) < 1e-4


@pytest.mark.parametrize(("name", "runtime"), [("glm4-moe", "openvino"), ("qwen3-next", "torch")])
def test_answers_with_a_head_are_greedy(root: Path, name: str, runtime: str) -> None:
    directory, _ = built(root, name)
    given = config(runtime, num_speculative_tokens=2, adaptive_speculation=False, min_ngram=32)
    model, head = open_runners(directory, runtime, given, None)
    engine = Engine(model, None, given, draft=head)
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    prompts = checkpoints.prompts(3, longest=100)
    found: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        found[str(index)] = []
        engine.add(str(index), prompt, params)
    while engine.has_work:
        for request_id, generated in engine.step():
            found[request_id] += generated.token_ids
    assert engine.stats().num_draft_tokens > 40
    engine.close()
    for prompt, answer in zip(prompts, found.values(), strict=True):
        assert checkpoints.shortfall(directory, prompt, tuple(answer)) < 1e-5


def test_models_and_runtimes_without_a_head_are_refused(root: Path, tmp_path: Path) -> None:
    llama, bare = checkpoints.build("llama", tmp_path), checkpoints.build("glm4-moe", tmp_path)
    with pytest.raises(StartError, match="no prediction head of LlamaForCausalLM is known"):
        open_runners(llama, "torch", config("torch"), None)
    with pytest.raises(StartError, match="has no prediction head .model.layers.2.eh_proj.*saved"):
        open_runners(bare, "torch", config("torch"), None)
    with pytest.raises(StartError, match="'mindspore' has no mtp, expected one of openvino, torch"):
        open_runner(bare, "mindspore", EngineConfig(mtp=True))
