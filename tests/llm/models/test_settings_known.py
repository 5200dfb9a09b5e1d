"""Every setting of transformers' configuration classes is read, refused, or known to be neutral.

Settings that no class has are logged at load.
"""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import transformers

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.descriptions.families import FAMILIES
from mindspore_serving.llm.descriptions.settings import (
    NEUTRAL,
    OPTIONAL,
    WITHOUT_EFFECT,
    TrackedSettings,
    flattened,
    settings_of,
)
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.opening import open_definition, unknown_settings
from mindspore_serving.llm.runtimes.encoding import open_encoder_model
from tests.llm import architectures, checkpoints, encoders

pytestmark = pytest.mark.torch
ROWS = [*checkpoints.TRANSFORMERS, *architectures.ALL]
OURS = [name for name in FAMILIES if hasattr(transformers, name)]
# Classes whose default configuration is refused: too few experts a token, layers of other sizes,
# positions of images that do not fit the heads.
UNUSUAL = {
    "DeepseekV2ForCausalLM",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "Qwen3OmniMoeThinkerForConditionalGeneration",
}


def read_of(config: dict[str, Any]) -> set[str]:
    noted = TrackedSettings(config)
    load_definition(noted)
    return noted.read


def default(name: str) -> dict[str, Any]:
    """The configuration that transformers has for the architecture, with all its settings."""
    config = getattr(transformers, name).config_class().to_dict()
    return {**config, "architectures": [name]}


@pytest.mark.parametrize("name", [name for name in OURS if name not in UNUSUAL])
def test_no_setting_of_a_configuration_class_is_unknown(name: str) -> None:
    config = default(name)
    known = read_of(config) | NEUTRAL | FAMILIES[name].settings
    names = {key for key, _ in settings_of(flattened(config))}
    assert {
        key for key in names if key.rpartition(".")[2] not in known and key not in known
    } == set()


@pytest.mark.parametrize("name", ROWS)
def test_no_setting_of_a_tiny_checkpoint_is_unknown(name: str) -> None:
    config = checkpoints.configuration(name)
    noted = TrackedSettings(config)
    spec, _ = load_definition(noted)
    assert unknown_settings(noted, spec.architecture.settings) == []


@pytest.mark.parametrize("name", ROWS)
def test_settings_read_by_descriptions_are_not_neutral(name: str) -> None:
    config = checkpoints.configuration(name)
    assert read_of(config) & set(config) & NEUTRAL <= {"architectures"}


def test_neutral_setting_has_a_single_reason() -> None:
    names = [name for some in WITHOUT_EFFECT.values() for name in some]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", [name for name in OURS if name.endswith("ForCausalLM")])
def test_optional_settings_are_followed_where_the_class_has_them_alone(name: str) -> None:
    """But for what older files and llama.cpp's say."""
    kind = getattr(transformers, name).config_class
    fields = set(kind().to_dict()) | set(kind.attribute_map)
    form, older = FAMILIES[name], {"sliding_window_pattern", "rope_local_base_freq", "layer_types"}
    older |= {
        "n_shared_experts",
        "global_head_dim",
        "num_global_key_value_heads",
        *form.unused,
        *form.fixed,
    }
    assert set(form.follows) <= OPTIONAL
    assert (fields & OPTIONAL) ^ set(form.follows) <= older


def test_unknown_settings_are_logged_at_load(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = checkpoints.build("llama", tmp_path)
    config = json.loads((path / "config.json").read_text())
    more = {"sliding_window": 24, "secret_scale": 2.0, "nothing": None, "rope_parameters": {"x": 1}}
    (path / "config.json").write_text(json.dumps(config | more))
    open_definition(path)
    (line,) = [text for text in capfd.readouterr().err.splitlines() if "therefore ignored" in text]
    assert line.endswith("ignored: rope_parameters.x, sliding_window, secret_scale")


@pytest.mark.parametrize("name", encoders.FAMILIES)
def test_no_setting_of_an_encoder_is_unknown(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    open_encoder_model(encoders.build(name, tmp_path), EngineConfig())
    assert "therefore ignored" not in capfd.readouterr().err
