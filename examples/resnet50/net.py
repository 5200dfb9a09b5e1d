"""ResNet-50: the usual bottleneck network, initialised so that even untrained it is well scaled."""

from mindspore import nn, ops
from mindspore.common.initializer import HeNormal


def conv(inputs, outputs, kernel, stride=1, gamma=1.0):
    return nn.SequentialCell(
        nn.Conv2d(
            inputs,
            outputs,
            kernel,
            stride,
            pad_mode="pad",
            padding=kernel // 2,
            weight_init=HeNormal(),
        ),
        nn.BatchNorm2d(outputs, gamma_init=gamma),
    )


class Bottleneck(nn.Cell):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.SequentialCell(
            conv(inputs, width, 1),
            nn.ReLU(),
            conv(width, width, 3, stride),
            nn.ReLU(),
            conv(width, 4 * width, 1, gamma=0.25),
        )
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else conv(inputs, 4 * width, 1, stride, gamma=0.7)

    def construct(self, x):
        return ops.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Cell):
    """Input float32 (N, 3, 224, 224), normalised; output float32 (N, classes), the logits."""

    def __init__(self, classes=1000):
        super().__init__()
        self.stem = nn.SequentialCell(
            conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, pad_mode="same")
        )
        blocks, inputs = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for index in range(count):
                blocks.append(Bottleneck(inputs, width, stride if index == 0 else 1))
                inputs = 4 * width
        self.blocks = nn.SequentialCell(*blocks)
        self.classifier = nn.Dense(inputs, classes)

    def construct(self, x):
        return self.classifier(ops.mean(self.blocks(self.stem(x)), (2, 3)))
