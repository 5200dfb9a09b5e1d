"""Networks as people serve them, with few channels: a cell and example inputs by name.

Imported where MindSpore is installed.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import Normal, initializer

RANDOM = np.random.default_rng(0)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def integers(most, *shape):
    return RANDOM.integers(0, most, shape).astype(np.int32)


def weight(*shape):
    return Parameter(initializer(Normal(0.2), shape, ms.float32))


def conv_bn(channels, out, kernel=3, stride=1, *, group=1, act=nn.ReLU):
    layers = [
        nn.Conv2d(channels, out, kernel, stride, pad_mode="pad", padding=kernel // 2, group=group),
        nn.BatchNorm2d(out),
    ]
    return nn.SequentialCell(*layers, *([act()] if act else []))


class LeNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(1, 6, 5, pad_mode="valid"),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 16, 5, pad_mode="valid"),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Flatten(),
            nn.Dense(400, 120, weight_init=Normal(0.02)),
            nn.ReLU(),
            nn.Dense(120, 10),
        )

    def construct(self, x):
        return self.features(x)


class AlexNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(3, 8, 11, 4, pad_mode="same", has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(8, 12, 5, pad_mode="same"),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Flatten(),
            nn.Dense(12 * 3 * 3, 16),
            nn.Dropout(p=0.5),
            nn.Dense(16, 5),
        )

    def construct(self, x):
        return self.features(x)


class Vgg(nn.Cell):
    def __init__(self):
        super().__init__()
        layers = []
        for channels, out in ((3, 4), (4, 8), (8, 8)):
            layers += [conv_bn(channels, out), nn.MaxPool2d(2, 2)]
        self.layers = nn.SequentialCell(*layers, nn.Flatten(), nn.Dense(8 * 4 * 4, 6))

    def construct(self, x):
        return ops.softmax(self.layers(x), -1)


class Residual(nn.Cell):
    def __init__(self, channels, out, stride, is_deep):
        super().__init__()
        inner = out // 2
        if is_deep:
            self.main = nn.SequentialCell(
                conv_bn(channels, inner, 1),
                conv_bn(inner, inner, 3, stride),
                conv_bn(inner, out, 1, act=None),
            )
        else:
            self.main = nn.SequentialCell(
                conv_bn(channels, out, 3, stride), conv_bn(out, out, act=None)
            )
        self.short = conv_bn(channels, out, 1, stride, act=None) if channels != out else None
        self.relu = nn.ReLU()

    def construct(self, x):
        short = x if self.short is None else self.short(x)
        return self.relu(self.main(x) + short)


class ResNet(nn.Cell):
    def __init__(self, counts, is_deep):
        super().__init__()
        layers, channels = [conv_bn(3, 4, 7, 2), nn.MaxPool2d(3, 2, pad_mode="same")], 4
        for stage, count in enumerate(counts):
            for place in range(count):
                out = 8 * 2**stage
                layers.append(Residual(channels, out, 1 + (not place and stage > 0), is_deep))
                channels = out
        self.layers = nn.SequentialCell(*layers)
        self.mean = ops.ReduceMean(keep_dims=True)
        self.head = nn.Dense(channels, 7)

    def construct(self, x):
        return self.head(ops.flatten(self.mean(self.layers(x), (2, 3))))


class MobileNetV2(nn.Cell):
    def __init__(self):
        super().__init__()
        self.expand = conv_bn(3, 12, 1, act=nn.ReLU6)
        self.depth = conv_bn(12, 12, 3, 1, group=12, act=nn.ReLU6)
        self.project = conv_bn(12, 3, 1, act=None)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def construct(self, x):
        x = x + self.project(self.depth(self.expand(x)))
        return self.pool(x).reshape(x.shape[0], -1)


class MobileNetV3(nn.Cell):
    """With squeeze-and-excitation, as in EfficientNet."""

    def __init__(self):
        super().__init__()
        self.stem = conv_bn(3, 8, 3, 2, act=nn.HSwish)
        self.depth = conv_bn(8, 8, 5, 1, group=8, act=nn.SiLU)
        self.squeeze = nn.Conv2d(8, 2, 1, has_bias=True)
        self.excite = nn.Conv2d(2, 8, 1, has_bias=True)
        self.gate, self.relu = nn.HSigmoid(), nn.ReLU()

    def construct(self, x):
        x = self.depth(self.stem(x))
        weights = self.squeeze(ops.mean(x, (2, 3), True))
        return x * self.gate(self.excite(self.relu(weights)))


class ShuffleNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.main = conv_bn(2, 2)

    def construct(self, x):
        batch, channels, height, width = x.shape
        left, right = ops.split(x, channels // 2, axis=1)
        x = ops.concat((left, self.main(right)), axis=1)
        x = x.reshape(batch, 2, channels // 2, height, width)
        return x.transpose(0, 2, 1, 3, 4).reshape(batch, channels, height, width)


class DenseBlock(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([conv_bn(4 + 2 * place, 2) for place in range(3)])
        self.pool = nn.AvgPool2d(2, 2)

    def construct(self, x):
        for layer in self.layers:
            x = ops.cat((x, layer(x)), 1)
        return self.pool(x)


class Inception(nn.Cell):
    def __init__(self):
        super().__init__()
        self.one, self.three, self.five = conv_bn(4, 4, 1), conv_bn(4, 4, 3), conv_bn(4, 4, 5)
        self.pool = nn.SequentialCell(nn.MaxPool2d(3, 1, pad_mode="same"), conv_bn(4, 4, 1))
        self.average = nn.AvgPool2d(3, 1, pad_mode="same")

    def construct(self, x):
        x = ops.concat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)
        return self.average(x)


class UNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.down, self.inner, self.up = conv_bn(3, 4), conv_bn(4, 8, 3, 2), conv_bn(8, 4)
        self.grow = nn.Conv2dTranspose(8, 4, 2, 2)
        self.head = nn.Conv2d(4, 2, 1)

    def construct(self, x):
        high = self.down(x)
        low = self.grow(self.inner(high))
        both = self.up(ops.concat((high, low), 1))
        wide = ops.interpolate(both, size=(20, 20), mode="bilinear", align_corners=True)
        return self.head(both), ops.interpolate(wide, size=(5, 7), mode="nearest")


class YoloHead(nn.Cell):
    """Boxes of a grid, and the best classes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 2 * 9, 1, has_bias=True)
        self.anchors = Tensor(floats(2, 1, 1, 2))
        grid = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1)
        self.grid = Tensor(grid.astype(np.float32))

    def construct(self, x):
        y = self.conv(x).reshape(x.shape[0], 2, 9, 4, 4).transpose(0, 1, 3, 4, 2)
        centers = (ops.sigmoid(y[..., :2]) * 2 - 0.5 + self.grid) * 8
        sizes = ops.exp(y[..., 2:4]) * self.anchors
        boxes = ops.cat((centers - sizes / 2, centers + sizes / 2), -1).reshape(x.shape[0], -1, 4)
        scores = (ops.sigmoid(y[..., 4:5]) * ops.softmax(y[..., 5:], -1)).reshape(-1, 32, 4)
        best, classes = ops.max(scores, axis=-1)
        top, places = ops.topk(best, 5)
        return boxes, classes, top, ops.gather_elements(best, 1, places)


