"""Machine code of numba: kept, called without numba, and refused if it needs symbols of numba."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("gguf")

import llvmlite.binding as llvm

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.native import compiling
from mindspore_serving.llm.runtimes.native.kernels.compiler import Compiler, compiler
from mindspore_serving.llm.runtimes.native.kernels.machine_code import MachineCode, ObjectFile
from mindspore_serving.llm.runtimes.native.memory import load_f32
from tests.llm import gguf_files

LATER_PROCESS = """
import sys
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
open_runner(sys.argv[1], "native", EngineConfig(kv_cache_memory=2**20)).close()
print({"numba", "openvino", "llvmlite.binding"} & set(sys.modules))
"""


def double(x, out):
    for index in range(len(x)):
        out[index] = 2 * x[index]


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    made = Compiler(compiler().instructions, tmp_path)
    monkeypatch.setattr(compiling, "compiler", lambda: made)
    return tmp_path


def test_a_later_process_opens_a_model_without_numba_and_llvm(tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="Q8_0")
    open_runner(path, "native", EngineConfig(kv_cache_memory=2**20)).close()
    command = [sys.executable, "-c", LATER_PROCESS, str(path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == "set()"


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
        list(compiling._parts((np.zeros((4, 4))[:, 1],)))


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


def test_code_that_needs_unknown_symbols_is_not_kept(empty_cache, monkeypatch):
    monkeypatch.setattr(ObjectFile, "undefined", ["free", "nowhere"])
    with pytest.raises(ServingError, match="needs nowhere, unknown here"):
        compiling.entry(double)(np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert not list(empty_cache.iterdir())


def test_functions_for_compiled_code_are_not_called_by_python():
    with pytest.raises(TypeError, match="for compiled code alone"):
        load_f32(0, 0)
