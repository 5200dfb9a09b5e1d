"""Read handwritten digits: PNG bytes in, digit out."""

import io

import numpy as np
from PIL import Image

from mindspore_serving.server import register

# Exported for batches of 16: the server fills them with instances of any waiting requests.
model = register.declare_model(model_file="lenet.mindir", model_format="MindIR")


def preprocess(image):
    """Image bytes (a uint8 array here) to float32 of shape (1, 32, 32) in 0..1."""
    picture = Image.open(io.BytesIO(image.tobytes())).convert("L").resize((32, 32), Image.BILINEAR)
    return np.asarray(picture, np.float32)[None] / 255


def postprocess(logits):
    """Logits of one digit to the digit as text and its probability."""
    odds = np.exp(logits - logits.max())
    best = int(odds.argmax())
    return str(best), float(odds[best] / odds.sum())


@register.register_method(output_names=["digit"])
def predict(image):
    """image: bytes of a PNG or JPEG.  digit: int64, found by the built-in argmax."""
    x = register.add_stage(preprocess, image, outputs_count=1)
    logits = register.add_stage(model, x, outputs_count=1)
    return register.add_stage("argmax_cpp", logits, outputs_count=1)


@register.register_method(output_names=["digit", "probability"])
def classify(image):
    """image: bytes of a PNG or JPEG.  digit: str; probability: float64 in 0..1."""
    x = register.add_stage(preprocess, image, outputs_count=1)
    logits = register.add_stage(model, x, outputs_count=1)
    digit, probability = register.add_stage(postprocess, logits, outputs_count=2)
    return digit, probability
