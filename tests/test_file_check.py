"""Files that are no model: what they are, and what to do about it."""

import json
from pathlib import Path

import pytest

from mindspore_serving import file_check
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.ckpt import read_ckpt
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile
from mindspore_serving.llm.checkpoint.model_files import load_json
from mindspore_serving.llm.checkpoint.pickled import read_pickled
from mindspore_serving.llm.checkpoint.safetensors import read_safetensors
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.servable.bare import why_not
from mindspore_serving.servable.discovery import discover

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 988097824\n"
)
PAGE = b'\n<!DOCTYPE html>\n<html lang="en"><head><title>404</title></head></html>\n'
LFS = "is a Git LFS pointer, not the file itself .of 988097824 bytes.: run .*git lfs pull"
READERS = {
    "model.safetensors": read_safetensors,
    "model.gguf": GgufFile,
    "model.ckpt": read_ckpt,
    "pytorch_model.bin": read_pickled,
    "config.json": load_json,
}


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("net.onnx", POINTER, "run `git lfs install` and `git lfs pull`"),
        ("net.onnx", POINTER[:60], "is a Git LFS pointer, not the file itself: run"),
        ("net.onnx", PAGE, "is a web page (HTML)"),
        ("net.onnx", b"\xef\xbb\xbf<html>", "is a web page (HTML)"),
        ("net.onnx", b"", "is empty: copy or download it again"),
        ("net.onnx", b"Entry not found", "a server's refusal, 'Entry not found'"),
        ("net.json", b'{"error": "Access denied"}', "a server's refusal"),
        ("net.mindir", b"PK\x03\x04" + bytes(60), "is a ZIP archive: unpack it"),
        ("net.mindir", b"a" + bytes(256) + b"ustar" + bytes(250), "is a tar archive: unpack it"),
        ("net.mindir", b"\x1f\x8b\x08" + bytes(9), "is compressed by gzip: unpack it"),
        ("net.gguf.part", b"GGUF", "is a download that has not ended"),
        ("net.om", b"?", "is an offline model (OM), compiled by ATC"),
        ("net.mindir", b"IMOD" + bytes(252), "serve the MindIR or ONNX file that it was made of"),
    ],
)
def test_a_file_that_is_no_model_is_recognized(
    tmp_path: Path, name: str, content: bytes, text: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert text in file_check.why_no_model(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("net.pt2", b"PK\x03\x04" + bytes(60)),
        ("net.skops", b"PK\x03\x04" + bytes(60)),
        ("net.onnx", b"\x08\x08:\x10not found"),
        ("net.txt", b"tree\nversion=v4\n"),
        ("config.json", b"{}"),
    ],
)
def test_a_file_that_may_be_a_model_has_no_text(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert file_check.why_no_model(tmp_path / name) == ""


def test_a_file_that_aria2_downloads_is_unfinished(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\x08\x08")
    (tmp_path / "net.onnx.aria2").touch()
    assert "still being downloaded" in file_check.why_no_model(tmp_path / "net.onnx")


@pytest.mark.parametrize("name", READERS)
def test_every_reader_recognizes_a_git_lfs_pointer(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(StartError, match=f"{name} {LFS}"):
        READERS[name](tmp_path / name)


def test_a_missing_file_names_the_download_that_has_not_ended(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.incomplete").touch()
    with pytest.raises(StartError, match="safetensors.incomplete has not ended: wait for it"):
        read_safetensors(tmp_path / "model.safetensors")
    with pytest.raises(StartError, match="has no .*; the download model.safetensors.incomplete"):
        Checkpoint.open(tmp_path)


def test_downloads_into_the_cache_of_the_hub_are_named(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "huggingface" / "download"
    cache.mkdir(parents=True)
    (cache / "ab12.incomplete").touch()
    with pytest.raises(StartError, match=r"the download .*/\*.incomplete has not ended"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("has_index", [True, False])
def test_missing_files_of_weights_are_counted_and_named(tmp_path: Path, has_index: bool) -> None:
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    (tmp_path / names[1]).write_bytes(b"")
    if has_index:
        index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(StartError, match=f"lacks 2 of 3 files .*: download {names[0]}, {names[2]}"):
        Checkpoint.open(tmp_path)


def test_an_unfinished_download_alone_in_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf.part").touch()
    with pytest.raises(StartError, match="'.*': the download model.gguf.part has not ended: wait"):
        discover(str(tmp_path))


def test_weights_without_config_json_name_the_missing_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(StartError, match="has model.safetensors, but no config.json: download"):
        discover(str(tmp_path))


@pytest.mark.parametrize("name", ["net.xml", "net.json", "net.txt", "net.jit", "net.zip"])
def test_a_path_of_no_known_model_is_recognized(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(PAGE)
    assert why_not(str(tmp_path / name)) == f"'{tmp_path / name}' " + file_check.why_no_model(
        tmp_path / name
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"architectures": ["A"],\n "hidden_size": 64,}', "is not JSON: .*line 2 column"),
        (b"", "is empty"),
        (POINTER, "is a Git LFS pointer"),
        (b"[1]", "holds a list, expected an object"),
        (b"{}", "has no 'architectures', which names the model's class"),
    ],
)
def test_a_config_json_that_cannot_be_used_is_the_reason(
    tmp_path: Path, content: bytes, text: str
) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_bytes(content)
    (tmp_path / "llama" / "model.safetensors").touch()
    for path in (tmp_path, tmp_path / "llama"):
        with pytest.raises(StartError, match=f"its config.json {text}"):
            discover(str(path))


def test_an_archive_of_a_format_of_archives_may_have_any_suffix(tmp_path: Path) -> None:
    (tmp_path / "net.saved").write_bytes(b"PK\x03\x04" + bytes(60))
    assert "ZIP" in file_check.why_no_model(tmp_path / "net.saved")
    assert file_check.why_no_model(tmp_path / "net.saved", may_be_archive=True) == ""
