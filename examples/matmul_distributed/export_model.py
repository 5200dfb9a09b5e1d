"""Write model/device0/matmul.mindir to model/device7/matmul.mindir, the model of each rank.

On Ascend, `semi_auto_parallel` cuts the matrix and writes a different file for each rank, with a
group_config.pb.  On a CPU MindSpore cannot cut it, so each rank has the whole.
"""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

TARGET = Path(__file__).resolve().parent / "model"
NUM_RANKS = 8


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(np.full((96, 16), 0.5, np.float32)), name="weight")

    def construct(self, x):
        return ops.neg(ops.matmul(x, self.weight))


def main() -> None:
    example = ms.Tensor(np.ones((128, 96), np.float32))
    for rank in range(NUM_RANKS):
        directory = TARGET / f"device{rank}"
        directory.mkdir(parents=True, exist_ok=True)
        path = str(directory / "matmul")
        ms.export(Net(), example, file_name=path, file_format="MINDIR")
        print(f"wrote {path}.mindir")


if __name__ == "__main__":
    main()
