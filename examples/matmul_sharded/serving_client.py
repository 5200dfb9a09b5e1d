"""Ask for two products and compare them with those of the whole matrix."""

import os
from pathlib import Path

import numpy as np

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
WEIGHT = Path(__file__).resolve().parent / "model" / "weight.npy"


def main() -> None:
    x = np.random.default_rng(2).standard_normal((2, 1024), np.float32)
    with Client(GRPC, "matmul", "predict") as client:
        answers = client.infer([{"x": row} for row in x])
    if "error" in answers:
        raise SystemExit(answers["error"])
    y = np.stack([answer["y"] for answer in answers])
    print("y:", y.shape, "as of the whole matrix:", np.allclose(y, x @ np.load(WEIGHT), atol=1e-3))


if __name__ == "__main__":
    main()
