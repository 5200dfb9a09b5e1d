"""Write matmul/1/matmul_whole.mindir and matmul_row.mindir: one weight, two input shapes.

As with a language model's prompt and its next token: a graph for 64 rows and a graph for one.
"""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

TARGET = Path(__file__).resolve().parent / "matmul" / "1"


class MatMul(nn.Cell):
    def __init__(self, weight):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(weight), name="weight")

    def construct(self, x):
        return ops.matmul(x, self.weight)


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    weight = np.random.default_rng(1).standard_normal((96, 16), np.float32)
    for name, rows in (("matmul_whole", 64), ("matmul_row", 1)):
        example = ms.Tensor(np.zeros((rows, 96), np.float32))
        path = str(TARGET / name)
        ms.export(MatMul(weight), example, file_name=path, file_format="MINDIR")
        print(f"wrote {path}.mindir")


if __name__ == "__main__":
    main()