class SsdHead(nn.Cell):
    """Boxes that are decoded, then chosen by overlap."""

    def __init__(self):
        super().__init__()
        self.suppress = ops.NMSWithMask(0.4)

    def construct(self, boxes, scores):
        centers, sizes = boxes[:, :2], boxes[:, 2:]
        corners = ops.concat((centers - sizes / 2, centers + sizes / 2, scores), 1)
        chosen, places, mask = self.suppress(corners)
        return chosen, places, ops.logical_and(mask, chosen[:, 4] > 0.3)


class Lstm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True)
        self.head = nn.Dense(12, 3)

    def construct(self, x):
        y, (h, c) = self.lstm(x)
        return self.head(y[:, -1]), h, c


class Gru(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 6, batch_first=True)
        self.rnn = nn.RNN(6, 5, batch_first=True)

    def construct(self, x):
        return self.rnn(self.gru(x)[0])[0]


class Attention(nn.Cell):
    def __init__(self, width, heads):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Dense(width, width) for _ in range(4))
        self.heads, self.scale = heads, (width // heads) ** -0.5

    def parts(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(0, 2, 1, 3)

    def construct(self, x, mask=None):
        query, key, value = (self.parts(f(x)) for f in (self.query, self.key, self.value))
        scores = ops.matmul(query, key.swapaxes(-1, -2)) * self.scale
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        y = ops.matmul(ops.softmax(scores, -1), value).transpose(0, 2, 1, 3)
        return self.out(y.reshape(x.shape[0], x.shape[1], -1))


class Bert(nn.Cell):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), weight(1, 12, 16)
        self.attention = Attention(16, 2)
        self.first, self.second = nn.LayerNorm((16,)), nn.LayerNorm((16,), epsilon=1e-12)
        self.inner, self.outer = nn.Dense(16, 32, activation="gelu"), nn.Dense(32, 16)
        self.pool = nn.Dense(16, 16, activation="tanh")

    def construct(self, ids, mask):
        x = self.words(ids) + self.places[:, : ids.shape[1]]
        hidden = (1 - mask).astype(ms.bool_).expand_dims(1).expand_dims(1)
        x = self.first(x + self.attention(x, hidden))
        x = self.second(x + self.outer(self.inner(x)))
        return x, self.pool(x[:, 0])


class Vit(nn.Cell):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4, pad_mode="valid", has_bias=True)
        self.token, self.places = weight(1, 1, 16), weight(1, 17, 16)
        self.norm, self.attention = nn.LayerNorm((16,)), Attention(16, 4)
        self.mlp = nn.SequentialCell(nn.Dense(16, 32), nn.GELU(approximate=False), nn.Dense(32, 16))

    def construct(self, x):
        x = self.patch(x).flatten(start_dim=2).swapaxes(1, 2)
        token = ops.broadcast_to(self.token, (x.shape[0], 1, 16))
        x = ops.cat((token, x), 1) + self.places
        x = x + self.attention(self.norm(x))
        return (x + self.mlp(self.norm(x)))[:, 0]


