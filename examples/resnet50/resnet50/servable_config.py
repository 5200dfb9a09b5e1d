"""Classify pictures: four ways from JPEG or PNG bytes to classes."""

import io

import numpy as np
from PIL import Image

from mindspore_serving.server import register

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)

model = register.declare_model(model_file="resnet50.mindir", model_format="MindIR")


def decode(image):
    """Picture bytes (a uint8 array here) to float32 (3, 224, 224), normalised."""
    picture = Image.open(io.BytesIO(image.tobytes())).convert("RGB").resize((224, 224))
    return ((np.asarray(picture, np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)


def decode_batch(instances):
    """A function stage with batch_size gets many instances, and yields one result for each."""
    for (image,) in instances:
        yield decode(image)


def top5(logits):
    """The five best classes, as text and as int64 (5,)."""
    classes = np.argsort(-logits)[:5]
    return " ".join(f"class_{index:03}" for index in classes), classes.astype(np.int64)


def run_one(image):
    return top5(model.call(decode(image)))


def run_many(instances):
    """One run of the model for all instances; a list of their results."""
    answers = model.call([[decode(image)] for (image,) in instances])
    return [top5(logits) for (logits,) in answers]


@register.register_method(output_names=["label", "classes"])
def classify_top5(image):
    """Decode in batches, then the model, then the five best."""
    x = register.add_stage(decode_batch, image, outputs_count=1, batch_size=8)
    logits = register.add_stage(model, x, outputs_count=1)
    return register.add_stage(top5, logits, outputs_count=2)


@register.register_method(output_names=["class_id"])
def classify_top1(image):
    """Decode one by one, then the model, then the built-in argmax."""
    x = register.add_stage(decode, image, outputs_count=1)
    logits = register.add_stage(model, x, outputs_count=1)
    return register.add_stage("argmax_cpp", logits, outputs_count=1)


@register.register_method(output_names=["label", "classes"])
def classify_call(image):
    """The model called by the Python stage, one instance at a time."""
    return register.add_stage(run_one, image, outputs_count=2)


@register.register_method(output_names=["label", "classes"])
def classify_call_batch(image):
    """The model called by the Python stage with a batch of instances."""
    return register.add_stage(run_many, image, outputs_count=2, batch_size=4)
