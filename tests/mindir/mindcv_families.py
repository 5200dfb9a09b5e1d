"""The model families of mindcv: a published network of each, made small, with random weights."""

import importlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Family:
    """`name` is the published network that is tried; `size` its pictures' sides in pixels.

    `changes` are arguments of the network's class that are given in place of the published ones;
    of a network that cannot be made small by them, the cells `first` are tried alone, one after
    another: "blocks:3" are the first three of the sequence `blocks`.
    """

    name: str
    size: int = 64
    class_name: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    first: str = ""
    gain: float = 2.0


STEM = "conv1 bn1 relu max_pool layer1 layer2"
SWIN = {"image_size": 64, "window_size": 4, "depths": [2, 2], "num_heads": [3, 6]}
STAGE = {"num_modules": 1, "block": "BASIC"}
HRNET = {
    f"stage{count}": {
        **STAGE,
        "num_branches": count,
        "num_blocks": [1] * count,
        "num_channels": [8, 16, 32, 64][:count],
    }
    for count in range(1, 5)
}
FAMILIES = {
    "bit": Family("BiT_resnet50", 32, first="layer1 layer2"),
    "cait": Family("cait_xxs24_224", 32, "CaiT", {"img_size": 32}),
    "cmt": Family("cmt_tiny", 64, "CMT", {"img_size": 64}),
    "coat": Family("coat_lite_tiny", 64, "CoaT", {"image_size": 64}),
    "convit": Family("convit_tiny", 224),
    "convnext": Family("convnextv2_atto"),
    "crossvit": Family(
        "crossvit_9", 64, "VisionTransformer", {"depth": [[1, 1, 0]], "img_size": [48, 32]}
    ),
    "densenet": Family("densenet121", 64, "DenseNet", {"block_config": (2, 2)}),
    "dpn": Family("dpn92", 64, "DPN", {"k_sec": (1, 1, 1, 1)}),
    "edgenext": Family("edgenext_xx_small"),
    "efficientnet": Family("efficientnet_b0", first="features:5"),
    "ghostnet": Family("ghostnet_050", first="conv_stem bn1 act1 blocks:5"),
    "googlenet": Family(
        "googlenet", first="conv1 maxpool1 conv2 conv3 maxpool2 inception3a maxpool3"
    ),
    "halonet": Family("halonet_50t", 128),
    "hrnet": Family("hrnet_w32", 64, "HRNet", {"stage_cfg": HRNET}),
    "inceptionv3": Family("inception_v3", 96),
    "inceptionv4": Family("inception_v4", 96, first="features:5"),
    "mae": Family("mae_b_16_224_finetune", 32, "VisionTransformer", {"image_size": 32}),
    "mixnet": Family("mixnet_s", first="stem_conv layers:5"),
    "mlpmixer": Family("mlp_mixer_s_p32", 64, "MLPMixer", {"n_patches": 4}),
    "mnasnet": Family("mnasnet_050", first="features:12"),
    "mobilenetv1": Family("mobilenet_v1_025"),
    "mobilenetv2": Family("mobilenet_v2_035_96", first="features:8"),
    "mobilenetv3": Family("mobilenet_v3_small_075", first="features:9"),
    "mobilevit": Family("mobilevit_xx_small", first="conv_1 layer_1 layer_2 layer_3"),
    "nasnet": Family("nasnet_a_4x1056"),
    "pit": Family("pit_ti", 64, "PoolingTransformer", {"image_size": 64}),
    "pnasnet": Family("pnasnet"),
    "poolformer": Family("poolformer_s12"),
    "pvt": Family("pvt_tiny", 64, "PyramidVisionTransformer", {"img_size": 64}),
    "pvtv2": Family("pvt_v2_b0", 64, "PyramidVisionTransformerV2", {"img_size": 64}),
    "regnet": Family("regnet_y_200mf", 64, "RegNet", {"d": 4}),
    "repmlp": Family("repmlp_t224", 64, "RepMLPNet", {"hs": (16, 8, 4, 2), "ws": (16, 8, 4, 2)}),
    "repvgg": Family("repvgg_a0"),
    "res2net": Family("res2net50", first=STEM),
    "resnest": Family("resnest14", first=STEM.replace("max_", "max")),
    "resnet": Family("resnet18"),
    "resnetv2": Family("resnetv2_50", first=STEM),
    "rexnet": Family("rexnet_09", first="stem features:5"),
    "senet": Family("seresnet18"),
    "shufflenetv1": Family("shufflenet_v1_g3_05"),
    "shufflenetv2": Family("shufflenet_v2_x0_5"),
    "sknet": Family("skresnet18", first=STEM),
    "squeezenet": Family("squeezenet1_1"),
    "swintransformer": Family("swin_tiny", 64, "SwinTransformer", SWIN),
    "swintransformerv2": Family(
        *(
            "swinv2_tiny_window8",
            64,
            "SwinTransformerV2",
            {**SWIN, "pretrained_window_sizes": [0, 0]},
        )
    ),
    "vgg": Family("vgg11", first="features"),
    "visformer": Family("visformer_tiny", 64, "Visformer", {"img_size": 64}),
    "vit": Family("vit_b_32_224", 64, "VisionTransformer", {"image_size": 64}),
    "volo": Family("volo_d1", 64, "VOLO", {"img_size": 64}),
    "xception": Family("xception", first="conv1 bn1 relu conv2 bn2 relu blocks:2"),
    "xcit": Family("xcit_tiny_12_p16_224", 64, "XCiT", {"img_size": 64}),
}


