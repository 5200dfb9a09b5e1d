"""Writes the ONNX models of this directory.

The .ms files beside them were made of these by the converter of MindSpore Lite 2.0
(`mindspore::Converter` with the save type MindIR_Lite), which has no package for this Python.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write(path, nodes, inputs, outputs, weights):
    random = np.random.default_rng(5)
    arrays = {
        name: value if isinstance(value, np.ndarray) else random.normal(0, 0.4, value).astype("f4")
        for name, value in weights.items()
    }
    graph = helper.make_graph(
        [
            helper.make_node(kind, ins.split(), outs.split(), **more)
            for kind, ins, outs, more in nodes
        ],
        "net",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(made)
    onnx.save(made, path)


def conv(ins, out, *, kernel=3, pads=1, strides=1, group=1):
    windows = {"kernel_shape": [kernel] * 2, "pads": [pads] * 4, "strides": [strides] * 2}
    return ("Conv", ins, out, {**windows, "dilations": [1, 1], "group": group})


def ints(*values):
    return np.array(values, np.int64)


def real(*values):
    return np.array(values, np.float32).reshape(() if len(values) == 1 else -1)


def image(path):
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        conv("x w0 b0", "c0", strides=2),
        ("BatchNormalization", "c0 s o m v", "n0", {}),
        ("Clip", "n0 zero six", "h0", {}),
        conv("h0 w1", "d0", group=4),
        ("LeakyRelu", "d0", "l0", {"alpha": 0.2}),
        conv("l0 w2 b2", "p0", kernel=1, pads=0),
        ("Add", "p0 h0", "a0", {}),
        ("Sigmoid", "a0", "g0", {}),
        ("Mul", "a0 g0", "u0", {}),
        ("AveragePool", "u0", "ap", pool),
        ("MaxPool", "u0", "mp", pool),
        ("Concat", "ap mp", "cat", {"axis": 1}),
        ("PRelu", "cat slope", "pr", {}),
        ("GlobalAveragePool", "pr", "gap", {}),
        ("Flatten", "gap", "flat", {}),
        ("Gemm", "flat fw fb", "fc", {"transB": 1}),
        ("Tanh", "fc", "y", {}),
    ]
    weights = {
        "w0": (4, 3, 3, 3),
        "b0": (4,),
        "s": (4,),
        "o": (4,),
        "m": (4,),
        "v": real(0.5, 1, 2, 1.5),
        "zero": real(0),
        "six": real(6),
        "w1": (4, 1, 3, 3),
        "w2": (4, 4, 1, 1),
        "b2": (4,),
        "slope": (8, 1, 1),
        "fw": (5, 8),
        "fb": (5,),
    }
    write(path, nodes, [("x", ["n", 3, 8, 8])], [("y", ["n", 5])], weights)


def text(path):
    last = {"axes": [-1], "keepdims": 1}
    nodes = [
        ("MatMul", "x wq", "q0", {}),
        ("Add", "q0 bq", "q", {}),
        ("MatMul", "x wk", "k", {}),
        ("MatMul", "x wv", "v", {}),
        ("Reshape", "q heads", "qr", {}),
        ("Reshape", "k heads", "kr", {}),
        ("Reshape", "v heads", "vr", {}),
        ("Transpose", "qr", "qt", {"perm": [0, 2, 1, 3]}),
        ("Transpose", "kr", "kt", {"perm": [0, 2, 3, 1]}),
        ("Transpose", "vr", "vt", {"perm": [0, 2, 1, 3]}),
        ("MatMul", "qt kt", "qk", {}),
        ("Div", "qk root", "scaled", {}),
        ("Softmax", "scaled", "p", {"axis": -1}),
        ("MatMul", "p vt", "pv", {}),
        ("Transpose", "pv", "pvt", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "pvt merged", "ctx", {}),
        ("Add", "ctx x", "r", {}),
        ("ReduceMean", "r", "mu", last),  # from here to `ln` the converter finds a LayerNorm
        ("Sub", "r mu", "d", {}),
        ("Pow", "d two", "d2", {}),
        ("ReduceMean", "d2", "var", last),
        ("Add", "var eps", "ve", {}),
        ("Sqrt", "ve", "sd", {}),
        ("Div", "d sd", "nn", {}),
        ("Mul", "nn g", "ng", {}),
        ("Add", "ng be", "ln", {}),
        ("Div", "ln sqrt2", "e0", {}),  # and from here to `gelu` a GELU
        ("Erf", "e0", "e1", {}),
        ("Add", "e1 one", "e2", {}),
        ("Mul", "ln e2", "e3", {}),
        ("Mul", "e3 half", "gelu", {}),
        ("Slice", "gelu s0 s1 s2", "cut", {}),
        ("Split", "cut sizes", "l rr", {"axis": 2}),
        ("Add", "l rr", "sum", {}),
        ("ReduceSum", "sum s2", "y", {"keepdims": 0}),
    ]
    weights = {
        "wq": (8, 8),
        "wk": (8, 8),
        "wv": (8, 8),
        "bq": (8,),
        "g": (8,),
        "be": (8,),
        "heads": ints(0, 0, 2, 4),
        "merged": ints(0, 0, 8),
        "root": real(2),
        "two": real(2),
        "eps": real(1e-5),
        "sqrt2": real(2**0.5),
        "one": real(1),
        "half": real(0.5),
        "s0": ints(1),
        "s1": ints(3),
        "s2": ints(1),
        "sizes": ints(4, 4),
    }
    write(path, nodes, [("x", [2, 4, 8])], [("y", [2, 4])], weights)


def mathematics(path):
    nodes = [
        ("Abs", "x", "a", {}),
        ("Add", "a one", "p", {}),
        ("Log", "p", "lg", {}),
        ("Exp", "lg", "ex", {}),
        ("Reciprocal", "p", "rc", {}),
        ("Neg", "rc", "ng", {}),
        ("Floor", "x", "fl", {}),
        ("Ceil", "x", "ce", {}),
        ("Sin", "x", "si", {}),
        ("Cos", "x", "co", {}),
        ("Max", "si co", "mx", {}),
        ("Min", "fl ce", "mn", {}),
        ("Elu", "x", "el", {"alpha": 1.0}),
        ("Softplus", "x", "sp", {}),
        ("Unsqueeze", "mx ax", "un", {}),
        ("Squeeze", "un ax", "sq", {}),
        ("Pad", "sq pads", "pd", {}),
        ("Slice", "pd ax six ax ax", "ct", {}),
        ("Gather", "x rows", "ga", {"axis": 1}),
        ("ReduceMax", "ga", "rm", {"axes": [1], "keepdims": 1}),
        ("Mul", "ct rm", "m0", {}),
        ("Sub", "m0 el", "m1", {}),
        ("Add", "m1 sp", "m2", {}),
        ("Mul", "m2 mn", "m3", {}),
        ("Add", "m3 ng", "m4", {}),
        ("Add", "m4 ex", "m5", {}),
        ("HardSigmoid", "m5", "hs", {"alpha": 1 / 6, "beta": 0.5}),
        ("Transpose", "hs", "y", {"perm": [1, 0]}),
    ]
    weights = {"one": real(1), "ax": ints(1), "pads": ints(0, 1, 0, 1), "six": ints(6)}
    write(path, nodes, [("x", [3, 5])], [("y", [5, 3])], {**weights, "rows": ints(0, 2)})


def upsample(path):
    windows = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0] * 4, "dilations": [1, 1]}
    linear = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nodes = [
        ("ConvTranspose", "x w b", "t", {**windows, "group": 1}),
        ("InstanceNormalization", "t s o", "in", {"epsilon": 1e-5}),
        ("Resize", "in roi sc", "near", {"mode": "nearest", **nearest}),
        ("Resize", "near roi sc", "lin", linear),
        ("Clip", "lin lo hi", "cl", {}),
        ("Tile", "cl reps", "ti", {}),
        ("ReduceMean", "ti", "rm", {"axes": [2, 3], "keepdims": 1}),
        ("Sub", "ti rm", "y", {}),
    ]
    weights = {
        "w": (3, 2, 2, 2),
        "b": (2,),
        "s": (2,),
        "o": (2,),
        "roi": np.zeros(0, "f4"),
        "sc": real(1, 1, 2, 2),
        "lo": real(-0.7),
        "hi": real(0.9),
        "reps": ints(1, 2, 1, 1),
    }
    write(path, nodes, [("x", [1, 3, 4, 4])], [("y", [1, 4, 32, 32])], weights)


def choices(path):
    nodes = [
        ("Floor", "x", "xf", {}),
        ("Less", "x one", "g", {}),
        ("Where", "g x xf", "w", {}),
        ("Expand", "row sh", "e", {}),
        ("Add", "w e", "a", {}),
        ("ArgMax", "a", "am", {"axis": 1, "keepdims": 1}),
        ("Cast", "am", "amf", {"to": TensorProto.FLOAT}),
        ("TopK", "a k", "tv ti", {"axis": 1}),
        ("Concat", "tv amf", "c", {"axis": 1}),
        ("Round", "a", "r", {}),
        ("ReduceSum", "r ax", "rs", {"keepdims": 1}),
        ("Mul", "c rs", "m", {}),
        ("Mod", "a one", "md", {"fmod": 1}),
        ("ReduceL2", "md", "l2", {"axes": [1], "keepdims": 1}),
        ("Add", "m l2", "y", {}),
    ]
    weights = {"row": (1, 5), "sh": ints(3, 5), "k": ints(2), "ax": ints(1), "one": real(1)}
    write(path, nodes, [("x", [3, 5])], [("y", [3, 3])], weights)


def shapes(path):
    nodes = [
        ("Shape", "x", "s", {}),
        ("Gather", "s zero", "n", {"axis": 0}),
        ("Unsqueeze", "n ax", "n1", {}),
        ("Concat", "n1 rest", "sh", {"axis": 0}),
        ("Reshape", "x sh", "f", {}),
        ("MatMul", "f w", "y", {}),
    ]
    weights = {"zero": np.array(0), "ax": ints(0), "rest": ints(-1), "w": (12, 4)}
    write(path, nodes, [("x", ["n", 3, 4])], [("y", ["n", 4])], weights)


if __name__ == "__main__":
    for make in (image, text, mathematics, upsample, choices, shapes):
        make(Path(sys.argv[1]) / f"{make.__name__}.onnx")
