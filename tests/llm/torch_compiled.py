"""Compiles the Triton kernels for a CUDA device that need not be there.

`python -m tests.llm.torch_compiled 90` is for compute capability 9.0; prints, as JSON, for each
kernel its name, bytes of shared memory, and whether it multiplies on matrix units.
"""

import json
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mindspore_serving.llm.runtimes.torch import kernels

POINTERS = {"sums": "*fp32", "weights": "*fp32", "slopes": "*fp32", "sequences": "*i64"}
NUMBERS = {"stride": "i32", "num_splits": "i32", "num_tokens": "i32", "scale": "fp32"}
SHAPES = {
    "GROUPS": 4,
    "KV_HEADS": 8,
    "HEAD_DIM": 128,
    "BLOCK_D": 128,
    "BLOCK_G": 4,
    "BLOCK_N": 64,
    "PAGE": 32,
    "WINDOW": 0,
    "SOFTCAP": 0.0,
    "FACTORS": tl.bfloat16,
}
NOT_SPLIT = {"sums": None, "weights": None}
# What an argument is, where it is not as in SHAPES.
VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "decode": (kernels._attend, NOT_SPLIT | {"BLOCK_M": 16, "slopes": None}),
    "decode, split": (kernels._attend, {"BLOCK_M": 16, "slopes": None}),
    "merge": (kernels._merge, {"BLOCK_M": 16}),
    "prompt": (kernels._attend, NOT_SPLIT | {"BLOCK_M": 64, "slopes": None}),
    "all of it": (kernels._attend, {"BLOCK_M": 64, "WINDOW": 4096, "SOFTCAP": 50.0}),
}


def compiled(name: str, capability: int) -> dict[str, object]:
    kernel, changed = VARIANTS[name]
    constants = {key: value for key, value in (SHAPES | changed).items() if key in kernel.arg_names}
    types = {"tiles": "*i64"} | POINTERS | NUMBERS
    signature = {
        key: "constexpr" if key in constants else types.get(key, "*bf16")
        for key in kernel.arg_names
    }
    source = ASTSource(
        kernel,
        signature,
        {(index,): constants[key] for index, key in enumerate(signature) if key in constants},
        {
            (index,): [["tt.divisibility", 16]]
            for index, kind in enumerate(signature.values())
            if kind.startswith("*")
        },
    )
    options = {"num_warps": 4, "num_stages": 2}
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    code = binary.asm["ptx"]
    return {
        "name": name,
        "bytes": len(binary.asm["cubin"]),
        "shared": binary.metadata.shared,
        "has_matrix_units": "mma.sync" in code or "wgmma" in code,
    }


if __name__ == "__main__":
    print(json.dumps([compiled(name, int(sys.argv[1])) for name in VARIANTS]))
