"""Cases of scans, special functions, linear algebra, losses, medians, windows and attention."""

import numpy as np
import scipy.special
import torch

from tests.mindir.cases_elements import of_torch
from tests.mindir.drawing import Case

F = torch.nn.functional


def cum_prod(d):
    x = d.floats(d.shape(1, 3), -2, 2)
    return Case((x,), (d.axis(x),), {"exclusive": d.flag(), "reverse": d.flag()})


def cum_log_sum_exp(d):
    x = d.floats(d.shape(1, 3), -9, 9)
    return Case((x,), (np.array(d.axis(x), np.int32),), {"reverse": d.flag()})


def cum_extreme(d):
    """With equal elements, of which the position of the last counts."""
    x = d.whole(d.shape(1, 3), -2, 2).astype(np.float32)
    return Case((x,), (), {"axis": d.axis(x)})


def cummin_ext(d):
    x = d.whole(d.shape(1, 3), -2, 2).astype(np.float32)
    return Case((x,), (d.axis(x),), reference=lambda *one: tuple(of_torch(torch.cummin)(*one)))


def of_scipy(function, low=-3.0, high=3.0, edges=()):
    """Random numbers, and the poles and ends of a function."""

    def make(d):
        x = np.concatenate([d.floats((9,), low, high), np.array(edges, np.float32)])
        return Case((x,), reference=lambda x: function(x).astype(np.float32))

    return make


def hypot(d):
    return Case(tuple(d.pair(-3, 3)), reference=np.hypot)


def cross(d):
    shape = (*d.shape(1, 2), 3)
    return Case((d.floats(shape), d.floats(shape)), (), {"dim": d.choice(-1, len(shape) - 1)})


def matrices(reference=None):
    def make(d):
        size = d.number(2, 5)
        x = d.floats((*d.shape(1, 2), size, size), -1, 1) + 2 * np.eye(size, dtype=np.float32)
        return Case((x,), reference=reference)

    return make


def determinant(reference, is_singular=False):
    """Of matrices that need their rows exchanged, and of those without an inverse."""

    def make(d):
        size = d.number(1, 6)
        x = d.floats((*d.shape(1, 2), size, size), -2, 2)
        x[..., 0, 0] = 0
        if is_singular and d.flag():
            x[..., 0, :] = 0
        return Case((x,), reference=of_torch(reference))

    return make


def diag_ext(d):
    return Case((d.floats(d.shape(1, 2)),), (d.number(-2, 2),), reference=of_torch(torch.diag))


def trace(reference=None):
    return lambda d: Case((d.floats((d.number(1, 4), d.number(1, 4))),), reference=reference)


def square(d):
    size = d.number(1, 4)
    return Case((d.floats((size, size)),))


def kl_div_loss(d):
    shape = d.shape(1, 3)
    target = np.maximum(d.floats(shape, -0.3, 1), 0)
    return Case((d.floats(shape), target), (), {"reduction": d.choice("none", "mean", "sum")})


def kl_div(d):
    shape, reduction, is_log = d.shape(1, 3), d.number(0, 2), d.flag()

    def reference(x, target, *_):
        x, target = torch.from_numpy(x), torch.from_numpy(target)
        loss = F.kl_div(x, target, reduction="none", log_target=is_log)
        return (loss.sum(), loss.mean(), loss)[reduction]

    target = d.floats(shape, 0, 1)
    return Case((d.floats(shape), target), (reduction, is_log), reference=reference)


def smooth_l1(d):
    shape, beta, reduction = d.shape(1, 3), d.choice(0.5, 1.0, 2.0), d.number(0, 2)
    name = ("sum", "mean", "none")[reduction]

    def reference(x, target, *_):
        x, target = torch.from_numpy(x), torch.from_numpy(target)
        return F.smooth_l1_loss(x, target, reduction=name, beta=beta)

    return Case((d.floats(shape), d.floats(shape)), (beta, reduction), reference=reference)


def nll_loss(*tail):
    def make(d):
        batch, classes, reduction = d.number(2, 4), d.number(2, 4), d.number(0, 2)
        name = ("sum", "mean", "none")[reduction]
        labels = d.whole((batch, *tail), 0, classes - 1, np.int64)
        labels.flat[0] = -100
        weight = d.floats((classes,), 0.5, 2)

        def reference(x, y, w, *_):
            made = [torch.from_numpy(one) for one in (x, y, w)]
            loss = F.nll_loss(made[0], made[1], made[2], reduction=name)
            used = y[y != -100]
            return loss, np.float32(0 if name == "none" else w[used].sum())

        x = d.floats((batch, classes, *tail))
        return Case((x, labels, weight), (reduction, -100), reference=reference)

    return make


