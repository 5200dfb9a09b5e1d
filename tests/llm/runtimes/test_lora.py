"""LoRA adapters on the torch runtime, against models whose weights are merged by hand:
W + scale * B @ A."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.checkpoint.lora import read_adapter
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import checkpoints

pytestmark = pytest.mark.torch
BLOCK = 8
RANK, ALPHA = 4, 6.0
SCALE = ALPHA / RANK
ATTENTION = ("self_attn.q_proj", "self_attn.v_proj")
EVERYWHERE = (*ATTENTION, "self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}


def write(directory: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def adapter(model: Path, modules: tuple[str, ...], seed: int) -> dict[str, torch.Tensor]:
    """Random matrices for `modules` of every layer, under PEFT's names."""
    weights = load_file(model / "model.safetensors")
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(checkpoints.LAYERS):
        for module in modules:
            name = f"model.layers.{layer}.{module}"
            out, into = weights[f"{name}.weight"].shape
            for kind, shape in (("A", (RANK, into)), ("B", (out, RANK))):
                values = torch.randn(shape, generator=random) * shape[1] ** -0.5
                tensors[f"base_model.model.{name}.lora_{kind}.weight"] = values
    return tensors


def merged(model: Path, tensors: dict[str, torch.Tensor], target: Path) -> Path:
    """The model with the adapter in its weights, by the definition."""
    shutil.copytree(model, target)
    weights = load_file(model / "model.safetensors")
    for name, down in tensors.items():
        if ".lora_A." in name:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            up = tensors[name.replace(".lora_A.", ".lora_B.")]
            weights[f"{module}.weight"] = weights[f"{module}.weight"] + SCALE * (up @ down)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.build("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def adapted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Any]:
    """Two adapters of llama by name, and the models that they are: [none, "few", "all"]."""
    folder = tmp_path_factory.mktemp("adapters")
    paths, models = {}, [llama]
    for seed, (name, modules) in enumerate((("few", ATTENTION), ("all", EVERYWHERE))):
        tensors = adapter(llama, modules, seed)
        paths[name] = write(folder / name, tensors)
        models.append(merged(llama, tensors, folder / f"merged-{name}"))
    return paths, models


def opened(model: Path, adapters: dict[str, Path]) -> Runner:
    options = {"device": "cpu", "block_size": BLOCK, "kv_cache_memory": 2**20}
    return open_runner(model, "torch", EngineConfig(**options, adapters=adapters))


def test_rows_of_one_step_have_the_logits_of_their_merged_models(
    llama: Path, adapted: tuple[dict[str, Path], Any]
) -> None:
    """Prompts of equal length too, which attention batches whatever their adapters are."""
    paths, models = adapted
    runner = opened(llama, paths)
    long, short = checkpoints.prompts(1)[0], (3, 4, 5)
    asked = [(long, 1), (short, 2), (short, 0), (short, 1), (long, 0), (long, 2)]
    free = list(range(runner.num_blocks))
    rows = []
    for prompt, index in asked:
        blocks = [free.pop() for _ in range(-(-len(prompt) // BLOCK))]
        rows.append(Row(prompt, 0, blocks, len(prompt), index))
    logits = runner.run(Step(tuple(rows)))
    begin = 0
    for prompt, index in asked:
        expected = checkpoints.logits(models[index], prompt)
        own = logits[begin : begin + len(prompt)]
        np.testing.assert_allclose(own, expected, atol=1e-3)
        begin += len(prompt)
    plain, changed = (checkpoints.logits(model, short) for model in models[:2])
    assert np.abs(plain - changed).max() > 0.1  # so that it is no accident


def test_a_request_chooses_its_adapter_by_name(
    llama: Path, adapted: tuple[dict[str, Path], Any]
) -> None:
    """One prompt with each in turn: cached blocks of one are not another's."""
    paths, models = adapted
    prompt = checkpoints.prompts(1)[0]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers = set()
    with LLM(llama, "torch", adapters=paths, block_size=BLOCK, kv_cache_memory=2**20) as llm:
        for name, model in zip((None, "few", "all", None), (*models, llama), strict=True):
            (answer,) = llm.generate([list(prompt)], params, adapter=name)
            token_ids = answer.outputs[0].token_ids
            assert token_ids == checkpoints.greedy(model, prompt, 12)
            answers.add(token_ids)
    assert len(answers) == 3


@pytest.mark.parametrize("name", ["gemma2", "qwen3-moe"])
def test_other_architectures_are_adapted_in_their_attention(name: str, tmp_path: Path) -> None:
    model = checkpoints.build(name, tmp_path)
    tensors = adapter(model, ATTENTION, 5)
    runner = opened(model, {"a": write(tmp_path / "a", tensors)})
    prompt = checkpoints.prompts(1)[0]
    logits = runner.run(Step((Row(prompt, 0, list(range(8)), len(prompt), 1),)))
    expected = checkpoints.logits(merged(model, tensors, tmp_path / "merged"), prompt)
    np.testing.assert_allclose(logits, expected, atol=1e-3)


def test_the_scale_of_rank_stabilised_adapters_is_by_the_root(llama: Path, tmp_path: Path) -> None:
    tensors = adapter(llama, ATTENTION, 0)
    plain = read_adapter(write(tmp_path / "plain", tensors))
    rooted = read_adapter(write(tmp_path / "rooted", tensors, use_rslora=True))
    for name, change in plain.items():
        np.testing.assert_allclose(rooted[name].up, change.up * RANK / RANK**0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3', expected 'LORA'"),
        ({"use_dora": True}, "use_dora True, which is not supported"),
        ({"bias": "all"}, "bias 'all', which is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"r": 0}, "has r 0, expected an int >= 1"),
        ({"r": 5}, r"lora_A \[4, 64\] and lora_B \[64, 4\], expected \[5, in\] and \[out, 5\]"),
        ({"lora_alpha": "much"}, "lora_alpha 'much', expected a number"),
    ],
)
def test_a_configuration_that_means_another_sum_is_refused(
    llama: Path, tmp_path: Path, config: dict[str, Any], text: str
) -> None:
    path = write(tmp_path / "a", adapter(llama, ATTENTION, 0), **config)
    with pytest.raises(StartError, match=text):
        read_adapter(path)


LAYER = "base_model.model.model.layers.0"


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({}, "has no matrices"),
        ({f"{LAYER}.self_attn.q_proj.lora_A.weight": (4, 64)}, "has one of lora_A and lora_B"),
        ({f"{LAYER}.self_attn.q_proj.lora_magnitude_vector": (64,)}, "is not supported"),
        ({"model.layers.0.self_attn.q_proj.lora_A.weight": (4, 64)}, "is not supported"),
        (
            {
                f"{LAYER}.self_attn.q_proj.lora_A.weight": (4, 60),
                f"{LAYER}.self_attn.q_proj.lora_B.weight": (64, 4),
            },
            r"adapter 'a' changes 'model.layers.0.self_attn.q_proj.weight' as \[64, 60\], but it",
        ),
        (
            {
                "base_model.model.lm_head.lora_A.weight": (4, 64),
                "base_model.model.lm_head.lora_B.weight": (160, 4),
            },
            "adapter 'a' changes 'lm_head.weight', expected matrices in the model's layers",
        ),
        (
            {
                f"{LAYER}.mlp.other.lora_A.weight": (4, 64),
                f"{LAYER}.mlp.other.lora_B.weight": (64, 4),
            },
            "changes 'model.layers.0.mlp.other.weight', expected matrices",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    llama: Path, tmp_path: Path, shapes: dict[str, tuple[int, ...]], text: str
) -> None:
    path = write(tmp_path / "a", {name: torch.ones(shape) for name, shape in shapes.items()})
    with pytest.raises(StartError, match=text):
        opened(llama, {"a": path})


def test_a_matrix_that_the_runtime_cannot_adapt_is_refused(tmp_path: Path) -> None:
    """An expert's: its product is not computed for all tokens by the operation that adapts."""
    model = checkpoints.build("qwen3-moe", tmp_path)
    expert = "mlp.experts.0.gate_proj"
    tensors = {
        f"{LAYER}.{expert}.lora_A.weight": torch.ones(RANK, 64),
        f"{LAYER}.{expert}.lora_B.weight": torch.ones(32, RANK),
    }
    path = write(tmp_path / "a", tensors)
    with pytest.raises(
        StartError, match=rf"changes 'model.layers.0.{expert}.weight', which cannot"
    ):
        opened(model, {"a": path})


def test_what_is_asked_of_adapters_is_checked(
    llama: Path, adapted: tuple[dict[str, Path], Any], tmp_path: Path
) -> None:
    paths, _ = adapted
    with pytest.raises(StartError, match="runtime 'openvino' has no adapters, expected one of tor"):
        open_runner(llama, "openvino", EngineConfig(adapters=paths))
    with pytest.raises(StartError, match="nowhere is not a directory"):
        opened(llama, {"a": tmp_path / "nowhere"})
    with pytest.raises(InvalidInputs, match="adapters is 'few', expected name -> directory"):
        EngineConfig(adapters="few")
    with pytest.raises(ServingError, match="row 0 has adapter 3, but this runtime has 2"):
        opened(llama, paths).run(Step((Row([1], 0, [0], 1, 3),)))
    text = "adapter is 'fwe', expected None or one of few, all"
    with (
        LLM(llama, "torch", adapters=paths, kv_cache_memory=2**20) as llm,
        pytest.raises(InvalidInputs, match=text),
    ):
        llm.generate([[1]], adapter="fwe")
