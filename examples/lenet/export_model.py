"""Train LeNet-5 on handwritten digits, write lenet/1/lenet.mindir and the held-out test_images/."""

import os

# Without this, oneDNN runs convolutions by its slow reference code on many AVX-512 processors.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

from pathlib import Path

import mindspore as ms
import numpy as np
from digits import load_split, save_images, shift
from mindspore import nn
from net import LeNet5

HERE = Path(__file__).resolve().parent
EPOCHS, BATCH, SERVED_BATCH = 10, 32, 16


def to_tensor(images):
    return ms.Tensor(images[:, None].astype(np.float32) / 255)


def train(net, images, labels):
    steps = len(images) // BATCH
    rate = nn.cosine_decay_lr(0.0, 3e-3, EPOCHS * steps, steps, EPOCHS)
    optimizer = nn.Adam(net.trainable_params(), rate)
    loss = nn.WithLossCell(net, nn.CrossEntropyLoss(label_smoothing=0.1))
    step = nn.TrainOneStepCell(loss, optimizer).set_train()
    rng = np.random.default_rng(0)
    for epoch in range(1, EPOCHS + 1):
        order = rng.permutation(len(images))[: steps * BATCH].reshape(-1, BATCH)
        losses = [
            step(to_tensor(shift(images[rows], rng)), ms.Tensor(labels[rows], ms.int32)).asnumpy()
            for rows in order
        ]
        print(f"epoch {epoch:2}/{EPOCHS}: loss {np.mean(losses):.4f}", flush=True)
    net.set_train(False)


def main() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(0)
    train_images, test_images, train_labels, test_labels = load_split()
    net = LeNet5()
    train(net, train_images, train_labels)
    right = net(to_tensor(test_images)).asnumpy().argmax(1) == test_labels
    print(f"accuracy on {len(right)} held-out digits: {right.mean():.2%}")

    save_images(HERE / "test_images", test_images, test_labels)
    target = HERE / "lenet" / "1" / "lenet"
    target.parent.mkdir(parents=True, exist_ok=True)
    example = ms.Tensor(np.zeros((SERVED_BATCH, 1, 32, 32), np.float32))
    ms.export(net, example, file_name=str(target), file_format="MINDIR")
    print(f"wrote {target}.mindir and {len(test_images)} images")


if __name__ == "__main__":
    main()
