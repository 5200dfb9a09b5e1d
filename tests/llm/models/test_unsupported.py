"""Refusals of unsupported architectures: the reason, and similar names."""

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models import load_definition


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("JambaForCausalLM", "Mamba layers of a kind .* similar are BambaForCausalLM "),
        ("KimiLinearForCausalLM", "linear attention"),
        ("T5ForConditionalGeneration", "an encoder and a decoder"),
        ("KimiVLForConditionalGeneration", "for images or audio"),
        ("MiniCPMForCausalLM", "is not supported; similar are MiniCPM3ForCausalLM "),
        ("LlamaForCausaLM", "is not supported; similar are LlamaForCausalLM;"),
        (
            "NoSuchModel",
            "is not supported; `mindspore-serving docs architectures` lists those that generate",
        ),
    ],
)
def test_unsupported_architecture_names_reason_and_similar(name: str, message: str) -> None:
    with pytest.raises(StartError, match=message) as raised:
        load_definition({"architectures": [name]})
    assert str(raised.value).count("ForCausalLM") < 5
