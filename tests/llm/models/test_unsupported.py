"""What is not served says why, and what is near it; never a list without order."""

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models import load_definition


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("JambaForCausalLM", "Mamba layers in a form .* near it are BambaForCausalLM "),
        ("KimiLinearForCausalLM", "linear attention"),
        ("T5ForConditionalGeneration", "an encoder and a decoder"),
        ("Qwen2_5_VLForConditionalGeneration", "for pictures or sounds"),
        ("MiniCPMForCausalLM", "is not served; near it are MiniCPM3ForCausalLM;"),
        ("LlamaForCausaLM", "is not served; near it are LlamaForCausalLM;"),
        ("NoSuchModel", "is not served; docs/architectures.md has those that generate"),
    ],
)
def test_an_architecture_that_is_not_served_says_why_and_what_is_near(name: str, says: str) -> None:
    with pytest.raises(StartError, match=says) as raised:
        load_definition({"architectures": [name]})
    assert str(raised.value).count("ForCausalLM") < 5
