"""Tensor types of GGUF files: numbers and bytes of a block."""

from dataclasses import dataclass

from mindspore_serving.errors import StartError


@dataclass(frozen=True, slots=True)
class TensorType:
    """A type.  A block holds `block` numbers in `num_bytes`; 0 if the type is not supported."""

    name: str
    block: int = 0
    num_bytes: int = 0

    @property
    def is_supported(self) -> bool:
        return self.block > 0


# The number in the file -> the type.
TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1"),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K"),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8"),
    25: TensorType("I16"),
    26: TensorType("I32"),
    27: TensorType("I64"),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4"),
}
BY_NAME = {row.name: row for row in TENSOR_TYPES.values()}


def unsupported_type(label: str, kind: int) -> StartError:
    """Return the error for an unknown or unsupported type, with a similar supported one."""
    tensor_type = TENSOR_TYPES.get(kind)
    name = tensor_type.name if tensor_type else f"number {kind}"
    known = [row.name for row in TENSOR_TYPES.values() if row.is_supported]
    best = "Q4_K" if "FP4" in name else "Q8_0"
    return StartError(
        f"{label} has type {name}, which is not supported; use a file of this model in {best}, "
        f"or in any of {', '.join(known)}"
    )