def build(module_name: str, family: Family) -> Any:
    """The network, in which neighbours of one shape are one block, with random weights."""
    module = importlib.import_module(f"mindcv.models.{module_name}")
    with _without_initial_weights(), _changed(module, family):
        network = getattr(module, family.name)(num_classes=10)
    network.set_train(False)
    thin(network)
    if family.first:
        network = _first(network, family.first.split())
    randomize(network, family.gain)
    return network


def _first(network, names):
    from mindspore import nn

    cells = []
    for name in names:
        name, _, count = name.partition(":")
        cell = getattr(network, name)
        cells += list(cell)[: int(count)] if count else [cell]
    return nn.SequentialCell(cells).set_train(False)


@contextmanager
def _changed(module, family):
    """The class of the network takes the family's changes in place of what it is given."""
    if not family.class_name:
        yield
        return
    made = getattr(module, family.class_name)

    def make(*arguments, **named):
        setattr(module, family.class_name, made)  # its methods name it
        return made(*arguments, **{**named, **family.changes})

    setattr(module, family.class_name, make)
    try:
        yield
    finally:
        setattr(module, family.class_name, made)


@contextmanager
def _without_initial_weights():
    """Weights begin as zeros: the random ones of networks take long, and are replaced."""
    from mindspore.common import initializer

    classes = [
        one
        for one in vars(initializer).values()
        if isinstance(one, type) and "_initialize" in vars(one)
    ]
    kept = [one._initialize for one in classes]
    for one in classes:
        one._initialize = lambda self, arr: arr.fill(0)
    try:
        yield
    finally:
        for one, method in zip(classes, kept, strict=True):
            one._initialize = method


def thin(network):
    """Leave one of neighbours in a sequence whose parameters have the same shapes."""
    from mindspore import nn

    for _, cell in network.cells_and_names():
        if not isinstance(cell, nn.SequentialCell | nn.CellList):
            continue
        kept, before = [], None
        for part in cell:
            form = (type(part), [parameter.shape for parameter in part.get_parameters()])
            if form != before or len(list(part.cells())) < 2:  # no block
                kept.append(part)
            before = form
        while len(cell) > len(kept):
            del cell[len(cell) - 1]
        for number, part in enumerate(kept):
            cell[number] = part


def randomize(network, gain):
    """Weights that keep what passes through them in size; nothing is zero or constant."""
    from mindspore import Tensor

    random = np.random.default_rng(0)
    for name, parameter in network.parameters_and_names():
        is_moving = "moving_" in name
        if "Float" not in str(parameter.dtype) or not (parameter.requires_grad or is_moving):
            continue
        shape = parameter.shape
        if name.endswith(("gamma", "moving_variance")):
            values = random.uniform(0.7, 1.3, shape)
        elif len(shape) > 1:
            values = random.standard_normal(shape) * np.sqrt(gain / np.prod(shape[1:]))
        else:
            values = random.uniform(-0.1, 0.1, shape)
        parameter.set_data(Tensor(values.astype(np.float32)))
