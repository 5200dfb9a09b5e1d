"""Each composed cell equals its golden on the examples that a device is checked with."""

from dataclasses import replace

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore_serving.llm.runtimes.mindspore.primitives import comparison  # noqa: E402
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import (  # noqa: E402
    ArgumentSpec,
    problems,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.examples import examples  # noqa: E402
from mindspore_serving.llm.runtimes.mindspore.primitives.table import PRIMITIVES  # noqa: E402

EXAMPLES = examples(np.float32)
IDS = [f"{index}-{example.name}" for index, example in enumerate(EXAMPLES)]


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_composed_cell_equals_its_golden(example):
    result = comparison.compare(example, "composed", "float32")
    assert result.is_right, result


def test_composed_attention_equals_its_golden_in_float16():
    half = next(each for each in examples(np.float16) if each.name == "paged_attention")
    assert comparison.compare(half, "composed", "float16").is_right


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_contracts_accept_the_examples(dtype):
    drawn = examples(comparison.DTYPES[dtype])
    assert {example.name for example in drawn} == set(PRIMITIVES) - {"attention_mask"}
    for example in drawn:
        arguments = dict(example.arguments)
        if example.options.get("bits") == 4:
            arguments["weight"] = ArgumentSpec(arguments["weight"].shape, "qint4x2")
        rules = PRIMITIVES[example.name].contract
        assert problems(example.name, rules, arguments, options=example.options) == []


def test_a_primitive_with_other_results_is_reported(monkeypatch):
    example = next(each for each in EXAMPLES if each.name == "swiglu")
    wrong = replace(PRIMITIVES["swiglu"], golden=lambda x: x[:, :32])
    monkeypatch.setitem(PRIMITIVES, "swiglu", wrong)
    result = comparison.compare(example, "composed", "float32")
    assert not result.is_right
    assert result.difference > 0.1


def test_a_device_that_lacks_a_kernel_is_reported_with_its_message():
    result = comparison.compare(EXAMPLES[0], "ascend", "float32")
    assert not result.is_right
    assert "Unsupported op [RmsNorm] on CPU" in result.error