def shifted(x, count):
    x = ops.cat((x[:, count:], x[:, :count]), 1)
    return ops.cat((x[:, :, count:], x[:, :, :count]), 2)


class SwinWindow(nn.Cell):
    """A shifted window with a bias by relative position."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(8, 2), nn.LayerNorm((8,))
        self.reduce = nn.Dense(32, 16, has_bias=False)

    def construct(self, x):
        batch, height, width, channels = x.shape
        y = shifted(self.norm(x), 2)
        y = y.reshape(batch, height // 4, 4, width // 4, 4, channels).transpose(0, 1, 3, 2, 4, 5)
        y = self.attention(y.reshape(-1, 16, channels))
        y = y.reshape(batch, height // 4, width // 4, 4, 4, channels).transpose(0, 1, 3, 2, 4, 5)
        x = x + shifted(y.reshape(batch, height, width, channels), -2)
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.reduce(ops.cat(parts, -1))


class ConvNext(nn.Cell):
    def __init__(self):
        super().__init__()
        self.depth = nn.Conv2d(8, 8, 7, pad_mode="pad", padding=3, group=8, has_bias=True)
        self.norm, self.gamma = nn.LayerNorm((8,), epsilon=1e-6), weight(8)
        self.up, self.down, self.act = nn.Dense(8, 32), nn.Dense(32, 8), nn.GELU()

    def construct(self, x):
        y = self.norm(self.depth(x).transpose(0, 2, 3, 1))
        y = self.down(self.act(self.up(y))) * self.gamma
        return x + y.transpose(0, 3, 1, 2)


class WideDeep(nn.Cell):
    """Embeddings of fields and their pairs, as in DeepFM."""

    def __init__(self):
        super().__init__()
        self.wide, self.deep = weight(40, 1), weight(40, 4)
        self.mlp = nn.SequentialCell(nn.Dense(20, 8), nn.ReLU(), nn.Dense(8, 1))
        self.gather = ops.Gather()

    def construct(self, ids, values):
        values = values.expand_dims(2)
        linear = ops.reduce_sum(self.gather(self.wide, ids, 0) * values, 1)
        vectors = self.gather(self.deep, ids, 0) * values
        pairs = ops.square(ops.reduce_sum(vectors, 1)) - ops.reduce_sum(ops.square(vectors), 1)
        deep = self.mlp(vectors.reshape(ids.shape[0], -1))
        return ops.sigmoid(linear + 0.5 * ops.reduce_sum(pairs, 1).expand_dims(1) + deep)


class CtcHead(nn.Cell):
    """The best symbol of each step, with blanks and repetitions marked."""

    def __init__(self):
        super().__init__()
        self.head = nn.Dense(8, 6)

    def construct(self, x):
        scores = ops.log_softmax(self.head(x), axis=-1)
        best = scores.argmax(-1)
        before = ops.cat((ops.full_like(best[:, :1], -1), best[:, :-1]), 1)
        keep = ops.logical_and(best != before, best != 0)
        return scores, ops.select(keep, best, ops.zeros_like(best)), keep.sum(-1)


class Quantized(nn.Cell):
    """Weights as int8 with a scale for each row, and activations rounded to int8."""

    def __init__(self):
        super().__init__()
        self.matrix = Parameter(
            Tensor(RANDOM.integers(-127, 128, (6, 8)).astype(np.int8)), requires_grad=False
        )
        self.scale = Parameter(Tensor(np.abs(floats(6)) / 100))

    def construct(self, x):
        step = ops.max(ops.abs(x), axis=-1, keepdims=True)[0] / 127
        rounded = ops.clamp(ops.round(x / step), -127, 127).astype(ms.int8)
        product = ops.matmul(rounded.astype(ms.float32), self.matrix.astype(ms.float32).T)
        return product * step * self.scale


class Branches(nn.Cell):
    """A branch inside a loop, a way out of the loop, and a branch of another size."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x):
        step = Tensor(0, ms.int32)
        total = x
        while step < 4:
            if total.sum() > 0:
                total = self.dense(total)
            else:
                total = total - x
                if total.max() > 2:
                    break
            step = step + 1
        y = total[:1] if total[0, 0] > 0 else total
        return total, y * 2, step


