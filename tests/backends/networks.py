"""Files of users with networks, as they write them."""

LENET = """\
import mindspore as ms
from mindspore import Tensor, nn


class LeNet(nn.Cell):
    def __init__(self, num_classes=4, has_inputs=True):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, pad_mode="valid")
        self.norm = nn.BatchNorm2d(3)
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.head = nn.Dense(27, num_classes)
        if has_inputs:
            self.set_inputs(Tensor(shape=[None, 1, 8, 8], dtype=ms.float32))

    def construct(self, image):
        features = self.flatten(self.pool(self.norm(self.conv(image)).abs()))
        return self.head(features), features


class Scaled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(2, 2)

    def construct(self, x: Tensor, scale: float, power: int = 1):
        return self.layer(x) * scale**power


def make(num_classes: int = 4):
    return LeNet(num_classes)
"""

MODULE = """\
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from sizes import WIDTH


class Scores(NamedTuple):
    scores: Tensor
    features: Tensor


class Net(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        self.head = nn.Linear(5, num_classes)

    def forward(
        self, x: Annotated[Tensor, "float32[-1,3]"], scale: float = 1.0, mask: Tensor = None
    ):
        features = self.body(x)
        if mask is not None:
            features = features * mask
        return Scores(self.head(features) * scale, features)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Square(nn.Module):
    def forward(self, x):
        return x.T @ x


class NoNetwork:
    pass


def anything():
    return nn.Linear(1, 1)
"""
