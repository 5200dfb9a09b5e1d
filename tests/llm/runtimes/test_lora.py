"""LoRA adapters, against models whose weights are merged by hand: W + scale * B @ A."""

import gc
import shutil
import weakref
from collections.abc import Sequence
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
from mindspore_serving.llm.runtimes.adapters import match_adapter
from mindspore_serving.llm.step import Logits, Row, Runner, Step
from tests.llm import checkpoints
from tests.llm.lora_files import (
    ATTENTION,
    EMBEDDING,
    HEAD,
    INNER,
    OUTSIDE,
    RANK,
    SCALE,
    adapter,
    merged,
    write,
)

pytestmark = pytest.mark.torch
RUNTIMES = {"torch": 8, "openvino": 32, "mindspore": 8, "native": 8}  # and tokens of a block
CACHE = {"kv_cache_dtype": "f32"}
# Tests of mindspore alone are in test_mindspore_lora.py, as each model compiles four graphs.
EACH = [
    pytest.param(name, marks=[pytest.mark.long, pytest.mark.mindspore] * (name == "mindspore"))
    for name in RUNTIMES
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.build("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def adapted(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Any]:
    """Two adapters of llama by name, and the models that they are: [none, "few", "all"]."""
    folder = tmp_path_factory.mktemp("adapters")
    paths, models = {}, [llama]
    for seed, (name, modules) in enumerate((("few", ATTENTION), ("all", (*INNER, *OUTSIDE)))):
        tensors = adapter(llama, modules, seed)
        paths[name] = write(folder / name, tensors)
        models.append(merged(llama, tensors, folder / f"merged-{name}"))
    return paths, models


def opened(model: Path, adapters: dict[str, Path], runtime: str = "torch", **more: Any) -> Any:
    options = {"device": "cpu", "dtype": "f32", "kv_cache_memory": 2**20, **CACHE, **more}
    config = EngineConfig(**options, block_size=RUNTIMES[runtime], adapters=adapters)
    return open_runner(model, runtime, config)


def logits(runner: Runner, asked: list[tuple[Sequence[int], int]]) -> list[Logits]:
    """Of every token of the prompts, which are rows of one step with their adapters."""
    free = list(range(runner.num_blocks))
    rows = []
    for prompt, index in asked:
        blocks = [free.pop() for _ in range(-(-len(prompt) // runner.block_size))]
        rows.append(Row(prompt, 0, blocks, len(prompt), index))
    found = runner.run(Step(tuple(rows)))
    ends = np.cumsum([len(prompt) for prompt, _ in asked])
    return np.split(found.copy(), ends[:-1])


@pytest.mark.parametrize("runtime", EACH)
def test_rows_with_adapters_match_merged_models(
    runtime: str, llama: Path, adapted: tuple[dict[str, Path], Any]
) -> None:
    """Prompts of equal length too, which attention batches whatever their adapters are."""
    paths, models = adapted
    runner = opened(llama, paths, runtime)
    long, short = checkpoints.prompts(1)[0], (3, 4, 5)
    asked = [(long, 1), (short, 2), (short, 0), (short, 1), (long, 0), (long, 2)]
    for own, (prompt, index) in zip(logits(runner, asked), asked, strict=True):
        np.testing.assert_allclose(own, checkpoints.logits(models[index], prompt), atol=1e-3)
    plain, changed = (checkpoints.logits(model, short) for model in models[:2])
    assert np.abs(plain - changed).max() > 0.1  # so that it is no accident


@pytest.mark.parametrize("runtime", EACH)
def test_a_request_chooses_its_adapter_by_name(
    runtime: str, llama: Path, adapted: tuple[dict[str, Path], Any]
) -> None:
    """One prompt with each in turn: cached blocks of one are not another's."""
    paths, models = adapted
    prompt = checkpoints.prompts(1)[0]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers = set()
    options = {"dtype": "f32", "block_size": RUNTIMES[runtime], "kv_cache_memory": 2**20, **CACHE}
    with LLM(llama, runtime, adapters=paths, **options) as llm:
        for name, model in zip((None, "few", "all", None), (*models, llama), strict=True):
            (answer,) = llm.generate([list(prompt)], params, adapter=name)
            token_ids = answer.outputs[0].token_ids
            assert token_ids == checkpoints.greedy(model, prompt, 12)
            answers.add(token_ids)
    assert len(answers) == 3


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("gemma2", ATTENTION),
        ("gemma3", (*INNER, *OUTSIDE)),
        ("qwen3-moe", ATTENTION),
        ("phi3", ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")),
        ("llama-biased", INNER),
        ("falcon-h1-normed", ("mamba.in_proj", "mamba.out_proj", "self_attn.q_proj")),
        ("llama3-tied", ("model.embed_tokens",)),
        ("llama3-tied", ("lm_head",)),
    ],
)
@pytest.mark.parametrize("runtime", EACH)
def test_other_architectures_are_adapted(
    runtime: str, name: str, modules: tuple[str, ...], tmp_path: Path
) -> None:
    """Matrices with biases, fused ones, and embeddings that are heads as well."""
    if (runtime, name) == ("openvino", "gemma2"):
        pytest.skip("the openvino runtime does not cap scores")
    if (runtime, name) == ("mindspore", "falcon-h1-normed"):
        pytest.skip("the mindspore runtime has no layers with a state")
    shallow = checkpoints.two_layers(name) if name in checkpoints.ALL else {}
    model = checkpoints.build(name, tmp_path, **shallow)
    tensors = adapter(model, modules, 5)
    runner = opened(model, {"a": write(tmp_path / "a", tensors)}, runtime)
    prompt = checkpoints.prompts(1)[0]
    models = (merged(model, tensors, tmp_path / "merged"), model)
    for own, one in zip(logits(runner, [(prompt, 1), (prompt, 0)]), models, strict=True):
        np.testing.assert_allclose(own, checkpoints.logits(one, prompt), atol=2e-3)


@pytest.mark.parametrize("runtime", EACH)
def test_transposed_gpt2_matrices_are_adapted(runtime: str, tmp_path: Path) -> None:
    model = checkpoints.build("gpt2", tmp_path)
    weights = load_file(model / "model.safetensors")
    name = next(name for name in weights if name.endswith("h.1.attn.c_attn.weight"))
    into, out = weights[name].shape
    random = torch.Generator().manual_seed(0)
    down, up = (torch.randn(*shape, generator=random) * 0.2 for shape in ((4, into), (out, 4)))
    module = "base_model.model.transformer.h.1.attn.c_attn"
    tensors = {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
    runner = opened(model, {"a": write(tmp_path / "a", tensors, fan_in_fan_out=True)}, runtime)
    shutil.copytree(model, tmp_path / "merged")
    weights[name] += SCALE * (up @ down).T
    save_file(weights, tmp_path / "merged" / "model.safetensors", metadata={"format": "pt"})
    prompt = checkpoints.prompts(1)[0]
    (own,) = logits(runner, [(prompt, 1)])
    expected = checkpoints.logits(tmp_path / "merged", prompt)
    np.testing.assert_allclose(own, expected, atol=2e-3)


@pytest.mark.parametrize("runtime", EACH)
def test_full_matrices_replace_those_of_the_model(
    runtime: str, llama: Path, tmp_path: Path
) -> None:
    """`modules_to_save`, and an embedding that PEFT writes beside its pair as it was."""
    weights = load_file(llama / "model.safetensors")
    tensors = adapter(llama, (*ATTENTION, "model.embed_tokens"), 7)
    random = torch.Generator().manual_seed(0)
    tensors[f"base_model.model.{HEAD}"] = torch.randn(weights[HEAD].shape, generator=random)
    models = (merged(llama, tensors, tmp_path / "merged"), llama)
    tensors["base_model.model.model.embed_tokens.base_layer.weight"] = weights[EMBEDDING]
    path = write(tmp_path / "a", tensors, modules_to_save=["lm_head"])
    runner = opened(llama, {"a": path}, runtime)
    prompt = checkpoints.prompts(1)[0]
    for own, model in zip(logits(runner, [(prompt, 1), (prompt, 0)]), models, strict=True):
        np.testing.assert_allclose(own, checkpoints.logits(model, prompt), atol=2e-3)


@pytest.mark.parametrize("runtime", EACH)
def test_ranks_and_scales_are_set_per_module(runtime: str, llama: Path, tmp_path: Path) -> None:
    tensors = adapter(llama, ("self_attn.q_proj",), 1, rank=2)
    tensors |= adapter(llama, ("self_attn.v_proj",), 1)
    patterns = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 3.0}}
    path = write(tmp_path / "a", tensors, **patterns)
    runner = opened(llama, {"a": path}, runtime)
    prompt = checkpoints.prompts(1)[0]
    (own,) = logits(runner, [(prompt, 1)])
    expected = checkpoints.logits(merged(llama, tensors, tmp_path / "merged"), prompt)
    np.testing.assert_allclose(own, expected, atol=1e-3)  # 3.0 / 2 is SCALE too


@pytest.mark.parametrize("runtime", EACH)
def test_adapters_are_loaded_and_unloaded_between_steps(
    runtime: str, llama: Path, adapted: tuple[dict[str, Path], Any]
) -> None:
    paths, models = adapted
    runner = opened(llama, {}, runtime, max_loras=2)
    prompt = checkpoints.prompts(1)[0]
    expected = [checkpoints.logits(model, prompt) for model in models]
    few, every = (
        match_adapter(read_adapter(path), runner.base, "adapter") for path in paths.values()
    )
    runner.load_adapter(5, every)
    runner.load_adapter(7, few)
    found = logits(runner, [(prompt, 7), (prompt, 5), (prompt, 0)])
    for own, index in zip(found, (1, 2, 0), strict=True):
        np.testing.assert_allclose(own, expected[index], atol=1e-3)
    runner.unload_adapter(5)
    assert set(runner.adapters) == {7}
    with pytest.raises(ServingError, match="row 0 has adapter 5, but this runtime has 7"):
        logits(runner, [(prompt, 5)])
    (own,) = logits(runner, [(prompt, 7)])
    np.testing.assert_allclose(own, expected[1], atol=1e-3)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("runtime", EACH)
def test_memory_of_an_unloaded_adapter_is_released(
    runtime: str, llama: Path, adapted: tuple[dict[str, Path], Any]
) -> None:
    """Nothing that a step of it was computed from is left."""
    paths, _ = adapted
    runner = opened(llama, {}, runtime, max_loras=2)
    changes = match_adapter(read_adapter(paths["all"]), runner.base, "adapter")
    runner.load_adapter(1, changes)
    logits(runner, [(checkpoints.prompts(1)[0], 1)])
    kept = [weakref.ref(one) for one in _found_in(runner)]
    assert kept
    del changes
    runner.unload_adapter(1)
    gc.collect(0)
    assert [one for one in kept if one() is not None] == []


def _found_in(runner: Any) -> list[Any]:
    """The arrays of its adapters that are not empty."""
    if hasattr(runner, "_adapters"):
        first, second, _ = runner._adapters.inputs
        return [*first, *second]
    if hasattr(runner, "_products"):
        return [part for pair in runner._model.adapters._matrices.values() for part in pair]
    if hasattr(runner, "_loaded"):
        bound = runner._loaded._bound.values()
        arrays = [array for one in bound for array in (one.first, one.second, one.owner)]
        return [array for array in arrays if array.size]
    changes = runner._model.adapters._changes.values()
    return [part for one in changes for change in one.values() for part in (change.down, change.up)]


def test_the_scale_of_rank_stabilised_adapters_is_by_the_root(llama: Path, tmp_path: Path) -> None:
    tensors = adapter(llama, ATTENTION, 0)
    plain = read_adapter(write(tmp_path / "plain", tensors))
    rooted = read_adapter(write(tmp_path / "rooted", tensors, use_rslora=True))
    assert plain.added
    for name, change in plain.added.items():
        np.testing.assert_allclose(rooted.added[name].up, change.up * RANK / RANK**0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3', expected 'LORA'"),
        ({"use_dora": True}, "use_dora True, which is not supported"),
        ({"bias": "all"}, "bias 'all', which is not supported"),
        (
            {"init_lora_weights": "pissa_niter_16"},
            "'pissa_niter_16', which changes the model's",
        ),
        (
            {"init_lora_weights": "olora"},
            "'olora', which changes the model's weights: save the",
        ),
        ({"init_lora_weights": "corda"}, "path_initial_model_for_weight_conversion"),
        ({"init_lora_weights": "loftq"}, "merge it into the model with PEFT's merge_and_unload"),
        ({"rank_pattern": {"q_proj": 8}}, r"expected \[8, in\] and"),
        ({"rank_pattern": {"(a+)+$": 8}}, r"rank_pattern has '\(a\+\)\+\$', expected names of"),
        ({"alpha_pattern": [1]}, r"alpha_pattern \[1\], expected an object"),
        ({"lora_alpha": float("nan")}, "lora_alpha nan, expected a number"),
        ({"r": 0}, "has r 0, expected an int >= 1"),
        ({"r": 5}, r"lora_A \[4, 64\] and lora_B \[64, 4\], expected \[5, in\] and \[out, 5\]"),
        ({"lora_alpha": "much"}, "lora_alpha 'much', expected a number"),
    ],
)
def test_adapter_config_with_unsupported_formula_is_refused(
    llama: Path, tmp_path: Path, config: dict[str, Any], text: str
) -> None:
    path = write(tmp_path / "a", adapter(llama, ATTENTION, 0), **config)
    with pytest.raises(StartError, match=text):
        read_adapter(path)


def test_numbers_that_are_not_finite_are_refused(llama: Path, tmp_path: Path) -> None:
    """They would spoil rows of other adapters."""
    tensors = adapter(llama, ATTENTION, 0)
    next(iter(tensors.values()))[1, 2] = float("inf")
    with pytest.raises(StartError, match="has numbers that are not finite"):
        read_adapter(write(tmp_path / "a", tensors))


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
                "base_model.model.model.norm.weight": (64,),
            },
            "adapter 'a' changes 'model.norm.weight', which cannot be adapted",
        ),
        (
            {
                f"{LAYER}.mlp.other.lora_A.weight": (4, 64),
                f"{LAYER}.mlp.other.lora_B.weight": (64, 4),
            },
            "changes 'model.layers.0.mlp.other.weight', which cannot be adapted",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    llama: Path, tmp_path: Path, shapes: dict[str, tuple[int, ...]], text: str
) -> None:
    path = write(tmp_path / "a", {name: torch.ones(shape) for name, shape in shapes.items()})
    with pytest.raises(StartError, match=text):
        opened(llama, {"a": path})


