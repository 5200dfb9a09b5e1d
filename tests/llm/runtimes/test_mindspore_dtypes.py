"""Dtypes of the mindspore runtime, by the SoC of the device."""

from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.mindspore.dtypes import choose_dtype
from mindspore_serving.llm.step import Row, Step


@pytest.mark.parametrize(
    ("soc", "expected"),
    [
        ("", "float32"),
        ("ascend910b", "bfloat16"),
        ("ascend910_93", "bfloat16"),
        ("ascend310p", "float16"),
        ("ascend910", "float16"),
    ],
)
def test_dtype_is_chosen_by_the_soc(soc: str, expected: str) -> None:
    assert choose_dtype(EngineConfig(), soc) == expected


def test_float16_is_accepted_on_every_device() -> None:
    for soc in ("ascend910b", "ascend310p"):
        assert choose_dtype(EngineConfig(dtype="f16", kv_cache_dtype="f16"), soc) == "float16"


@pytest.mark.parametrize(
    ("options", "soc", "text"),
    [
        ({"dtype": "bf16"}, "ascend310p", "dtype is 'bf16', .* accepts auto and f16 on ascend310p"),
        ({"dtype": "f32"}, "ascend910b", "accepts auto, bf16 and f16 on ascend910b; leave dty"),
        ({"dtype": "f16"}, "", "dtype is 'f16', .* accepts auto and f32 on a CPU; leave dtype out"),
        ({"kv_cache_dtype": "bf16"}, "ascend310p", "kv_cache_dtype is 'bf16', .* on ascend310p"),
        ({"kv_cache_dtype": "f16"}, "ascend910b", "and dtype 'bf16', but .* has one for both"),
    ],
)
def test_dtype_that_a_device_lacks_is_refused(options: dict, soc: str, text: str) -> None:
    with pytest.raises(StartError, match=text):
        choose_dtype(EngineConfig(**options), soc)


@pytest.mark.mindspore
@pytest.mark.torch
def test_graphs_in_float16_match_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, which the runtime does not offer, as it is slow there."""
    pytest.importorskip("mindspore")
    pytest.importorskip("transformers")
    from mindspore_serving.llm.runtimes import open_runner
    from mindspore_serving.llm.runtimes.mindspore import opening
    from tests.llm import checkpoints

    model = checkpoints.build("llama", tmp_path, num_hidden_layers=1)
    monkeypatch.setattr(opening, "choose_dtype", lambda config, soc="": "float16")
    config = EngineConfig(block_size=8, kv_cache_memory=2**20)
    runner = open_runner(model, "mindspore", config)
    prompt = checkpoints.prompts(1)[0][:20]
    first = runner.run(Step((Row(prompt[:9], 0, [0, 1], 9),)))
    rest = runner.run(Step((Row(prompt[9:], 9, [0, 1, 2], 11),)))
    expected = checkpoints.logits(model, prompt)
    found = np.concatenate([first, rest])
    assert 0 < np.abs(found - expected).max() < 0.01 * np.abs(expected).max()
