"""Networks that change values in place, and what they must give."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

X = np.array([[1, 2], [3, 4]], np.float32)


def parameter(value=1.0):
    return Parameter(Tensor(np.full((2, 2), value, np.float32)), name="p")


class Later(nn.Cell):
    """Readers of the value before, and of another name for it after."""

    def construct(self, x):
        y = x * 2
        same, before = y, y + 1
        y += x
        return y, same, before, same * 3


class Chain(nn.Cell):
    """Each of the arithmetic operators, with readers between."""

    def construct(self, x):
        y = x * 2
        first = y * 1
        y += first
        second = y * 1
        y -= second * 3
        third = y * 1
        y *= third
        y /= 2
        y -= 1
        y += 0.5
        y *= 3
        return y, first, second, third


class OfInput(nn.Cell):
    def construct(self, x):
        before = x * 5
        x += 1
        return x * 2, x, before


class OfParameter(nn.Cell):
    """What is written stays for the next run."""

    def __init__(self):
        super().__init__()
        self.p = parameter()

    def construct(self, x):
        before = self.p * 2
        self.p += x
        return before, self.p * 1


class OfParameterInBranch(nn.Cell):
    def __init__(self):
        super().__init__()
        self.p = parameter()

    def construct(self, x):
        before = self.p * 2
        if x.sum() > 0:
            self.p.add_(x)
        else:
            ops.assign(self.p, x)
        return before, self.p * 1


class OfParameterInLoop(nn.Cell):
    def __init__(self):
        super().__init__()
        self.p = parameter()

    def construct(self, x):
        step = Tensor(0, ms.int32)
        total = x
        while step < 3:
            self.p.add_(x)
            total = total * self.p
            step = step + 1
        return total, self.p * 1


class OfAssigned(nn.Cell):
    """What an assignment gives is the parameter, not a copy."""

    def __init__(self):
        super().__init__()
        self.p = parameter()

    def construct(self, x):
        same = ops.assign_add(self.p, x)
        before = same * 2
        self.p.mul_(x)
        return same * 1, before


class OfCopy(nn.Cell):
    """Reshaping, transposing and slicing by brackets give copies in a file."""

    def construct(self, x):
        y = x * 2
        flat, turned, row = y.view(4), y.T, y[0]
        flat.add_(5.0)
        turned.mul_(2.0)
        row += 10
        return y, flat * 1, turned * 1, row


class OfRow(nn.Cell):
    def construct(self, x):
        y = x * 2
        y[0] += 10
        y[:, 1] *= 3
        return y * 1


class SeenByViews(nn.Cell):
    def construct(self, x):
        y = x * 2
        turned, row, part = mint.transpose(y, 0, 1), mint.select(y, 0, 1), mint.narrow(y, 1, 0, 1)
        before = row * 1
        y.add_(mint.select(x, 0, 1))
        return y * 1, turned * 1, row * 1, part * 1, before


class OfParts(nn.Cell):
    def construct(self, x):
        first, second = ops.split(x * 2, 1, 0)
        first += second
        second *= first
        return first, second, ops.cat((first, second), 0)


class OfTypes(nn.Cell):
    """The value keeps its type and its shape."""

    def construct(self, x):
        whole, half, y = x.astype(ms.int32), x.astype(ms.float16), x * 1
        whole += 1
        whole *= 3
        half += x
        y += x[0]
        y *= x[:, :1]
        return whole, half, y


class InBranch(nn.Cell):
    """In both sides, and read behind by two names."""

    def construct(self, x):
        y = x * 2
        same = y
        if x.sum() > 0:
            y += 1
        else:
            y *= 3
        return y, same * 2, x


class InOneSide(nn.Cell):
    """A view of what one side changes, and what comes after."""

    def construct(self, x):
        y = x * 3
        row = mint.select(y, 0, 0)
        before = y * 5
        if x.sum() > 0:
            y.add_(1.0)
        return row * 1, y * 1, before


class InFunction(nn.Cell):
    """By way of a function that returns early."""

    def change(self, y, x):
        if x.sum() > 0:
            y.add_(1.0)
            return y
        y.mul_(2.0)
        return y

    def construct(self, x):
        y = x * 3
        z = self.change(y, x)
        return z * 1, y * 2


class BehindBranch(nn.Cell):
    """What either side made, and the effect behind the branch that nobody reads."""

    def construct(self, x):
        y = x * 3
        if x.sum() > 0:  # noqa: SIM108
            z = y + 1
        else:
            z = y * 2
        z += x
        y.add_(100)
        return z


class InLoop(nn.Cell):
    """Two names for one value, and what is read in each iteration."""

    def construct(self, x):
        y = x * 2
        same, total = y, x * 0
        step = Tensor(0, ms.int32)
        while step < 3:
            y += x
            total = total + y
            y.add_(1.0)
            step = step + 1
        return y, same, total


class InNestedLoop(nn.Cell):
    def construct(self, x):
        y, total = x * 1, x * 0
        outer = Tensor(0, ms.int32)
        while outer < 3:
            inner = Tensor(0, ms.int32)
            while inner < outer:
                y.add_(x)
                inner = inner + 1
            total = total + y
            if total.sum() > 20:
                y.mul_(0.5)
            outer = outer + 1
        return y * 1, total


class UntilBreak(nn.Cell):
    def construct(self, x):
        y = x * 1
        step = Tensor(0, ms.int32)
        while step < 6:
            y.add_(x)
            if y.sum() > 25:
                break
            step = step + 1
        return y * 1, step


class GoesOn(nn.Cell):
    """A loop that changes another value in place each time."""

    def construct(self, x):
        y = x
        step = Tensor(0, ms.int32)
        while step < 3:
            y += 1
            y = ops.relu(y) * 2
            step = step + 1
        return y


class TwoGoOn(nn.Cell):
    """Two values that begin as one."""

    def construct(self, x):
        first = second = x * 1
        step = Tensor(0, ms.int32)
        while step < 3:
            first = first + 1
            second = second * 2
            second += first
            step = step + 1
        return first, second


class TakeTurns(nn.Cell):
    """Values that change places in a loop, and a change behind it."""

    def construct(self, x):
        first, second = x * 1, x * 2
        step = Tensor(0, ms.int32)
        while step < 3:
            first, second = second, first + second
            step = step + 1
        first.add_(1.0)
        return first * 1, second * 1


class ViewInLoop(nn.Cell):
    def construct(self, x):
        y = x * 2
        row = mint.select(y, 0, 1)
        step = Tensor(0, ms.int32)
        while step < 2:
            y.add_(row.unsqueeze(0))
            step = step + 1
        return y * 1, row * 1


class Residual(nn.Cell):
    """As residual networks are written."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(2, 2, 3, weight_init="normal", has_bias=False) for _ in range(2)
        )
        self.norm = nn.BatchNorm2d(2)

    def construct(self, x):
        y = self.norm(self.second(ops.relu(self.norm(self.first(x)))))
        y += x
        shortcut = y = ops.relu(y)
        y = self.first(y)
        y += shortcut
        return ops.relu(y)


