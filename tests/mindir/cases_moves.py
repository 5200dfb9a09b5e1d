"""Cases of operators that move, choose and make elements, and of tuples."""

from functools import partial

import numpy as np
import torch

from tests.mindir.cases_elements import F, of_torch
from tests.mindir.drawing import Case

INT64 = np.int64


def along(reference=None, **fields):
    """An array and one of its axes as further argument."""

    def make(d):
        x = d.floats()
        made = None if reference is None else of_torch(reference)
        return Case((x,), (d.axis(x),), reference=made, **fields)

    return make


def reshaped(d):
    x = d.floats((2, 3, 4))
    return Case((x,), (d.choice((6, 4), (-1,), (2, -1, 2), (4, 3, 2)),))


def sliced(d):
    """With every mask."""
    x = d.floats((4, 5, 6))
    begin, end = (0, 1, -3), (3, 5, 6)
    masks = (d.number(0, 7), d.number(0, 7), 0, 0, d.choice(0, 1, 4))
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    return Case((x,), (begin, end, (1, 2, 1)), dict(zip(names, masks, strict=True)))


def padded(mode, d):
    count = d.number(1, 2)
    x = d.floats((2, 3, 4, 5)[: count + 2])
    pads = tuple(d.number(0, 2) for _ in range(2 * count))
    return Case((x,), (pads,), reference=of_torch(lambda x, pads: F.pad(x, pads, mode)))


def pad_v3(d):
    mode = d.choice("constant", "reflect", "edge")
    names = {"edge": "replicate"}
    more = (2.0,) if mode == "constant" else (0.0,)
    return Case(
        (d.floats((2, 3, 4, 5)),),
        ((1, 2, 0, 1), *more),
        {"mode": mode},
        of_torch(
            lambda x, pads, value: F.pad(
                x, pads, names.get(mode, mode), *([value] if mode == "constant" else [])
            )
        ),
    )


def gathered(d):
    x = d.floats((4, 3, 5))
    axis = d.axis(x)
    return Case((x, d.whole(d.shape(1, 2), 0, x.shape[axis] - 1)), (axis,))


def scattered_nd(name, d):
    x = d.floats((4, 3))
    places = np.array([[0], [3]], np.int32)
    return Case((x, places, d.floats((2, 3), 0.5, 2)))


def elements(d):
    x = d.floats((4, 3))
    index = d.whole((2, 3), 0, 3, INT64)
    index[1] = (index[0] + 1) % 4  # no place twice
    return x, index, d.floats((2, 3))


def scatter_case(d):
    x, index, source = elements(d)
    return Case(
        (x,),
        (0, index, source, 0),
        reference=of_torch(lambda x, dim, index, source, _: torch.scatter(x, dim, index, source)),
    )


def triangle_attribute(d):
    return Case((d.floats((4, 5)),), (), {"diagonal": d.number(-2, 2)})


def resized(**init):
    def make(d):
        return Case(
            (d.floats((1, 2, 5, 4)),),
            (d.choice((10, 8), (7, 9), (3, 3)),),
            {"align_corners": d.flag(), **init},
        )

    return make


def upsampled(count, mode, d):
    align = None if mode == "nearest" else d.flag()
    sizes = (9, 7, 6)[:count]
    more = (sizes, None) if align is None else (sizes, None, align)
    return Case(
        (d.floats((1, 2, 5, 4, 3)[: count + 2]),),
        more,
        reference=of_torch(
            lambda x, size, *_: F.interpolate(x, size, mode=mode, align_corners=align)
        ),
    )


def grid_sample(d):
    return Case(
        (d.floats((1, 2, 5, 4)), d.floats((1, 3, 3, 2), -1.2, 1.2)),
        (d.number(0, 1), d.number(0, 1), d.flag()),
        reference=of_torch(
            lambda x, grid, mode, pad, align: F.grid_sample(
                x, grid, ("bilinear", "nearest")[mode], ("zeros", "border")[pad], align
            )
        ),
    )


def boxes_of(d, count=12):
    corners = d.floats((count, 2), 0, 10)
    return np.concatenate([corners, corners + d.floats((count, 2), 1, 5)], 1)


def suppressed(boxes, scores, most, overlap, least):
    """Greedy suppression in plain Python."""
    kept = []
    for place in np.argsort(-scores, kind="stable"):
        if (
            scores[place] > least
            and len(kept) < most
            and all(iou(boxes[place], boxes[other]) <= overlap for other in kept)
        ):
            kept.append(place)
    return np.array(kept, np.int32)


