"""Tiny random models whose answers are maps of images, and the pipelines of transformers."""

import io

import numpy as np
import transformers
from PIL import Image

from tests.tasks import checkpoints

SQUARE = {"size": {"height": 32, "width": 32}}
SIDES = {"size": {"shortest_edge": 48, "longest_edge": 80}}
SIZED = {"GLPN": {"size_divisor": 32}, "Beit": {**SQUARE, "do_center_crop": False},
         "MaskFormer": SIDES, "Mask2Former": SIDES, "OneFormer": SIDES,
         "Eomt": {"size": {"shortest_edge": 32, "longest_edge": 32}, "do_pad": True}}  # fmt: skip


def build(directory, row, **entries):
    name, sizes, processor = row
    checkpoints.save(directory, getattr(transformers, name), {**sizes, **entries})
    getattr(transformers, f"{processor}ImageProcessorPil")(
        **SIZED.get(processor, SQUARE)
    ).save_pretrained(directory)
    return directory


def pipeline(task, directory, head):
    processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
    model = getattr(transformers, head).from_pretrained(directory, attn_implementation="eager")
    return transformers.pipeline(task, model=model.eval(), image_processor=processor)


def random_image(seed, size):
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def levels(file):
    with Image.open(io.BytesIO(file)) as image:
        assert image.format == "PNG"
        return np.asarray(image)
