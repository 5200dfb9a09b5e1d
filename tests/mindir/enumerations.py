"""The audit of enumerated arguments: each operator, argument and value, and what becomes of it.

`python -m tests.mindir.enumerations` prints it as a table.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import torch

from mindspore_serving.mindir.operators import OPERATORS

F = torch.nn.functional
PLACE = Path(mindspore.__file__).parent
HEADERS = ("mindspore/ops/include/op_enum.h", "mindapi/base/types.h", "mindapi/base/format.h")
GENERATED = ("ops/auto_generate/gen_ops_prim.py", "ops/operations/manually_defined/ops_def.py")
WRITTEN = ("nn_ops", "array_ops", "math_ops", "image_ops", "other_ops", "inner_ops")
RANDOM = np.random.default_rng(3)

SAME = "equal to MindSpore"
REFERENCE = "equal to torch or numpy: MindSpore has no kernel for CPUs"
REFUSED = "refused"
VALUE = object()
"""Stands in arguments for the value that is tried."""


@dataclass(frozen=True)
class Row:
    """One enumerated argument of one operator, and a call that has it.

    `statuses` are those of the values that are not refused; `others` are tensors for some of them.
    `reference` gets the tensors and the name of the value.  `enumeration` is a name of MindSpore's
    headers, or the texts themselves.  Of `count` results the rest is for training.
    """

    operator: str
    argument: str
    enumeration: str | tuple[str, ...]
    statuses: dict[str, str]
    tensors: tuple[Any, ...]
    more: tuple[Any, ...] = ()
    init: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    others: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    count: int | None = None

    @property
    def values(self) -> dict[str, int | str]:
        """Name -> what a file has for it."""
        if isinstance(self.enumeration, tuple):
            return {name: name for name in self.enumeration}
        numbers = of_headers()[self.enumeration]
        return {shortened(name): number for name, number in numbers.items()}

    def status(self, name: str) -> str:
        return self.statuses.get(name, REFUSED)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def of_headers() -> dict[str, dict[str, int]]:
    """Enumeration -> name in lower case -> number, as the headers of MindSpore have them."""
    found: dict[str, dict[str, int]] = {}
    for header in HEADERS:
        text = re.sub(r"//.*", "", (PLACE / "include" / header).read_text())
        for name, body in re.findall(r"enum (?:class )?(\w+)[^{;]*\{([^}]*)\}", text):
            found.setdefault(name, _numbers(body))
    return found


def shortened(name: str) -> str:
    """The name of a value without that of its enumeration."""
    return name.removeprefix("reduce_").removeprefix("reduction_")


def _numbers(body: str) -> dict[str, int]:
    numbers, following = {}, 0
    for entry in filter(None, (part.strip() for part in body.split(","))):
        name, _, given = (part.strip() for part in entry.partition("="))
        following = int(given) if given.lstrip("-").isdigit() else following
        numbers[name.lower()] = following
        following += 1
    return numbers


def converted_to_numbers() -> set[tuple[str, str]]:
    """(operator, argument) of every text that MindSpore writes as a number."""
    found = set()
    for path in GENERATED:
        for node in _classes(PLACE / path):
            text = ast.unparse(node)
            found |= set(re.findall(r"str_to_enum\('(\w+)', '(\w+)'", text))
            names = re.findall(r"_with_handler\('(\w+)', \w+, str_to_enum\)", text)
            found |= {(node.name, name) for name in names}
    return {pair for pair in found if pair[0] in OPERATORS}


def dtype_arguments() -> set[tuple[str, str]]:
    """(operator, argument) of every data type."""
    found = set()
    for path in GENERATED:
        for node in _classes(PLACE / path):
            text = ast.unparse(node)
            found |= set(re.findall(r"dtype_to_type_id\('(\w+)', '(\w+)'", text))
            names = re.findall(r"_with_handler\('(\w+)', \w+, dtype_to_type_id\)", text)
            found |= {(node.name, name) for name in names}
    return {pair for pair in found if pair[0] in OPERATORS}


def checked_texts() -> dict[tuple[str, str], set[str]]:
    """(operator, argument) of every text that MindSpore checks itself -> what it accepts."""
    classes = {}
    for name in WRITTEN:
        for node in _classes(PLACE / f"ops/operations/{name}.py"):
            classes[node.name] = node
    found: dict[tuple[str, str], set[str]] = {}
    for name, node in classes.items():
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        for one in (node, *(classes[base] for base in bases if base in classes)):
            text = ast.unparse(one)
            for argument, texts in re.findall(r"check_string\((\w+)[^,]*, \[([^\]]*)\]", text):
                names = set(re.findall(r"'(\w+)'", texts))
                found.setdefault((name, argument), set()).update(names)
    return {pair: texts for pair, texts in found.items() if pair[0] in OPERATORS}


def _classes(path: Path) -> list[ast.ClassDef]:
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _all_same(*names):
    return dict.fromkeys(names, SAME)


def _div(x, y, name):
    return torch.div(torch.from_numpy(x), y, rounding_mode=name).numpy()


_INDEX = np.array([[0, 1, 2], [2, 0, 1]], np.int64)
_PICTURE = floats(1, 2, 5, 4)
_ROIS = np.array([[0, 1, 1, 5, 6], [0, 2, 2.5, 2.2, 2.7], [0, 0, 0, 7, 7]], np.float32)


def _scattered(x, index, source, name):
    made = [torch.from_numpy(np.asarray(one)) for one in (x, index, np.float32(source))]
    source = made[2].expand(made[1].shape)
    return made[0].scatter_reduce(0, made[1], source, {"multiply": "prod"}[name]).numpy()


def _conv_padding(count):
    function = (F.conv1d, F.conv2d, F.conv3d)[count - 1]
    return Row(
        f"Conv{count}DPadding",
        "padding",
        "PadMode",
        {"same": REFERENCE, "valid": REFERENCE},
        (floats(1, 2, *[6] * count), floats(4, 2, *[3] * count)),
        (None, 1, VALUE, 1, 1),
        reference=lambda x, w, name: function(
            torch.from_numpy(x), torch.from_numpy(w), padding=name
        ).numpy(),
    )


def _pool(operator, count, extra=(), **init):
    statuses = {**_all_same("same", "valid"), **dict.fromkeys(extra, SAME)}
    enumeration = ("valid", "same", "pad") if count == 3 or extra else "PadMode"
    init = {"kernel_size": 2, "strides": 2, "pad_mode": VALUE, **init}
    return Row(operator, "pad_mode", enumeration, statuses, (floats(1, 2, *[5] * count),), (), init)


def _conv(operator, weight, **init):
    """`weight` is the shape of one that has four channels."""
    count = len(weight) - 2
    return Row(
        operator,
        "pad_mode",
        ("valid", "same", "pad"),
        _all_same("valid", "same", "pad"),
        (floats(1, 4, *[6] * count), floats(*weight)),
        init={"kernel_size": 3, "pad_mode": VALUE, **init},
    )


def _reduction(operator, status, tensors, reference=None, more=(), **init):
    return Row(
        operator,
        "reduction",
        "Reduction",
        dict.fromkeys(("sum", "mean", "none"), status),
        tensors,
        more,
        init,
        reference,
        count=1,
    )


def _of_torch(function):
    def call(*arguments):
        *arrays, name = arguments
        made = [torch.from_numpy(one) for one in arrays if isinstance(one, np.ndarray)]
        return function(*made, reduction=name).numpy()

    return call


def _depthwise(x, weight, name):
    made = torch.from_numpy(x), torch.from_numpy(weight).transpose(0, 1)
    return F.conv2d(*made, padding={"pad": 1}.get(name, name), groups=4).numpy()


ROWS = (
    Row(
        "AvgPool",
        "data_format",
        "Format",
        _all_same("nchw"),
        (_PICTURE,),
        (),
        {
            "kernel_size": 2,
            "strides": 2,
            "data_format": VALUE,
        },
    ),
    _pool("AvgPool", 2),
    _pool("MaxPool", 2),
    _pool("AvgPool3D", 3, ("pad",)),
    _pool("MaxPool3D", 3, ("pad",)),
    Row(
        "BatchNorm",
        "data_format",
        "Format",
        _all_same("nchw"),
        (_PICTURE, floats(2), floats(2), floats(2), floats(2) ** 2),
        (),
        {"data_format": VALUE},
        count=1,
    ),
    Row(
        "BiasAdd",
        "data_format",
        "Format",
        _all_same("nchw", "nhwc", "ncdhw"),
        (floats(2, 3, 4, 3), floats(3)),
        (),
        {"data_format": VALUE},
        others={"ncdhw": (floats(2, 3, 2, 4, 5), floats(3))},
    ),
    *(_conv_padding(count) for count in (1, 2, 3)),
    Row(
        "DivMod",
        "rounding_mode",
        "RoundingMode",
        _all_same("trunc", "floor"),
        (np.float32([-7.5, 7.5, -3, 1]), np.float32([2, -2, 2, 3])),
        (VALUE,),
    ),
    Row(
        "DivMods",
        "rounding_mode",
        "RoundingMode",
        _all_same("trunc", "floor"),
        (np.float32([-7.5, 7.5, -3, 1]),),
        (2.0, VALUE),
    ),
    Row(
        "GeluExt",
        "approximate",
        "Approximate",
        dict.fromkeys(("none", "tanh"), REFERENCE),
        (floats(3, 4),),
        (VALUE,),
        reference=lambda x, name: F.gelu(torch.from_numpy(x), approximate=name).numpy(),
    ),
    Row(
        "GridSampler2D",
        "interpolation_mode",
        "InterpolationMode",
        _all_same("bilinear", "nearest"),
        (_PICTURE, floats(1, 6, 6, 2)),
        (),
        {"interpolation_mode": VALUE, "padding_mode": "zeros", "align_corners": False},
    ),
    Row(
        "GridSampler2D",
        "padding_mode",
        "GridSamplerPaddingMode",
        _all_same("zeros", "border", "reflection"),
        (_PICTURE, floats(1, 6, 6, 2)),
        (),
        {
            "interpolation_mode": "bilinear",
            "padding_mode": VALUE,
            "align_corners": False,
        },
    ),
    Row(
        "Meshgrid",
        "indexing",
        "Indexing",
        _all_same("ij", "xy"),
        ((floats(2), floats(3)),),
        (),
        {"indexing": VALUE},
    ),
    Row(
        "ResizeLinear1D",
        "coordinate_transformation_mode",
        "CoordinateTransformMode",
        _all_same("align_corners", "half_pixel"),
        (floats(1, 2, 5),),
        ((7,),),
        {"coordinate_transformation_mode": VALUE},
    ),
    Row(
        "Scatter",
        "reduce",
        "Reduce",
        {**_all_same("add", "none"), "multiply": REFERENCE},
        (floats(4, 3),),
        (0, _INDEX, floats(2, 3), VALUE),
        reference=_scattered,
    ),
    Row(
        "ScatterValue",
        "reduce",
        "Reduce",
        {**_all_same("add", "none"), "multiply": REFERENCE},
        (floats(4, 3),),
        (0, _INDEX, 2.5, VALUE),
        reference=_scattered,
    ),
    Row(
        "TensorScatterElements",
        "reduce",
        "Reduce",
        {**_all_same("add", "none"), "multiply": REFERENCE},
        (floats(4, 3), _INDEX, floats(2, 3)),
        (),
        {"axis": 0, "reduce": VALUE},
        _scattered,
    ),
    Row(
        "ROIAlign",
        "roi_end_mode",
        (0, 1),
        {0: SAME, 1: SAME},
        (floats(1, 2, 8, 8), _ROIS),
        (),
        {
            "pooled_height": 2,
            "pooled_width": 3,
            "spatial_scale": 0.5,
            "sample_num": 2,
            "roi_end_mode": VALUE,
        },
    ),
    _reduction("SmoothL1Loss", SAME, (floats(3, 4), floats(3, 4)), reduction=VALUE),
    _reduction(
        "NLLLoss",
        SAME,
        (floats(3, 4), np.array([0, 3, 1]), floats(4) ** 2),
        reduction=VALUE,
    ),
    _reduction(
        "NLLLoss2d",
        REFERENCE,
        (floats(2, 4, 3, 1), np.array([[[0], [3], [1]]] * 2), floats(4) ** 2),
        _of_torch(F.nll_loss),
        (VALUE, -100),
    ),
    _reduction(
        "KLDiv", REFERENCE, (floats(3, 4), floats(3, 4) ** 2), _of_torch(F.kl_div), (VALUE, False)
    ),
    Row(
        "CropAndResize",
        "method",
        ("bilinear", "nearest", "bilinear_v2"),
        _all_same("bilinear", "nearest"),
        (floats(1, 5, 4, 2), np.float32([[0.1, 0.2, 0.9, 1.1]]), np.zeros(1, np.int32)),
        ((2, 3),),
        {"method": VALUE},
    ),
    _conv("Conv2D", (4, 4, 3, 3), out_channel=4),
    _conv("Conv3D", (4, 4, 3, 3, 3), out_channel=4),
    replace(
        _conv("DepthwiseConv2dNative", (1, 4, 3, 3), channel_multiplier=1),
        statuses=dict.fromkeys(("valid", "same", "pad"), REFERENCE),
        reference=_depthwise,
    ),
    Row(
        "MirrorPad",
        "mode",
        ("REFLECT", "SYMMETRIC"),
        _all_same("REFLECT", "SYMMETRIC"),
        (floats(3, 4), np.array([[1, 2], [0, 1]])),
        (),
        {"mode": VALUE},
    ),
    Row(
        "PadV3",
        "mode",
        ("constant", "reflect", "edge", "circular"),
        _all_same("constant", "reflect", "edge", "circular"),
        (floats(2, 3, 4, 5),),
        ((1, 2, 0, 1), None),
        {"mode": VALUE},
    ),
)


def table() -> list[tuple[str, str, str, str, str]]:
    """(operator, argument, enumeration, value, status) of every value, refused ones in one line."""
    lines = []
    for row in ROWS:
        enumeration = row.enumeration if isinstance(row.enumeration, str) else "texts"
        refused = [f"{one} ({row.values[one]})" for one in row.values if row.status(one) == REFUSED]
        for name, status in row.statuses.items():
            value = f"{name} ({row.values[name]})" if enumeration != "texts" else str(name)
            lines.append((row.operator, row.argument, enumeration, value, status))
        if refused:
            shown = refused if len(refused) < 5 else [*refused[:3], f"and {len(refused) - 3} more"]
            lines.append((row.operator, row.argument, enumeration, ", ".join(shown), REFUSED))
    return lines


if __name__ == "__main__":
    for line in table():
        print("| " + " | ".join(line) + " |")
