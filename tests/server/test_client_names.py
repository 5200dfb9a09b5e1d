"""Names of Ollama's clients: the sources that they mean, and what an operator allows."""

import pytest

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub.reference import Reference
from mindspore_serving.hub.sources import SOURCES, SourceRow
from mindspore_serving.server.client_names import is_within, short_name, to_reference
from mindspore_serving.server.front_ends import to_prefixes


@pytest.fixture(autouse=True)
def ollama(monkeypatch):
    if "ollama" not in SOURCES:
        monkeypatch.setitem(SOURCES, "ollama", SourceRow("", "", "", "ollama://NAME", "tagged"))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("llama3.2", "ollama://llama3.2"),
        ("llama3.2:latest", "ollama://llama3.2"),
        ("llama3.2:1b", "ollama://llama3.2:1b"),
        ("me/model:tag", "ollama://me/model:tag"),
        ("hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0", "hf://Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        ("huggingface.co/a/b:latest", "hf://a/b"),
        ("hf://a/b@main", "hf://a/b@main"),
    ],
)
def test_a_name_means_a_registry_or_a_source(name, reference):
    assert str(to_reference(name)) == reference


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "/etc/passwd", "./model.gguf", "~/model", "../model", "a/../../b", "a\0b"),
        *("a\nb", "file:///etc/passwd", "C:\\model", "a" * 300, "hf://../../x"),
        *("-o", "$(id)", "a b", "%2e%2e/x", "hf://a/b:../../c", "hf://a/b@../c"),
    ],
)
def test_a_hostile_name_is_refused(name):
    with pytest.raises(InvalidInputs):
        to_reference(name)


@pytest.mark.parametrize(
    ("name", "prefix", "allowed"),
    [
        ("hf.co/Qwen/Qwen3", "hf://", True),
        ("hf.co/Qwen/Qwen3", "hf://Qwen/", True),
        ("hf.co/Qwen/Qwen3", "hf://Qwen", True),
        ("hf.co/Qwen/Qwen3", "hf://Qwen/Qwen3", True),
        ("hf.co/Qwen/Qwen3:Q8_0", "hf://Qwen/Qwen3", True),
        ("hf.co/QwenEvil/Qwen3", "hf://Qwen", False),
        ("hf.co/QwenEvil/Qwen3", "hf://Qwen/", False),
        ("llama3.2:1b", "hf://", False),
        ("llama3.2:1b", "ollama://", True),
        ("library/llama3.2", "ollama://", True),
        ("10.0.0.1/library/x", "ollama://", False),
        ("localhost/library/x", "ollama://", False),
        ("evil.example:5000/library/x", "ollama://", False),
        ("evil.example:5000/library/x", "ollama://evil.example:5000/", True),
    ],
)
def test_a_prefix_allows_names_up_to_a_boundary(name, prefix, allowed):
    assert is_within(to_reference(name), prefix) is allowed


def test_the_tag_of_all_models_can_be_left_out():
    assert [short_name(name) for name in ("a:latest", "a", "a:1b")] == ["a", "a", "a:1b"]


@pytest.mark.parametrize("prefix", ["Qwen/", "ftp://x", "hf:/x"])
def test_an_operator_names_a_source(prefix):
    with pytest.raises(InvalidInputs, match="as hf://Qwen/; sources are hf://"):
        to_prefixes([prefix])


def test_a_reference_is_within_its_own_text():
    assert is_within(Reference("hf", "a/b", "v1"), "hf://a/b@v1")