# name -> cell; MindSpore computes what they give
CHANGING = {
    made.__name__: made
    for made in (
        *(Later, Chain, OfInput, OfParameter, OfParameterInBranch, OfParameterInLoop, OfAssigned),
        *(OfCopy, OfRow, SeenByViews, OfParts, OfTypes, InBranch, InOneSide, InFunction),
        *(BehindBranch, InLoop, InNestedLoop, UntilBreak, GoesOn, TwoGoOn, TakeTurns, ViewInLoop),
    )
}


class ByPart(nn.Cell):
    def construct(self, x):
        y = x * 2
        mint.narrow(y, 0, 0, 1).add_(5.0)
        return y * 1


class ByColumn(nn.Cell):
    """By a part of a transposed view, with a reader between."""

    def construct(self, x):
        y = x * 2
        turned = mint.transpose(y, 0, 1)
        column = mint.select(turned, 0, 1)
        column.add_(5.0)
        between = y * 1
        column.mul_(2.0)
        return y * 1, turned * 1, column * 1, between


class ByChunk(nn.Cell):
    def construct(self, x):
        y = x * 2
        first, second = mint.chunk(y, 2, 0)
        second.mul_(first)
        return first * 1, second * 1, y * 1


class ByPartInBranch(nn.Cell):
    def construct(self, x):
        y = x * 2
        row = mint.select(y, 0, 0)
        if x.sum() > 0:
            row.add_(1.0)
        else:
            row.mul_(3.0)
        return y * 1, row * 1


