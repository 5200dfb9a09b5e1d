"""Compilation of kernels for this processor, and a cache of the machine code in the user's cache.

A kernel is a C function `void(int64 arguments, int64 chunk)`: `arguments` is the address of int64
numbers, of which each module of kernels names the indices.

Compiling a format takes 0.15 s of an AMD EPYC, once for a processor and version; reading it from
the cache (`built_files`) 0.3 ms, for which LLVM's library is not loaded.  Its key has the sources
that write kernels, LLVM's version, and the processor with its features.
"""

import os
import platform
from collections.abc import Callable
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import Any

from llvmlite import ir

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint import built_files
from mindspore_serving.llm.runtimes.native.kernels.emitter import I64, Emitter, InstructionSet
from mindspore_serving.llm.runtimes.native.kernels.machine_code import MachineCode

VARIABLE = "MINDSPORE_SERVING_NATIVE_ISA"  # forces one of `InstructionSet`
_PROCESSOR = Path("/proc/cpuinfo")
_NEEDED = {  # flags of Linux, best first
    InstructionSet.AVX512_VNNI: {"avx512_vnni", "avx512bw", "avx512vl"},
    InstructionSet.AVX_VNNI: {"avx_vnni", "avx2", "fma", "f16c"},
    InstructionSet.AVX2: {"avx2", "fma", "f16c"},
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
    features = set(processor().get("flags", "").split())
    for instructions, needed in _NEEDED.items():
        if needed <= features:
            return instructions
    name = processor().get("model name", "no name in /proc/cpuinfo")
    raise StartError(
        f"native kernels need an x86-64 processor with AVX2, this one is {platform.machine()} "
        f"({name}): choose another runtime"
    )


@cache
def processor() -> dict[str, str]:
    """Return what Linux says of the first processor, by name; nothing if it does not."""
    try:
        first, _, _ = _PROCESSOR.read_text().partition("\n\n")
    except OSError:
        return {}
    rows = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


class Compiler:
    """Machine code of kernels, one address per name; kept while the process lives.

    Threads may share it.
    """

    def __init__(self, instructions: InstructionSet, directory: Path | None = None) -> None:
        self.instructions = instructions
        names = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
        host = [processor().get(name, "") for name in names]
        self._host = [part.encode() for part in (*host, instructions.value, version("llvmlite"))]
        self._loaded: list[MachineCode] = []
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
        machine_code = MachineCode(code)
        self._loaded.append(machine_code)
        return machine_code.address(symbol)

    def assembly(self, name: str, body: Body) -> str:
        """Return the assembly code of a kernel."""
        return str(self._machine.emit_assembly(self._passed(self._module(name, body))))

    def compile_module(self, module: Any) -> bytes:
        """Return the machine code of a module of LLVM."""
        return bytes(self._machine.emit_object(self._passed(module)))

    @cached_property
    def _machine(self) -> Any:
        """LLVM for this processor."""
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple()
        features = llvm.get_host_cpu_features().flatten()
        return target.create_target_machine(llvm.get_host_cpu_name(), features, opt=2, jit=True)

    def _module(self, name: str, body: Body) -> Any:
        module = ir.Module(name)
        function = ir.Function(module, _TASK, name)
        emitter = Emitter(function, self.instructions)
        body(emitter, *function.args)
        emitter.b.ret_void()
        return module

    def _passed(self, module: Any) -> Any:
        import llvmlite.binding as llvm

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
