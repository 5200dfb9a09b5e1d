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
MIMO = {
    "": "model.mtp_layers.0.", "norm": "model.mtp_layers.0.final_layernorm",
    "enorm": "model.mtp_layers.0.token_layernorm", "hnorm": "model.mtp_layers.0.hidden_layernorm",
    "eh_proj": "model.mtp_layers.0.input_proj",
}  # fmt: skip
MODELS = {
    "deepseek-v3": (DEEPSEEK, {"first_k_dense_replace": 0}, 0),
    "glm4-moe": (DEEPSEEK, {"first_k_dense_replace": 0}, 0),
    "qwen3-next": (QWEN, {"layer_types": ["full_attention"], "mlp_only_layers": []}, 1),
    "qwen2": (MIMO, {}, 0),
}
RENAMED = {"qwen2": {"architectures": ["MiMoForCausalLM"], "use_mrope": False}}  # a Qwen 2
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
    config |= {"num_nextn_predict_layers": 1, **RENAMED.get(name, {})}
    (directory / "config.json").write_text(json.dumps(config))
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
    outputs = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0]))
    hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
    embedded = model.model.embed_tokens(ids[:, 1:])
    hidden = outputs[0] if names is MIMO else hidden
    parts = [normed(embedded, enorm + plus), normed(hidden, hnorm + plus)]
    joined = torch.cat(parts[::-1] if names is MIMO else parts, -1)
    states = one.model(inputs_embeds=joined @ matrix.T, use_cache=False).last_hidden_state
    return model.lm_head(states)[0].numpy()


def config(runtime: str, **options: object) -> EngineConfig:
    given = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory": 2**21}
    return EngineConfig(**{**given, **RUNTIMES[runtime], "mtp": True, **options})


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("deepseek-v3", "torch"),
        ("glm4-moe", "openvino"),
        ("qwen3-next", "openvino"),
        ("qwen2", "openvino"),
        ("qwen2", "torch"),
    ],
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


@pytest.mark.parametrize(
    ("name", "runtime"), [("glm4-moe", "openvino"), ("qwen3-next", "torch"), ("qwen2", "openvino")]
)
def test_answers_with_a_head_are_greedy(root: Path, name: str, runtime: str) -> None:
    directory, _ = built(root, name)
    given = config(runtime, num_speculative_tokens=2, adaptive_speculation=False, min_ngram=32)
    check_greedy(directory, runtime, given)


def check_greedy(directory: Path, runtime: str, given: EngineConfig) -> None:
    """Answers with a head are those of the reference, and draft tokens were computed."""
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


EAGLE_VOCAB = 40


def eagle(root: Path) -> tuple[Path, Path]:
    """A Llama of three layers, and an EAGLE-3 head for some of its tokens."""
    directory, draft = root / "llama", root / "eagle"
    if draft.exists():
        return directory, draft
    checkpoints.build("llama", root)
    config = json.loads((directory / "config.json").read_text())
    width, wide, kv = config["hidden_size"], config["intermediate_size"], 32
    shapes = {
        "fc": (width, 3 * width), "lm_head": (EAGLE_VOCAB, width), "norm": (width,),
        "midlayer.input_layernorm": (width,), "midlayer.hidden_norm": (width,),
        "midlayer.post_attention_layernorm": (width,),
        "midlayer.self_attn.q_proj": (64, 2 * width), "midlayer.self_attn.k_proj": (kv, 2 * width),
        "midlayer.self_attn.v_proj": (kv, 2 * width), "midlayer.self_attn.o_proj": (width, 64),
        "midlayer.mlp.gate_proj": (wide, width), "midlayer.mlp.up_proj": (wide, width),
        "midlayer.mlp.down_proj": (width, wide),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"{key}.weight": torch.randn(shape, generator=generator) * 0.2
        for key, shape in shapes.items()
    }
    ids = torch.arange(EAGLE_VOCAB) * 3 + 2
    tensors["d2t"] = ids - torch.arange(EAGLE_VOCAB)
    tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool)
    tensors["t2d"][ids] = True
    draft.mkdir()
    save_file(tensors, draft / "model.safetensors", {"format": "pt"})
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    (draft / "config.json").write_text(json.dumps({**config, "draft_vocab_size": EAGLE_VOCAB}))
    return directory, draft


