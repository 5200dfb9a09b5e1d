"""Write add_sub/1/tensor_add.mindir and tensor_sub.mindir, both on 2x2 float32."""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

TARGET = Path(__file__).resolve().parent / "add_sub" / "1"


class Add(nn.Cell):
    def construct(self, x1, x2):
        return ops.add(x1, x2)


class Sub(nn.Cell):
    def construct(self, x1, x2):
        return ops.sub(x1, x2)


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    example = ms.Tensor(np.zeros((2, 2), np.float32))
    for name, net in (("tensor_add", Add()), ("tensor_sub", Sub())):
        ms.export(net, example, example, file_name=str(TARGET / name), file_format="MINDIR")
        print(f"wrote {TARGET / name}.mindir")


if __name__ == "__main__":
    main()
