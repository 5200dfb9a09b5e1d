"""The process of a rank that exchanges tensors by gloo on the CPU, as ranks on CUDA devices do by
NCCL.
"""

import sys

from mindspore_serving.llm.runtimes import rank
from mindspore_serving.llm.runtimes.torch import collectives


def main() -> int:
    collectives.BACKENDS["cpu"] = "gloo"
    return rank.main()


if __name__ == "__main__":
    sys.exit(main())