class ByPartInLoop(nn.Cell):
    def construct(self, x):
        y = x * 2
        step = Tensor(0, ms.int32)
        while step < 3:
            mint.select(y, 1, 0).add_(step)
            step = step + 1
        return y * 1


class OneByOne(nn.Cell):
    """Changes that follow each other without a reader between."""

    def change(self, y, x):
        y.mul_(x)
        return y

    def construct(self, x):
        y = x * 2
        z = self.change(y, x)
        z = self.change(z, x)
        y.add_(y)
        y.add_(-1.0)
        return y + z


def _by_column(x):
    first, column = x[:, 0] * 2, x[:, 1] * 2 + 5
    y = np.stack([first, column * 2], 1)
    return y, y.T, column * 2, np.stack([first, column], 1)


def _by_chunk(x):
    first, second = x[:1] * 2, x[1:] * x[:1] * 4
    return first, second, np.concatenate([first, second])


def _by_part_in_branch(x):
    y = x * 2
    y[0] = y[0] + 1 if x.sum() > 0 else y[0] * 3
    return y, y[0]


# name -> (cell, what it gives): MindSpore 2.10 refuses to change a view in place on a CPU, and
# computes the second of two changes from the value before the first
BY_HAND = {
    "ByPart": (ByPart, lambda x: x * 2 + np.array([[5], [0]])),
    "ByColumn": (ByColumn, _by_column),
    "ByChunk": (ByChunk, _by_chunk),
    "ByPartInBranch": (ByPartInBranch, _by_part_in_branch),
    "ByPartInLoop": (ByPartInLoop, lambda x: x * 2 + np.array([3, 0])),
    "OneByOne": (OneByOne, lambda x: 2 * (4 * x**3 - 1)),
}


class OfConstant(nn.Cell):
    def __init__(self):
        super().__init__()
        self.c = Tensor(np.ones((2, 2), np.float32))

    def construct(self, x):
        self.c.add_(x)
        return self.c * 1


class PerhapsShared(nn.Cell):
    """Whether the second is the first depends on the data."""

    def construct(self, x):
        y = x * 2
        if x.sum() > 0:  # noqa: SIM108
            z = y
        else:
            z = x * 5
        z.add_(1.0)
        return z * 1, y * 1


class FirstTimeShared(nn.Cell):
    """Only the first iteration changes the value that is read behind the loop."""

    def construct(self, x):
        y = x * 2
        same = y
        step = Tensor(0, ms.int32)
        while step < 3:
            y += x
            y = ops.relu(y) * 2
            step = step + 1
        return y, same


class ByRepeated(nn.Cell):
    def construct(self, x):
        y = x * 2
        mint.broadcast_to(mint.narrow(y, 0, 0, 1), (2, 2)).add_(x)
        return y * 1


# name -> (cell, what the error says)
REFUSED = {
    "OfConstant": (OfConstant, "it changes a constant in place"),
    "PerhapsShared": (PerhapsShared, "depends on a branch or a loop"),
    "FirstTimeShared": (FirstTimeShared, "depends on the iteration"),
    "ByRepeated": (ByRepeated, "a view in which elements are repeated"),
}