def iou(one, other):
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    common = np.prod(np.maximum(sides, 0))
    return common / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - common)


def nms(d):
    return Case(
        (boxes_of(d), d.distinct((12,)) + 4),
        (np.array(5, np.int32), np.array(0.3, np.float32), np.array(0.5, np.float32)),
        reference=suppressed,
    )


def nms_with_mask(d):
    scores = d.distinct((12, 1)) + 4
    return Case((np.concatenate([boxes_of(d), scores], 1),), init={"iou_threshold": 0.4})


def filled(function, **kind):
    return lambda d: Case(
        (),
        ((2, 3), d.choice(43, 34)),
        reference=lambda size, dtype: function(size, dtype={43: np.float32, 34: np.int32}[dtype]),
    )


def alike(function):
    return lambda d: Case((d.choice(d.floats, d.whole)(),), reference=function)


def three_tensors(d):
    x = d.floats((2, 3))
    return (x, d.floats((2, 3)), d.floats((2, 3)))


SHAPES = {
    "Reshape": reshaped,
    "Flatten": lambda d: Case((d.floats(d.shape(2, 4)),)),
    "FlattenExt": lambda d: Case(
        (d.floats((2, 3, 4)),), d.choice((0, -1), (1, 2), (0, 1)), reference=of_torch(torch.flatten)
    ),
    "ExpandDims": along(),
    "Squeeze": lambda d: Case((d.floats((2, 1, 3, 1)),), init={"axis": d.choice((), 1, (1, 3))}),
    "Transpose": lambda d: Case((x := d.floats(),), (d.permutation(x.ndim),)),
    "TransposeExtView": lambda d: Case(
        (d.floats((2, 3, 4)),), (0, -1), reference=of_torch(torch.transpose)
    ),
    "TExt": lambda d: Case((d.floats((2, 3)),), reference=of_torch(torch.t)),
    "Concat": lambda d: Case((three_tensors(d),), init={"axis": d.choice(0, 1, -1)}),
    "Stack": lambda d: Case((three_tensors(d),), init={"axis": d.choice(0, 1, -1)}),
    "StackExt": lambda d: Case(
        (three_tensors(d),), (1,), reference=lambda parts, axis: np.stack(parts, axis)
    ),
    "BroadcastTo": lambda d: Case(
        (d.floats((1, 3)),), init={"shape": d.choice((2, 3), (4, 2, -1))}
    ),
    "ExpandAs": lambda d: Case(
        (d.floats((1, 3)), d.floats((2, 3))), reference=of_torch(lambda x, y: x.expand_as(y))
    ),
    "ViewAs": lambda d: Case(
        (d.floats((2, 3)), d.floats((6,))), reference=of_torch(lambda x, y: x.view_as(y))
    ),
    "Tile": lambda d: Case((d.floats((2, 3)),), (d.choice((1, 2), (2, 1, 2)),)),
    "RepeatInterleaveInt": lambda d: Case(
        (d.floats((2, 3)),), (2, d.choice(None, 0, -1)), reference=of_torch(torch.repeat_interleave)
    ),
    "ReverseV2": lambda d: Case((x := d.floats(),), init={"axis": (d.axis(x),)}),
    "Roll": lambda d: Case((d.floats((3, 4)),), ((1, -2), (0, 1)), reference=of_torch(torch.roll)),
    "Cast": lambda d: Case(
        (d.floats(),),
        (d.choice(34, 35, 42),),
        reference=lambda x, kind: x.astype({34: np.int32, 35: INT64, 42: np.float16}[kind]),
    ),
    "ToDtype": lambda d: Case((d.whole(),), (43,), reference=lambda x, _: x.astype(np.float32)),
    "TypeAs": lambda d: Case((d.whole(), d.floats()), reference=lambda x, y: x.astype(y.dtype)),
    "DepthToSpace": lambda d: Case((d.floats((1, 8, 2, 3)),), init={"block_size": 2}),
    "SpaceToDepth": lambda d: Case((d.floats((1, 2, 4, 6)),), init={"block_size": 2}),
    "PixelShuffle": lambda d: Case(
        (d.floats((1, 8, 2, 3)),), (2,), reference=of_torch(F.pixel_shuffle)
    ),
    "ChannelShuffle": lambda d: Case(
        (d.floats((1, 6, 2, 2)),), (2,), reference=of_torch(F.channel_shuffle)
    ),
}
SLICES = {
    "StridedSlice": sliced,
    "Slice": lambda d: Case((d.floats((3, 4, 5)),), ((1, 0, 2), d.choice((2, 3, 2), (1, -1, -1)))),
    "SliceExt": lambda d: Case(
        (d.floats((3, 6)),), (1, 1, 5, 2), reference=lambda x, *_: x[:, 1:5:2]
    ),
    "Narrow": lambda d: Case((d.floats((3, 6)),), (1, 2, 3), reference=of_torch(torch.narrow)),
    "SelectExtView": lambda d: Case((d.floats((3, 6)),), (1, -2), reference=of_torch(torch.select)),
    "Split": lambda d: Case(
        (d.floats((4, 6)),), init={"axis": d.choice(0, 1, -1), "output_num": 2}
    ),
    "SplitV": lambda d: Case(
        (d.floats((4, 6)),),
        init={"size_splits": (1, 3), "split_dim": 0},
        reference=of_torch(lambda x: torch.split(x, (1, 3))),
    ),
    "SplitWithSize": lambda d: Case(
        (d.floats((4, 6)),), ((1, 5), 1), reference=of_torch(torch.split)
    ),
    "SplitTensor": lambda d: Case((d.floats((4, 5)),), (2, 1), reference=of_torch(torch.split)),
    "Chunk": lambda d: Case(
        (d.floats((4, 5)),), (d.number(1, 4), 1), reference=of_torch(torch.chunk)
    ),
    "Unstack": lambda d: Case((d.floats((3, 4)),), init={"axis": d.choice(0, 1)}),
    "UnstackExtView": lambda d: Case((d.floats((3, 4)),), (1,), reference=of_torch(torch.unbind)),
    "ConstantPadND": lambda d: Case(
        (d.floats((2, 3)),),
        ((1, 0, 2, 1), 1.5),
        reference=of_torch(lambda x, pads, value: F.pad(x, pads, "constant", value)),
    ),
    **{f"ReflectionPad{count}D": partial(padded, "reflect") for count in (1, 2, 3)},
    **{f"ReplicationPad{count}D": partial(padded, "replicate") for count in (1, 2, 3)},
    "PadV3": pad_v3,
    "Pad": lambda d: Case((d.floats((2, 3)),), init={"paddings": ((1, 2), (0, 1))}),
    "MirrorPad": lambda d: Case(
        (d.floats((3, 4)), np.array([[1, 2], [0, 1]], INT64)),
        init={"mode": d.choice("REFLECT", "SYMMETRIC")},
    ),
    "Im2ColExt": lambda d: Case(
        (d.floats((2, 3, 6, 5)),), ((3, 2), 1, 1, 2), reference=of_torch(F.unfold)
    ),
}
INDEXING = {
    "Gather": gathered,
    "IndexSelect": lambda d: Case(
        (d.floats((4, 3)),), (0, d.whole((2,), 0, 3)), reference=of_torch(torch.index_select)
    ),
    "Embedding": lambda d: Case(
        (d.whole((2, 3), 0, 4), d.floats((5, 6))),
        (d.choice(None, 1), None, 2.0, False),
        reference=of_torch(F.embedding),
    ),
    "EmbeddingLookup": lambda d: Case((d.floats((5, 4)), d.whole((2, 3), -1, 7)), (1,)),
    "GatherD": lambda d: Case(
        (d.floats((4, 3)),), (0, d.whole((2, 3), 0, 3, INT64)), reference=of_torch(torch.gather)
    ),
    "GatherNd": lambda d: Case((d.floats((4, 3, 2)), d.whole((5, 2), 0, 2))),
    "Take": lambda d: Case(
        (d.floats((4, 3)), d.whole((5,), 0, 11, INT64)), reference=of_torch(torch.take)
    ),
    "Index": lambda d: Case(
        (d.floats((4, 3, 2)), (d.whole((5,), 0, 3), d.whole((5,), 0, 2))),
        reference=lambda x, places: x[places],
    ),
    "IndexAddExt": lambda d: Case(
        (d.floats((4, 3)),),
        (0, np.array([0, 2]), d.floats((2, 3)), 2.0),
        reference=of_torch(lambda x, dim, i, s, a: torch.index_add(x, dim, i, s, alpha=a)),
    ),
    "MaskedSelect": lambda d: Case((d.floats((3, 4)), d.bools((3, 4)))),
    "NonZero": lambda d: Case((d.whole((3, 4), 0, 1),)),
    "OneHot": lambda d: Case(
        (d.whole((2, 3), 0, 4),),
        (5, np.float32(2), np.float32(-1), -1),
        reference=lambda x, depth, on, off, axis: np.where(
            x[..., None] == np.arange(depth), on, off
        ),
    ),
    "ReverseSequence": lambda d: Case(
        (d.floats((4, 3)), d.whole((3,), 1, 4, INT64)), init={"seq_dim": 0, "batch_dim": 1}
    ),
    "Scatter": scatter_case,
    "ScatterAddExt": lambda d: Case(
        (parts := elements(d))[:1], (0, *parts[1:]), reference=of_torch(torch.scatter_add)
    ),
    "TensorScatterElements": lambda d: Case(
        elements(d), init={"axis": 0, "reduce": d.choice("none", "add")}
    ),
    "ScatterNd": lambda d: Case((d.whole((4, 1), 0, 2), d.floats((4, 3))), ((5, 3),)),
    **{
        f"TensorScatter{name}": partial(scattered_nd, name)
        for name in ("Add", "Max", "Min", "Mul", "Sub", "Update")
    },
    "SearchSorted": lambda d: Case(
        (np.sort(d.floats((6,))), d.floats((2, 3))),
        (None, 35, d.flag()),
        reference=of_torch(lambda s, v, _, kind, right: torch.searchsorted(s, v, right=right)),
    ),
    "SequenceMask": lambda d: Case(
        (d.whole((3,), 0, 5),), (5,), reference=lambda x, most: np.arange(most) < x[:, None]
    ),
    "TrilExt": lambda d: Case(
        (d.floats((4, 5)),), (d.number(-2, 2),), reference=of_torch(torch.tril)
    ),
    "Tril": triangle_attribute,
    "Triu": triangle_attribute,
    "UnsortedSegmentSum": lambda d: Case((d.floats((4, 3)), d.whole((4,), 0, 2)), (4,)),
    "Diagonal": lambda d: Case(
        (d.floats((2, 3, 4)),), (d.number(-2, 2), 1, 2), reference=of_torch(torch.diagonal)
    ),
}
IMAGES = {
    "ResizeBilinearV2": resized(),
    "ResizeNearestNeighborV2": resized(),
    "ResizeNearestNeighbor": lambda d: Case((d.floats((1, 2, 5, 4)),), init={"size": (10, 8)}),
    "ResizeBicubic": lambda d: Case(
        (d.floats((1, 2, 5, 4)),),
        (d.choice((7, 9), (3, 2)),),
        d.choice({}, {"align_corners": True}, {"half_pixel_centers": True}),
    ),
    "ResizeLinear1D": lambda d: Case(
        (d.floats((1, 2, 5)),),
        ((9,), d.number(1, 2)),
        reference=of_torch(
            lambda x, size, how: F.interpolate(x, size, mode="linear", align_corners=how == 1)
        ),
    ),
    "UpsampleNearest2D": partial(upsampled, 2, "nearest"),
    "UpsampleBilinear2D": partial(upsampled, 2, "bilinear"),
    "UpsampleTrilinear3D": partial(upsampled, 3, "trilinear"),
    "UpsampleBicubic2D": partial(upsampled, 2, "bicubic"),
    "GridSampler2D": grid_sample,
    "NonMaxSuppressionV3": nms,
    "NMSWithMask": nms_with_mask,
    "ROIAlign": lambda d: Case(
        (d.floats((1, 2, 8, 8)), np.array([[0, 1.0, 1.0, 5.0, 6.0]], np.float32)),
        init={
            "pooled_height": 2,
            "pooled_width": 2,
            "spatial_scale": 1.0,
            "sample_num": 2,
            "roi_end_mode": 0,
        },
    ),
}
CREATION = {
    "Arange": lambda d: Case(
        (), (d.number(0, 2), d.number(5, 9), d.number(1, 2)), reference=np.arange
    ),
    "Range": lambda d: Case(
        (),
        (np.array(1, np.int32), np.array(7, np.int32), np.array(2, np.int32)),
        reference=lambda *given: np.arange(*given, dtype=np.int32),
    ),
    "Eye": lambda d: Case(
        (),
        (d.number(1, 4), d.number(1, 4), 43),
        reference=lambda n, m, _: np.eye(n, m, dtype=np.float32),
    ),
    "Eps": lambda d: Case((d.floats(),)),
    "Fill": lambda d: Case(
        (), (43, (2, 3), 1.5), reference=lambda _, size, value: np.full(size, value, np.float32)
    ),
    "FillScalar": lambda d: Case(
        (), ((2, 3), 1.5), reference=lambda size, value: np.full(size, value, np.float32)
    ),
    "Fills": lambda d: Case((d.floats(),), (2.5,), reference=lambda x, v: np.full_like(x, v)),
    "FullLike": lambda d: Case((d.floats(),), (2.5,), reference=lambda x, v: np.full_like(x, v)),
    "NewFull": lambda d: Case(
        (d.floats(),), ((2, 3), 2.5), reference=lambda x, size, v: np.full(size, v, np.float32)
    ),
    "NewOnes": lambda d: Case((d.whole(),), ((2, 3),), reference=lambda x, s: np.ones(s, np.int32)),
    "NewZeros": lambda d: Case(
        (d.whole(),), ((2, 3),), reference=lambda x, s: np.zeros(s, np.int32)
    ),
    "LinSpace": lambda d: Case(
        (),
        (np.float32(1), np.float32(3), d.number(1, 6)),
        reference=lambda *given: np.linspace(*given, dtype=np.float32),
    ),
    "Meshgrid": lambda d: Case(
        ((d.floats((2,)), d.floats((3,))),),
        (d.choice("xy", "ij"),),
        reference=lambda parts, how: list(
            map(np.ascontiguousarray, np.meshgrid(*parts, indexing=how))
        ),
    ),
    "Ones": filled(np.ones),
    "Zeros": filled(np.zeros),
    "OnesLike": alike(np.ones_like),
    "OnesLikeExt": alike(np.ones_like),
    "ZerosLike": alike(np.zeros_like),
    "ZerosLikeExt": alike(np.zeros_like),
    "Rank": lambda d: Case((d.floats(),), reference=lambda x: INT64(x.ndim)),
    "ScalarToTensor": lambda d: Case((), (2, 43), reference=lambda x, _: np.float32(x)),
    "TensorToScalar": lambda d: Case((d.whole((1,)),), reference=lambda x: x[0]),
    "TensorToTuple": lambda d: Case((d.whole((3,)),), reference=tuple),
}
TUPLES = {
    "Depend": lambda d: Case((d.floats(), d.floats()), reference=lambda x, _: x),
    "Load": lambda d: Case((d.floats(), d.floats()), reference=lambda x, _: x),
    "MakeTuple": lambda d: Case((d.floats(), d.floats()), reference=lambda *parts: parts),
    "TupleGetItem": lambda d: Case(
        ((d.floats(), d.floats()),),
        (d.choice(0, 1, -1),),
        reference=lambda parts, place: parts[place],
    ),
    "ListAppend": lambda d: Case(
        ((d.floats(),), d.floats()), reference=lambda parts, x: (*parts, x)
    ),
    "SequenceAdd": lambda d: Case(((d.floats(),), (d.floats(),)), reference=lambda x, y: x + y),
    "SequenceMul": lambda d: Case(((d.floats(),),), (2,), reference=lambda x, count: x * count),
    "SequenceSlice": lambda d: Case(
        (three_tensors(d),), (0, 3, 2), reference=lambda x, a, b, c: x[a:b:c]
    ),
    "Shape": lambda d: Case((d.floats((2, 3)),), reference=lambda x: tuple(map(INT64, x.shape))),
    "Size": lambda d: Case((d.floats((2, 3)),), reference=lambda x: INT64(x.size)),
    "TensorShape": lambda d: Case((d.floats((2, 3)),), reference=lambda x: np.array(x.shape)),
    "list_to_tuple": lambda d: Case(((d.floats(),),), reference=lambda x: x),
    "make_range": lambda d: Case(
        (), (1, d.number(2, 5)), reference=lambda a, b: tuple(map(INT64, range(a, b)))
    ),
    "sequence_len": lambda d: Case(((d.floats(), d.floats()),), reference=lambda x: INT64(len(x))),
}
CASES = {**SHAPES, **SLICES, **INDEXING, **IMAGES, **CREATION, **TUPLES}
