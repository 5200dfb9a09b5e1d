"""Names of models, and what is a path instead."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub.reference import ANY, Reference, located, parse_reference
from mindspore_serving.hub.sources import SOURCES


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("Qwen/Qwen3-0.6B", Reference(ANY, "Qwen/Qwen3-0.6B")),
        ("a/b:Q8_0", Reference(ANY, "a/b", "", "Q8_0")),
        ("a/b@v1.0:x/y.gguf", Reference(ANY, "a/b", "v1.0", "x/y.gguf")),
        ("hf://gpt2", Reference("hf", "gpt2")),
        ("HF://a/b@refs/pr/1", Reference("hf", "a/b", "refs/pr/1")),
        ("hf://a/b@main:Q4_K_M", Reference("hf", "a/b", "main", "Q4_K_M")),
        ("hf.co/a/b:Q8_0", Reference("hf", "a/b", "", "Q8_0")),
        ("https://huggingface.co/a/b", Reference("hf", "a/b")),
        ("https://hf.co/a/b/tree/v1", Reference("hf", "a/b", "v1")),
        (
            "https://huggingface.co/a/b/blob/main/c/d.gguf?x=1",
            Reference("hf", "a/b", "main", "c/d.gguf"),
        ),
    ],
)
def test_a_name_is_parsed(text: str, reference: Reference) -> None:
    assert parse_reference(text) == reference
    if text.startswith("hf:"):
        assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    ["/a/b", "./a/b", "~/a", "a", "a/b/c", "models/net.onnx", "a/b.GGUF", "../a/b", "http://h:1/a"],
)
def test_a_path_is_no_name(text: str) -> None:
    assert parse_reference(text) is None


def test_a_path_that_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen").mkdir()
    assert parse_reference("Qwen/Qwen3", str(tmp_path)) is None
    assert located("Qwen/Qwen3", str(tmp_path)) == str(tmp_path / "Qwen/Qwen3")
    assert located("Qwen/Qwen3", str(tmp_path / "Qwen")) == "Qwen/Qwen3"
    monkeypatch.chdir(tmp_path)
    assert parse_reference("Qwen/Qwen3") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hff://a/b", "has the scheme 'hff', expected a path, ORG/NAME or one of hf://"),
        ("hff://a/b", "did you mean 'hf'?"),
        ("hf://a/b/c", "expected hf://ORG/NAME[@REVISION][:FILE]"),
        ("hf://../b", "is no name of a model"),
        ("hf://a/b@../../x", "is no name of a model"),
        ("hf://a/b:../x", "is no name of a model"),
        ("hf://a/b:x/../../y", "is no name of a model"),
        ("hf://", "is no name of a model"),
        ("https:///a.onnx", "is no address, expected https://HOST/PATH"),
        ("https://h/../a.onnx", "is no address"),
    ],
)
def test_a_malformed_name_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInputs) as error:
        parse_reference(text)
    assert problem in str(error.value)


@given(st.text("aZ0:/@.-_#?~%\\ \n\0é", max_size=40), st.sampled_from(["", *SOURCES, "x"]))
def test_hostile_names_are_parsed_or_refused(text: str, scheme: str) -> None:
    with suppress(InvalidInputs):
        reference = parse_reference(f"{scheme}://{text}" if scheme else text)
        if reference is not None:
            assert ".." not in reference.name.split("/")
            assert ".." not in reference.revision.split("/")
            assert not reference.name.startswith("/")


def test_the_title_of_a_model_names_a_servable() -> None:
    assert Reference("hf", "Qwen/Qwen3-0.6B").title == "Qwen3-0.6B"
    assert Reference(ANY, "a/b", "v1", "Q8_0").title == "b"
