"""Models in several GGUF files, as the gguf package splits them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.files import find_gguf
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.storage.fingerprint import fingerprint
from mindspore_serving.servable.bare import file_alias
from tests.llm.gguf_files import finish, write_model

FIRST = "tiny-00001-of-00004.gguf"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("whole") / "tiny.gguf")


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the same model in four files; the tests change none of them."""
    directory = tmp_path_factory.mktemp("split")
    write_model(directory / "tiny.gguf", tensors_per_file=8)
    return directory


@pytest.fixture
def changed(split: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(split, tmp_path / "split"))


def piece(number: int) -> str:
    return f"tiny-{number:05}-of-00004.gguf"


def test_pieces_have_the_tensors_and_keys_of_the_whole_file(whole: Path, split: Path) -> None:
    found = find_gguf(split)
    assert found == split / FIRST
    one, several = open_gguf(whole), open_gguf(found)
    assert several.texts("tokenizer.ggml.tokens") == one.texts("tokenizer.ggml.tokens")
    assert several.tensors.keys() == one.tensors.keys()
    expected, tensors = Checkpoint.open(whole), Checkpoint.open(found)
    assert tensors.config == expected.config
    name = "model.layers.2.mlp.down_proj.weight"  # in the last piece
    np.testing.assert_array_equal(tensors.f32(name), expected.f32(name))


def test_pieces_are_mapped_once_and_read_where_they_are(split: Path) -> None:
    file = open_gguf(split / FIRST)
    assert open_gguf(split / FIRST) is file
    assert all(not blocks.rows.flags.owndata for blocks in file.tensors.values())


def test_a_model_in_pieces_has_the_name_of_their_common_part(split: Path) -> None:
    assert file_alias(str(split), FIRST) == "tiny"


def test_a_change_of_any_piece_changes_the_fingerprint(changed: Path, tmp_path: Path) -> None:
    before = fingerprint(changed / FIRST, tmp_path)
    content = bytearray((changed / piece(3)).read_bytes())
    content[-1] ^= 1
    (changed / piece(3)).write_bytes(content)
    assert fingerprint(changed / FIRST, tmp_path) != before


def test_another_piece_than_the_first_is_refused_with_the_first(split: Path) -> None:
    with pytest.raises(StartError, match=f"is piece 2 of 4: give the path of {FIRST}"):
        open_gguf(split / piece(2))


def test_a_missing_piece_is_named(changed: Path) -> None:
    (changed / piece(2)).unlink()
    (changed / piece(4)).unlink()
    text = f"first of 4 pieces, and there is no {piece(2)} and 1 more beside it: download or copy"
    with pytest.raises(StartError, match=text):
        open_gguf(changed / FIRST)


def test_a_piece_in_the_place_of_another_is_refused(changed: Path) -> None:
    shutil.copy(changed / piece(3), changed / piece(2))
    with pytest.raises(StartError, match=r"that it is piece 2 \(from 0\) of 4, expected 1 of 4"):
        open_gguf(changed / FIRST)


def test_a_piece_of_another_model_is_refused(changed: Path, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "tiny.gguf", "llama", split_max_tensors=1)
    for name in ("a", "b", "c", "output_norm.weight"):
        writer.add_tensor(name, np.zeros(32, np.float32))
    finish(writer)
    shutil.copy(tmp_path / piece(3), changed / piece(3))
    with pytest.raises(StartError, match="expected 30: pieces of another model are among them"):
        open_gguf(changed / FIRST)
    shutil.copy(tmp_path / piece(4), changed / piece(4))
    with pytest.raises(StartError, match="'output_norm.weight', which an earlier piece has too"):
        open_gguf(changed / FIRST)


def test_a_piece_under_another_name_is_refused(split: Path, tmp_path: Path) -> None:
    shutil.copy(split / FIRST, tmp_path / "model.gguf")
    with pytest.raises(StartError, match="is one of 4 pieces of a model, expected a name such as"):
        open_gguf(tmp_path / "model.gguf")


def test_several_models_in_a_directory_are_named_without_their_pieces(changed: Path) -> None:
    shutil.copy(changed / FIRST, changed / "other.gguf")
    with pytest.raises(StartError, match=rf"several GGUF files \(other.gguf, {FIRST}\)"):
        find_gguf(changed)
