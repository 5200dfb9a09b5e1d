"""Products of native kernels equal those of gguf's own decoding, for every block format."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.native.kernels.compiler import (
    VARIABLE,
    Compiler,
    instruction_set,
)
from mindspore_serving.llm.runtimes.native.kernels.emitter import InstructionSet
from mindspore_serving.llm.runtimes.native.kernels.formats import (
    FORMATS,
    Activations,
    BlockMatrix,
    format_named,
)
from mindspore_serving.llm.runtimes.native.kernels.products import (
    ProductArgument,
    ProductMemory,
    num_chunks,
    product_address,
    product_arguments,
    quantise_address,
    quantise_arguments,
)

TASK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
ROWS = 5
HALVES = {  # offsets of float16 numbers in a block
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
# One of each kind of code in a kernel.
KINDS = ("Q4_K", "Q5_0", "Q8_0", "IQ4_XS")
LOOSE = 1e-6  # relative to the largest product: sums of float32 in another order


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def host(directory):
    return Compiler(instruction_set(), directory)


def random_matrix(name, columns, random):
    """A matrix of random blocks, and its weights as numbers."""
    format_, group = FORMATS[name], FORMATS[name].scale_group
    if format_.activations == Activations.FLOAT:
        numbers = random.standard_normal((ROWS, columns)).astype(np.float32)
        bits = {
            "F32": numbers,
            "F16": numbers.astype(np.float16),
            "BF16": (numbers.view(np.uint32) >> 16).astype(np.uint16),
        }
        data = bits[name].view(np.uint8)
    else:
        shape = (ROWS, columns // format_.elements, format_.bytes)
        blocks = random.integers(0, 256, shape, np.uint8)
        for at in HALVES.get(name, ()):
            numbers = random.normal(0, 0.01, (*shape[:2], 1)).astype(np.float16)
            blocks[..., at : at + 2] = numbers.view(np.uint8)
        if name == "MXFP4":
            blocks[..., 0] = random.integers(120, 130, shape[:2])
        data = blocks.reshape(ROWS, -1)
    if not group:
        weights = dequantize(data, GGMLQuantizationType[name])
        return BlockMatrix(format_, ROWS, columns, data), weights.astype(np.float64)
    shape = (ROWS, columns // group if group > 0 else 1)
    scales = random.random(shape).astype(np.float16)
    zeros = random.integers(0, 16, shape, np.uint8) if format_.has_zeros else None
    integers = data.view(np.int8).astype(int)
    if name != "INT8":
        integers = np.stack([data & 15, data >> 4], -1).reshape(ROWS, columns).astype(int)
        signed = np.where(integers > 7, integers - 16, integers)
        integers = signed if zeros is None else integers - np.repeat(zeros, group, 1)
    repeated = np.repeat(scales.astype(np.float64), columns // shape[1], 1)
    return BlockMatrix(format_, ROWS, columns, data, scales, zeros), integers * repeated


def quantised(x, kind, using):
    """Rows of activations as products read them, and as numbers."""
    columns = x.shape[1]
    if kind == Activations.FLOAT:
        return x.view(np.uint8), x.astype(np.float64)
    out = np.full((len(x), kind.row_bytes(columns)), 0xA5, np.uint8)
    arguments = quantise_arguments(x.ctypes.data, x.strides[0], out.ctypes.data, columns, kind)
    for token in range(len(x)):
        TASK(quantise_address(kind, using))(arguments.ctypes.data, token)
    return out, unpacked(out, kind, columns)


def unpacked(rows, kind, columns):
    """The numbers of quantised rows: groups of eight blocks, the last one of the last eight."""
    blocks = columns // 32
    groups = rows.reshape(len(rows), -1, kind.group_bytes)
    values = groups[..., :256].view(np.int8).reshape(*groups.shape[:2], 4, 8, 8)
    scales = groups[..., 256:384].view(np.float32).astype(float)
    scales = scales.reshape(*groups.shape[:2], 2, 8, 2)[..., 0].repeat(2, 2)
    products = (values * scales[..., None]).transpose(0, 1, 3, 2, 4)
    products = products.reshape(*groups.shape[:2], 8, 32)
    numbers = np.zeros((len(rows), blocks, 32))
    for group in range(groups.shape[1]):
        first = max(0, min(8 * group, blocks - 8))
        numbers[:, first : first + 8] += products[:, group, : blocks - first]
    return numbers.reshape(len(rows), columns)


def product(matrix, activations, num_tokens, using, rows_per_chunk=None):
    out = np.full((num_tokens, ROWS + 1), 7, np.float32)
    memory = ProductMemory(activations.ctypes.data, out.ctypes.data, out.strides[0], num_tokens)
    arguments, chunks = product_arguments(matrix, memory), num_chunks(matrix)
    if rows_per_chunk:
        arguments[ProductArgument.ROWS_PER_CHUNK] = rows_per_chunk
        chunks = -(-ROWS // rows_per_chunk)
    for chunk in range(chunks):
        TASK(product_address(matrix.format, using))(arguments.ctypes.data, chunk)
    assert (out[:, ROWS] == 7).all()
    return out[:, :ROWS]


def check(name, columns, counts, using):
    random = np.random.default_rng(0)
    matrix, weights = random_matrix(name, columns, random)
    x = random.standard_normal((max(counts), columns)).astype(np.float32)
    activations, numbers = quantised(x, matrix.format.activations, using)
    expected = numbers @ weights.T
    for count in counts:
        result = product(matrix, activations, count, using)
        error = np.abs(result - expected[:count]).max()
        assert error < LOOSE * np.abs(expected).max(), count


def columns_of(name):
    """Columns that leave a rest after whole passes, where the format allows it."""
    format_ = FORMATS[name]
    if format_.elements == 256 or format_.scale_group == 128:
        return 512
    return 70 if format_.elements == 1 else 320 if format_.scale_group == 64 else 288


@pytest.mark.parametrize("name", FORMATS)
def test_products_equal_those_of_decoded_weights(name, host):
    check(name, columns_of(name), (*range(1, 9), 15), host)


@pytest.mark.parametrize("name", ["Q4_0", "INT8"])
def test_products_of_rows_of_less_than_a_group_are_right(name, host):
    check(name, 96, (1, 3), host)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("instructions", [i for i in InstructionSet if i != "avx512_vnni"])
def test_products_are_right_with_each_instruction_set(name, instructions, directory):
    features = {"avx_vnni": "avx512vnni", "avx2": "avx2"}.get(instructions.value)
    if features and instruction_set() == InstructionSet.AVX2 and instructions != "avx2":
        pytest.skip("the processor has no VNNI")
    check(name, columns_of(name), (1, 7, 13), Compiler(instructions, directory))


def test_largest_integers_do_not_overflow(host):
    matrix, _ = random_matrix("Q8_0", 256, np.random.default_rng(0))
    matrix.data[:] = 0x80  # -128; its scale is a tiny negative number
    x = np.full((1, 256), -3, np.float32)
    activations, numbers = quantised(x, matrix.format.activations, host)
    expected = numbers @ dequantize(matrix.data, GGMLQuantizationType.Q8_0).T.astype(np.float64)
    np.testing.assert_allclose(product(matrix, activations, 1, host), expected, rtol=1e-5)


def test_products_do_not_depend_on_chunks_and_other_tokens(host):
    random = np.random.default_rng(0)
    matrix, _ = random_matrix("Q4_K", 512, random)
    x = random.standard_normal((5, 512)).astype(np.float32)
    activations, _ = quantised(x, matrix.format.activations, host)
    together = product(matrix, activations, 5, host)
    for token in range(5):
        alone = product(matrix, activations[token:].copy(), 1, host, rows_per_chunk=2)
        np.testing.assert_array_equal(alone[0], together[token])


@pytest.mark.parametrize(("kind", "limit"), [(1, 0.006), (3, 0.006)])
def test_error_of_rounded_activations_is_small(kind, limit, host):
    x = np.random.default_rng(0).standard_normal((4, 2048)).astype(np.float32)
    _, numbers = quantised(x, Activations(kind), host)
    assert np.sqrt(((numbers - x) ** 2).mean() / (x**2).mean()) < limit


def test_activations_of_zeros_are_zeros_and_nan_stays_nan(host):
    x = np.zeros((2, 64), np.float32)
    x[1, 3] = np.nan
    _, numbers = quantised(x, Activations.INTEGER_SUMS, host)
    assert not numbers[0].any()
    assert np.isnan(numbers[1, :16]).all()
    assert not numbers[1, 16:].any()


def test_cache_gives_the_code_to_another_process_and_replaces_damage(tmp_path):
    first = Compiler(instruction_set(), tmp_path)
    product_address(FORMATS["F32"], first)
    again = Compiler(instruction_set(), tmp_path)
    product_address(FORMATS["F32"], again)
    assert (first.num_compiled, again.num_compiled) == (1, 0)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    third = Compiler(instruction_set(), tmp_path)
    product_address(FORMATS["F32"], third)
    assert third.num_compiled == 1


def test_cached_code_writable_by_another_user_is_not_loaded(tmp_path):
    product_address(FORMATS["F32"], Compiler(instruction_set(), tmp_path))
    (path,) = tmp_path.iterdir()
    path.chmod(0o666)
    again = Compiler(instruction_set(), tmp_path)
    product_address(FORMATS["F32"], again)
    assert again.num_compiled == 1


def test_sizes_that_do_not_fit_are_refused():
    matrix, _ = random_matrix("Q4_K", 512, np.random.default_rng(0))
    with pytest.raises(StartError, match="columns, expected a multiple of 256"):
        replace(matrix, columns=500)
    with pytest.raises(StartError, match=r"uint8 \[5, 288\], expected contiguous uint8 \[6, 288\]"):
        replace(matrix, rows=6)
    with pytest.raises(StartError, match="expected contiguous"):
        replace(matrix, data=np.asfortranarray(matrix.data))
    with pytest.raises(StartError, match="has no scales"):
        replace(matrix, format=FORMATS["INT8"], columns=288)
    with pytest.raises(StartError, match="no kernel reads IQ1_S"):
        format_named("IQ1_S")


def test_instructions_of_the_environment_are_checked(monkeypatch):
    monkeypatch.setenv(VARIABLE, "avx2")
    assert instruction_set() == InstructionSet.AVX2
    monkeypatch.setenv(VARIABLE, "sse")
    with pytest.raises(StartError, match="is 'sse', expected one of avx512_vnni"):
        instruction_set()
