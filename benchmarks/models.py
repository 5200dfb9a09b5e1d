"""ResNet-50 with random weights and any batch size, as MindIR, ONNX and PyTorch's exported program.

`python -m benchmarks.models NAME` writes the file of benchmarks/servables/resnet50_NAME, a row of
BACKENDS.  They have the same layers and different weights: speeds are compared, not answers.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.processes import HERE

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, first stride
CLASSES = 1000


def path_of(name: str) -> Path:
    """Where the file of a row is."""
    return HERE / "servables" / f"resnet50_{name}" / "1" / f"resnet50.{BACKENDS[name].suffix}"


def config_of(name: str) -> Path | None:
    """The configuration file that its servable has for the backend."""
    config = BACKENDS[name].config
    return HERE / "servables" / f"resnet50_{name}" / config if config else None


def blocks() -> Iterator[tuple[int, int, int]]:
    """(input channels, width, stride) of each of the sixteen bottleneck blocks."""
    channels = 64
    for width, count, first in STAGES:
        for index in range(count):
            yield channels, width, first if index == 0 else 1
            channels = 4 * width


def write_mindir(path: Path) -> None:
    # Without this, oneDNN runs convolutions by its slow reference code on many AVX-512 processors.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
    import mindspore as ms

    ms.set_seed(50)
    example = ms.Tensor(shape=[None, 3, 224, 224], dtype=ms.float32)
    ms.export(mindspore_network(), example, file_name=str(path), file_format="MINDIR")


def mindspore_network() -> Any:
    from mindspore import nn, ops

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
        layer = nn.Conv2d(
            inputs, outputs, kernel, stride, pad_mode="pad", padding=kernel // 2, has_bias=False
        )
        return nn.SequentialCell(layer, nn.BatchNorm2d(outputs))

    class Bottleneck(nn.Cell):  # type: ignore[misc]
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = 4 * width
            self.body = nn.SequentialCell(
                conv(inputs, width, 1),
                nn.ReLU(),
                conv(width, width, 3, stride),
                nn.ReLU(),
                conv(width, outputs, 1),
            )
            same = inputs == outputs and stride == 1
            self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

        def construct(self, x):  # type: ignore[no-untyped-def]
            return ops.relu(self.body(x) + self.shortcut(x))

    class ResNet50(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            pool = nn.MaxPool2d(3, 2, pad_mode="same")
            stem = [conv(3, 64, 7, 2), nn.ReLU(), pool]
            self.features = nn.SequentialCell(*stem, *[Bottleneck(*block) for block in blocks()])
            self.classifier = nn.Dense(2048, CLASSES)

        def construct(self, x):  # type: ignore[no-untyped-def]
            return self.classifier(ops.mean(self.features(x), (2, 3)))

    return ResNet50().set_train(False)


class OnnxGraph:
    """An ONNX graph as it grows: every method adds a layer and gives its output's name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(50)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        output = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def weight(self, *shape: int, scale: float) -> str:
        from onnx import numpy_helper

        name = f"weight_{len(self.weights)}"
        values = self.random.standard_normal(shape, np.float32) * np.float32(scale)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        """A convolution with the batch normalisation folded in, as an exporter leaves it."""
        inputs, outputs = channels
        scale = (1 / (inputs * kernel * kernel)) ** 0.5
        weight = self.weight(outputs, inputs, kernel, kernel, scale=scale)
        bias = self.weight(outputs, scale=0.1)
        pads = [kernel // 2] * 4
        return self.node("Conv", x, weight, bias, strides=[stride] * 2, pads=pads)

    def bottleneck(self, x: str, inputs: int, width: int, stride: int) -> str:
        outputs = 4 * width
        y = self.node("Relu", self.conv(x, (inputs, width), 1))
        y = self.node("Relu", self.conv(y, (width, width), 3, stride))
        y = self.conv(y, (width, outputs), 1)
        same = inputs == outputs and stride == 1
        shortcut = x if same else self.conv(x, (inputs, outputs), 1, stride)
        return self.node("Relu", self.node("Add", y, shortcut))


def write_onnx(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    graph = OnnxGraph()
    x = graph.node("Relu", graph.conv("image", (3, 64), 7, 2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    for inputs, width, stride in blocks():
        x = graph.bottleneck(x, inputs, width, stride)
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    weight, bias = graph.weight(2048, CLASSES, scale=0.02), graph.weight(CLASSES, scale=0.1)
    graph.nodes.append(helper.make_node("Gemm", [x, weight, bias], ["logits"]))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "resnet50",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    onnx.checker.check_model(model)
    onnx.save(model, path)


def torch_network() -> Any:
    import torch
    from torch import nn

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs))

    class Bottleneck(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = 4 * width
            first, second = conv(inputs, width, 1), conv(width, width, 3, stride)
            self.body = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), conv(width, outputs, 1))
            same = inputs == outputs and stride == 1
            self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return torch.relu(self.body(x) + self.shortcut(x))

    stem = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    features = [Bottleneck(*block) for block in blocks()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, CLASSES)]
    return nn.Sequential(*stem, *features, *end).eval()


def write_torch(path: Path) -> None:
    import torch

    torch.manual_seed(50)
    batch = torch.export.Dim("batch")
    example = torch.zeros(2, 3, 224, 224)

    class Named(torch.nn.Module):  # its input and output have the names of the other files
        def __init__(self) -> None:
            super().__init__()
            self.network = torch_network()

        def forward(self, image):  # type: ignore[no-untyped-def]
            return self.network(image)

    shapes = {"image": {0: batch}}
    torch.export.save(torch.export.export(Named(), (example,), dynamic_shapes=shapes), path)


def write_int8(path: Path) -> None:
    """Quantise the MindIR, calibrated by random images, as its weights are random."""
    from mindspore_serving.backends.quantization import quantize

    source, data = path.with_suffix(".mindir"), path.with_suffix(".npz")
    if not source.exists():
        write_mindir(source)
    images = np.random.default_rng(0).standard_normal((64, 3, 224, 224), np.float32)
    np.savez(data, image=images)
    path.unlink(missing_ok=True)
    path.with_suffix(".bin").unlink(missing_ok=True)
    print(quantize(str(source), str(path), str(data)).summary())


class Backend(NamedTuple):
    """What runs a file: a name of `backends.formats`, and how the file is written."""

    name: str
    suffix: str
    write: Callable[[Path], None]
    config: str = ""


BACKENDS = {
    "mindir": Backend("mindir", "mindir", write_mindir),
    "mindir_openvino": Backend("mindir_openvino", "mindir", write_mindir),
    "mindir_openvino_bf16": Backend("mindir_openvino", "mindir", write_mindir, "bf16.json"),
    "mindir_int8": Backend("openvino", "xml", write_int8),
    "onnx": Backend("onnx", "onnx", write_onnx),
    "onnx_openvino": Backend("onnx_openvino", "onnx", write_onnx),
    "torch": Backend("pytorch", "pt2", write_torch),
}


if __name__ == "__main__":
    target = path_of(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    BACKENDS[sys.argv[1]].write(target)
    print(f"wrote {target}, {target.stat().st_size / 1e6:.0f} MB")