def segments(d):
    x = d.floats((d.number(2, 6), 3))
    return Case((x, d.whole(x.shape[:1], 0, 3)), (5,))


def median_dim(d):
    """Of distinct numbers: of equal ones any position will do."""
    x = d.distinct()
    return Case((x,), (d.axis(x), d.flag()), reference=of_torch(torch.median))


def median(d):
    x = d.distinct()
    init = {"global_median": False, "axis": d.axis(x), "keep_dims": d.flag()}
    return Case((x,), (), init)


def unique(d):
    return Case((d.whole((d.choice(1, 9, 3000),), -40, 40),))


def unique2(d):
    x = d.whole(d.shape(1, 3), -3, 3)
    return Case((x,), (True, True, True), reference=of_numpy_unique)


def of_numpy_unique(x, *_):
    values, places, counts = np.unique(x, return_inverse=True, return_counts=True)
    return values, places.reshape(x.shape), counts


def unique_dim(d):
    x = d.whole((d.number(1, 5), 2), 0, 1)

    def reference(x, *_):
        return torch.unique(
            torch.from_numpy(x), sorted=True, return_inverse=True, return_counts=True, dim=0
        )

    return Case((x,), (True, True, 0), reference=reference)


def ctc_greedy_decoder(d):
    times, batch, classes = d.number(2, 6), d.number(1, 3), d.number(2, 4)
    lengths = d.whole((batch,), 1, times)
    init = {"merge_repeated": d.flag()}
    return Case((d.floats((times, batch, classes)), lengths), (), init)


def im2col(d):
    x = d.floats((d.number(1, 2), d.number(1, 3), 7, 6))
    init = {
        "ksizes": (d.number(1, 3), 2), "strides": d.number(1, 2), "dilations": (1, d.number(1, 2)),
        "pads": (d.number(0, 1), d.number(0, 1)),
    }  # fmt: skip
    return Case((x,), (), init)


def folding(d):
    """(kernel, dilation, padding, stride), and how many places there are for a picture of 7, 6."""
    kernel, dilation = (d.number(1, 3), 2), (1, d.number(1, 2))
    padding, stride = (d.number(0, 1), d.number(0, 1)), (d.number(1, 2),) * 2
    count = 1
    for axis, size in enumerate((7, 6)):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        count *= (size + 2 * padding[axis] - reach) // stride[axis] + 1
    return kernel, dilation, padding, stride, count


