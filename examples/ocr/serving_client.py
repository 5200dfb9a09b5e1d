"""Read an image into text over gRPC, that of a file or one that is drawn here."""

import io
import os
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
LINES = ("MindSpore Serving reads text", "invoice 2026-117", "total 1,234.50 EUR")


def draw() -> bytes:
    """Draw a PNG of LINES, of which the last is upside down."""
    image = Image.new("RGB", (640, 240), "white")
    font = ImageFont.load_default(32)
    for row, text in enumerate(LINES):
        line = Image.new("RGB", (600, 48), "white")
        ImageDraw.Draw(line).text((8, 4), text, "black", font)
        line = line.rotate(180) if row == len(LINES) - 1 else line
        image.paste(line, (20, 20 + 68 * row))
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def main() -> None:
    content = Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else draw()
    (answer,) = Client(GRPC, "ocr", "read").infer({"image": content})
    rows = zip(answer["text"].split("\n"), answer["boxes"], answer["scores"], strict=True)
    for text, box, score in rows:
        print(f"{score:.2f}  {box.astype(int).tolist()}  {text}")


if __name__ == "__main__":
    main()
