"""Write add/1/tensor_add.mindir: y = x1 + x2 on 2x2 float32."""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

TARGET = Path(__file__).resolve().parent / "add" / "1" / "tensor_add"


class Add(nn.Cell):
    def construct(self, x1, x2):
        return ops.add(x1, x2)


def main() -> None:
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    example = ms.Tensor(np.zeros((2, 2), np.float32))
    ms.export(Add(), example, example, file_name=str(TARGET), file_format="MINDIR")
    print(f"wrote {TARGET}.mindir")


if __name__ == "__main__":
    main()
