"""The table of the runtime `mindspore` in docs/ascend.md: what tests compile and compare.

`python -m tests.llm.mindspore_table` writes it anew, in English and Chinese.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mindspore_serving.llm.runtimes.mindspore.nodes import INCREMENT, PREFILL
from tests.llm.architecture_table import class_of
from tests.llm.runtimes import test_mindspore as models
from tests.llm.runtimes import test_mindspore_architectures as architectures
from tests.llm.runtimes import test_mindspore_graph as graphs
from tests.llm.runtimes import test_mindspore_integers as integers
from tests.llm.runtimes import test_mindspore_latent as latent

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- mindspore graphs -->\n"
PHASES = (PREFILL, INCREMENT)
# Page -> names of the columns.
PAGES = {
    "docs/ascend.md": (
        "architecture", "weights", "prompts: compiled", "compared", "other steps: compiled",
        "compared",
    ),
    "docs/zh/ascend.md": (
        "架构", "权重", "提示词：编译", "对比", "其他步骤：编译", "对比",
    ),
}  # fmt: skip
FLOATS = "float"

Key = tuple[str, str, str]  # class, weights, phase
# Letter -> test, and the cases of its parameter. The compared ones run both phases.
TESTS: dict[str, tuple[Callable[..., Any], str]] = {
    "a": (graphs.test_front_end_compiles_the_graph_of_primitives, "name"),
    "b": (integers.test_front_end_compiles_products_of_integers, "case"),
    "c": (models.test_greedy_tokens_are_those_of_the_reference, ""),
    "d": (architectures.test_logits_and_greedy_tokens_are_the_references, "name"),
    "e": (integers.test_logits_are_those_of_the_dequantised_model, "case"),
    "f": (latent.test_prompts_chunks_and_tokens_equal_the_reference, "name"),
}
COMPILED = "ab"


def cases(test: Callable[..., Any], parameter: str) -> Iterator[str]:
    """The values of a parameter of a test; those of the fixture of models without a name."""
    if not parameter:
        yield from (str(one.values[0]) for one in models.MODELS)
        return
    for mark in test.pytestmark:  # type: ignore[attr-defined]
        names = mark.args[0].split(", ") if isinstance(mark.args[0], str) else list(mark.args[0])
        if mark.name == "parametrize" and parameter in names:
            for one in mark.args[1]:
                values = getattr(one, "values", one if isinstance(one, tuple) else (one,))
                yield str(values[names.index(parameter)])


def shown() -> dict[Key, str]:
    """The letters of the tests for each graph."""
    found: dict[Key, str] = {}
    for letter, (test, parameter) in TESTS.items():
        for case in cases(test, parameter):
            name, weights = (
                (class_of("llama"), case) if letter in "be" else (class_of(case), FLOATS)
            )
            for phase in PHASES:
                letters = found.get((name, weights, phase), "")
                found[name, weights, phase] = letters + letter * (letter not in letters)
    return found


def table(columns: tuple[str, ...]) -> str:
    found = shown()
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    rows = sorted({key[:2] for key in found}, key=lambda row: (row[1] != FLOATS, *row))
    for name, weights in rows:
        cells = [f"`{name}`", weights]
        for phase in PHASES:
            letters = found[name, weights, phase]
            cells.append(", ".join(one for one in letters if one in COMPILED))
            cells.append(", ".join(one for one in letters if one not in COMPILED))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n" + "".join(legend())


def legend() -> Iterator[str]:
    for letter, (test, _) in TESTS.items():
        file = (test.__module__ or "").replace(".", "/")
        yield f"- {letter}: `{file}.py`, `{test.__name__}`\n"


def written(page: str) -> str:
    """The table as it stands in a page."""
    return (ROOT / page).read_text().split(MARK)[1]


if __name__ == "__main__":
    for page, columns in PAGES.items():
        before, _, after = (ROOT / page).read_text().split(MARK)
        (ROOT / page).write_text(before + MARK + table(columns) + MARK + after)
