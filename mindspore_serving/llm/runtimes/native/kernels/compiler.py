"""Compilation of kernels for this processor, and a cache of the machine code in the user's cache.

A kernel is a C function `void(int64 arguments, int64 chunk)`: `arguments` is the address of int64
numbers, of which each module of kernels names the indices.

Compiling a format takes 0.15 s of an AMD EPYC, once for a processor and version; reading it from
the cache 0.3 ms, for which LLVM's library is not loaded.  The cache is keyed by the code that
writes kernels, LLVM's version, and the processor with its features; files appear whole, so several
processes may share it.  Machine code of files that other users could write is not read.
"""

import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Callable
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llvmlite import ir

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.native.kernels.emitter import I64, Emitter, InstructionSet
from mindspore_serving.llm.runtimes.native.kernels.machine_code import MachineCode
from mindspore_serving.process.interpreter import cache_directory

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
    """Machine code of kernels, one address per name; kept while the process lives."""

    def __init__(self, instructions: InstructionSet, directory: Path | None = None) -> None:
        self.instructions = instructions
        self._loaded: list[MachineCode] = []
        self._directory = directory or cache_directory("native-kernels")
        self._addresses: dict[str, int] = {}
        self.num_compiled = 0  # kernels that the cache did not have

    def address(self, name: str, body: Body) -> int:
        """Return the address of a kernel that `body` writes, compiled if the cache lacks it."""
        if name not in self._addresses:
            code = self.kept(name, lambda: self._compiled(name, body))
            self._addresses[name] = self.load(code, name)
        return self._addresses[name]

    def kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the code that is kept as `name`, or what `make` returns, which is kept then."""
        code = self._stored(name)
        if code is None:
            code = make()
            self._keep(name, code)
        return code

    def load(self, code: bytes, symbol: str) -> int:
        """Return the address of a function of machine code."""
        self._loaded.append(MachineCode(code))
        return self._loaded[-1].address(symbol)

    def assembly(self, name: str, body: Body) -> str:
        """Return the assembly code of a kernel."""
        return str(self._machine.emit_assembly(self._optimised(name, body)))

    @cached_property
    def _machine(self) -> Any:
        """LLVM for this processor."""
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple()
        features = llvm.get_host_cpu_features().flatten()
        return target.create_target_machine(llvm.get_host_cpu_name(), features, opt=2, jit=True)

    def _compiled(self, name: str, body: Body) -> bytes:
        self.num_compiled += 1
        return bytes(self._machine.emit_object(self._optimised(name, body)))

    def _optimised(self, name: str, body: Body) -> Any:
        import llvmlite.binding as llvm

        module = ir.Module(name)
        module.triple = llvm.get_default_triple()
        function = ir.Function(module, _TASK, name)
        emitter = Emitter(function, self.instructions)
        body(emitter, *function.args)
        emitter.b.ret_void()
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = False
        passes = llvm.create_pass_builder(self._machine, options)
        passes.getModulePassManager().run(parsed, passes)
        return parsed

    def _path(self, name: str) -> Path:
        names = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
        parts = [processor().get(name, "") for name in names]
        parts += [self.instructions.value, version("llvmlite")]
        key = hashlib.sha256("\n".join((_source_digest(), *parts)).encode()).hexdigest()[:24]
        return self._directory / f"{name}-{key}.o"

    def _stored(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return None
                digest, code = file.read(32), file.read()
        except OSError:
            return None
        return code if hashlib.sha256(code).digest() == digest else None

    def _keep(self, name: str, code: bytes) -> None:
        """Write the code; a cache that cannot be written only costs compiling again."""
        path = self._path(name)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                file.write(hashlib.sha256(code).digest() + code)
            Path(file.name).replace(path)
        except OSError:
            return


@cache
def compiler() -> Compiler:
    """Return the compiler for this processor."""
    return Compiler(instruction_set())


@cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
