"""Settings of convolution layers that are swept.  Imported where MindSpore is installed."""

from itertools import combinations, product

import numpy as np
from mindspore import Parameter, Tensor, mint, nn

RANDOM = np.random.default_rng(7)
IN, OUT = 4, 6


def settings(**choices):
    """Every combination of the choices."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def _padded(rows, pads):
    """`rows`, and those with pad_mode "pad" once for each of `pads`."""
    return [
        {**row, "padding": pad}
        for row in rows
        for pad in (pads if row["pad_mode"] == "pad" else (0,))
    ]


def _forward(count, pads):
    rows = settings(
        kernel_size=(1, 2, 3) if count < 3 else (2, 3),
        stride=(1, 2),
        dilation=(1, 2) if count < 3 else (1,),
        pad_mode=("same", "valid", "pad"),
        group=(1, 2) if count < 3 else (1,),
        has_bias=(True,),
    )
    return _padded(rows, pads)


def _transposed(count, pads):
    rows = settings(
        kernel_size=(2, 3, 4),
        stride=(1, 2, 3),
        dilation=(1, 2) if count < 3 else (1,),
        pad_mode=("same", "valid", "pad"),
        group=(1, 2) if count < 3 else (1,),
        has_bias=(True,),
    )
    return _padded(rows, pads)


def _with_output_padding(count):
    return settings(
        kernel_size=(3, 4),
        stride=(2, 3),
        pad_mode=("pad",),
        padding=(1,),
        output_padding=(1,),
        group=(1, 2) if count < 3 else (1,),
    )


LAYERS = {
    "Conv1d": (nn.Conv1d, (7,), _forward(1, (0, 1))),
    "Conv2d": (nn.Conv2d, (7, 8), _forward(2, (0, 1, (1, 0, 2, 1)))),
    "Conv2d with uneven kernels": (
        nn.Conv2d,
        (9, 8),
        settings(kernel_size=((1, 3), (4, 2)), stride=((2, 1), (1, 3)), pad_mode=("same", "valid")),
    ),
    "Conv3d": (nn.Conv3d, (5, 6, 4), _forward(3, (0, 1, (1, 0, 2, 1, 0, 1)))),
    "Conv1dTranspose": (nn.Conv1dTranspose, (5,), _transposed(1, (0, 1))),
    "Conv2dTranspose": (nn.Conv2dTranspose, (5, 4), _transposed(2, (0, 1, (1, 0, 1, 0)))),
    "Conv2dTranspose with output padding": (nn.Conv2dTranspose, (5, 4), _with_output_padding(2)),
    "Conv2dTranspose with uneven kernels": (
        nn.Conv2dTranspose,
        (5, 4),
        settings(kernel_size=((1, 3), (4, 2)), stride=((2, 1), (1, 3)), pad_mode=("same", "valid")),
    ),
    "Conv3dTranspose": (nn.Conv3dTranspose, (3, 4, 3), _transposed(3, (0, 1, (1, 0, 1, 0, 1, 0)))),
    "Conv3dTranspose with output padding": (
        nn.Conv3dTranspose,
        (3, 4, 3),
        _with_output_padding(3),
    ),
}
"""Layer, spatial sizes of the input, settings."""


def covering(settings, count=3):
    """A few of `settings` in which any `count` choices occur together that do so in all."""
    groups = [{frozenset(some) for some in combinations(row.items(), count)} for row in settings]
    chosen, missing = [], set().union(*groups)
    while missing:
        place = max(range(len(groups)), key=lambda one: len(groups[one] & missing))
        chosen.append(settings[place])
        missing -= groups[place]
    return chosen


class Swept(nn.Cell):
    """Layers on one input; `results` says what each gives."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.CellList(layers)

    def construct(self, x):
        results = ()
        for layer in self.layers:
            results += (layer(x),)
        return results


def made(kind, setting):
    """The layer with random weights, None where MindSpore refuses the setting."""
    try:
        layer = kind(IN, OUT, **setting)
    except (ValueError, TypeError):
        return None
    for parameter in layer.trainable_params():
        array = RANDOM.standard_normal(parameter.shape).astype(np.float32)
        parameter.set_data(Tensor(array))
    return layer


__all__ = ["LAYERS", "Parameter", "Swept", "covering", "made", "mint", "settings"]
