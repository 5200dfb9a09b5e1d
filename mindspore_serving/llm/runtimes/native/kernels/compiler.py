"""Compilation of kernels for this processor, and a cache of the machine code in the user's cache.

A kernel is a C function `void(int64 arguments, int64 chunk)`: `arguments` is the address of int64
numbers, of which each module of kernels names the indices.

Compiling a format takes 0.15 s of an AMD EPYC, once for a processor and version; reading it from
the cache (`built_files`) 0.3 ms.  Its key has the sources that write kernels, LLVM's version, and
the processor with its features.
"""

import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint import built_files
from mindspore_serving.llm.runtimes.native.kernels.emitter import I64, Emitter, InstructionSet

VARIABLE = "MINDSPORE_SERVING_NATIVE_ISA"  # forces one of `InstructionSet`
_NEEDED = {  # features of LLVM, best first
    InstructionSet.AVX512_VNNI: ("avx512vnni", "avx512bw", "avx512vl"),
    InstructionSet.AVX_VNNI: ("avxvnni",),
    InstructionSet.AVX2: ("avx2", "fma", "f16c"),
}
_TASK = ir.FunctionType(ir.VoidType(), [I64, I64])

Body = Callable[[Emitter, Any, Any], None]


def instruction_set() -> InstructionSet:
    """Return what kernels use here: of VARIABLE, else the best that the processor has.

    Raises StartError for a processor without AVX2, and for a variable that names no instructions.
    """
    forced = os.environ.get(VARIABLE)
    if forced:
        if forced not in list(InstructionSet):
            raise StartError(
                f"{VARIABLE} is {forced!r}, expected one of {', '.join(InstructionSet)}"
            )
        return InstructionSet(forced)
    features = llvm.get_host_cpu_features()
    for instructions, needed in _NEEDED.items():
        if all(features.get(feature) for feature in needed):
            return instructions
    raise StartError(
        f"native kernels need a processor with AVX2, this one is {platform.machine()} "
        f"({llvm.get_host_cpu_name()}): choose another runtime"
    )


class Compiler:
    """Machine code of kernels, one address per name; kept while the process lives.

    Threads may share it.
    """

    def __init__(self, instructions: InstructionSet, directory: Path | None = None) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.instructions = instructions
        features = llvm.get_host_cpu_features().flatten()
        host = (llvm.get_host_cpu_name(), features, instructions.value, llvmlite.__version__)
        self._host = [part.encode() for part in host]
        target = llvm.Target.from_default_triple()
        self._machine = target.create_target_machine(
            llvm.get_host_cpu_name(), features, opt=2, jit=True
        )
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._machine)
        self._directory = directory
        self._addresses: dict[str, int] = {}
        self._lock = RLock()
        self.num_compiled = 0  # of code that the cache did not have

    def address(self, name: str, body: Body) -> int:
        """Return the address of a kernel that `body` writes, compiled if the cache lacks it."""
        with self._lock:
            if name not in self._addresses:
                self._addresses[name] = self._address(name, body)
            return self._addresses[name]

    def _address(self, name: str, body: Body) -> int:
        source = built_files.source_digest(Path(__file__).parent)
        code = self.kept(name, source, lambda: self.compile_module(self._module(name, body)))
        return self.load(code, name)

    def kept(self, name: str, source: bytes, make: Callable[[], bytes]) -> bytes:
        """Return the code that is kept as `name`, or what `make` returns, which is kept then.

        `source` is a digest of what `make` compiles.
        """

        def build() -> bytes:
            self.num_compiled += 1
            return make()

        key = built_files.key_of((name.encode(), source, *self._host))
        return built_files.read_or_build(key, build, directory=self._directory)

    def load(self, code: bytes, symbol: str) -> int:
        """Return the address of a function of machine code."""
        with self._lock:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()
            return int(self._engine.get_function_address(symbol))

    def assembly(self, name: str, body: Body) -> str:
        """Return the assembly code of a kernel."""
        return str(self._machine.emit_assembly(self._passed(self._module(name, body))))

    def compile_module(self, module: Any) -> bytes:
        """Return the machine code of a module of LLVM."""
        return bytes(self._machine.emit_object(self._passed(module)))

    def _module(self, name: str, body: Body) -> Any:
        module = ir.Module(name)
        function = ir.Function(module, _TASK, name)
        emitter = Emitter(function, self.instructions)
        body(emitter, *function.args)
        emitter.b.ret_void()
        return module

    def _passed(self, module: Any) -> Any:
        module.triple = llvm.get_default_triple()
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = False
        passes = llvm.create_pass_builder(self._machine, options)
        passes.getModulePassManager().run(parsed, passes)
        return parsed


@cache
def compiler() -> Compiler:
    """Return the compiler for this processor."""
    return Compiler(instruction_set())
