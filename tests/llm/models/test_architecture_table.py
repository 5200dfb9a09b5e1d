"""The table of architectures in docs/architectures.md lists those that tests compare."""

import pytest

pytest.importorskip("mindspore")
pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.llm.checkpoint.gguf.families import FAMILIES as LLAMA_CPP
from mindspore_serving.llm.checkpoint.gguf.families import VARIANTS
from mindspore_serving.llm.descriptions.families import FAMILIES
from tests.llm import architecture_table, mindspore_table
from tests.llm.architecture_table import COMPARED, SAME, TEXT_PARTS, class_of

FILES = {family.name for family in (*LLAMA_CPP.values(), *(one for _, one in VARIANTS.values()))}
pytestmark = [pytest.mark.mindspore, pytest.mark.torch]


def test_document_table_matches_compared_architectures() -> None:
    """`python -m tests.llm.architecture_table` writes it."""
    assert architecture_table.written() == architecture_table.table()


@pytest.mark.parametrize("page", mindspore_table.PAGES)
def test_document_table_matches_graphs_of_mindspore(page: str) -> None:
    """`python -m tests.llm.mindspore_table` writes it."""
    assert mindspore_table.written(page) == mindspore_table.table(mindspore_table.PAGES[page])


@pytest.mark.parametrize(
    ("column", "served"),
    [
        ("openvino", set(FAMILIES) - {"Gemma2ForCausalLM"}),
        ("torch", set(FAMILIES)),
        ("tensor_parallel", set(FAMILIES)),
        # llama.cpp calls these as Olmo 3 and Granite 4.
        ("gguf", FILES | {"Olmo2ForCausalLM", "BambaForCausalLM"}),
    ],
)
def test_every_supported_architecture_is_compared(column: str, served: set[str]) -> None:
    compared = {class_of(name) for name in COMPARED[column]}
    alike = {*TEXT_PARTS, *SAME}
    assert compared - alike == served - alike
