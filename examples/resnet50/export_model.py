"""Write resnet50/1/resnet50.mindir, for any batch size, with seeded random weights.

Random weights answer nonsense, always the same: enough to see speed and plumbing.  For real
answers, load a checkpoint into the network before the export (`mindspore.load_checkpoint`).
"""

import os

# Without this, oneDNN runs convolutions by its slow reference code on many AVX-512 processors.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

from pathlib import Path

import mindspore as ms
import numpy as np
from net import ResNet50

TARGET = Path(__file__).resolve().parent / "resnet50" / "1" / "resnet50"


def centre(net) -> None:
    """Shift the logits to mean 0 over a few coloured patterns, or one class would always win."""
    coarse = np.random.default_rng(50).standard_normal((8, 3, 7, 7), np.float32)
    patterns = coarse.repeat(32, axis=2).repeat(32, axis=3)
    net.classifier.bias.set_data(net.classifier.bias - net(ms.Tensor(patterns)).mean(0))


def main() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(50)
    net = ResNet50().set_train(False)
    centre(net)
    print(f"{sum(weight.size for weight in net.get_parameters()) / 1e6:.1f} million weights")
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    example = ms.Tensor(shape=[None, 3, 224, 224], dtype=ms.float32)
    ms.export(net, example, file_name=str(TARGET), file_format="MINDIR")
    print(f"wrote {TARGET}.mindir")


if __name__ == "__main__":
    main()
