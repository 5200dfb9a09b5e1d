"""Videos and PDF files, made for tests, whose frames and pages tell their places."""

import base64
import io

import av
import numpy as np


def video(
    seconds: float = 8,
    form: str = "mp4",
    codec: str = "libx264",
    rate: int = 10,
    size: tuple[int, int] = (64, 48),
) -> bytes:
    """A video that grows evenly from black to white, with a key frame every 30 frames."""
    buffer = io.BytesIO()
    count = int(seconds * rate)
    with av.open(buffer, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = 30
        for index in range(count):
            pixels = np.full((size[1], size[0], 3), index * 255 // count, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def sound() -> bytes:
    """A Matroska file without video."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=16_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1600), np.int16), "s16", "mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()


def pdf(*texts: str, box: str = "0 0 200 100", count: int | None = None) -> bytes:
    """A PDF with a page for each text; `count` is the number of pages that it claims to have."""
    pages = [
        f"<</Type/Page/Parent 2 0 R/MediaBox[{box}]/Contents {4 + 2 * n} 0 R"
        f"/Resources<</Font<</F 3 0 R>>>>>>"
        for n in range(len(texts))
    ]
    kids = " ".join(f"{5 + 2 * n} 0 R" for n in range(len(texts)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(texts) if count is None else count}>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for page, text in zip(pages, texts, strict=True):
        drawing = f"BT /F 24 Tf 10 40 Td ({text}) Tj ET"
        objects += [f"<</Length {len(drawing)}>>stream\n{drawing}\nendstream", page]
    data, offsets = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj{body}endobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    start = data.index("xref\n0")
    data += f"trailer<</Root 1 0 R/Size {len(objects) + 1}>>\nstartxref\n{start}\n%%EOF"
    return data.encode()


def uri(file: bytes, kind: str = "video/mp4") -> str:
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def video_part(file: bytes) -> dict:
    return {"type": "video_url", "video_url": {"url": uri(file)}}


def file_part(file: bytes, name: str | None = None, kind: str = "application/pdf") -> dict:
    return {"type": "file", "file": {"file_data": uri(file, kind), "filename": name}}
