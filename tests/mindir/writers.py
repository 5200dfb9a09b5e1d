"""Operators of MindSpore that change their first input, with what PyTorch makes of the same."""

import numpy as np
import torch
from mindspore import Tensor, nn

X = np.array([[1, -2, 3], [-0.5, 0.25, -6]], np.float32)
Y = np.array([[2, 1, -3], [4, -1.5, 0.5]], np.float32)
MASK = np.array([[1, 0, 1], [0, 1, 1]], bool)
ROWS = np.array([1, 0], np.int64)
LAST = np.array([-1], np.int64)
PLACES = np.array([[1, 0, 1]], np.int64)
SEVEN = np.array(7, np.float32)
VALUES, TWO = np.array([5, 6], np.float32), np.array([[1, 2], [3, 4]], np.float32)
t = torch.from_numpy


class Writer(nn.Cell):
    """Calls a primitive on a value of its own, which it returns then."""

    def __init__(self, primitive, arguments):
        super().__init__()
        self.primitive = primitive
        self.arguments = tuple(map(_in_cell, arguments))

    def construct(self, x):
        y = x * 1
        self.primitive(y, *self.arguments)
        return y * 1


def _in_cell(argument):
    if isinstance(argument, tuple):
        return tuple(map(_in_cell, argument))
    return Tensor(argument) if isinstance(argument, np.ndarray) else argument


# name -> (the arguments behind the first, the same change by PyTorch)
WRITES = {
    "InplaceAddExt": ((Y, 2), lambda x: x.add_(t(Y), alpha=2)),
    "InplaceAddmm": ((TWO, Y, 2.0, 3.0), lambda x: x.addmm_(t(TWO), t(Y), beta=2, alpha=3)),
    "InplaceAddsExt": ((2.0, 3), lambda x: x.add_(2.0, alpha=3)),
    "InplaceClampScalar": ((-1.0, 1.0), lambda x: x.clamp_(-1, 1)),
    "InplaceClampTensor": ((Y, None), lambda x: x.clamp_(t(Y))),
    "InplaceCopy": ((Y[:1],), lambda x: x.copy_(t(Y[:1]))),
    "InplaceDiv": ((Y,), lambda x: x.div_(t(Y))),
    "InplaceDivMod": ((Y,), lambda x: x.div_(t(Y))),
    "InplaceDivMods": ((3.0,), lambda x: x.div_(3.0)),
    "InplaceDivs": ((3.0,), lambda x: x.div_(3.0)),
    "InplaceElu": ((2.0,), lambda x: torch.nn.functional.elu_(x, 2.0)),
    "InplaceExp": ((), lambda x: x.exp_()),
    "InplaceFillDiagonal": ((3.0, False), lambda x: x.fill_diagonal_(3.0)),
    "InplaceFillScalar": ((3.0,), lambda x: x.fill_(3.0)),
    "InplaceFillTensor": ((SEVEN,), lambda x: x.fill_(t(SEVEN))),
    "InplaceFloor": ((), lambda x: x.floor_()),
    "InplaceFloorDivide": ((Y,), lambda x: x.floor_divide_(t(Y))),
    "InplaceFloorDivides": ((2.0,), lambda x: x.floor_divide_(2.0)),
    "InplaceHardtanh": ((-1.0, 1.0), lambda x: torch.nn.functional.hardtanh_(x)),
    "InplaceIndexAddExt": ((0, ROWS, Y, 2), lambda x: x.index_add_(0, t(ROWS), t(Y), alpha=2)),
    "InplaceIndexCopy": ((0, ROWS, Y), lambda x: x.index_copy_(0, t(ROWS), t(Y))),
    "InplaceIndexFillScalar": ((1, LAST, 4.0), lambda x: x.index_fill_(1, t(LAST), 4.0)),
    "InplaceIndexFillTensor": ((0, LAST, SEVEN), lambda x: x.index_fill_(0, t(LAST), t(SEVEN))),
    "InplaceIndexPut": (
        ((ROWS, ROWS), VALUES, True),
        lambda x: x.index_put_((t(ROWS), t(ROWS)), t(VALUES), accumulate=True),
    ),
    "InplaceLog": ((), lambda x: x.log_()),
    "InplaceMaskedFillScalar": ((MASK, 5.0), lambda x: x.masked_fill_(t(MASK), 5.0)),
    "InplaceMaskedFillTensor": ((MASK, SEVEN), lambda x: x.masked_fill_(t(MASK), t(SEVEN))),
    "InplaceMaskedScatter": ((MASK, Y), lambda x: x.masked_scatter_(t(MASK), t(Y))),
    "InplaceMul": ((Y,), lambda x: x.mul_(t(Y))),
    "InplaceMuls": ((3.0,), lambda x: x.mul_(3.0)),
    "InplacePut": ((LAST, VALUES[:1], False), lambda x: x.put_(t(LAST), t(VALUES[:1]))),
    "InplaceReLU": ((), lambda x: x.relu_()),
    "InplaceRemainderTensorScalar": ((2.0,), lambda x: x.remainder_(2.0)),
    "InplaceRemainderTensorTensor": ((Y,), lambda x: x.remainder_(t(Y))),
    "InplaceScatterAdd": ((0, PLACES, Y), lambda x: x.scatter_add_(0, t(PLACES), t(Y))),
    "InplaceScatterSrc": ((0, PLACES, Y), lambda x: x.scatter_(0, t(PLACES), t(Y))),
    "InplaceScatterSrcReduce": (
        (0, PLACES, Y, "multiply"),
        lambda x: x.scatter_(0, t(PLACES), t(Y), reduce="multiply"),
    ),
    "InplaceScatterValue": ((0, PLACES, 4.0), lambda x: x.scatter_(0, t(PLACES), 4.0)),
    "InplaceScatterValueReduce": (
        (0, PLACES, 4.0, "add"),
        lambda x: x.scatter_(0, t(PLACES), 4.0, reduce="add"),
    ),
    "InplaceSiLU": ((), lambda x: torch.nn.functional.silu(x, inplace=True)),
    "InplaceSigmoid": ((), lambda x: x.sigmoid_()),
    "InplaceSign": ((), lambda x: x.sign_()),
    "InplaceSubExt": ((Y, 2), lambda x: x.sub_(t(Y), alpha=2)),
    "InplaceSubScalar": ((2.0, 3), lambda x: x.sub_(2.0, alpha=3)),
    "InplaceTanh": ((), lambda x: x.tanh_()),
    "InplaceThreshold": ((0.1, 9.0), lambda x: torch.nn.functional.threshold_(x, 0.1, 9.0)),
    "InplaceZero": ((), lambda x: x.zero_()),
}

# Random, of several devices, for training, or without a plain operator of the same meaning; those
# that write another input than the first.
UNKNOWN = {
    *("InplaceBernoulliScalar", "InplaceBernoulliTensor", "InplaceExponential", "InplaceNormal"),
    *("InplaceRandom", "InplaceUniform", "InplaceToDevice", "InplaceStopGradient"),
    *("InplaceAddr", "InplaceErfinv", "InplaceGroupedMatmulAdd", "InplaceMatmulAdd"),
}
