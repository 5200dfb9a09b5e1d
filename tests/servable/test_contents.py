"""Which contents make the answers of two servers the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.servable_options import SERVABLE
from mindspore_serving.servable import contents
from mindspore_serving.servable.contents import ANSWER_OPTIONS, digest_of, read_files
from mindspore_serving.stores.file_hashes import FileHashes


def write(directory: Path, **files: str) -> Path:
    for name, text in {
        "servable_config.py": "code",
        "labels.txt": "a",
        "1/w": "1",
        **files,
    }.items():
        path = directory / "net" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def digest(directory: Path, hashes: Path, **options: object) -> bytes | None:
    deployment = Deployment(str(directory), "net", version_number=1, **options)
    files = read_files(deployment)
    assert files is not None
    return digest_of(deployment, files, FileHashes(hashes))


def test_the_digest_is_of_contents_and_not_of_places_or_other_versions(tmp_path):
    first, second = write(tmp_path / "a"), write(tmp_path / "b", **{"2/w": "other version"})
    (second / "net" / "__pycache__").mkdir()
    (second / "net" / "__pycache__" / "x.pyc").write_text("compiled")
    assert digest(first, tmp_path) == digest(second, tmp_path, num_parallel_workers=2)


@pytest.mark.parametrize("name", ["servable_config.py", "labels.txt", "1/w", "new.txt"])
def test_a_changed_file_changes_the_digest(tmp_path, name):
    first, second = write(tmp_path / "a"), write(tmp_path / "b", **{name: "b"})
    assert digest(first, tmp_path) != digest(second, tmp_path)


def test_a_file_behind_a_link_counts_and_a_link_back_ends(tmp_path):
    digests = []
    for text in ("1", "2"):
        directory, linked = write(tmp_path / text), tmp_path / f"linked{text}"
        linked.mkdir()
        (linked / "w.bin").write_text(text)
        (directory / "net" / "1" / "data").symlink_to(linked)
        (linked / "back").symlink_to(directory / "net")
        digests.append(digest(directory, tmp_path))
    assert digests[0] != digests[1]


def test_options_that_change_answers_change_the_digest(tmp_path):
    directory = write(tmp_path)
    weights = tmp_path / "weights"
    weights.write_text("1")
    base = digest(directory, tmp_path)
    options = [{"precision": "bfloat16"}, {"llm_options": {"dtype": "f32"}}]
    options += [{"weights": str(weights)}, {"device_type": "cpu"}]
    digests = [digest(directory, tmp_path, **changed) for changed in options]
    assert len({base, *digests}) == 5


def test_every_option_of_models_is_part_of_the_digest():
    rows = {name for name, row in SERVABLE.items() if row.group == "models"}
    assert rows - {"alias", "weights"} <= set(ANSWER_OPTIONS)  # those are a name and a file


def test_files_that_change_after_they_were_listed_have_no_digest(tmp_path):
    deployment = Deployment(str(write(tmp_path)), "net", version_number=1)
    files = read_files(deployment)
    (tmp_path / "net" / "1" / "w").write_text("2")
    assert digest_of(deployment, files, FileHashes(tmp_path)) is None
    assert read_files(deployment) != files
    assert read_files(replace(deployment, version_number=2)) != files


def test_a_servable_of_too_many_files_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "MAX_FILES", 2)
    assert read_files(Deployment(str(write(tmp_path)), "net", version_number=1)) is None
