"""PP-OCRv5: an image in, its lines of text out, by detection - direction - recognition.

Lines are horizontal boxes; text at other angles is not straightened, but upside-down lines are
turned.  The channels are blue, green, red, as in the training of these models.
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from mindspore_serving.server import register

MAX_SIDE = 960  # pixels of the image for detection
MAX_PIXELS = 40_000_000
THRESHOLD = 0.3  # of the probability that a pixel is text
MIN_SCORE = 0.6  # of the mean of a line
GROWTH = 1.5  # the model finds the core of a line: area / perimeter, times this, is added
HEIGHT = 48  # pixels of a line for direction and recognition
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)

characters = ["", *Path(__file__).with_name("1").joinpath("characters.txt").read_text().split("\n")]
characters = [*characters[:-1], " "]

detection = register.declare_model("detection.onnx", "ONNX")
direction = register.declare_model("direction.onnx", "ONNX")
recognition = register.declare_model("recognition.onnx", "ONNX")


def decode(image):
    """Bytes of PNG, JPEG or the like to uint8 [height, width, 3], and the input of detection."""
    opened = Image.open(io.BytesIO(bytes(image)))
    if opened.width * opened.height > MAX_PIXELS:
        raise ValueError(f"{opened.width} x {opened.height} pixels, at most {MAX_PIXELS} are read")
    pixels = opened.convert("RGB")
    scale = min(1.0, MAX_SIDE / max(pixels.size))
    size = [max(32, round(side * scale / 32) * 32) for side in pixels.size]
    small = np.asarray(pixels.resize(size, Image.Resampling.BILINEAR), np.float32)[..., ::-1]
    network = ((small / 255 - MEAN) / STD).transpose(2, 0, 1)
    return np.asarray(pixels), np.ascontiguousarray(network)


def find_lines(pixels, probabilities):
    """Probabilities [1, h, w] of text to boxes [n, 4] in pixels: left, top, right, bottom."""
    (chances,) = probabilities
    labels, count = ndimage.label(chances > THRESHOLD, np.ones((3, 3)))
    scores = ndimage.mean(chances, labels, range(1, count + 1))
    scale = np.array(pixels.shape[1::-1] * 2) / (chances.shape[::-1] * 2)
    limit = np.array(pixels.shape[1::-1] * 2)
    boxes = []
    for score, (rows, columns) in zip(scores, ndimage.find_objects(labels), strict=True):
        width, height = columns.stop - columns.start, rows.stop - rows.start
        if score < MIN_SCORE or min(width, height) < 3:
            continue
        more = GROWTH * width * height / (2 * (width + height))
        core = np.array([columns.start, rows.start, columns.stop, rows.stop])
        boxes.append(np.clip((core + [-more, -more, more, more]) * scale, 0, limit))
    boxes.sort(key=lambda box: (box[1] + box[3]) / 2)
    return np.array(_in_reading_order(boxes), np.float32).reshape(-1, 4)


def _in_reading_order(boxes):
    """Sort boxes, which are ordered by their centres, from left to right in each row."""
    rows = []
    for box in boxes:
        if rows and (box[1] + box[3]) / 2 < rows[-1][0][3]:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [box for row in rows for box in sorted(row, key=lambda box: box[0])]


def to_line(line, width):
    """Scale a line to the height of the models and at most `width`: float32 [3, 48, width]."""
    used = min(width, max(1, round(HEIGHT * line.shape[1] / line.shape[0])))
    image = Image.fromarray(line).resize((used, HEIGHT), Image.Resampling.BILINEAR)
    padded = np.zeros((HEIGHT, width, 3), np.float32)
    padded[:, :used] = np.asarray(image, np.float32)[..., ::-1] / 127.5 - 1
    return np.ascontiguousarray(padded.transpose(2, 0, 1))


def to_text(chances):
    """Chances [steps, characters] to a text and the mean chance of its characters."""
    best = chances.argmax(1)
    is_new = (best != 0) & (best != np.r_[0, best[:-1]])
    score = float(chances.max(1)[is_new].mean()) if is_new.any() else 0.0
    return "".join(characters[index] for index in best[is_new]), score


def read_lines(pixels, boxes):
    """Read the text in each box; all lines go to the models together."""
    lines = []
    for left, top, right, bottom in boxes.astype(int):
        line = pixels[top : bottom + 1, left : right + 1]
        lines.append(np.rot90(line) if line.shape[0] > 1.5 * line.shape[1] else line)
    if not lines:
        return "", np.zeros(0, np.float32)
    turned = direction.call([[to_line(line, 192)] for line in lines])
    lines = [
        np.rot90(line, 2) if chances[1] > 0.9 else line
        for line, (chances,) in zip(lines, turned, strict=True)
    ]
    lines = [np.ascontiguousarray(line) for line in lines]
    # Lines of one width share a batch.
    widths = [-(-HEIGHT * line.shape[1] // line.shape[0] // 160) * 160 for line in lines]
    inputs = [[to_line(line, min(width, 3200))] for line, width in zip(lines, widths, strict=True)]
    read = [to_text(chances) for (chances,) in recognition.call(inputs)]
    return "\n".join(text for text, _ in read), np.array([score for _, score in read], np.float32)


@register.register_method(output_names=["text", "boxes", "scores"])
def read(image: bytes):
    """Read an image, as PNG or JPEG: its lines, their boxes in pixels, and their scores."""
    pixels, network = register.add_stage(decode, image, outputs_count=2)
    probabilities = register.add_stage(detection, network, outputs_count=1)
    boxes = register.add_stage(find_lines, pixels, probabilities, outputs_count=1)
    text, scores = register.add_stage(read_lines, pixels, boxes, outputs_count=2)
    return text, boxes, scores
