"""Scikit-learn's 1797 handwritten digits as 32x32 grey images, a fifth of them held out."""

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_split():
    """Training images, held-out images (uint8, N x 32 x 32), training labels, held-out labels."""
    digits = load_digits()  # 8x8, values 0..16
    small = [Image.fromarray((image * 255 / 16).astype(np.uint8)) for image in digits.images]
    images = np.stack([np.asarray(image.resize((32, 32), Image.BILINEAR)) for image in small])
    return train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )


def shift(images, rng):
    """The images moved by up to three pixels: variety for the training."""
    return np.roll(images, rng.integers(-3, 4, 2), axis=(1, 2))


def save_images(directory, images, labels):
    """One PNG file per image, its label in its name: 007_is_3.png."""
    directory.mkdir(exist_ok=True)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(directory / f"{index:03}_is_{label}.png")
