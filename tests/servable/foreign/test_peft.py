"""Directories of adapters without their base model, which is found by path or by name."""

import json
from pathlib import Path

import pytest

from mindspore_serving.errors import NotFound, StartError
from mindspore_serving.servable.foreign import formats, peft
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.repository import is_language_model, make_declaration
from mindspore_serving.server.config import ServableStartConfig


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "Base 1").mkdir()
    (tmp_path / "Base 1" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return tmp_path / "Base 1"


def write(tmp_path: Path, base: object, **more: object) -> Path:
    (tmp_path / "mine").mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": base, **more}
    (tmp_path / "mine" / "adapter_config.json").write_text(json.dumps(config))
    return tmp_path / "mine"


def read(directory: Path) -> ForeignModel:
    model = formats.read(str(directory))
    assert model is not None
    return model


@pytest.mark.parametrize("name", ["../Base 1", "{}"])
def test_the_base_model_of_a_path_is_served_with_the_adapter(
    tmp_path: Path, base: Path, name: str
) -> None:
    directory = write(tmp_path, name.format(base))
    assert is_language_model(str(directory))
    model = read(directory)
    assert Path(model.language_path) == base
    assert model.language_options == {"adapters": {"mine": str(directory)}}
    declaration, _ = make_declaration(str(tmp_path), "mine")
    assert declaration.language is not None
    assert Path(declaration.language.path) == base


def test_clients_know_the_base_model_by_its_name(tmp_path: Path, base: Path) -> None:
    write(tmp_path, str(base))
    config = ServableStartConfig(str(tmp_path), "mine", llm_options={"adapters": {"b": "/b"}})
    assert config.alias == "Base_1"
    assert config.llm_options is not None
    assert config.llm_options["adapters"] == {"mine": str(tmp_path / "mine"), "b": "/b"}


def test_an_adapter_with_the_name_of_the_model_gets_another(tmp_path: Path, base: Path) -> None:
    config = ServableStartConfig(str(tmp_path), write(tmp_path, str(base)).name, alias="mine")
    assert config.llm_options is not None
    assert [*config.llm_options["adapters"]] == ["mine-lora"]


def test_the_base_model_of_a_name_is_looked_up_at_its_revision(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def resolve(text: str, directory: str) -> str:
        asked.append((text, directory))
        return str(base)

    monkeypatch.setattr(peft, "resolve_prepared", resolve)
    directory = write(tmp_path, "org/base", revision="v2")
    assert read(directory).language_path == str(base)
    assert asked == [("org/base@v2", str(directory))]


def test_a_base_model_that_is_not_found_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(text: str, directory: str) -> str:
        raise NotFound("hf://org/base is not in the cache")

    monkeypatch.setattr(peft, "resolve_prepared", resolve)
    text = "adapter_config.json: base_model_name_or_path is 'org/base': hf://org/base is not in the"
    with pytest.raises(StartError, match=text):
        read(write(tmp_path, "org/base"))


@pytest.mark.parametrize(
    ("base", "text"),
    [
        (None, "adapter_config.json has no base_model_name_or_path: serve the base model with"),
        ("/nowhere/base", "is '/nowhere/base', where there is nothing; serve the base model with"),
        ("base", "which is no directory and no name of a model; serve the base model with"),
    ],
)
def test_an_adapter_without_a_base_model_is_refused(
    tmp_path: Path, base: object, text: str
) -> None:
    with pytest.raises(StartError, match=text):
        read(write(tmp_path, base))


def test_an_adapter_beside_its_model_is_part_of_that(base: Path) -> None:
    (base / "adapter_config.json").write_text("{}")
    assert not peft.find(str(base))
