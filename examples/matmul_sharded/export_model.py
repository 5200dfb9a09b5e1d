"""Write model/weight.npy, the matrix of 1024 x 256 that the ranks hold together."""

from pathlib import Path

import numpy as np

TARGET = Path(__file__).resolve().parent / "model" / "weight.npy"


def main() -> None:
    TARGET.parent.mkdir(exist_ok=True)
    np.save(TARGET, np.random.default_rng(1).standard_normal((1024, 256), np.float32))
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
