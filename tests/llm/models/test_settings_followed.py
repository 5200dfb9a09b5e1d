"""Settings of config.json that change results, against transformers.

Also settings that an architecture does not have, which transformers ignores as well.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.descriptions.settings import NEUTRAL
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.runtimes import open_runner
from tests.llm import architectures, checkpoints
from tests.llm.stepping import all_logits, relative_error

pytestmark = pytest.mark.torch
PROMPT = checkpoints.prompts(1)[0]
FULL, WINDOWED = ["full_attention"] * 2, {"sliding_window": 24}
SWITCHED = {**WINDOWED, "use_sliding_window": True, "layer_types": None}
HALVES = [0.5, 0.9, 0.0, 0.5, 0.0, 0.0]
# Falcon's ALiBi, which transformers adds twice where it is not fused (a row has it); switches that
# contradict others, so that there are tensors which nothing reads, or none.
LEFT_OUT = {
    *(("falcon", "alibi"), ("falcon-new", "alibi"), ("falcon-new", "parallel_attn")),
    ("falcon-alibi", "new_decoder_architecture"),
    *(("gemma4", "enable_moe_block"), ("gemma4-large", "enable_moe_block")),
}
# Name and number -> settings; one that is None is left out.
CASES: dict[str, dict[str, Any]] = {
    "ernie4_5-moe/0": {"moe_norm_min": 0.9},
    "gemma3n/0": {"activation_sparsity_pattern": HALVES},
    "qwen3-moe/0": {**SWITCHED, "max_window_layers": 2},
    "qwen3/0": {**SWITCHED, "max_window_layers": 1},
    "qwen2-moe/0": {**SWITCHED, "max_window_layers": 2},
    "qwen2-moe/1": {**SWITCHED, "max_window_layers": 0},
    "dots1/0": {**WINDOWED, "max_window_layers": 1, "layer_types": None},
    "dots1/1": {"topk_group": None, "num_experts_per_tok": 2},
    "smollm3/0": SWITCHED,
    "exaone4/0": {"layer_types": FULL},
    "cohere2/0": {"layer_types": FULL},
    "mistral/0": {"sliding_window_pattern": 2, "use_sliding_window": False},
    "mistral/1": {"layer_types": checkpoints.MIXED_LAYERS},
    "phi3/0": {**WINDOWED, "layer_types": [*FULL, FULL[0]], "use_sliding_window": False},
    "llama/0": WINDOWED,
    "llama/1": {**SWITCHED, "max_window_layers": 1},
    "llama/2": {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 2.0},
    "llama/3": {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "attention_multiplier": 1.0},
    "gemma/0": {**WINDOWED, "final_logit_softcapping": 2.0},
    "gpt2/0": WINDOWED,
    "mixtral/0": {"rope_parameters": None},
    "mixtral/1": {"routed_scaling_factor": 2.0, "n_group": 2, "topk_group": 1},
    "olmo3/0": {"rope_parameters": None},
    "olmoe/0": {"routed_scaling_factor": 3.0, "first_k_dense_replace": 0},
}


def computed(path: Path) -> np.ndarray:
    """Raises StartError."""
    options = EngineConfig(
        device="cpu", block_size=8, kv_cache_memory=2**21, max_num_batched_tokens=64, max_num_seqs=2
    )
    runner = open_runner(path, "torch", options)
    try:
        return all_logits(runner, list(PROMPT))
    finally:
        runner.close()


def switches() -> Iterator[tuple[str, str, bool]]:
    """(name, setting, its other value) of each setting that is true or false."""
    for name in (*checkpoints.TRANSFORMERS, *architectures.ALL):
        for key, value in checkpoints.configuration(name).items():
            if isinstance(value, bool) and key not in NEUTRAL and (name, key) not in LEFT_OUT:
                yield name, key, not value


@pytest.mark.parametrize(("name", "key", "value"), list(switches()))
def test_flipped_switch_is_followed_or_refused(
    tmp_path: Path, name: str, key: str, value: bool
) -> None:
    """With all tensors that there are then: a bias is read, or the setting is refused by name."""
    path = checkpoints.build(name, tmp_path, **{key: value})
    try:
        load_definition(json.loads((path / "config.json").read_text()))
    except StartError as error:
        assert str(error).startswith(f"config.json has {key} {value}")  # noqa: PT017
        return
    assert relative_error(computed(path), checkpoints.logits(path, PROMPT)) < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_settings_have_the_effect_of_transformers(tmp_path: Path, case: str) -> None:
    path = checkpoints.build(case.partition("/")[0], tmp_path)
    config = json.loads((path / "config.json").read_text()) | CASES[case]
    given = {key: value for key, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(given))
    assert relative_error(computed(path), checkpoints.logits(path, PROMPT)) < 1e-4


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gemma3", {"attn_logit_softcapping": 50.0}),
        ("hunyuan", {"use_cla": True}),
        ("ernie4_5", {"compression_ratio": 2.0}),
        ("ernie4_5-moe", {"compression_ratio": 2.0}),
    ],
)
def test_ignored_setting_is_refused(name: str, settings: dict[str, Any]) -> None:
    config = checkpoints.configuration(name)
    load_definition(config)
    with pytest.raises(StartError, match=f"{next(iter(settings))} .* is not supported"):
        load_definition(config | settings)
