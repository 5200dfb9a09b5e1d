"""A GGUF file is a servable, by itself or alone in a directory."""

from pathlib import Path

import pytest

from mindspore_serving.servable.bare import file_alias
from mindspore_serving.servable.discovery import discover
from mindspore_serving.servable.repository import is_language_model, make_declaration


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "models"
    place.mkdir()
    (place / "tiny.Q4_1.gguf").write_bytes(b"GGUF")
    return place


def test_a_file_is_declared_as_a_language_model_under_its_name(directory: Path) -> None:
    path = directory / "tiny.Q4_1.gguf"
    assert discover(str(path)).servables == [(str(directory), path.name)]
    assert file_alias(str(directory), path.name) == "tiny.Q4_1"
    declaration, version = make_declaration(str(directory), path.name)
    assert version == 1
    assert declaration.language is not None
    assert declaration.language.path == str(path)


def test_a_directory_with_a_file_is_a_language_model(directory: Path) -> None:
    assert discover(str(directory)).servables == [(str(directory.parent), "models")]


def test_servable_config_has_precedence_over_gguf_files(directory: Path) -> None:
    (directory / "servable_config.py").touch()
    assert not is_language_model(str(directory))


def test_another_file_is_no_language_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert not is_language_model(str(tmp_path / "notes.txt"))
    assert not is_language_model(str(tmp_path))
