"""The table of architectures in docs/llm.md is what tests compare."""

import pytest

pytest.importorskip("mindspore")
pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.llm.checkpoint.gguf.configuration import ARCHITECTURES
from mindspore_serving.llm.models.families import FAMILIES
from tests.llm import architecture_table
from tests.llm.architecture_table import COMPARED, TEXT_PARTS, class_of

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]


def test_the_document_has_what_is_compared() -> None:
    """`python -m tests.llm.architecture_table` writes it."""
    assert architecture_table.written() == architecture_table.table()


@pytest.mark.parametrize(
    ("column", "served"),
    [
        ("openvino", set(FAMILIES) - {"Gemma2ForCausalLM"}),
        ("torch", set(FAMILIES)),
        ("tensor_parallel", {name for name, form in FAMILIES.items() if form.cut}),
        ("gguf", set(ARCHITECTURES.values())),
    ],
)
def test_all_that_is_served_is_compared(column: str, served: set[str]) -> None:
    compared = {class_of(name) for name in COMPARED[column]}
    assert compared - set(TEXT_PARTS) == served - set(TEXT_PARTS)
