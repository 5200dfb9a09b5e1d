"""Multiply a matrix of ones by one of 0.5 and negate it: every entry is -48."""

import os

import numpy as np

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")


def main() -> None:
    with Client(GRPC, "matmul", "predict") as client:
        (answer,) = client.infer({"x": np.ones((128, 96), np.float32)})
    y = answer["y"]
    print("y:", y.shape, "from", float(y.min()), "to", float(y.max()))


if __name__ == "__main__":
    main()
