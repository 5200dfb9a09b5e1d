"""Matrices of integers in graphs of the mindspore runtime: layouts, products and kernels."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import pack, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import StaticInputs
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.capacity import cache_block_bytes, runner_limits
from mindspore_serving.llm.runtimes.main_memory import read_main_memory
from mindspore_serving.llm.runtimes.mindir.library import mindspore
from mindspore_serving.llm.runtimes.mindspore import nodes, recording
from mindspore_serving.llm.runtimes.mindspore.cell import CacheShape, compile_graph
from mindspore_serving.llm.runtimes.mindspore.integers import (
    IntegerForm,
    Integers,
    input_tensors,
    tensors_of,
    weight_layout,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import (
    ArgumentSpec,
    problems,
    spec_of,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.table import PRIMITIVES, make
from mindspore_serving.llm.runtimes.mindspore.runner import TARGETS, GraphRunner, PhaseGraphs
from mindspore_serving.llm.runtimes.mindspore.weights import GraphWeights
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.quantised_files import CASES, quantised
from tests.llm.stepping import relative_error

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
# A case for each form of a product, and the operators that a graph has of it.
WEIGHTS, STATIC = ["WeightQuantMatmul"], ["Quantise", "QuantMatmul"]
FORMS = {
    "gptq-act-order": WEIGHTS,  # 4 bits, reordered inputs
    "awq": WEIGHTS,  # 4 bits, groups, offsets
    "golden-stick-a16w8": WEIGHTS,
    "modelslim-w8a8-dynamic": ["DynamicQuant", "QuantMatmul"],
    "modelslim-w8a8": STATIC,
    "golden-stick-a8w8-smooth": STATIC,
}
ARGUMENTS = {
    "WeightQuantMatmul": ("weight_quant_matmul", ("x", "weight", "scale", "offset")),
    "DynamicQuant": ("dynamic_quant", ("x",)),
    "QuantMatmul": ("quant_matmul", ("x", "weight", "scale", "bias", "pertoken")),
    "Quantise": ("quantise", ("x", "scale", "offset")),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("integers")
    checkpoints.build("llama", root, num_hidden_layers=1)
    return root


def built(root: Path, case: str) -> Path:
    target = root / case
    if not target.exists():
        quantised(root / "llama", target, CASES[case])
    return target


def opened(directory: Path, dtype: str, bits: int = 0):
    checkpoint, spec, decoder = open_definition(directory, max_model_len=128)
    weights = GraphWeights(checkpoint, f"mindspore.{dtype}", keeps_integers=True, bits=bits)
    return spec, decoder, weights


def recorded(directory: Path, bits: int = 0, phase: str = nodes.INCREMENT):
    spec, decoder, weights = opened(directory, "bfloat16", bits)
    layers = tuple(spec.attention_layers)
    ops = recording.GraphOps(weights, phase, nodes.ASCEND, 128, layers)
    shapes = [CacheShape(128, *spec.heads[layer]) for layer in layers]
    return recording.record(spec, decoder, ops), weights, shapes


def calls(graph) -> list[tuple[str, str, list[str]]]:
    """(class, operator, arguments) of each call of an operator, in order."""
    found = []
    for line in graph.lines:
        match = re.search(r"= self\.(op\d+)\((.*)\)$", line)
        if match:
            operator = graph.operators[match[1]]
            found.append((type(operator).__name__, operator, match[2].split(", ")))
    return found


@pytest.mark.parametrize("case", FORMS)
def test_products_of_integers_satisfy_the_contracts_of_their_kernels(root: Path, case: str) -> None:
    """The parameters of a graph, by shape and dtype."""
    graph, weights, _ = recorded(built(root, case) / "quantised")
    names = [kind for kind, _, _ in calls(graph)]
    assert set(FORMS[case]) <= set(names)
    for kind, operator, arguments in calls(graph):
        if kind not in ARGUMENTS:
            continue
        name, keys = ARGUMENTS[kind]
        given = dict(zip(keys, (argument.strip() for argument in arguments), strict=False))
        specs = {
            key: spec_of(weights.parameters[text.removeprefix("self.")])
            for key, text in given.items() if text.startswith("self.")
        }  # fmt: skip
        x_dtype = "int8" if kind == "QuantMatmul" else "bfloat16"
        specs["x"] = ArgumentSpec((None, None), x_dtype)
        options = {"dtype": "bfloat16"} if kind == "QuantMatmul" else {}
        if kind == "WeightQuantMatmul":
            is_4 = specs["weight"].dtype == "qint4x2"
            group = operator.kernel.antiquant_group_size
            options = {"bits": 4 if is_4 else 8, "group_size": group}
        if given.get("pertoken", "None") != "None":
            specs["pertoken"] = ArgumentSpec((None,), "float32")
        assert not problems(name, PRIMITIVES[name].contract, specs, options=options)


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.long] * (c != "modelslim-w8a8")) for c in FORMS],
)
@pytest.mark.parametrize("phase", [nodes.PREFILL, nodes.INCREMENT])
def test_front_end_compiles_products_of_integers(
    root: Path, case: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindspore.graph.api import _cell_graph_executor

    def check(cell, *inputs):
        export = f"export.{case}.{phase}"
        return _cell_graph_executor.compile(cell, *inputs, phase=export, do_convert=False)

    monkeypatch.setattr("mindspore.nn.Cell.compile", check)
    graph, weights, shapes = recorded(built(root, case) / "quantised", phase=phase)
    assert compile_graph(graph, weights.parameters, phase, shapes)


def test_integers_of_the_same_form_are_joined(root: Path) -> None:
    """Queries, keys and values; gate and up, whose own integers are not loaded."""
    graph, weights, _ = recorded(built(root, "awq") / "quantised")
    assert [kind for kind, _, _ in calls(graph)].count("WeightQuantMatmul") == 4
    integers = [p for p in weights.parameters.values() if "int4" in str(p.dtype).lower()]
    assert len(integers) == 4


def test_matrices_of_floats_are_rounded_by_quantization(root: Path) -> None:
    graph, weights, _ = recorded(root / "llama", bits=8)
    kinds = [kind for kind, _, _ in calls(graph)]
    assert kinds.count("WeightQuantMatmul") >= 4


def computed(directory: Path, prompt: list[int]) -> np.ndarray:
    """Logits of both graphs on a CPU, of operators composed of plain ones: the last of each."""
    spec, decoder, weights = opened(directory, "float32")
    config = EngineConfig(block_size=8, kv_cache_memory=2**20, max_num_seqs=1,
                          max_num_batched_tokens=32)  # fmt: skip
    graphs = PhaseGraphs(spec, decoder, weights, TARGETS["cpu"])
    block_bytes = cache_block_bytes(config, spec, element_size=4)
    runner = GraphRunner(graphs, runner_limits(config, spec, block_bytes, read_main_memory()))
    try:
        first, last = prompt[:-1], prompt[-1:]
        blocks, length = list(range(4)), len(first)
        rows = [Row(first, 0, blocks, length), Row(last, length, blocks, 1)]
        return np.concatenate([runner.run(Step((row,))) for row in rows])
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("case", "limit"),
    [
        ("awq", 1e-5),
        pytest.param("gptq-act-order", 1e-5, marks=pytest.mark.long),
        pytest.param("golden-stick-a16w8", 1e-5, marks=pytest.mark.long),
        # These round inputs too, the last one by coarse steps.
        pytest.param("modelslim-w8a8-dynamic", 0.05, marks=pytest.mark.long),
        pytest.param("modelslim-w8a8", 0.3, marks=pytest.mark.long),
    ],
)
def test_logits_are_those_of_the_dequantised_model(root: Path, case: str, limit: float) -> None:
    directory = built(root, case)
    prompt = checkpoints.prompts(1, longest=20)[0]
    found = computed(directory / "quantised", prompt)
    expected = checkpoints.logits(directory / "floats", prompt)
    assert relative_error(found, expected[-len(found) :]) < limit


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_layout_is_that_of_the_kernel(bits: int, has_zeros: bool) -> None:
    """Element [k, n] is (integer + offset) * scale of the group of k."""
    random = np.random.default_rng(bits)
    matrix = random.normal(0, 1, (6, 64)).astype(np.float32)
    packed = pack(matrix, bits, 32, has_zeros=has_zeros)
    values, scale, offset = weight_layout(packed)
    x = np.eye(64, dtype=np.float32)
    options = {"bits": bits, "group_size": packed.group if packed.is_grouped else 0}
    found = PRIMITIVES["weight_quant_matmul"].golden(x, values, scale, offset, **options)
    np.testing.assert_allclose(found, unpack(packed).T, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("offset", [np.int8([-3]), np.float32([-3])], ids=["divides", "multiplies"])
def test_static_product_is_that_of_rounded_inputs(offset: np.ndarray) -> None:
    """By hand: (q W.T + quant_bias) * deq_scale with q = round((x + shift) / scale) + offset."""
    random = np.random.default_rng(1)
    values = random.integers(-127, 128, (5, 32)).astype(np.int8)
    x = random.normal(0, 1, (3, 32)).astype(np.float32)
    shift = random.normal(0, 1, 32).astype(np.float32)
    deq = np.float32(random.uniform(1e-4, 1e-3, 5))
    bias = random.integers(-99, 99, 5).astype(np.int32)
    static = StaticInputs(values, deq, bias, np.float32([0.0625]), offset, shift)
    form = IntegerForm(8, inputs=static.key(), is_shifted=True)
    made = tensors_of(Integers(form, None, static), "float32", stored_as_nibbles=False)
    made |= input_tensors(form, static, "float32")
    assert tuple(made) == (*form.parts, *form.input_parts)
    rounded = make("quantise", "composed")(
        mindspore.Tensor(x) + made["shift"], made["steps"], made["zero"]
    )
    found = make("quant_matmul", "composed", dtype="float32")(
        rounded, made["weight"], made["scale"], made["bias"], None
    )
    q = np.clip(np.rint((x + shift) / 0.0625) - 3, -128, 127)
    expected = (q @ values.T.astype(np.float64) + bias) * deq
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)


def test_scales_for_float16_are_the_bits_of_float32() -> None:
    """As the kernel takes them."""
    deq = np.float32([0.5, 1e-3])
    static = StaticInputs(np.ones((2, 4), np.int8), deq, np.zeros(2, np.int32),
                          np.float32([1]), np.int8([0]))  # fmt: skip
    form = IntegerForm(8, inputs=static.key())
    scale = tensors_of(Integers(form, None, static), "float16", stored_as_nibbles=False)["scale"]
    np.testing.assert_array_equal(scale.asnumpy().astype(np.int32).view(np.float32), deq)


def test_quantization_is_refused_on_a_cpu(root: Path) -> None:
    config = EngineConfig(quantization="int8")
    with pytest.raises(StartError, match="quantization is 'int8', but the runtime mindspore has"):
        open_runner(root / "llama", "mindspore", config)


def test_description_that_contradicts_the_tensors_is_refused(root: Path, tmp_path: Path) -> None:
    source = built(root, "modelslim-w8a8") / "quantised"
    copy = tmp_path / "model"
    shutil.copytree(source, copy)
    path = copy / "quant_model_description.json"
    types = json.loads(path.read_text())
    name = "model.layers.0.mlp.up_proj.weight"
    path.write_text(json.dumps({**types, name: "FLOAT"}))
    with pytest.raises(StartError, match=f"{name}' is I8, but FLOAT in {path.name}"):
        open_runner(copy, "mindspore", EngineConfig())