def col2im(d):
    kernel, dilation, padding, stride, count = folding(d)
    x = d.floats((2, 3, kernel[0] * kernel[1], count))
    init = {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": stride}
    return Case((x,), (np.array([7, 6], np.int32),), init)


def col2im_ext(d):
    kernel, dilation, padding, stride, count = folding(d)
    x = d.floats((2, 3 * kernel[0] * kernel[1], count))
    return Case((x,), ((7, 6), kernel, dilation, padding, stride), reference=of_torch(F.fold))


def crop_and_resize(d):
    x = d.floats((2, d.number(2, 5), d.number(2, 5), 2))
    boxes = d.floats((3, 4), -0.2, 1.2)
    more = (boxes, d.whole((3,), 0, 1), (d.number(1, 4), d.number(1, 4)))
    init = {"method": d.choice("bilinear", "nearest"), "extrapolation_value": 0.5}
    return Case((x,), more, init)


def deformable_offsets(d):
    """The samples of an offset that is a whole number of pixels, and of others."""
    groups, is_modulated = d.number(1, 2), True
    x = d.floats((2, 2 * groups, 6, 5))
    offsets = d.floats((2, 3 * groups * 3 * 2, 6, 4), -1.5, 1.5)
    init = {
        "strides": (1, 1, 1, 1), "pads": (1, 1, 0, 0), "ksize": (3, 2), "dilations": (1, 1, 1, 1),
        "data_format": "NCHW", "deformable_groups": groups, "modulated": is_modulated,
    }  # fmt: skip
    return Case((x, offsets), (), init)


def flash_attention(d):
    return attention(d, d.number(0, 3), d.choice(0, 1, 2, 3))


def attention(d, layout, sparse):
    """Of a number of FASInputLayoutMode and of a `sparse_mode`."""
    batch, heads, groups, size, queries, keys = 2, 2, 2, 4, 3, 5
    shapes = []
    for tokens, count in ((queries, heads * groups), (keys, heads), (keys, heads)):
        shapes.append(
            [
                (batch, tokens, count * size),
                (batch, count, tokens, size),
                (tokens, batch, count * size),
                (batch, tokens, count, size),
            ][layout]  # fmt: skip
        )
    arrays = tuple(d.floats(shape) for shape in shapes)
    mask = d.bools((queries, keys)).astype(np.uint8) if sparse < 2 else None
    if mask is not None:
        mask[:, 0] = 0  # every query sees a key
    rest = (heads * groups, 1.0, 0.5, 2147483647, 2147483647, 0, layout, sparse)
    more = (None, None, None, mask, None, None, None, *rest)

    def reference(q, k, v, *_):
        q, k, v = (heads_first(torch.from_numpy(one), layout, size) for one in (q, k, v))
        k, v = (one.repeat_interleave(groups, 1) for one in (k, v))
        hidden = torch.zeros(queries, keys, dtype=torch.bool)
        if mask is not None:
            hidden = torch.from_numpy(mask).bool()
        elif sparse > 1:
            shift = keys - queries if sparse == 3 else 0
            hidden = ~torch.ones(queries, keys, dtype=torch.bool).tril(shift)
        products = (q @ k.transpose(2, 3) * 0.5).masked_fill(hidden, -torch.inf)
        return heads_back(products.softmax(-1) @ v, layout)

    return Case(arrays, more, reference=reference)


def heads_first(x, layout, size):
    if layout in (0, 2):
        x = x.reshape(*x.shape[:2], -1, size)
    return x.permute(*{0: (0, 2, 1, 3), 1: (0, 1, 2, 3), 2: (1, 2, 0, 3), 3: (0, 2, 1, 3)}[layout])


def heads_back(x, layout):
    x = x.permute(*{0: (0, 2, 1, 3), 1: (0, 1, 2, 3), 2: (2, 0, 1, 3), 3: (0, 2, 1, 3)}[layout])
    return x.reshape(*x.shape[:2], -1) if layout in (0, 2) else x


CASES = {
    "BesselI0": of_scipy(scipy.special.i0, -9, 9),
    "BesselI0e": of_scipy(scipy.special.i0e, -90, 90),
    "BesselI1": of_scipy(scipy.special.i1, -9, 9),
    "BesselI1e": of_scipy(scipy.special.i1e, -90, 90),
    "CTCGreedyDecoder": ctc_greedy_decoder,
    "Col2Im": col2im,
    "Col2ImExt": col2im_ext,
    "CropAndResize": crop_and_resize,
    "Cross": cross,
    "CumProd": cum_prod,
    "Cummax": cum_extreme,
    "Cummin": cum_extreme,
    "CumminExt": cummin_ext,
    "CumulativeLogsumexp": cum_log_sum_exp,
    "DeformableOffsets": deformable_offsets,
    "Diag": lambda d: Case((d.floats(d.shape(1, 2)),)),
    "DiagExt": lambda d: Case(
        (d.floats(d.shape(1, 2)),), (d.number(-1, 1),), reference=of_torch(torch.diag)
    ),
    "DiagPart": square,
    "Digamma": of_scipy(scipy.special.digamma, -4.4, 9, (0, -1, 1, np.inf, np.nan)),
    "Erfinv": of_scipy(scipy.special.erfinv, -0.9999, 0.9999, (0, 1, -1, 2, np.nan)),
    "FlashAttentionScore": flash_attention,
    "Hypot": hypot,
    "Im2Col": im2col,
    "KLDiv": kl_div,
    "KLDivLoss": kl_div_loss,
    "Lgamma": of_scipy(scipy.special.gammaln, -4.4, 30, (0, -1, 1, 2, np.inf, np.nan)),
    "LogMatrixDeterminant": determinant(lambda x: tuple(torch.linalg.slogdet(x))),
    "MatrixDeterminant": determinant(torch.linalg.det, is_singular=True),
    "MatrixInverse": matrices(),
    "MatrixInverseExt": matrices(of_torch(torch.linalg.inv)),
    "Median": median,
    "MedianDim": median_dim,
    "MedianExt": lambda d: Case((d.distinct(),), reference=of_torch(torch.median)),
    "NLLLoss": nll_loss(),
    "NLLLoss2d": nll_loss(2, 3),
    "SmoothL1Loss": smooth_l1,
    "Trace": trace(),
    "TraceExt": lambda d: Case(
        (d.floats((d.number(1, 4), d.number(1, 4))),), reference=of_torch(torch.trace)
    ),
    "Unique": unique,
    "Unique2": unique2,
    "UniqueDim": unique_dim,
    "UnsortedSegmentMax": segments,
    "UnsortedSegmentMin": segments,
    "UnsortedSegmentProd": segments,
}
