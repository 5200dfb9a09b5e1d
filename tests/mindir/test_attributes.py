"""What MindSpore writes beside the inputs of an operator is used, or known to change no result."""

import ast
import inspect
import re

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as op

mindspore = pytest.importorskip("mindspore", reason="MindSpore has the attributes")
pytest.importorskip("torch", reason="the audit of enumerations uses it")

from mindspore_serving.mindir.operators import OPERATORS  # noqa: E402
from mindspore_serving.mindir.operators.types import element_type  # noqa: E402
from mindspore_serving.mindir.tensors import UnsupportedTensor, apply, tensor  # noqa: E402
from tests.mindir.conftest import export, opened  # noqa: E402
from tests.mindir.enumerations import PLACE, dtype_arguments  # noqa: E402
from tests.mindir.test_operators import CELLS  # noqa: E402

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]

# Said elsewhere too: by shapes of weights, by `groups` and `pad_list`, by the number of results.
REPEATED = {
    **dict.fromkeys(("Conv2D", "Conv3D"), {"group", "kernel_size", "out_channel"}),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv2DTranspose"), {"group", "kernel_size", "out_channel", "pad"}
    ),
    "AvgPool3D": {"pad"},
    "DeformableOffsets": {"data_format"},
    "Conv3DTranspose": {
        *("dilation", "group", "in_channel", "kernel_size", "out_channel", "pad", "stride"),
    },
    "DepthwiseConv2dNative": {"channel_multiplier", "group", "kernel_size"},
    "SplitV": {"num_split"},
    "TensorScatterElements": {"reduction"},
    "Unstack": {"num"},
}
# Of one value that MindSpore accepts, of training, of other devices, or of one layer only.
WITHOUT_EFFECT = {
    **dict.fromkeys(("Conv2D", "Conv2DBackpropInput", "Conv2DTranspose"), {"mode"}),
    "Conv3D": {"mode", "offset_x"},
    "Conv3DTranspose": {"mode"},
    "DepthwiseConv2dNative": {"mode", "offset_a"},
    "EmbeddingLookup": {"bprop_return_sparse"},
    "InstanceNorm": {"momentum"},
    "LRN": {"norm_region"},
    "LSTM": {"dropout"},
    "Log": {"base", "cust_aicpu", "scale", "shift"},
    "MaxPool3DWithArgmax": {"data_format"},
    "Median": {"cust_aicpu"},
    "SparseGatherV2": {"bprop_return_sparse"},
}


