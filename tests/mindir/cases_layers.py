"""Cases of operators that make layers: convolution, pooling, norms, products, reductions."""

from dataclasses import replace
from functools import partial

import mindspore
import numpy as np
import torch

from tests.mindir.cases_elements import F, of_torch
from tests.mindir.drawing import Case


def conv2d(d):
    group = d.choice(1, 2)
    x, weight = d.floats((2, 4, 7, 8)), d.floats((6, 4 // group, 3, 2))
    mode = d.choice("valid", "same", "pad")
    init = {
        "out_channel": 6,
        "kernel_size": (3, 2),
        "pad_mode": mode,
        "group": group,
        "pad": (1, 0, 2, 1) if mode == "pad" else 0,
        "stride": d.choice(1, (2, 1)),
        "dilation": d.choice(1, 2),
    }
    return Case((x, weight), init=init)


def conv3d(d):
    mode = d.choice("valid", "same", "pad")
    init = {
        "out_channel": 4,
        "kernel_size": 2,
        "pad_mode": mode,
        "stride": d.choice(1, 2),
        "pad": 1 if mode == "pad" else 0,
    }
    return Case((d.floats((1, 2, 5, 4, 4)), d.floats((4, 2, 2, 2, 2))), init=init)


def torch_conv(count, function, d):
    group = d.choice(1, 2)
    x, weight = d.floats((2, 4, *[6] * count)), d.floats((4, 4 // group, *[3] * count))
    more = (d.choice(1, 2), d.choice(0, 1), d.choice(1, 2), group)
    return Case((x, weight, d.floats((4,))), more, reference=of_torch(function))


def padded_conv(function):
    count = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}[function]

    def make(d):
        x, weight = d.floats((2, 4, *[6] * count)), d.floats((4, 4, *[3] * count))
        mode = d.choice("same", "valid")
        return Case((x, weight, d.floats((4,))), (1, mode, 1, 1), reference=of_torch(function))

    return make


def transposed(d):
    group = d.choice(1, 2)
    x, weight = d.floats((2, 4, 5, 5)), d.floats((4, 3, 3, 3))
    more = (d.choice(1, 2), d.choice(0, 1), 0, group, d.choice(1, 2))
    return Case((x, weight, d.floats((3 * group,))), more, reference=of_torch(F.conv_transpose2d))


def convolution(d):
    x, weight = d.floats((2, 4, 5, 5)), d.floats((4, 4, 3, 3))
    is_transposed = d.flag()
    more = ((2, 2), (1, 1), (1, 1), is_transposed, (0, 0), 1)
    return Case((x, weight, d.floats((4,))), more, reference=of_torch(torch.convolution))


def backprop_input(d):
    mode = d.choice("valid", "same")
    size = {"valid": 11, "same": 10}[mode]
    init = {"out_channel": 4, "kernel_size": 3, "pad_mode": mode, "stride": 2}
    return Case((d.floats((1, 4, 5, 5)), d.floats((4, 2, 3, 3))), ((1, 2, size, size),), init)


def conv3d_transpose(d):
    init = {
        "in_channel": 4,
        "out_channel": 2,
        "kernel_size": 3,
        "stride": 2,
        "pad_mode": "pad",
        "pad": 1,
    }
    return Case((d.floats((1, 4, 3, 3, 3)), d.floats((4, 2, 3, 3, 3))), init=init)


def depthwise(d):
    return Case(
        (d.floats((1, 4, 6, 6)), d.floats((1, 4, 3, 3))),
        init={"pad_mode": "valid", "stride": 1},
        reference=of_torch(lambda x, w: F.conv2d(x, w.transpose(0, 1), groups=4)),
    )


def pool(d):
    init = {
        "kernel_size": d.choice(2, (3, 2)),
        "strides": d.choice(1, 2),
        "pad_mode": d.choice("valid", "same"),
    }
    return Case((d.floats((2, 3, 7, 8)),), init=init)


def pool3d(**fixed):
    def make(d):
        init = {"kernel_size": 2, "strides": d.choice(1, 2), "pad_mode": d.choice("valid", "same")}
        return Case((d.floats((1, 2, 5, 6, 4)),), init={**init, **fixed})

    return make


def average_ext(count, function, d):
    more = (3, d.choice(1, 2), d.choice(0, 1), d.flag(), d.flag())
    return Case((d.floats((2, 3, *[7] * count)),), more, reference=of_torch(function))


def max_with_places(d):
    more = (3, d.choice(1, 2), d.choice(0, 1), 1, d.flag())
    return Case(
        (d.distinct((1, 2, 7, 7)),),
        more,
        reference=of_torch(lambda *given: F.max_pool2d(*given, return_indices=True)),
    )


def max_with_mask(d):
    """The mask itself is not converted."""
    return replace(max_with_places(d), reference=of_torch(F.max_pool2d))


def max_with_places_of_mint(d):
    more = (3, d.choice(1, 2), d.choice(0, 1), d.choice(1, 2), d.flag(), 35)
    return Case(
        (d.distinct((1, 2, 7, 8)),),
        more,
        reference=of_torch(lambda *given: F.max_pool2d(*given[:-1], return_indices=True)),
    )


def max_with_argmax_v2(d):
    init = {
        "kernel_size": (3, 2),
        "strides": (d.choice(1, 2), 2),
        "pads": (d.choice(0, 1), d.choice(0, 1)),
        "dilation": (d.choice(1, 2), 1),
        "ceil_mode": d.flag(),
        "argmax_type": d.choice(mindspore.int32, mindspore.int64),
    }
    return Case((d.distinct((2, 2, 7, 8)),), init=init)


def max_with_argmax_3d(d):
    init = {
        "ksize": (2, 3, 3),
        "strides": (d.choice(1, 2), 2, 1),
        "pads": (d.choice(0, 1), 1, d.choice(0, 1)),
        "dilation": (1, d.choice(1, 2), 1),
        "ceil_mode": d.flag(),
        "argmax_type": d.choice(mindspore.int32, mindspore.int64),
    }
    return Case((d.distinct((1, 2, 6, 7, 8)),), init=init)


def func_max_pool(d):
    more = (3, d.choice(1, 2), d.choice(0, 1), 1, d.flag(), False)
    return Case(
        (d.floats((1, 2, 7, 7)),),
        more,
        reference=of_torch(lambda *given: F.max_pool2d(*given[:-1])),
    )


def adaptive(count, function, choices, d):
    x = d.distinct((2, 3, *[7] * count)[d.number(0, 1) :])
    return Case((x,), (d.choice(*choices),), reference=of_torch(function))


def normal_input(d):
    shape = (2, 4, *d.shape(2, 2))
    return d.floats(shape)


def batch_norm(d):
    x = normal_input(d)
    four = [d.floats((4,)) for _ in range(3)]
    return Case(
        (x, *four, d.floats((4,), 0.5, 2)), init={"epsilon": d.choice(1e-5, 1e-3)}, reference=None
    )


def batch_norm_first(d):
    case = batch_norm(d)
    return Case(
        case.tensors,
        (False, 1e-3),
        reference=of_torch(
            lambda x, w, b, m, v, *_: (F.batch_norm(x, m, v, w, b, False, 0.1, 1e-3), w, b, m, m)
        ),
    )


def batch_norm_ext(d):
    x, w, b, m, v = batch_norm(d).tensors
    return Case(
        (x, w, b, m, v),
        (False, 0.1, 1e-5),
        reference=of_torch(lambda x, w, b, m, v, *_: (F.batch_norm(x, m, v, w, b), m, v)),
    )


def layer_norm(d):
    x = d.floats((2, 3, 4))
    axis = d.choice(-1, 1)
    shape = x.shape[axis:]
    return Case(
        (x, d.floats(shape), d.floats(shape)),
        init={"begin_norm_axis": axis, "begin_params_axis": axis, "epsilon": 1e-5},
    )


def layer_norm_ext(d):
    def reference(x, shape, w, b, eps):
        axes = tuple(range(-len(shape), 0))
        mean, var = x.mean(axes, keepdim=True), x.var(axes, unbiased=False, keepdim=True)
        return F.layer_norm(x, shape, w, b, eps), mean, var

    return Case(
        (d.floats((2, 3, 4)),),
        ((4,), d.floats((4,)), d.floats((4,)), 1e-5),
        reference=of_torch(reference),
    )


def group_norm(d):
    def reference(x, groups, w, b, eps):
        parts = x.reshape(x.shape[0], groups, -1)
        return (F.group_norm(x, groups, w, b, eps), parts.mean(2), parts.var(2, unbiased=False))

    return Case(
        (d.floats((2, 4, 3, 3)),),
        (2, d.floats((4,)), d.floats((4,)), 1e-5),
        reference=of_torch(reference),
    )


def rms(x, gamma, eps):
    root = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    return x * root * gamma, root


def lstm(d):
    hidden, width, has_bias = d.number(1, 4), d.number(1, 4), d.flag()
    count = 4 * hidden * (width + hidden + has_bias)
    state = (1, 2, hidden)
    init = {
        "input_size": width,
        "hidden_size": hidden,
        "num_layers": 1,
        "has_bias": has_bias,
        "bidirectional": False,
    }

    def reference(x, h, c, weights):
        lstm = torch.nn.LSTM(width, hidden, bias=has_bias)
        w, r, b = torch.split(
            weights.ravel(), [4 * hidden * width, 4 * hidden * hidden, 4 * hidden * has_bias]
        )
        with torch.no_grad():
            lstm.weight_ih_l0.copy_(w.reshape(-1, width))
            lstm.weight_hh_l0.copy_(r.reshape(-1, hidden))
            if has_bias:
                lstm.bias_ih_l0.copy_(b)
                lstm.bias_hh_l0.zero_()
            y, (h, c) = lstm(x, (h, c))
        return y, h, c, torch.zeros(()), torch.zeros(())

    tensors = (
        d.floats((3, 2, width)),
        d.floats(state),
        d.floats(state),
        d.floats((count, 1, 1), -1, 1),
    )
    return Case(tensors, (), init, of_torch(reference))


def matrices(d):
    a, b = d.flag(), d.flag()
    x, y = d.floats((3, 4)), d.floats((4, 5))
    return Case(
        (x.T.copy() if a else x, y.T.copy() if b else y), init={"transpose_a": a, "transpose_b": b}
    )


def batches(d):
    a = d.flag()
    x, y = d.floats((2, 3, 4)), d.floats((2, 4, 5))
    return Case((x.swapaxes(1, 2).copy() if a else x, y), init={"transpose_a": a})


def added(function, shapes, d):
    return Case(
        tuple(d.floats(shape) for shape in shapes),
        (0.5, 2.0),
        reference=of_torch(lambda *given: function(*given[:3], beta=given[3], alpha=given[4])),
    )


def product(function, *shapes):
    return lambda d: Case(tuple(d.floats(shape) for shape in shapes), reference=of_torch(function))


def reduction(kind="floats"):
    def make(d):
        x = {"floats": d.floats, "bools": d.bools}[kind]()
        axes = d.permutation(x.ndim)[: d.number(1, x.ndim)]
        return Case((x,), (d.choice(axes, ()),), {"keep_dims": d.flag()})

    return make


def reduction_ext(function, **more):
    """One axis or none, of floats or whole numbers."""

    def make(d):
        x = d.floats()
        axis, keep = d.axis(x), d.flag()
        return Case(
            (x,),
            (axis, keep),
            reference=of_torch(lambda x, axis, keep: function(x, dim=axis, keepdim=keep, **more)),
        )

    return make


def corrected(function, d):
    x = d.floats((4, 3, 5))
    return Case(
        (x,),
        ((0, 2), d.number(0, 1), d.flag()),
        reference=of_torch(
            lambda x, dim, correction, keep: function(
                x, dim=dim, correction=correction, keepdim=keep
            )
        ),
    )


def extreme(**init):
    def make(d):
        x = d.distinct()
        return Case((x,), init={"axis": d.axis(x), **{name: d.flag() for name in init}})

    return make


def extreme_ext(function, d):
    x = d.distinct()
    return Case((x,), (d.axis(x), d.flag()), reference=of_torch(function))


def top_k(d):
    x = d.distinct()
    return Case((x,), (d.number(1, x.shape[-1]),))


def sort_ext(function, d):
    x = d.distinct()
    return Case(
        (x,),
        (d.axis(x), d.flag(), False),
        reference=of_torch(lambda x, dim, down, stable: function(x, dim=dim, descending=down)),
    )


CASES = {
    "Conv2D": conv2d,
    "Conv3D": conv3d,
    "Conv2DExt": partial(torch_conv, 2, F.conv2d),
    "Conv2DPadding": padded_conv(F.conv2d),
    "Conv2DBackpropInput": backprop_input,
    "Conv3DTranspose": conv3d_transpose,
    "ConvTranspose2D": transposed,
    "Convolution": convolution,
    "DepthwiseConv2dNative": depthwise,
    "MaxPool": pool,
    "AvgPool": pool,
    "MaxPool3D": pool3d(),
    "AvgPool3D": pool3d(),
    "AvgPool1D": partial(average_ext, 1, F.avg_pool1d),
    "AvgPool2D": partial(average_ext, 2, F.avg_pool2d),
    "AvgPool3DExt": partial(average_ext, 3, F.avg_pool3d),
    "MaxPool3DWithArgmax": max_with_argmax_3d,
    "MaxPoolWithArgmaxV2": max_with_argmax_v2,
    "MaxPoolWithIndices": lambda d: d.choice(max_with_places, max_with_places_of_mint)(d),
    "MaxPoolWithMask": max_with_mask,
    "FuncMaxPool2D": func_max_pool,
    "AdaptiveAvgPool1D": partial(adaptive, 1, F.adaptive_avg_pool1d, (1, 3)),
    "AdaptiveAvgPool2D": partial(adaptive, 2, F.adaptive_avg_pool2d, ((1, 1), (3, 2))),
    "AdaptiveAvgPool2DExt": partial(adaptive, 2, F.adaptive_avg_pool2d, ((1, 1), (3, 2))),
    "AdaptiveAvgPool3D": partial(adaptive, 3, F.adaptive_avg_pool3d, ((1, 1, 1), (3, 2, 4))),
    "AdaptiveAvgPool3DExt": partial(adaptive, 3, F.adaptive_avg_pool3d, ((1, 1, 1), (3, 2, 4))),
    "AdaptiveMaxPool1D": lambda d: Case(
        (d.distinct((2, 3, 7)),),
        (3,),
        reference=of_torch(lambda x, size: F.adaptive_max_pool1d(x, size, return_indices=True)),
    ),
    "AdaptiveMaxPool2D": lambda d: Case(
        (d.distinct((2, 3, 7, 6)),),
        ((3, 2),),
        reference=of_torch(lambda x, size: F.adaptive_max_pool2d(x, size, return_indices=True)),
    ),
    "LRN": lambda d: Case((d.floats((1, 6, 3, 3)),), init={"depth_radius": 2, "alpha": 0.1}),
    "BatchNorm": batch_norm_first,
    "BatchNormExt": batch_norm_ext,
    "LayerNorm": layer_norm,
    "LayerNormExt": layer_norm_ext,
    "GroupNorm": group_norm,
    "InstanceNorm": lambda d: Case(
        (d.floats((2, 3, 4, 4)), d.floats((3,)), d.floats((3,))),
        (),
        {"epsilon": 1e-5},
        of_torch(
            lambda x, w, b: (
                F.instance_norm(x, weight=w, bias=b),
                x.mean((2, 3), keepdim=True),
                x.var((2, 3), unbiased=False, keepdim=True),
            )
        ),
    ),
    "RmsNorm": lambda d: Case(
        (d.floats((2, 3, 4)), d.floats((4,))), (1e-6,), reference=of_torch(rms)
    ),
    "AddRmsNorm": lambda d: Case(
        (d.floats((2, 4)), d.floats((2, 4)), d.floats((4,))),
        (1e-6,),
        reference=of_torch(lambda x, y, g, e: (*rms(x + y, g, e), x + y)),
    ),
    "Dropout": lambda d: Case(
        (d.floats(),),
        (1.0,),
        reference=of_torch(lambda x, _: (x, torch.ones_like(x, dtype=torch.bool))),
    ),
    "DropoutExt": lambda d: Case(
        (d.floats(),),
        (0.0,),
        reference=of_torch(lambda x, _: (x, torch.ones_like(x, dtype=torch.bool))),
    ),
    "FuncDropoutExt": lambda d: Case(
        (d.floats(),), (0.5, False), reference=of_torch(lambda x, *_: x)
    ),
    "LSTM": lstm,
    "MatMul": matrices,
    "BatchMatMul": batches,
    "Dense": lambda d: Case(
        (d.floats((3, 4)), d.floats((5, 4)), d.floats((5,))), reference=of_torch(F.linear)
    ),
    "Addmm": partial(added, torch.addmm, ((3, 5), (3, 4), (4, 5))),
    "Addbmm": partial(added, torch.addbmm, ((3, 5), (2, 3, 4), (2, 4, 5))),
    "Outer": product(torch.outer, (3,), (4,)),
    "Dot": product(torch.dot, (3,), (3,)),
    "Einsum": lambda d: Case(
        ((d.floats((2, 3)), d.floats((3, 4))),),
        (),
        {"equation": "ij,jk->ki"},
        lambda pair: np.einsum("ij,jk->ki", *pair),
    ),
    "EinsumExt": lambda d: Case(
        (),
        ("ij,jk->ki", (d.floats((2, 3)), d.floats((3, 4)))),
        reference=lambda equation, pair: np.einsum(equation, *pair),
    ),
    "Cdist": lambda d: Case((d.floats((3, 4)), d.floats((5, 4))), init={"p": d.choice(1.0, 2.0)}),
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), reduction()
    ),
    **dict.fromkeys(("ReduceAll", "ReduceAny"), reduction("bools")),
    "ReduceStd": lambda d: Case(
        (d.floats((3, 4)),), (), {"axis": (1,), "keep_dims": d.flag()}, None
    ),
    "Max": lambda d: Case((d.floats(),), reference=of_torch(torch.max)),
    "Min": lambda d: Case((d.floats(),), reference=of_torch(torch.min)),
    "SumExt": reduction_ext(torch.sum),
    "MeanExt": reduction_ext(torch.mean),
    "ProdExt": reduction_ext(torch.prod),
    "LogSumExp": reduction_ext(torch.logsumexp),
    "Norm": lambda d: Case(
        (d.floats((3, 4)),),
        (d.choice(1.0, 2.0, 3.0, np.inf), (1,), d.flag()),
        reference=of_torch(torch.linalg.vector_norm),
    ),
    "LpNorm": lambda d: Case((d.floats((3, 4)),), (), {"axis": 1, "p": d.choice(1, 2, 3)}),
    "L2Normalize": lambda d: Case((x := d.floats(),), init={"axis": d.axis(x)}),
    "CountNonZero": lambda d: Case(
        (d.whole((3, 4), 0, 1),), (1,), reference=of_torch(torch.count_nonzero)
    ),
    "CumSum": lambda d: Case(
        (x := d.floats(),), (d.axis(x),), {"exclusive": d.flag(), "reverse": d.flag()}
    ),
    "CumsumExt": lambda d: Case(
        (d.choice(d.floats, d.whole)((3, 4)),), (1,), reference=of_torch(torch.cumsum)
    ),
    "Softmax": lambda d: Case((x := d.floats(),), init={"axis": d.axis(x)}),
    "LogSoftmax": lambda d: Case((x := d.floats(),), init={"axis": d.axis(x)}),
    "LogSoftmaxExt": lambda d: Case(
        (x := d.floats(),), (d.axis(x),), reference=of_torch(lambda x, dim: F.log_softmax(x, dim))
    ),
    "Var": partial(corrected, torch.var),
    "Std": partial(corrected, torch.std),
    "VarMean": partial(corrected, torch.var_mean),
    "StdMean": partial(corrected, torch.std_mean),
    "Argmax": extreme(),
    "Argmin": extreme(),
    "ArgMaxWithValue": extreme(keep_dims=True),
    "ArgMinWithValue": extreme(keep_dims=True),
    "ArgMaxExt": partial(extreme_ext, torch.argmax),
    "ArgMinExt": partial(extreme_ext, torch.argmin),
    "MaxDim": partial(extreme_ext, torch.max),
    "MinDim": partial(extreme_ext, torch.min),
    "TopK": top_k,
    "TopkExt": lambda d: Case(
        (x := d.distinct(),), (1, d.axis(x), d.flag(), True), reference=of_torch(torch.topk)
    ),
    "Sort": lambda d: Case((x := d.distinct(),), init={"axis": d.axis(x), "descending": d.flag()}),
    "SortExt": partial(sort_ext, torch.sort),
    "ArgSort": partial(sort_ext, torch.argsort),
}
