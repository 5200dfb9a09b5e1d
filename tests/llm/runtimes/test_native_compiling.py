"""Functions that are compiled: they compute as Python, are kept, and refuse what is unknown."""

import ctypes
import subprocess
import sys
from typing import NamedTuple

import llvmlite.binding as llvm
import numpy as np
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("gguf")

from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.native import attention_tasks, compiling, interpreter
from mindspore_serving.llm.runtimes.native.kernels.compiler import Compiler, compiler
from mindspore_serving.llm.runtimes.native.kernels.machine_code import MachineCode, ObjectFile
from mindspore_serving.llm.runtimes.native.memory import load_f32
from mindspore_serving.llm.runtimes.native.opening import compile_early
from mindspore_serving.llm.step import Row, Step
from tests.llm import gguf_files

LATER_PROCESS = """
import sys
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
open_runner(sys.argv[1], "native", EngineConfig(kv_cache_memory=2**20)).close()
from mindspore_serving.llm.runtimes.native.kernels.compiler import compiler
print(compiler().num_compiled, {"openvino", "llvmlite.binding"} & set(sys.modules))
"""
LIMIT, FACTOR = 5, np.float32(1.5)
INTEGERS = st.lists(st.integers(-50, 50), min_size=6, max_size=6)


class Pair(NamedTuple):
    """Two values, of which one is an array."""

    numbers: np.ndarray
    count: int


def double(x, out):
    for index in range(len(x)):
        out[index] = 2 * x[index]


def decide(x, out):
    """Compute with every operator, and leave loops early."""
    first, second = x[0], x[1]
    out[0] = first // second if second else -1
    out[1] = first % second if second != 0 else -1
    out[2] = (first + second) * x[2] - (x[3] & 6 | x[4] ^ 3)
    out[3] = int(first < second <= x[2]) + 2 * int(not x[3]) + 4 * int(x[4] in (1, LIMIT, -2))
    out[4] = min(first, second, LIMIT) - max(x[2], x[3])
    out[5] = -x[5] if x[5] < 0 or (first > 0 and second > 0) else x[5] << 2 >> 1
    total, index = 0, 0
    while True:
        index += 1
        if index == 3:
            continue
        if index > LIMIT:
            break
        total += index * x[index % len(x)]
    for _ in range(2, 9, 3):
        total, index = index - total, total
    out[6], out[7] = total, index


def fill(pair, out):
    """Write rows of a table from parts of a tuple."""
    numbers, count = pair
    for row in range(len(out)):
        if row == count:
            return
        for column in range(3):
            out[row, column] = numbers[row] + column


@compiling.compiled
def _largest(x, count):
    best = x[0]
    for index in range(count):
        if x[index] > best:
            best = x[index]
    return best


@compiling.compiled
def _scaled(x, factor):
    if x[0] > FACTOR:
        return x[0] * factor, 1
    return x[1] / factor, 2


@compiling.compiled
def _write(out, at, value):
    out[at] = value


def of_floats(x, out):
    """Call functions with results, with several, and with none."""
    value, which = _scaled(x, FACTOR)
    _write(out, 0, value)
    _write(out, which, _largest(x, len(x)) - np.float32(which))
    out[3] = np.float32(int(x[2]))


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    made = Compiler(compiler().instructions, tmp_path)
    monkeypatch.setattr(compiling, "compiler", lambda: made)
    return tmp_path


@pytest.fixture(scope="module")
def decide_compiled():
    return compiling.entry(decide)


@settings(max_examples=50)
@given(x=INTEGERS)
def test_integers_are_computed_as_by_python(decide_compiled, x):
    out, expected = np.zeros(8, np.int64), [0] * 8
    decide_compiled(np.array(x), out)
    decide(x, expected)
    assert out.tolist() == expected


@pytest.mark.parametrize("x", [(1.0, 3.0, 2.5), (2.0, 3.0, -2.5), (-4.0, 0.0, 1e30)])
def test_functions_with_results_are_expanded(x):
    out = np.zeros(4, np.float32)
    compiling.entry(of_floats)(np.array(x, np.float32), out)
    value, which = (x[0] * 1.5, 1) if x[0] > 1.5 else (x[1] / 1.5, 2)
    expected = np.zeros(4, np.float32)
    expected[0], expected[which] = value, max(x) - which
    expected[3] = min(int(x[2]), 2**63 - 1)
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def first_or_last(x, out):
    out[0] = x[0] * x[1] or x[2]
    out[1] = x[0] and x[1]
    out[2] = x[0] and x[1] or x[2]
    if x[0] and x[1] > 0:
        out[3] = 1