@pytest.mark.parametrize("runtime", EACH)
def test_routers_are_adapted_and_experts_are_refused(runtime: str, tmp_path: Path) -> None:
    model = checkpoints.build("qwen3-moe", tmp_path)

    def pair(module: str, out: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(0)
        ends = {"A": (RANK, 64), "B": (out, RANK)}
        return {
            f"{LAYER}.{module}.lora_{end}.weight": torch.randn(shape, generator=random) * 0.3
            for end, shape in ends.items()
        }

    router = pair("mlp.gate", 8)
    runner = opened(model, {"a": write(tmp_path / "router", router)}, runtime)
    prompt = checkpoints.prompts(1)[0]
    (own,) = logits(runner, [(prompt, 1)])
    expected = checkpoints.logits(merged(model, router, tmp_path / "merged"), prompt)
    np.testing.assert_allclose(own, expected, atol=2e-3)
    path = write(tmp_path / "expert", pair("mlp.experts.0.gate_proj", 32))
    with pytest.raises(StartError, match=r"mlp.experts.0.gate_proj.weight', which cannot be adap"):
        opened(model, {"a": path}, runtime)


def test_adapter_options_are_checked(
    llama: Path, adapted: tuple[dict[str, Path], Any], tmp_path: Path
) -> None:
    paths, _ = adapted
    with pytest.raises(StartError, match="'mindir' has no adapters, expected one of openvino, tor"):
        open_runner(llama, "mindir", EngineConfig(adapters=paths))
    with pytest.raises(StartError, match=r"has r 4, expected at most 3 \(max_lora_rank\)"):
        opened(llama, paths, max_lora_rank=3)
    with pytest.raises(InvalidInputs, match="max_loras is 1, expected at least 2"):
        EngineConfig(adapters=paths, max_loras=1)
    with pytest.raises(StartError, match="nowhere is not a directory"):
        opened(llama, {"a": tmp_path / "nowhere"})
    with pytest.raises(InvalidInputs, match="adapters is 'few', expected name -> directory"):
        EngineConfig(adapters="few")
    with pytest.raises(ServingError, match="row 0 has adapter 3, but this runtime has 1, 2"):
        opened(llama, paths).run(Step((Row([1], 0, [0], 1, 3),)))
    text = "adapter is 'fwe', expected None or one of few, all"
    with (
        LLM(llama, "torch", adapters=paths, kv_cache_memory=2**20) as llm,
        pytest.raises(InvalidInputs, match=text),
    ):
        llm.generate([[1]], adapter="fwe")