class Nested(nn.Cell):
    def construct(self, x):
        outer = Tensor(0, ms.int32)
        total = x
        while outer < 3:
            inner = Tensor(0, ms.int32)
            while inner < outer:
                total = total + x * 2
                inner = inner + 1
                if total.max() > 20:
                    break
            outer = outer + 1
        return total


class Counter(nn.Cell):
    """Weights that are written."""

    def __init__(self):
        super().__init__()
        self.total, self.last, self.rest = (
            Parameter(Tensor(np.zeros(3, np.float32)), name=name) for name in ("a", "b", "c")
        )

    def construct(self, x):
        total = ops.assign_add(self.total, x)
        rest = ops.assign_sub(self.rest, x)
        ops.assign(self.last, x)
        return total * 2 + rest


class Growing(nn.Cell):
    """A loop whose tensor gets longer."""

    def construct(self, x):
        step = Tensor(0, ms.int32)
        while step < 3:
            x = ops.cat((x, x[:1] + 1), 0)
            step = step + 1
        return x


class Layers(nn.Cell):
    """One of several cells by number, and the result of either side used further."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([nn.ReLU(), nn.Tanh(), nn.Sigmoid()])

    def construct(self, number, x):
        y = self.layers[number](x)
        if x.sum() > 0:
            y = y + 1
        return y * 3


class Mint(nn.Cell):
    """What mindspore.mint emits where it differs."""

    def __init__(self):
        super().__init__()
        self.layer = mint.nn.Linear(6, 8)

    def construct(self, x):
        y = mint.nn.functional.silu(self.layer(x))
        return mint.softmax(y, -1), mint.permute(y, (1, 0))


def open_shape(*shape, kind=ms.float32):
    return Tensor(shape=list(shape), dtype=kind)


# name -> (how the cell is made, example inputs, the shapes that are declared, None for the inputs')
NETWORKS = {
    "lenet": (LeNet, [floats(2, 1, 32, 32)], [(None, 1, 32, 32)]),
    "alexnet": (AlexNet, [floats(2, 3, 67, 67)], None),
    "vgg": (Vgg, [floats(2, 3, 32, 32)], [(None, 3, 32, 32)]),
    "resnet18": (lambda: ResNet((2, 2, 2, 2), False), [floats(2, 3, 64, 64)], None),
    "resnet50": (lambda: ResNet((3, 4, 6, 3), True), [floats(2, 3, 64, 64)], [(None, 3, 64, 64)]),
    "mobilenet_v2": (MobileNetV2, [floats(2, 3, 12, 16)], [(None, 3, None, None)]),
    "mobilenet_v3": (MobileNetV3, [floats(1, 3, 12, 16)], None),
    "shufflenet": (ShuffleNet, [floats(2, 4, 6, 8)], [(None, 4, None, 8)]),
    "densenet": (DenseBlock, [floats(1, 4, 8, 8)], None),
    "inception": (Inception, [floats(1, 4, 9, 9)], [(None, 4, 9, 9)]),
    "unet": (UNet, [floats(1, 3, 16, 16)], None),
    "yolo": (YoloHead, [floats(2, 4, 4, 4)], None),
    "ssd": (SsdHead, [np.abs(floats(20, 4)) + 1, np.abs(floats(20, 1))], None),
    "lstm": (Lstm, [floats(2, 5, 4)], None),
    "gru": (Gru, [floats(2, 5, 4)], [(None, 5, 4)]),
    "bert": (Bert, [integers(50, 2, 7), integers(2, 2, 7)], [(None, None), (None, None)]),
    "vit": (Vit, [floats(2, 3, 16, 16)], [(None, 3, 16, 16)]),
    "swin": (SwinWindow, [floats(1, 8, 8, 8)], None),
    "convnext": (ConvNext, [floats(1, 8, 9, 9)], None),
    "wide_deep": (WideDeep, [integers(40, 3, 5), floats(3, 5)], [(None, 5), (None, 5)]),
    "ctc": (CtcHead, [floats(2, 9, 8)], None),
    "quantized": (Quantized, [floats(3, 8)], [(None, 8)]),
    "branches": (Branches, [floats(3, 4)], None),
    "nested_loops": (Nested, [np.abs(floats(2, 2))], None),
    "layers": (Layers, [np.array(1, np.int32), floats(2, 3)], None),
    "mint": (Mint, [floats(4, 6)], None),
}
