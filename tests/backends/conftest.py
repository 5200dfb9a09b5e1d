"""Real model files, built once per test run by the runtimes' own exporters."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.backends import ModelSource, open_backend
from mindspore_serving.core.declaration import DeclaredModel

KEY16, KEY32 = b"0123456789abcdef", b"0123456789abcdef0123456789abcdef"


@pytest.fixture
def source():
    """A function that makes a ModelSource for files of one format."""

    def make(model_format, *paths, **fields):
        spec_fields = {
            name: fields.pop(name)
            for name in ("options", "factory", "allow_pickle")
            if name in fields
        }
        spec = DeclaredModel(
            key=";".join(Path(path).name for path in paths) or "model",
            format=model_format,
            files=tuple(Path(path).name for path in paths),
            **spec_fields,
        )
        return ModelSource(spec=spec, paths=tuple(str(path) for path in paths), **fields)

    return make


@pytest.fixture
def opened(source):
    """A function that opens a model and closes it after the test."""
    backends = []

    def make(model_format, *paths, **fields):
        backends.append(open_backend(source(model_format, *paths, **fields)))
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


@pytest.fixture(scope="session")
def mindir(tmp_path_factory):
    """Directory of MindIR files, exported by MindSpore."""
    pytest.importorskip("mindspore", reason="MindSpore exports and runs these models")
    directory = tmp_path_factory.mktemp("mindir")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own code, while exporting
        _export_mindir(directory)
    return directory


def _plain_cells():
    import mindspore as ms
    from mindspore import nn

    class Add(nn.Cell):
        def construct(self, x1, x2):
            return x1 + x2

    class SumAndDifference(nn.Cell):
        def construct(self, x, y):
            return x + y, x - y

    class AddInPlace(nn.Cell):
        def construct(self, x):
            x.add_(1.0)
            return x * 2.0

    class Same(nn.Cell):
        def construct(self, x):
            return x

    class Nested(nn.Cell):
        def construct(self, x):
            return (x, (x + 1.0, x.astype(ms.bfloat16)))

    class DoubleAndOne(nn.Cell):
        def construct(self, x):
            return x.astype(ms.float32) * 2.0 + 1.0

    return Add, SumAndDifference, AddInPlace, Same, Nested, DoubleAndOne


def _special_cells():
    from mindspore import mint, nn, ops

    class Convolve(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(1, 2, 3, pad_mode="valid", weight_init="ones")

        def construct(self, image):
            return self.layer(image)

    class Slice(nn.Cell):
        def construct(self, x):
            return x[::2, 1:]

    class Normalize(nn.Cell):
        def construct(self, x):
            return mint.nn.functional.layer_norm(x, (6,))

    class DoubleTwice(nn.Cell):
        def construct(self, x):
            count = ops.sum(x) * 0.0
            while count < 2.0:
                x = x * 2.0
                count = count + 1.0
            y = x - 1.0
            if x[0, 0] > 0.0:
                y = x + 1.0
            return y

    class SumOverRanks(nn.Cell):
        def __init__(self):
            super().__init__()
            self.all_reduce = ops.AllReduce()

        def construct(self, x):
            return self.all_reduce(x)

    return Convolve, DoubleTwice, Normalize, Slice, SumOverRanks


def _export_mindir(directory):
    import mindspore as ms
    from mindspore import Tensor

    Add, SumAndDifference, AddInPlace, Same, Nested, DoubleAndOne = _plain_cells()
    Convolve, DoubleTwice, Normalize, Slice, SumOverRanks = _special_cells()

    def zeros(*shape, dtype=np.float32):
        return Tensor(np.zeros(shape, dtype))

    def open_shape(*shape):
        return Tensor(shape=list(shape), dtype=ms.float32)

    def export(name, net, *inputs, **key):
        ms.export(net, *inputs, file_name=str(directory / name), file_format="MINDIR", **key)

    export("add", Add(), zeros(2, 2), zeros(2, 2))
    export("add_int32", Add(), zeros(2, 2, dtype=np.int32), zeros(2, 2, dtype=np.int32))
    export("add_batch3", Add(), zeros(3, 2), zeros(3, 2))
    export("add_open", Add(), open_shape(None, 2), open_shape(None, 2))
    export("two_open", SumAndDifference(), open_shape(None, None), open_shape(None, None))
    export("convolve", Convolve(), zeros(1, 1, 5, 5))
    export("loop", DoubleTwice(), zeros(2, 2))
    export("sliced", Slice(), zeros(4, 4))
    export("normal", Normalize(), zeros(4, 6))
    export("in_place", AddInPlace(), zeros(2, 2))
    export("same", Same(), zeros(2, 2))
    export("nested", Nested(), zeros(2, 2))
    export("bfloat16_input", DoubleAndOne(), Tensor(np.zeros((2, 2)), ms.bfloat16))
    export("ranks", SumOverRanks(), zeros(2, 2))
    for mode, key in (("gcm", KEY16), ("cbc", KEY32)):
        export(
            f"add_{mode}",
            Add(),
            zeros(2, 2),
            zeros(2, 2),
            enc_key=key,
            enc_mode=f"AES-{mode.upper()}",
        )


@pytest.fixture(scope="session")
def onnx(tmp_path_factory):
    """Directory of ONNX files."""
    pytest.importorskip("onnx", reason="it writes these models")
    pytest.importorskip("onnxruntime", reason="it runs these models")
    directory = tmp_path_factory.mktemp("onnx")
    from onnx import TensorProto, helper, save

    def model(name, nodes, inputs, outputs):
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(*item) for item in inputs],
            [helper.make_tensor_value_info(*item) for item in outputs],
        )
        opset = helper.make_opsetid("", 17)
        save(
            helper.make_model(graph, opset_imports=[opset], ir_version=8),
            directory / f"{name}.onnx",
        )

    number, text, half = TensorProto.FLOAT, TensorProto.STRING, TensorProto.FLOAT16
    nodes = [
        helper.make_node("Add", ["x", "y"], ["sum"]),
        helper.make_node("Sub", ["x", "y"], ["difference"]),
    ]
    for name, batch in (("open", "N"), ("fixed", 3)):
        model(
            name,
            nodes,
            [("x", number, [batch, 2]), ("y", number, [batch, 2])],
            [("sum", number, [batch, 2]), ("difference", number, [batch, 2])],
        )
    cast = [helper.make_node("Cast", ["x"], ["y"], to=number)]
    model("half", cast, [("x", half, ["N", 2])], [("y", number, ["N", 2])])
    same = [helper.make_node("Identity", ["x"], ["y"])]
    model("text", same, [("x", text, ["N"])], [("y", text, ["N"])])
    length = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    model("unbatched", length, [("x", number, ["N", "T"])], [("y", number, [])])
    return directory


@pytest.fixture(scope="session")
def torch_files(tmp_path_factory):
    """Directory of PyTorch files: exported programs, TorchScript, and what must be refused."""
    torch = pytest.importorskip("torch", reason="it writes and runs these models")
    directory = tmp_path_factory.mktemp("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; export warns about itself
        _save_torch(torch, directory)
    return directory


def _save_torch(torch, directory):
    class SumAndDifference(torch.nn.Module):
        def forward(self, x, y):
            return {"sum": x + y, "difference": x - y}

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1, bias=False)
            torch.nn.init.ones_(self.layer.weight)

        def forward(self, x, *, offset):
            return (self.layer(x) + offset).to(torch.bfloat16)

    class AddInPlace(torch.nn.Module):
        def forward(self, x):
            x.add_(1.0)
            return x * 2.0

    class Halves(torch.nn.Module):
        def forward(self, x):
            return x.to(torch.float32)

    batch = torch.export.Dim("batch")
    pair = (torch.zeros(4, 2), torch.zeros(4, 2))
    shapes = {"x": {0: batch}, "y": {0: batch}}
    export = torch.export.export
    save = torch.export.save
    save(export(SumAndDifference(), pair, dynamic_shapes=shapes), directory / "open.pt2")
    save(export(SumAndDifference(), pair), directory / "fixed4.pt2")
    few = {name: {0: torch.export.Dim("few", max=8)} for name in ("x", "y")}
    save(export(SumAndDifference(), pair, dynamic_shapes=few), directory / "most8.pt2")
    keywords = {"offset": torch.zeros(1)}
    save(export(Named(), (torch.zeros(2, 3),), keywords), directory / "named.pt2")
    save(export(AddInPlace(), (torch.zeros(2, 2),)), directory / "in_place.pt2")
    half = torch.zeros(2, 2, dtype=torch.bfloat16)
    save(export(Halves(), (half,)), directory / "bfloat16_input.pt2")
    torch.jit.script(AddInPlace()).save(directory / "script.pt")
    torch.save({"weight": torch.zeros(2)}, directory / "weights.pt")
    torch.save(
        {"weight": torch.zeros(2)},
        directory / "old_weights.pt",
        _use_new_zipfile_serialization=False,
    )
