"""Timm and torchvision of a directory, in a process of tests: `pytest -p tests.llm.with_timm`.

PyPI's torchvision needs PyTorch for CUDA.  Beside that for CPUs its operators are missing, and it
can be imported only if some of them are declared, which no vision tower calls.
"""

import sys
from pathlib import Path

import torch

DIRECTORY = Path(sys.prefix) / "timm"  # apart, as libraries that see torchvision import it
_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

sys.path.append(str(DIRECTORY))
declared = torch.library.Library("torchvision", "FRAGMENT")
if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        declared.define(name + _ARGUMENTS)