def classes():
    found = {}
    for path in sorted((PLACE / "ops").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def attributes_of(node, known):
    """What the class and its bases register: arguments of constructors, and further ones."""
    found = set()
    bases = [known[base.id][0] for base in node.bases if getattr(base, "id", None) in known]
    for one in (node, *bases):
        for method in one.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                if "prim_attr_register" in map(ast.unparse, method.decorator_list):
                    found |= {argument.arg for argument in method.args.args[1:]}
                found |= {
                    call.args[0].value
                    for call in ast.walk(method)
                    if isinstance(call, ast.Call)
                    and ast.unparse(call.func).endswith("add_prim_attr")
                    and isinstance(call.args[0], ast.Constant)
                }
    return {name for name in found if not name.startswith("side_effect")}


def test_every_attribute_of_an_operator_is_used_or_known_to_change_nothing():
    known = classes()
    unused = {}
    for name, operator in OPERATORS.items():
        used = set(inspect.signature(operator).parameters)
        used |= REPEATED.get(name, set()) | WITHOUT_EFFECT.get(name, set())
        rest = {one for node in known.get(name, ()) for one in attributes_of(node, known)} - used
        if rest:
            unused[name] = rest
    assert unused == {}


def test_count_nonzero_counts_over_its_axes(tmp_path):
    from mindspore.ops.operations.array_ops import CountNonZero

    x = np.array([[0, 1, 2], [0, 0, 3]], np.float32)
    export(CELLS[1](CountNonZero((1,)), (0,), ()), tmp_path / "one.mindir", [x])
    (result,) = opened(tmp_path / "one.mindir").run([x])
    np.testing.assert_array_equal(np.array(result).ravel(), [2, 1])


DTYPES = {
    "bool": "bool",
    "int": "int64",
    "float": "float32",
    **{
        name: name
        for bits in (8, 16, 32, 64)
        for name in (f"int{bits}", f"uint{bits}", *([f"float{bits}"] if bits > 8 else []))
    },
    "bfloat16": "bf16",
}


def numbers_of_dtypes():
    """Name in lower case -> number of every type of numbers in MindSpore's header."""
    text = (PLACE / "include/mindapi/base/type_id.h").read_text()
    names = [name for _, name in re.findall(r"^\s*k(Number|Object)Type(\w+)\b", text, re.M)]
    start = names.index("Bool")
    bool_number = int(mindspore._c_expression.typing.type_to_type_id(mindspore.bool_))
    numbers = {}
    for place, name in enumerate(names[start:]):
        if name == "End":
            break
        numbers[name.lower()] = bool_number + place
    return numbers


def test_each_data_type_is_read_by_its_number_or_refused():
    for name, number in numbers_of_dtypes().items():
        if name in DTYPES:
            kind = DTYPES[name]
            expected = ov.Type.bf16 if kind == "bf16" else ov.Type(np.dtype(kind))
            assert (name, element_type(number)) == (name, expected)
        else:
            with pytest.raises(UnsupportedTensor, match=rf"data type {number} \(\w+\)") as refusal:
                element_type(number)
            assert f"({name})" in str(refusal.value).replace("_", "")


X = np.arange(6, dtype=np.float32).reshape(2, 3)
SIZE = (2, 3)
# Operator -> inputs before the data type.
INPUTS = {
    **dict.fromkeys(
        ("Cast", "CumsumExt", "FullLike", "LinalgVectorNorm", "LogSoftmaxExt", "MeanExt"), (X,)
    ),
    **dict.fromkeys(("Norm", "OnesLikeExt", "ProdExt", "SumExt", "ToDtype", "ZerosLikeExt"), (X,)),
    **dict.fromkeys(("Argmax", "Argmin"), (X, 0)),
    **dict.fromkeys(("NewOnes", "NewZeros"), (X, SIZE)),
    **dict.fromkeys(("Ones", "Zeros"), (SIZE,)),
    **dict.fromkeys(("FillScalar", "FillTensor"), (SIZE, 1.0)),
    "Arange": (0, 4, 1),
    "CumsumExt": (X, 0),
    "Eye": (2, 3),
    "FullLike": (X, 1.0),
    "LinSpaceExt": (np.float32(0), np.float32(4), 3),
    "NewFull": (X, SIZE, 1.0),
    "TupleToTensor": ((1, 2),),
}
# Of int32 and int64 alone; of numbers of Python; of the results that another test looks at.
OTHERS = {"SearchSorted", "ScalarCast", "MaxPoolWithIndices", "MaxPoolWithMask"}
OF_FLOATS = {"LinalgVectorNorm", "LogSoftmaxExt", "MeanExt", "Norm"}


def test_operators_with_a_data_type_give_a_result_of_that_type():
    pairs = {pair for pair in dtype_arguments() if pair[0] not in OTHERS}
    assert {name for name, _ in pairs} == set(INPUTS)
    for name, argument in sorted(pairs):
        inputs = [
            op.constant(one).output(0) if isinstance(one, np.ndarray | np.generic) else one
            for one in INPUTS[name]
        ]
        for text, number in numbers_of_dtypes().items():
            if text in DTYPES and ("float" in text or name not in OF_FLOATS):
                result = tensor(apply(OPERATORS[name], inputs, {argument: number}))
                assert (name, text, result.get_element_type()) == (name, text, element_type(number))


def test_a_number_is_cast_to_the_type_that_a_data_type_stands_for():
    for text, number in numbers_of_dtypes().items():
        if text in DTYPES:
            kind = bool if text == "bool" else float if "float" in text else int
            result = apply(OPERATORS["ScalarCast"], [2.5, number], {})
            assert (text, type(result), result) == (text, kind, kind(2.5))


def test_positions_in_sorted_numbers_are_of_int32_or_int64():
    inputs = [op.constant(X[0]).output(0), op.constant(X[0]).output(0)]
    for number, kind in ((34, ov.Type.i32), (35, ov.Type.i64)):
        result = tensor(apply(OPERATORS["SearchSorted"], inputs, {"dtype": number}))
        assert result.get_element_type() == kind
    with pytest.raises(UnsupportedTensor, match="dtype 43, accepted: 34"):
        apply(OPERATORS["SearchSorted"], inputs, {"dtype": 43})
