"""Ollama's Modelfile: instructions, parameters, the path in FROM, and what is refused."""

from pathlib import Path

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.servable.foreign import formats, modelfile
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.repository import is_language_model, make_declaration

FULL = '''# a comment
FROM ./model.gguf
parameter num_ctx 4096
PARAMETER temperature 0.6
PARAMETER top_k 40
PARAMETER top_p "0.9"
PARAMETER min_p 0.05
PARAMETER repeat_penalty 1.1
PARAMETER num_predict -1
PARAMETER stop "<|user|>"
PARAMETER stop "<|end|>"
PARAMETER num_gpu 99
SYSTEM """You are a pirate.
Say "arr"."""
TEMPLATE """{{ .System }}
FROM nothing
{{ .Prompt }}"""
LICENSE """MIT"""
MESSAGE user """Hello"""
'''


def read(tmp_path: Path, text: str) -> ForeignModel:
    (tmp_path / "pirate").mkdir(exist_ok=True)
    (tmp_path / "pirate" / "model.gguf").touch()
    (tmp_path / "pirate" / "Modelfile").write_text(text)
    model = formats.read(str(tmp_path / "pirate"))
    assert model is not None
    return model


def test_parameters_are_options_of_the_engine(tmp_path: Path) -> None:
    assert read(tmp_path, FULL).language_options == {
        "max_model_len": 4096,
        "default_temperature": 0.6,
        "default_top_k": 40,
        "default_top_p": 0.9,
        "default_min_p": 0.05,
        "default_repetition_penalty": 1.1,
        "system_message": 'You are a pirate.\nSay "arr".',
    }


def test_instructions_without_effect_are_named_once(tmp_path: Path) -> None:
    assert read(tmp_path, FULL).note("pirate") == (
        "pirate: without effect here, of Ollama's Modelfile: PARAMETER stop, PARAMETER num_gpu, "
        "TEMPLATE (the chat template in the model's file is used), MESSAGE"
    )


def test_the_source_is_relative_to_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, FULL).language_path == str(tmp_path / "pirate" / "model.gguf")
    (tmp_path / "other.gguf").touch()
    assert read(tmp_path, "FROM ../other.gguf").language_path == str(tmp_path / "other.gguf")
    absolute = f'FROM "{tmp_path}/other.gguf"'
    assert read(tmp_path, absolute).language_path == str(tmp_path / "other.gguf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM llama3.2", "A model of Ollama's registry is written ollama://llama3.2, one of"),
        ("", "Modelfile has no FROM, expected one"),
        ("FROM model.gguf\nFROM model.gguf", "has several FROM"),
        ("FROM model.gguf\nADAPTER lora", "line 2: ADAPTER is not supported: an adapter is a"),
        ("FROM model.gguf\nRUN sh", "line 2: 'RUN sh' is no instruction; known are FROM"),
        ("FROM model.gguf\nnonsense", "line 2: 'nonsense' is no instruction"),
        ('FROM model.gguf\nSYSTEM """You', 'line 2: SYSTEM has no closing """'),
        ("FROM model.gguf\nPARAMETER num_ctx many", "line 2: num_ctx is 'many', expected a number"),
        ("FROM model.gguf\nPARAMETER top_p inf", "line 2: top_p is 'inf', expected a number"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StartError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_a_large_file_is_not_parsed(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="Modelfile has more than 1048576 bytes"):
        read(tmp_path, "#" * (modelfile.MAX_SIZE + 1))


@pytest.mark.parametrize("name", ["Modelfile", "Modelfile.q4", "pirate.Modelfile", "a.modelfile"])
def test_a_file_is_served_by_its_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "net.gguf").touch()
    (tmp_path / name).write_text("FROM net.gguf\nSYSTEM Arr.")
    assert is_language_model(str(tmp_path / name))
    declaration, version = make_declaration(str(tmp_path), name)
    assert declaration.language is not None
    assert (declaration.language.path, version) == (str(tmp_path / "net.gguf"), 1)


def test_the_modelfile_in_a_checkpoint_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "Modelfile").write_text("FROM .\nPARAMETER num_ctx 16")
    assert formats.read(str(tmp_path)) is None
    model = formats.read(str(tmp_path / "Modelfile"))
    assert model is not None
    assert model.language_options == {"max_model_len": 16}


@pytest.mark.parametrize(("content", "is_model"), [(b"GGUF\3", True), (b"{}", False)])
def test_a_blob_of_ollama_is_known_by_its_content(
    tmp_path: Path, content: bytes, is_model: bool
) -> None:
    (tmp_path / "sha256-0a1b").write_bytes(content)
    assert is_gguf(tmp_path / "sha256-0a1b") is is_model