@torch.inference_mode()
def eagle_logits(root: Path, tokens: list[int]) -> np.ndarray:
    """The logits of the EAGLE-3 head by its definition, for each of `tokens` but the last."""
    directory, draft = eagle(root)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(directory, dtype=torch.float32).eval()
    w = {
        key.removesuffix(".weight"): x for key, x in load_file(draft / "model.safetensors").items()
    }
    ids = torch.tensor([tokens])
    states = model.model(ids[:, :-1], output_hidden_states=True, use_cache=False).hidden_states
    h = torch.cat([state[0] for state in states[:3]], -1) @ w["fc"].T
    e = model.model.embed_tokens(ids[0, 1:])
    joined = torch.cat(
        [normed(e, w["midlayer.input_layernorm"]), normed(h, w["midlayer.hidden_norm"])], -1
    )
    length, stem = len(h), "midlayer.self_attn."
    q, k, v = (
        (joined @ w[f"{stem}{name}_proj"].T).view(length, -1, 16).transpose(0, 1) for name in "qkv"
    )
    cos, sin = model.model.rotary_emb(h[None], torch.arange(length)[None])

    def rotated(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos[0] + torch.cat([-second, first], -1) * sin[0]

    out = torch.nn.functional.scaled_dot_product_attention(
        rotated(q), rotated(k).repeat_interleave(2, 0), v.repeat_interleave(2, 0), is_causal=True
    )
    h = h + out.transpose(0, 1).reshape(length, -1) @ w[f"{stem}o_proj"].T
    x = normed(h, w["midlayer.post_attention_layernorm"])
    gate = torch.nn.functional.silu(x @ w["midlayer.mlp.gate_proj"].T)
    h = h + (gate * (x @ w["midlayer.mlp.up_proj"].T)) @ w["midlayer.mlp.down_proj"].T
    return (normed(h, w["norm"]) @ w["lm_head"].T).numpy()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_logits_of_an_eagle_head_follow_from_three_layers(root: Path, runtime: str) -> None:
    directory, draft = eagle(root)
    given = config(runtime, mtp=False, draft=draft)
    model, head = open_runners(directory, runtime, given, None)
    assert model.hidden_size == 0  # its hidden states are those for the head
    assert head.draft_ids.tolist() == [3 * i + 2 for i in range(EAGLE_VOCAB)]
    (prompt,) = checkpoints.prompts(1)
    found, middle, blocks = [], len(prompt) // 2, [3, 1, 2]
    for begin, end in ((0, middle), (middle, len(prompt) - 1)):
        model.run(Step((Row(prompt[begin:end], begin, blocks, 1),)))
        row = Row(prompt[begin + 1 : end + 1], begin, blocks, end - begin)
        found.append(head.compute(Step((row,)), model.hidden_states().copy()).copy())
    model.close()
    head.close()
    assert relative_error(np.concatenate(found), eagle_logits(root, list(prompt))) < 1e-4


def test_answers_with_an_eagle_head_are_greedy(root: Path) -> None:
    directory, draft = eagle(root)
    options = {"num_speculative_tokens": 2, "adaptive_speculation": False, "min_ngram": 32}
    check_greedy(directory, "openvino", config("openvino", mtp=False, draft=draft, **options))


def test_an_eagle_head_of_another_model_is_refused(root: Path, tmp_path: Path) -> None:
    directory = checkpoints.build("llama", tmp_path, num_hidden_layers=2)
    given = config("torch", mtp=False, draft=eagle(root)[1])
    with pytest.raises(StartError, match=r"inputs of layers \[2, 1, -1\], but the model has 2"):
        open_runners(directory, "torch", given, None)
    given = EngineConfig(draft=eagle(root)[1])
    with pytest.raises(StartError, match="'mindspore' computes no EAGLE-3 heads, expected one of"):
        open_runners(directory, "mindspore", given, None)


def test_models_and_runtimes_without_a_head_are_refused(root: Path, tmp_path: Path) -> None:
    llama, bare = checkpoints.build("llama", tmp_path), checkpoints.build("glm4-moe", tmp_path)
    with pytest.raises(StartError, match="no prediction head of LlamaForCausalLM is known"):
        open_runners(llama, "torch", config("torch"), None)
    with pytest.raises(StartError, match="has no prediction head .model.layers.2.eh_proj.*saved"):
        open_runners(bare, "torch", config("torch"), None)
    with pytest.raises(StartError, match="'mindspore' has no mtp, expected one of openvino, torch"):
        open_runner(bare, "mindspore", EngineConfig(mtp=True))