@pytest.mark.parametrize("x", [(3, 4, 5), (0, 4, 5), (3, 0, 0), (-2, -1, 7)])
def test_and_and_or_are_the_value_that_decides(x):
    out, expected = np.zeros(4, np.int64), [0] * 4
    compiling.entry(first_or_last)(np.array(x), out)
    first_or_last(x, expected)
    assert out.tolist() == expected


def test_tuples_and_tables_are_passed_in_parts():
    out = np.zeros((4, 3), np.int64)
    compiling.entry(fill)(Pair(np.array([7, 8, 9, 10]), 3), out)
    assert out.tolist() == [[7, 8, 9], [8, 9, 10], [9, 10, 11], [0, 0, 0]]


def _with_list(x):
    x[0] = [1][0]


def _with_two_types(x):
    value = 1
    value = FACTOR
    x[0] = value


def _with_a_loop_over_values(x):
    for value in x:
        x[0] = value


def _with_a_call(x):
    x[0] = sum(x)


def _with_mixed_numbers(x):
    x[0] = x[0] + FACTOR


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_with_list, "List is not translated"),
        (_with_two_types, "value as float after i64 is not translated"),
        (_with_a_loop_over_values, "a loop over anything but range"),
        (_with_a_call, "a call of sum is not translated"),
        (_with_mixed_numbers, "float as i64 is not translated"),
    ],
)
def test_unknown_constructs_are_refused_with_their_line(function, message, empty_cache):
    with pytest.raises(ServingError, match=rf"test_native_compiling:\d+: .*{message}") as error:
        compiling.entry(function)(np.zeros(2, np.int64))
    line = int(str(error.value).split(":")[1])
    assert 0 < line - function.__code__.co_firstlineno < 4
    assert not list(empty_cache.iterdir())


def test_a_later_process_opens_a_model_without_compiling_and_llvm(tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    open_runner(path, "native", EngineConfig(kv_cache_memory=2**20)).close()
    command = [sys.executable, "-c", LATER_PROCESS, str(path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == "0 set()"


def test_a_model_is_opened_with_code_that_was_compiled_early(empty_cache, monkeypatch, tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    for function in (interpreter.execute, attention_tasks._run_task):
        monkeypatch.setattr(function, "_call", None)
    compile_early(path)
    monkeypatch.setattr(compiling, "_compile", None)
    runner = open_runner(path, "native", EngineConfig(kv_cache_memory=2**20))
    assert np.isfinite(runner.run(Step((Row([3, 4], 0, [0], 1),)))).all()
    runner.close()


def test_kept_code_is_called_without_compiling(empty_cache, monkeypatch):
    x, out = np.arange(6), np.zeros(6, np.int64)
    compiling.entry(double)(x, out)
    np.testing.assert_array_equal(out, 2 * x)
    assert len(list(empty_cache.iterdir())) == 1
    monkeypatch.setattr(compiling, "_compile", None)
    compiling.entry(double)(out, out)
    np.testing.assert_array_equal(out, 4 * x)


def test_an_array_that_is_not_contiguous_is_refused():
    with pytest.raises(ServingError, match="not contiguous"):
        list(compiling._numbers((np.zeros((4, 4))[:, 1],)))


def object_file(text):
    """Machine code of LLVM's text, for a process that has it compiled."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return machine.emit_object(llvm.parse_assembly(text))


NOWHERE = "declare void @nowhere()\ndefine void @here() {\n  call void @nowhere()\n  ret void\n}"


def test_symbols_that_code_needs_from_elsewhere_are_read():
    assert ObjectFile(object_file(NOWHERE)).undefined == ["nowhere"]


def test_machine_code_calls_the_c_library_and_reads_its_constants():
    text = """
    declare i64 @labs(i64)
    @table = constant [4 x i64] [i64 2, i64 3, i64 5, i64 7]
    define i64 @prime(i64 %x) {
      %index = call i64 @labs(i64 %x)
      %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %index
      %value = load i64, ptr %at
      ret i64 %value
    }"""
    code = MachineCode(object_file(text))
    prime = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("prime"))
    assert [prime(-each) for each in range(4)] == [2, 3, 5, 7]


def test_machine_code_that_cannot_be_linked_is_refused():
    with pytest.raises(ServingError, match="needs nowhere, unknown here"):
        MachineCode(object_file(NOWHERE))
    with pytest.raises(ServingError, match="has variables"):
        MachineCode(object_file("@counter = global i64 0\n" + NOWHERE))
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="small")
    near = machine.emit_object(llvm.parse_assembly(NOWHERE.replace("nowhere", "abort")))
    with pytest.raises(ServingError, match="a relocation of kind 4, unknown"):
        MachineCode(near)


def test_functions_for_compiled_code_are_not_called_by_python():
    with pytest.raises(TypeError, match="for compiled code alone"):
        load_f32(0, 0)
